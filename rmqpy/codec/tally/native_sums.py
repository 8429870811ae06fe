"""The C versions of the functions of :mod:`rmqpy.codec.tally.derived_sums`.

C adds consecutive units of the same log file to one row, and returns when the rows are full.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec.tally.derived_sums import IndexSums, SlotState, UnitSums

__all__ = ["rewind_index", "sum_units", "walk_index"]

_ROWS: Final = 4096
_MASK64: Final = (1 << 64) - 1


def sum_units(view: memoryview, unit_size: int, first: int, log_file_size: int) -> UnitSums:
    """See :func:`rmqpy.codec.tally.derived_sums.sum_units_in_python`."""
    sums: UnitSums = {}
    if not len(view):
        return sums
    columns = lib.RMQ_SUM_COLUMNS
    rows = array("q", bytes(8 * columns * _ROWS))
    state = ffi.new("rmq_unit_sums *")
    kept = ffi.from_buffer("uint8_t[]", view), ffi.from_buffer("int64_t[]", rows)
    state.view, state.rows = kept
    state.length, state.unit_size, state.first = len(view), unit_size, first
    state.log_file_size, state.row_capacity = log_file_size, _ROWS
    finished = False
    while not finished:
        finished = bool(lib.rmq_sum_units(state))
        for start in range(0, columns * state.row_count, columns):
            file, count, one, two = rows[start : start + columns]
            before = sums.get(file, (0, 0, 0))
            sums[file] = (
                before[0] + count,
                (before[1] + one) & _MASK64,
                (before[2] + two) & _MASK64,
            )
        state.row_count = 0
    return sums


def rewind_index(
    view: memoryview, slot_count: int, first: int, entry_end: int
) -> array[int] | None:
    """See :func:`rmqpy.codec.tally.derived_sums.rewind_index_in_python`."""
    newest = array("i", bytes(4 * slot_count))
    state = ffi.new("rmq_index_walk *")
    kept = ffi.from_buffer("uint8_t[]", view), ffi.from_buffer("int32_t[]", newest)
    state.view, state.newest = kept
    state.slot_count, state.entry, state.entry_end = slot_count, first, entry_end
    return newest if lib.rmq_rewind_index(state) else None


def _zeros(count: int) -> Any:
    """Return memory for ``count`` int32 that takes no time until it is used: a table of slots has
    20 MB, of which a small index uses little.
    """
    size = 4 * max(count, 1)
    begin = lib.rmq_map_zeros(size)
    if not begin:
        raise MemoryError
    return ffi.buffer(ffi.gc(begin, lambda pointer: lib.rmq_unmap_file(pointer, size)), size)


def walk_index(
    view: memoryview,
    slot_count: int,
    entry_end: int,
    log_file_size: int,
    low: int,
    high: int,
    since: SlotState | None = None,
) -> IndexSums:
    """See :func:`rmqpy.codec.tally.derived_sums.walk_index_in_python`."""
    result = IndexSums()
    columns = lib.RMQ_KEY_COLUMNS
    rows = array("q", bytes(8 * columns * _ROWS))
    first, newest = since or (1, _zeros(slot_count))
    state = ffi.new("rmq_index_walk *")
    kept = (
        ffi.from_buffer("uint8_t[]", view),
        ffi.from_buffer("int64_t[]", rows),
        ffi.from_buffer("int32_t[]", newest),
    )
    state.view, state.rows, state.newest = kept
    state.slot_count, state.entry_end, state.entry = slot_count, entry_end, first
    state.log_file_size, state.low, state.high = log_file_size, low, high
    state.row_capacity, state.max_offset = _ROWS, -1
    finished = False
    while not finished:
        finished = bool(lib.rmq_walk_index(state))
        for start in range(0, columns * state.row_count, columns):
            file, count, total = rows[start : start + columns]
            before = result.files.get(file, (0, 0))
            result.files[file] = before[0] + count, (before[1] + total) & _MASK64
        state.row_count = 0
    result.wrong, result.wrong_slots = state.wrong, state.wrong_slots
    result.used_slots, result.max_offset = state.used_slots, state.max_offset
    return result
