"""An independent check of a store directory: it reads every file only with ``struct`` and reports
contradictions.

The check shares no code with :mod:`rmqpy.codec` and :mod:`rmqpy.store`, so that a mistake there is
not repeated here. It is meant for stores of Java or rmqpy whose broker was stopped cleanly. It
checks that

* every record parses, its CRC is correct, and its physical offset is its position (DLedger: entry
  position + 48);
* a file ends with records, then a filler of exactly the rest, or zeros (only the last file);
* DLedger entries are at the positions in their headers and have consecutive indexes;
* queue offsets of each queue are dense;
* every consume queue unit points to the message of that topic, queue, and queue offset, and every
  message has one.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
ENTRY_MAGIC = 1
ENTRY_BLANK_MAGIC = -1
ENTRY_HEADER_BYTES = 48
UNIT_BYTES = 20
UNUSED_SLOT_SIZE = 0x7FFFFFFF
TRANSACTION_TYPE = 0x0C
PREPARED, ROLLBACK = 0x04, 0x0C
BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20


@define(frozen=True, kw_only=True)
class FoundMessage:
    """One message record as it is on disk."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    body: bytes
    properties: dict[str, str]

    @property
    def queued(self) -> bool:
        """True if the message belongs in a queue; half and rolled-back messages do not."""
        return self.sys_flag & TRANSACTION_TYPE not in (PREPARED, ROLLBACK)


@define
class StoreReading:
    """The messages of a store in log order, and its problems, one sentence each."""

    messages: list[FoundMessage] = field(factory=list)
    problems: list[str] = field(factory=list)
    entry_indexes: list[int] = field(factory=list)

    def bodies(self, topic: str) -> list[bytes]:
        return [message.body for message in self.messages if message.topic == topic]


class _UnreadableError(ValueError):
    pass


def read_store(root: Path) -> StoreReading:
    """Read and check the store below ``root`` (storePathRootDir)."""
    reading = StoreReading()
    _read_classic(root / "commitlog", reading)
    for data in sorted(root.glob("dledger-*/data")):
        _read_entries(data, reading)
    _check_queues(root / "consumequeue", reading)
    return reading


def _files(folder: Path) -> Iterator[tuple[int, bytes]]:
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            yield int(file.name), file.read_bytes()


def _read_classic(folder: Path, reading: StoreReading) -> None:
    ended_at: int | None = None
    for base, data in _files(folder):
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic == BLANK_MAGIC:
                if size != len(data) - at:
                    reading.problems.append(
                        f"filler at {base + at} says {size}, the file has {len(data) - at} left"
                    )
                at = len(data)
            elif size == 0 and magic == 0:
                ended_at = base + at if ended_at is None else ended_at
                break
            else:
                if ended_at is not None:
                    reading.problems.append(f"record at {base + at} after the end {ended_at}")
                    return
                record_end = _add_record(data, at, base + at, reading)
                if record_end is None:
                    return
                at = record_end


def _read_entries(folder: Path, reading: StoreReading) -> None:
    for base, data in _files(folder):
        at = 0
        while at + ENTRY_HEADER_BYTES <= len(data):
            magic, size, index, _, position = struct.unpack_from(">iiqqq", data, at)
            if magic != ENTRY_MAGIC:
                if magic == ENTRY_BLANK_MAGIC and size != len(data) - at:
                    reading.problems.append(f"entry filler at {base + at} says {size}")
                elif magic not in (ENTRY_BLANK_MAGIC, 0):
                    reading.problems.append(f"entry at {base + at} has magic {magic}")
                break
            if position != base + at:
                reading.problems.append(f"entry {index} at {base + at} says position {position}")
            if reading.entry_indexes and index != reading.entry_indexes[-1] + 1:
                reading.problems.append(f"entry {index} follows {reading.entry_indexes[-1]}")
            reading.entry_indexes.append(index)
            start = at + ENTRY_HEADER_BYTES
            end = _add_record(data, start, base + start, reading)
            if end is None:
                return
            if end != at + size:
                reading.problems.append(f"entry {index} of {size} bytes: its record ends elsewhere")
            at += size


def _add_record(data: bytes, at: int, offset: int, reading: StoreReading) -> int | None:
    """Append the record to the reading and return its end, or None if it cannot be read."""
    try:
        message, physical_offset = _parse_record(data, at)
    except (_UnreadableError, struct.error, UnicodeDecodeError, IndexError) as fault:
        reading.problems.append(f"record at {offset}: {fault}")
        return None
    if physical_offset != offset:
        reading.problems.append(f"record at {offset} says physical offset {physical_offset}")
    reading.messages.append(message)
    return at + message.size


def _parse_record(data: bytes, at: int) -> tuple[FoundMessage, int]:
    size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag, _ = struct.unpack_from(
        ">IIIIIqqIq", data, at
    )
    if magic != MESSAGE_MAGIC:
        raise _UnreadableError(f"magic {magic:#x}")
    end = at + size
    at += 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    (store_timestamp_ms,) = struct.unpack_from(">q", data, at)
    at += 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    _, _, body_length = struct.unpack_from(">IqI", data, at)
    body = data[at + 16 : at + 16 + body_length]
    at += 16 + body_length
    topic = data[at + 1 : at + 1 + data[at]].decode()
    at += 1 + data[at]
    (properties_length,) = struct.unpack_from(">H", data, at)
    properties = data[at + 2 : at + 2 + properties_length].decode()
    if at + 2 + properties_length != end:
        raise _UnreadableError(
            f"its fields end at {at + 2 + properties_length}, its size says {end}"
        )
    if body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise _UnreadableError("the body CRC is wrong")
    pairs = (pair.split("\x01", 1) for pair in properties.split("\x02") if pair)
    message = FoundMessage(
        physical_offset=physical_offset,
        size=size,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        sys_flag=sys_flag,
        store_timestamp_ms=store_timestamp_ms,
        body=body,
        properties={pair[0]: pair[1] for pair in pairs if len(pair) == 2},
    )
    return message, physical_offset


def _check_queues(folder: Path, reading: StoreReading) -> None:
    by_offset = {message.physical_offset: message for message in reading.messages}
    expected: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for message in reading.messages:
        if message.queued:
            queue = expected[message.topic, message.queue_id]
            if message.queue_offset in queue:
                reading.problems.append(
                    f"{message.topic}/{message.queue_id}@{message.queue_offset} occurs twice: "
                    f"{queue[message.queue_offset]} and {message.physical_offset}"
                )
            queue[message.queue_offset] = message.physical_offset
    for (topic, queue_id), queue in expected.items():
        if max(queue) - min(queue) + 1 != len(queue):
            reading.problems.append(f"{topic}/{queue_id}: its queue offsets have gaps")
        slots = dict(_slots(folder / topic / str(queue_id)))
        for queue_offset, physical_offset in queue.items():
            found = slots.pop(queue_offset, None)
            size = by_offset[physical_offset].size
            if found != (physical_offset, size):
                reading.problems.append(
                    f"{topic}/{queue_id}@{queue_offset}: the slot has {found}, "
                    f"the log {(physical_offset, size)}"
                )
        for queue_offset in slots:
            reading.problems.append(f"{topic}/{queue_id}@{queue_offset}: a slot without a message")


def _slots(folder: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    for base, data in _files(folder):
        for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
            physical_offset, size = struct.unpack_from(">qi", data, at)
            if size not in (0, UNUSED_SLOT_SIZE):
                yield (base + at) // UNIT_BYTES, (physical_offset, size)
