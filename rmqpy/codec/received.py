"""Records of a broker's response, which are decoded when a client reads them.

A record is checked completely at once: whatever :func:`rmqpy.codec.message.decode_message` refuses
is refused here. Most readers need its body only, so all fields but those in ``read_record`` wait
for their first use.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.model.message import StoredMessage

_HEAD: Final = Struct(">iI12xq8xi44xi")
"""Size, magic, queue offset, sysFlag, and body length of a record with IPv4 hosts."""

_BODY: Final = layout.BODY_POSITIONS[0]
assert _HEAD.size == _BODY


def decode_records(body: bytes) -> tuple[list[StoredMessage], InvalidRecordError | None]:
    """Return the records of a response body, and the error at which decoding stopped, if any."""
    records: list[StoredMessage] = []
    position = 0
    while position < len(body):
        try:
            record = read_record(body, position)
        except InvalidRecordError as fault:
            return records, fault
        records.append(record)
        position += record.size
    return records, None


def read_record(data: bytes, position: int) -> StoredMessage:
    """Return the record at ``position``. Only its size, queue offset, flags, and body are decoded
    now; it keeps a copy of its bytes until another field is read.

    Raises InvalidRecordError as :func:`rmqpy.codec.message.decode_message`.
    """
    if len(data) - position < layout.RECORD_SIZE_MIN:
        return decode_message(data, position)  # This raises.
    size, magic, queue_offset, sys_flag, body_length = _HEAD.unpack_from(data, position)
    start = position + _BODY
    end, body_end = position + size, start + body_length
    if (
        magic != layout.MESSAGE_MAGIC_V1
        or sys_flag & layout.HOSTS_V6
        or body_length < 0
        or body_end + 3 > end
        or end > len(data)
    ):
        return decode_message(data, position)
    topic_end = body_end + 1 + data[body_end]
    if (
        data[body_end] > layout.TOPIC_BYTES_MAX
        or topic_end + 2 > end
        or topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) != end
        or data[topic_end] > 0x7F
    ):
        return decode_message(data, position)
    record = _new(StoredMessage)
    _set(record, "size", size)
    _set(record, "queue_offset", queue_offset)
    _set(record, "sys_flag", sys_flag)
    _set(record, "body", data[start:body_end])
    _set(record, "_source", (decode_message, data[position:end]))
    return record


_new: Final = object.__new__
_set: Final = object.__setattr__  # StoredMessage is frozen.
