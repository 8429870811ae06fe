"""The records of a broker's response.

Most readers of a message need its body only, so ``received_records`` checks each record completely
(whatever :func:`rmqpy.codec.message.decode_message` refuses is refused here), but cuts out only
what every reader needs. It exists in C too (:mod:`rmqpy.codec.backend`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from attrs import field

from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.message import StoredMessage
from rmqpy.model.values import define

_HEAD: Final = Struct(">iI12xq8xi44xi")
"""Size, magic, queue offset, sysFlag, and body length of a record with IPv4 hosts."""

_BODY: Final = layout.BODY_POSITIONS[0]
assert _HEAD.size == _BODY


@define(slots=True)
class ReceivedRecords:
    """Columns of valid records: their bytes, queue offsets, and bodies as they are stored.
    ``compressed`` has 1 for a compressed body, otherwise 0.
    """

    records: list[bytes] = field(factory=list)
    queue_offsets: list[int] = field(factory=list)
    compressed: list[int] = field(factory=list)
    bodies: list[bytes] = field(factory=list)

    def add(self, data: bytes, position: int) -> int:
        """Add the record at ``position`` and return its end. Raises InvalidRecordError as
        :func:`rmqpy.codec.message.decode_message`.
        """
        end, queue_offset, sys_flag, start, body_end = _places(data, position)
        self.records.append(data[position:end])
        self.queue_offsets.append(queue_offset)
        self.compressed.append(sys_flag & COMPRESSED)
        self.bodies.append(data[start:body_end])
        return end

    def extend(self, others: ReceivedRecords) -> None:
        """Add the records of ``others``."""
        self.records += others.records
        self.queue_offsets += others.queue_offsets
        self.compressed += others.compressed
        self.bodies += others.bodies


def received_records(body: bytes) -> tuple[ReceivedRecords, InvalidRecordError | None]:
    """Return the records of a response body, and the error at which reading stopped, if any."""
    found = ReceivedRecords()
    position = 0
    while position < len(body):
        try:
            position = found.add(body, position)
        except InvalidRecordError as fault:
            return found, fault
    return found, None


def decode_records(body: bytes) -> tuple[list[StoredMessage], InvalidRecordError | None]:
    """Return the decoded records of a response body, and the error at which decoding stopped, if
    any.
    """
    records: list[StoredMessage] = []
    position = 0
    while position < len(body):
        try:
            record = decode_message(body, position)
        except InvalidRecordError as fault:
            return records, fault
        records.append(record)
        position += record.size
    return records, None


def _places(data: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Return the end, queue offset, and sysFlag of the record at ``position``, and the start and
    end of its body.
    """
    if len(data) - position >= layout.RECORD_SIZE_MIN:
        size, magic, queue_offset, sys_flag, body_length = _HEAD.unpack_from(data, position)
        start = position + _BODY
        end, body_end = position + size, start + body_length
        if (
            magic == layout.MESSAGE_MAGIC_V1
            and not sys_flag & layout.HOSTS_V6
            and body_length >= 0
            and body_end + 3 <= end <= len(data)
            and data[body_end] <= layout.TOPIC_BYTES_MAX
        ):
            topic_end = body_end + 1 + data[body_end]
            if (
                topic_end + 2 <= end
                and topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) == end
                and data[topic_end] <= 0x7F
            ):
                return end, queue_offset, sys_flag, start, body_end
    record = decode_message(data, position)  # A record of another form, or an invalid one.
    start = position + layout.BODY_POSITIONS[record.sys_flag & layout.HOSTS_V6]
    return (
        position + record.size,
        record.queue_offset,
        record.sys_flag,
        start,
        start + len(record.body),
    )
