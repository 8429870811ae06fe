"""Records of a broker's response, which are decoded when a client reads them.

A record is checked completely at once: whatever :func:`rmqpy.codec.message.decode_message` refuses
is refused here. Most readers need its body only, so all fields but those in ``record_at`` wait for
their first use. ``decode_records`` exists in C too (:mod:`rmqpy.codec.backend`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.model.message import DecodedLater, StoredMessage, slot_setter

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
    return record_at(data, position, size, queue_offset, sys_flag, start, body_length)


def record_at(
    data: bytes,
    start: int,
    size: int,
    queue_offset: int,
    sys_flag: int,
    body: int,
    body_length: int,
) -> StoredMessage:
    """Return the valid record at ``start``, whose body begins at the position ``body``. Its other
    fields are decoded later.
    """
    record = _new(StoredMessage)
    _set_size(record, size)
    _set_queue_offset(record, queue_offset)
    _set_sys_flag(record, sys_flag)
    _set_body(record, data[body : body + body_length])
    _set_source(record, (decode_message, data[start : start + size]))
    return record


_new: Final = object.__new__
_set_size: Final = slot_setter(StoredMessage, "size")
_set_queue_offset: Final = slot_setter(StoredMessage, "queue_offset")
_set_sys_flag: Final = slot_setter(StoredMessage, "sys_flag")
_set_body: Final = slot_setter(StoredMessage, "body")
_set_source: Final = slot_setter(DecodedLater, "_source")
