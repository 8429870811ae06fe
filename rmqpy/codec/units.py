"""The units of the derived files: consume queue units, and the header, slots and entries of index
files.

The tables are in :mod:`rmqpy.codec.layout`. Invariant of an index file: ``index_count`` starts at
1, because entry 0 is never used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.hashes import java_string_hash
from rmqpy.model.values import define

Buffer = bytes | bytearray | memoryview

QUEUE_UNIT: Final = struct.Struct(">qiq")
BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
"""A unit of ``batchconsumequeue`` and ``compactionCq`` of 5.x: physical offset, size, tags code,
store time (ms), first queue offset, number of messages, compacted offset, reserved.
"""
BATCH_UNIT_SIZE: Final = BATCH_UNIT.size
"""The struct of a consume queue unit: physical offset, record size, tags code."""
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">iqii")

_INT_MAX: Final = 0x7FFFFFFF

ENTRIES_PER_SLOT: Final = 4
"""Java's default ratio of maxIndexNum to maxHashSlotNum, needed to derive both from a file size."""


@define(slots=True, kw_only=True)
class IndexHeader:
    """The header of an index file. ``begin_*`` belong to the first entry, ``end_*`` to the last."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    index_count: int = 1

    def encode(self) -> bytes:
        return INDEX_HEADER.pack(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.index_count,
        )

    @classmethod
    def decode(cls, view: Buffer) -> IndexHeader:
        """Return the header of a file. As in Java, an index count of 0 is read as 1."""
        begin_ms, end_ms, begin, end, slots, count = INDEX_HEADER.unpack_from(view)
        return cls(
            begin_timestamp_ms=begin_ms,
            end_timestamp_ms=end_ms,
            begin_offset=begin,
            end_offset=end,
            slot_count=slots,
            index_count=count if count > 0 else 1,
        )


def queue_filler(count: int) -> bytes:
    """Return ``count`` filler units, which precede the first unit of a queue whose first offset is
    not 0.
    """
    return QUEUE_UNIT.pack(0, layout.QUEUE_FILLER_SIZE, 0) * count


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of an index key, which is never negative."""
    return _index_hash(java_string_hash(f"{topic}#{key}"))


def _index_hash(value: int) -> int:
    value = abs(value)
    return value if value <= _INT_MAX else 0


def index_file_size(slot_count: int, entry_count: int) -> int:
    slots = slot_count * layout.INDEX_SLOT_SIZE
    return layout.INDEX_HEADER_SIZE + slots + entry_count * layout.INDEX_ENTRY_SIZE


def index_sizes_of(file_bytes: int) -> tuple[int, int] | None:
    """Return the numbers of slots and entries of a file of this size, assuming Java's default
    ratio, or None if the size does not match it exactly.
    """
    slot = layout.INDEX_SLOT_SIZE + ENTRIES_PER_SLOT * layout.INDEX_ENTRY_SIZE
    slots, rest = divmod(file_bytes - layout.INDEX_HEADER_SIZE, slot)
    return (slots, slots * ENTRIES_PER_SLOT) if slots > 0 and not rest else None


def index_slot_position(key_hash: int, slot_count: int) -> int:
    """Return the file position of the slot of a hash."""
    return layout.INDEX_HEADER_SIZE + key_hash % slot_count * layout.INDEX_SLOT_SIZE


def index_entry_position(number: int, slot_count: int) -> int:
    """Return the file position of an entry; numbers start at 1."""
    slots_end = layout.INDEX_HEADER_SIZE + slot_count * layout.INDEX_SLOT_SIZE
    return slots_end + number * layout.INDEX_ENTRY_SIZE


def index_time_diff_s(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    """Return the whole seconds since the file's first entry, within 0 … 2**31-1; 0 while the file
    is empty.
    """
    if begin_timestamp_ms <= 0:
        return 0
    # Java rounds towards zero, // rounds down; negative results become 0 in either case.
    return min(max((store_timestamp_ms - begin_timestamp_ms) // 1000, 0), _INT_MAX)


_SLOT_COUNT_MAX: Final = 0x7FFFFFFF
"""The limit of the field, which only a damaged header reaches."""

IndexEntry = tuple[int, int, int]
"""The key hash, physical offset and store time (ms) of a message."""


def put_index_entries(
    index: memoryview, slot_count: int, header: IndexHeader, entries: Iterable[IndexEntry]
) -> None:
    """Add entries to the file ``index``, which has space for them: each entry, then its slot, and
    finally the updated ``header`` of the file.
    """
    for key_hash, physical_offset, store_timestamp_ms in entries:
        number = header.index_count
        slot_position = index_slot_position(key_hash, slot_count)
        (previous,) = INDEX_SLOT.unpack_from(index, slot_position)
        if not 0 < previous < number:
            previous = 0
            header.slot_count = min(header.slot_count + 1, _SLOT_COUNT_MAX)
        time_diff_s = index_time_diff_s(store_timestamp_ms, header.begin_timestamp_ms)
        place = index_entry_position(number, slot_count)
        INDEX_ENTRY.pack_into(index, place, key_hash, physical_offset, time_diff_s, previous)
        INDEX_SLOT.pack_into(index, slot_position, number)
        if number <= 1:
            header.begin_offset = physical_offset
            header.begin_timestamp_ms = store_timestamp_ms
        header.index_count = number + 1
        header.end_offset = physical_offset
        header.end_timestamp_ms = store_timestamp_ms
    index[: INDEX_HEADER.size] = header.encode()
