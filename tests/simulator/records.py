"""Message records and entries as the checkers read them.

They are decoded with ``struct`` alone, so that an error in ``codec`` cannot hide itself.
"""

from __future__ import annotations

import json
from struct import Struct
from zlib import crc32

from attrs import define

_HEAD = Struct(">IIIIIqqIq")
_LENGTH = Struct(">I")
_ENTRY = Struct(">iiqqq")
ENTRY_HEADER_BYTES = 48
MESSAGE_MAGIC = 0xDAA320A7
QUEUE_OFFSET_AT = 20
BODY_AT = 88
TRANSACTION_TYPE, NOT_QUEUED = 0x0C, (0x04, 0x0C)


@define(slots=True, frozen=True)
class MessageRecord:
    """One message record: the positions that it states, and its content."""

    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    queued: bool
    """Whether the message belongs in a queue."""

    body: int
    """The checksum of the body."""

    whole: bool
    """Whether the body has the checksum that the record states."""


def record_at(data: memoryview | bytes, at: int) -> MessageRecord | None:
    """Return the record that starts at ``at``, or None."""
    if at + BODY_AT > len(data):
        return None
    size, magic, crc, queue_id, _, queue_offset, position, flag, _ = _HEAD.unpack_from(data, at)
    if magic != MESSAGE_MAGIC or at + size > len(data):
        return None
    (length,) = _LENGTH.unpack_from(data, at + 84)
    end = at + BODY_AT + length
    checksum = crc32(data[at + BODY_AT : end])
    topic = bytes(data[end + 1 : end + 1 + data[end]])
    whole = not length or checksum & 0x7FFFFFFF == crc
    queued = flag & TRANSACTION_TYPE not in NOT_QUEUED
    return MessageRecord(size, topic, queue_id, queue_offset, position, queued, checksum, whole)


def records_in(body: bytes) -> list[MessageRecord]:
    """Return all records of the answer to a pull."""
    found, at = [], 0
    while at < len(body):
        record = record_at(body, at)
        assert record is not None, f"no record at {at} of {len(body)} bytes"
        found.append(record)
        at += record.size
    return found


@define(slots=True, frozen=True)
class LedgerEntry:
    """The header of one entry, and a checksum of the bytes after it."""

    index: int
    term: int
    position: int
    size: int
    content: int


def entry_at(data: memoryview, at: int, position: int) -> LedgerEntry | None:
    """Return the entry at ``at`` of its file and ``position`` of the log, or None."""
    if at + ENTRY_HEADER_BYTES > len(data):
        return None
    magic, size, index, term, stated = _ENTRY.unpack_from(data, at)
    if magic != 1 or size < ENTRY_HEADER_BYTES or at + size > len(data) or stated != position:
        return None
    return LedgerEntry(
        index, term, position, size, crc32(data[at + ENTRY_HEADER_BYTES : at + size])
    )


def body_of(frame: bytes) -> dict[str, int]:
    """Return the JSON body of the first frame."""
    length = int.from_bytes(frame[:4])
    header = int.from_bytes(frame[4:8]) & 0xFFFFFF
    body: dict[str, int] = json.loads(frame[8 + header : 4 + length])
    return body
