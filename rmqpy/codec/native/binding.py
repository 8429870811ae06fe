"""The C core with the signatures of the Python functions.

Only :mod:`rmqpy.codec.backend` imports the functions; the broker's fast path imports ``ffi`` and
``lib``. There is one call per batch or range, never one per message. All memory is allocated here
and kept alive during the call.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, Final

from attrs import fields

from rmqpy._native import ffi, lib
from rmqpy.codec import hashes, layout, packing, scan
from rmqpy.codec.columns import PART_COUNT, PropertyParts, RecordColumns
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.packing import KEY, PackedUnits, QueueEnds
from rmqpy.codec.received import ReceivedRecords
from rmqpy.codec.scan import (
    BASE_OFFSET_MAX,
    COLUMN_COUNT,
    SCAN_LIMIT,
    DictionaryColumn,
    Scan,
    StopReason,
    scan_of_columns,
)
from rmqpy.codec.units import QUEUE_UNIT

__all__ = [
    "content_end",
    "crc32",
    "ffi",
    "find_queue_ends",
    "forget_mapping",
    "gather",
    "guard_mapping",
    "lib",
    "lost_pages",
    "lost_range",
    "magic_places",
    "memory_of",
    "number_parts",
    "pack_records",
    "part_views",
    "property_parts",
    "put_packed_keys",
    "received_records",
    "record_parts",
    "scan_records",
    "walk_records",
]

KEYS_PER_RECORD: Final = 8
"""The number of keys per record, on average, for which memory is allocated. A scan with more keys
is packed in Python.
"""
_COLUMNS: Final = tuple(field.name for field in fields(Scan)[:COLUMN_COUNT])

_RUN: Final = struct.Struct("=4q")
"""A rmq_pack_run, or a rmq_queue_end."""
_ENDS_MAX: Final = 1 << 14
"""The number of queues whose ends one call finds."""
_CRC_MIN: Final = 2048
"""The size in bytes below which a call costs more than it saves."""

_RECEIVED_ROWS: Final = 64
"""The number of records that one call measures; clients ask for 32 messages."""
_RECEIVED_COLUMNS: Final = 4
_RECEIVED_BODY: Final = layout.BODY_POSITIONS[0]

if (lib.RMQ_COLUMN_COUNT, lib.RMQ_PART_COUNT, lib.RMQ_RECEIVED_COLUMNS) != (
    COLUMN_COUNT,
    PART_COUNT,
    _RECEIVED_COLUMNS,
):
    raise ImportError("rmqpy._native was built from different sources than this rmqpy: rebuild it")


def memory_of(view: memoryview) -> Any:
    """Return the memory of a whole file or buffer, for C to keep.

    It refers to what ``view`` is a view of. The garbage collector may clear a view that is part of
    a cycle, such as that of a broker that is never closed, although C data still uses it; to
    release that data then ends the process (CPython 3.11).
    """
    memory = ffi.from_buffer("uint8_t[]", view.obj)
    assert len(memory) == len(view), "a part of the memory"
    return memory


def crc32(data: bytes | bytearray | memoryview) -> int:
    """See :func:`rmqpy.codec.hashes.crc32`."""
    if len(data) < _CRC_MIN:
        return hashes.crc32(data)
    return lib.rmq_crc32(ffi.from_buffer("uint8_t[]", data), len(data))


def scan_records(
    view: memoryview,
    base_offset: int,
    *,
    dledger: bool,
    check_crc: bool,
    max_records: int = SCAN_LIMIT,
    topics: bool = True,
) -> Scan:
    """See :func:`rmqpy.codec.scan.scan_records`."""
    assert max_records > 0, "a scan that may find nothing"
    assert 0 <= base_offset <= BASE_OFFSET_MAX, f"base offset {base_offset}"
    rows = min(max_records, len(view) // layout.RECORD_SIZE_MIN + 1)
    cells = array("q", bytes(8 * COLUMN_COUNT * rows))
    state = ffi.new("rmq_scan_state *")
    state.view = data = ffi.from_buffer("uint8_t[]", view)
    state.length = len(data)
    state.base_offset = base_offset
    state.dledger = dledger
    state.check_crc = check_crc
    state.cells = output = ffi.from_buffer("int64_t[]", cells)
    state.max_records = rows
    stop = StopReason(lib.rmq_scan(state))
    end = state.position + base_offset
    filled = state.count * COLUMN_COUNT
    columns = [cells[column:filled:COLUMN_COUNT] for column in range(COLUMN_COUNT)]
    del data, output
    return scan_of_columns(columns, view, end, stop, number_parts, topics=topics)


def walk_records(
    view: memoryview, base_offset: int, stop: int, *, dledger: bool
) -> tuple[int, StopReason]:
    """See :func:`rmqpy.codec.scan.walk_records`."""
    rows = min(SCAN_LIMIT, len(view) // layout.RECORD_SIZE_MIN + 1)
    cells = array("q", bytes(8 * COLUMN_COUNT * rows))
    data, output = ffi.from_buffer("uint8_t[]", view), ffi.from_buffer("int64_t[]", cells)
    state = ffi.new("rmq_scan_state *")
    state.dledger, state.cells, state.max_records = dledger, output, rows
    state.skip_properties = True
    end, reason = base_offset, StopReason.LIMIT
    while reason is StopReason.LIMIT and end < stop:
        position = end - base_offset
        state.view, state.length, state.base_offset = data + position, len(data) - position, end
        reason = StopReason(lib.rmq_scan(state))
        end += state.position
        if end > stop:
            frames = cells[0 : state.count * COLUMN_COUNT : COLUMN_COUNT]
            row = bisect_left(frames, stop)
            if row < len(frames):
                return frames[row], StopReason.LIMIT
    return end, reason


def received_records(body: bytes) -> tuple[ReceivedRecords, InvalidRecordError | None]:
    """See :func:`rmqpy.codec.received.received_records`."""
    found, position = _measured_records(body, 0)
    while position < len(body):
        try:  # A record of another form, an invalid one, or one after many.
            position = found.add(body, position)
        except InvalidRecordError as fault:
            return found, fault
        others, position = _measured_records(body, position)
        found.extend(others)
    return found, None


def _measured_records(body: bytes, position: int) -> tuple[ReceivedRecords, int]:
    """Return the records from ``position`` that one call measures, and their end."""
    cells = ffi.new("int64_t[]", _RECEIVED_ROWS * _RECEIVED_COLUMNS)
    data = ffi.from_buffer("uint8_t[]", body)
    count = lib.rmq_received(data, len(body), position, cells, _RECEIVED_ROWS)
    if not count:
        return ReceivedRecords(), position
    row = ffi.unpack(cells, count * _RECEIVED_COLUMNS)
    stream = BytesIO(body)  # It cuts twice as fast as slices do.
    if position:
        stream.seek(position)
    records = [*map(stream.read, row[0::_RECEIVED_COLUMNS])]
    ends = row[3::_RECEIVED_COLUMNS]
    found = ReceivedRecords(
        records,
        row[1::_RECEIVED_COLUMNS],
        row[2::_RECEIVED_COLUMNS],
        [record[_RECEIVED_BODY:end] for record, end in zip(records, ends)],  # noqa: B905
    )
    return found, stream.tell()


def magic_places(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """See :func:`rmqpy.codec.scan.magic_places`."""
    data = ffi.from_buffer("uint8_t[]", view)
    while (place := lib.rmq_find_magic(data, len(data), start, stop)) >= 0:
        yield place
        start = place + 1


def content_end(view: memoryview, position: int = 0) -> int:
    """See :func:`rmqpy.codec.scan.content_end`."""
    return lib.rmq_content_end(ffi.from_buffer("uint8_t[]", view), len(view), position)


def guard_mapping(number: int, view: memoryview) -> bool:
    """See :data:`rmqpy.codec.backend.guard_mapping`."""
    data = ffi.from_buffer("uint8_t[]", view)
    return bool(lib.rmq_guard_mapping(number, data, len(data)))


def forget_mapping(number: int) -> None:
    """See :data:`rmqpy.codec.backend.forget_mapping`."""
    lib.rmq_forget_mapping(number)


def lost_pages() -> int:
    """See :data:`rmqpy.codec.backend.lost_pages`."""
    count: int = lib.rmq_lost_pages()
    return count


def lost_range(number: int) -> tuple[int, int] | None:
    """See :data:`rmqpy.codec.backend.lost_range`."""
    begin, end = ffi.new("int64_t *"), ffi.new("int64_t *")
    return (begin[0], end[0]) if lib.rmq_lost_range(number, begin, end) else None


_new = ffi.new_allocator(should_clear_after_alloc=False)
"""An allocator that does not clear memory, so that pages cost nothing until they are written."""


def record_parts(
    view: memoryview, frames: Sequence[int], *, check_crc: bool, shift: int = 0
) -> RecordColumns:
    """See :func:`rmqpy.codec.columns.record_parts`."""
    cells = array("q", bytes(8 * PART_COUNT * len(frames)))
    data, output = ffi.from_buffer("uint8_t[]", view), ffi.from_buffer("int64_t[]", cells)
    ok = lib.rmq_record_parts(
        data, len(data), _longs(frames), len(frames), shift, check_crc, output
    )
    assert ok, "a position without a record"
    del output
    return RecordColumns(*(cells[column::PART_COUNT] for column in range(PART_COUNT)))


def gather(view: memoryview, positions: Sequence[int], lengths: Sequence[int]) -> memoryview:
    """See :func:`rmqpy.codec.columns.gather`."""
    total = sum(lengths)
    if not total:
        return memoryview(b"")
    data, output = ffi.from_buffer("uint8_t[]", view), _new("uint8_t[]", total)
    ok = lib.rmq_gather(
        data, len(data), _longs(positions), _longs(lengths), len(lengths), output, total
    )
    assert ok, "a part that is not within the view"
    return memoryview(ffi.buffer(output))


def part_views(view: memoryview, positions: Sequence[int], lengths: Sequence[int]) -> memoryview:
    """See :func:`rmqpy.codec.columns.part_views`."""
    count = len(lengths)
    data, output = ffi.from_buffer("uint8_t[]", view), _new("uint8_t[]", lib.RMQ_VIEW_SIZE * count)
    ok = lib.rmq_part_views(data, len(data), _longs(positions), _longs(lengths), count, output)
    assert ok, "a part that is not within the view"
    return memoryview(ffi.buffer(output))


def number_parts(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> DictionaryColumn:
    """See :func:`rmqpy.codec.scan.dictionary_encode`."""
    count = len(lengths)
    places = 2 << count.bit_length()
    data, table = ffi.from_buffer("uint8_t[]", view), _new("int32_t[]", places)
    numbers, firsts = array("i", bytes(4 * count)), _new("int32_t[]", count)
    output = ffi.from_buffer("int32_t[]", numbers)
    known = lib.rmq_number_parts(
        data,
        len(data),
        _longs(positions),
        _longs(lengths),
        count,
        table,
        places - 1,
        output,
        firsts,
    )
    del output
    if known < 0:
        return scan.dictionary_encode(view, positions, lengths)
    rows = array("i", bytes(ffi.buffer(firsts, 4 * known)))
    texts = [bytes(view[positions[row] : positions[row] + lengths[row]]) for row in rows]
    return DictionaryColumn(numbers, texts)


def property_parts(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> PropertyParts | None:
    """See :func:`rmqpy.codec.columns.property_parts`."""
    count = len(lengths)
    starts = array("i", bytes(4 * (count + 1)))
    data = ffi.from_buffer("uint8_t[]", view)
    output = _new("int64_t[]", 4 * lib.RMQ_PROPERTIES_MAX * count)
    starts_view = ffi.from_buffer("int32_t[]", starts)
    total = lib.rmq_property_parts(
        data, len(data), _longs(positions), _longs(lengths), count, starts_view, output
    )
    del starts_view
    if total < 0:
        return None
    cells = array("q", bytes(ffi.buffer(output, 32 * total)))
    return PropertyParts(starts, *(cells[column : 4 * total : 4] for column in range(4)))


def _longs(values: Sequence[int]) -> Any:
    return ffi.from_buffer("int64_t[]", values if isinstance(values, array) else array("q", values))


def pack_records(view: memoryview, scan: Scan, count: int, *, with_keys: bool) -> PackedUnits:
    """See :func:`rmqpy.codec.packing.pack_records`."""
    if not count:
        return PackedUnits([], b"", b"")
    columns = [ffi.from_buffer("int64_t[]", getattr(scan, name)) for name in _COLUMNS]
    assert min(map(len, columns)) >= count, "more rows than the scan has"
    data, places = ffi.from_buffer("uint8_t[]", view), 1 << count.bit_length() + 1
    rows = ffi.new("int64_t*[]", columns)
    table, run_of = ffi.new("int32_t[]", places), ffi.new("int32_t[]", count)
    runs, units = ffi.new("rmq_pack_run[]", count), ffi.new("uint8_t[]", count * QUEUE_UNIT.size)
    state = ffi.new("rmq_pack_state *")
    state.view, state.length, state.columns, state.count = data, len(data), rows, count
    state.table, state.table_mask, state.run_of = table, places - 1, run_of
    state.runs, state.units = runs, units
    if with_keys:
        state.key_capacity = KEYS_PER_RECORD * count
        state.keys = keys = ffi.new("uint8_t[]", state.key_capacity * KEY.size)
    if not lib.rmq_pack(state):
        return packing.pack_records(view, scan, count, with_keys=with_keys)
    found = [*_RUN.iter_unpack(ffi.buffer(runs, state.run_count * _RUN.size))]
    total = found[-1][2] + found[-1][3] if found else 0
    return PackedUnits(
        found,
        memoryview(ffi.buffer(units, total * QUEUE_UNIT.size)),
        bytes(ffi.buffer(keys, state.key_count * KEY.size)) if with_keys else b"",
    )


def find_queue_ends(view: memoryview, base_offset: int, *, dledger: bool) -> QueueEnds:
    """See :func:`rmqpy.codec.packing.find_queue_ends`."""
    found: dict[tuple[bytes, int], int] = {}
    data = ffi.from_buffer("uint8_t[]", view)
    state = ffi.new("rmq_ends_state *")
    state.ends = ends = ffi.new("rmq_queue_end[]", _ENDS_MAX)
    state.table = table = ffi.new("int32_t[]", 2 * _ENDS_MAX)
    state.table_mask, state.end_capacity = len(table) - 1, len(ends)
    state.dledger = dledger
    position, stop = 0, StopReason.LIMIT
    while stop is StopReason.LIMIT:
        state.view, state.length = data + position, len(data) - position
        state.base_offset = base_offset + position
        stop = StopReason(lib.rmq_find_ends(state))
        for topic, length, queue_id, last in _RUN.iter_unpack(
            ffi.buffer(ends, state.end_count * _RUN.size)
        ):
            topic += position
            found[bytes(view[topic : topic + length]), queue_id] = last + 1
        position += state.position
    return QueueEnds(found, base_offset + position, stop)


def put_packed_keys(index: memoryview, slot_count: int, keys: bytes | memoryview) -> None:
    """See :func:`rmqpy.codec.packing.put_packed_keys`."""
    data, raw = ffi.from_buffer("uint8_t[]", index), ffi.from_buffer("uint8_t[]", keys)
    count = len(keys) // KEY.size
    done = lib.rmq_put_keys(data, len(data), slot_count, raw, count)
    del data, raw
    assert done == count, f"{count - done} keys do not fit into the index file"
