"""Units of the derived files: consume queue unit, index file header, slot and entry, checkpoint.

Tables in :mod:`rmqpy.codec.layout`. Invariant of an index file: ``index_count`` starts at 1,
entry 0 is never used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import define

from rmqpy.codec import layout
from rmqpy.codec.hashes import java_string_hash

Buffer = bytes | bytearray | memoryview

QUEUE_UNIT: Final = struct.Struct(">qiq")
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">iqii")
_CHECKPOINT: Final = struct.Struct(">qqqqq")

_INT_MAX: Final = 0x7FFFFFFF

QueueUnit = tuple[int, int, int]
"""(physical offset, record size, tags code)"""


@define(slots=True, kw_only=True)
class IndexHeader:
    """Header of an index file. ``begin_*`` belong to the first entry, ``end_*`` to the last."""

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
        """The header of a file; a fresh file's index count 0 is read as 1, as Java does."""
        begin_ms, end_ms, begin, end, slots, count = INDEX_HEADER.unpack_from(view)
        return cls(
            begin_timestamp_ms=begin_ms,
            end_timestamp_ms=end_ms,
            begin_offset=begin,
            end_offset=end,
            slot_count=slots,
            index_count=count if count > 0 else 1,
        )


@define(slots=True, frozen=True)
class IndexEntry:
    key_hash: int
    physical_offset: int
    time_diff_s: int
    previous: int


@define(slots=True, frozen=True, kw_only=True)
class Checkpoint:
    """Up to which store timestamps the files are known to be flushed. The two offsets are written
    by 5.x only.
    """

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    def encode(self) -> bytes:
        """The whole file."""
        fields = _CHECKPOINT.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        return fields.ljust(layout.CHECKPOINT_SIZE, b"\0")

    @classmethod
    def decode(cls, raw: Buffer) -> Checkpoint:
        """From the file's bytes; what a shorter file lacks is 0."""
        head = bytes(raw[: _CHECKPOINT.size]).ljust(_CHECKPOINT.size, b"\0")
        physic, logics, index, flushed, confirmed = _CHECKPOINT.unpack(head)
        return cls(
            physic_msg_timestamp_ms=physic,
            logics_msg_timestamp_ms=logics,
            index_msg_timestamp_ms=index,
            master_flushed_offset=flushed,
            confirm_physical_offset=confirmed,
        )

    def min_timestamp_ms(self) -> int:
        """From when on an unclean stop may have lost derived files: 3 s before the older of log
        and queues.
        """
        older = min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)
        return max(older - 3000, 0)

    def min_timestamp_with_index_ms(self) -> int:
        """The same with the index, for ``messageIndexSafe``."""
        return min(self.min_timestamp_ms(), self.index_msg_timestamp_ms)


def pack_queue_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    return QUEUE_UNIT.pack(physical_offset, size, tags_code)


def unpack_queue_unit(view: Buffer, position: int = 0) -> QueueUnit:
    offset, size, tags_code = QUEUE_UNIT.unpack_from(view, position)
    return offset, size, tags_code


def pack_queue_units(units: Iterable[QueueUnit]) -> bytes:
    pack = QUEUE_UNIT.pack
    return b"".join([pack(*unit) for unit in units])


def unpack_queue_units(view: Buffer) -> Iterator[QueueUnit]:
    """The units of ``view``, whose length is a multiple of 20."""
    return QUEUE_UNIT.iter_unpack(view)


def queue_filler(count: int) -> bytes:
    """Units that stand before the first real one of a queue which does not begin at 0."""
    return QUEUE_UNIT.pack(0, layout.QUEUE_FILLER_SIZE, 0) * count


def index_key_hash(topic: str, key: str) -> int:
    """Hash of an index key: never negative."""
    value = abs(java_string_hash(f"{topic}#{key}"))
    return value if value <= _INT_MAX else 0


def index_file_size(slot_count: int, entry_count: int) -> int:
    slots = slot_count * layout.INDEX_SLOT_SIZE
    return layout.INDEX_HEADER_SIZE + slots + entry_count * layout.INDEX_ENTRY_SIZE


def index_slot_position(key_hash: int, slot_count: int) -> int:
    """Where the slot of a hash stands in the file."""
    return layout.INDEX_HEADER_SIZE + key_hash % slot_count * layout.INDEX_SLOT_SIZE


def index_entry_position(number: int, slot_count: int) -> int:
    """Where an entry stands in the file; numbers start at 1."""
    slots_end = layout.INDEX_HEADER_SIZE + slot_count * layout.INDEX_SLOT_SIZE
    return slots_end + number * layout.INDEX_ENTRY_SIZE


def index_time_diff_s(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    """Whole seconds since the file's first entry, within 0 … 2**31-1; 0 while the file has no
    first entry.
    """
    if begin_timestamp_ms <= 0:
        return 0
    # Towards zero, as Java divides; what is negative becomes 0 anyway.
    return min(max((store_timestamp_ms - begin_timestamp_ms) // 1000, 0), _INT_MAX)


def pack_index_entry(entry: IndexEntry) -> bytes:
    return INDEX_ENTRY.pack(
        entry.key_hash, entry.physical_offset, entry.time_diff_s, entry.previous
    )


def unpack_index_entry(view: Buffer, position: int) -> IndexEntry:
    return IndexEntry(*INDEX_ENTRY.unpack_from(view, position))
