"""The C functions behind :mod:`rmqpy.codec.entry_run`; for
:mod:`rmqpy.codec.chosen` only.
"""

from __future__ import annotations

from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec.entry_run import RUN_COUNT_MAX, RunSpan
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, INDEX_UNIT_SIZE

__all__ = ["decode_run", "encode_run"]

_ENTRY_TEXT_MAX: Final = 256
"""Of an entry without its body, and then some."""

_ENTRY_TEXT_MIN: Final = 90


def encode_run(
    view: memoryview, index: int, position: int, *, count_max: int, size_max: int
) -> tuple[RunSpan, bytes] | None:
    """See :func:`rmqpy.codec.entry_run.encode_run`."""
    run = ffi.new("rmq_run *")
    # The last entry may begin just below size_max. What does not fit ends the run: unless it is
    # the first, nobody notices.
    first_size = int.from_bytes(view[4:8], signed=True) if len(view) >= ENTRY_HEADER_SIZE else 0
    raw = min(len(view), size_max + min(max(first_size, 0), ENTRY_SIZE_MAX))
    target = bytearray(raw * 2 + _ENTRY_TEXT_MAX * 2)
    run.target = target_held = ffi.from_buffer("uint8_t[]", target)
    run.target_capacity = len(target)
    run.source = source_held = ffi.from_buffer("uint8_t[]", view)
    run.source_length = len(view)
    run.count_max, run.size_max = count_max, size_max
    run.first_index, run.first_position = index, position
    lib.rmq_run_encode(run)
    text = bytes(memoryview(target)[: run.target_length])
    del source_held, target_held
    return (_span(run), text) if run.count else None


def decode_run(text: bytes, start: int) -> tuple[RunSpan, bytes, bytes, int] | None:
    """See :func:`rmqpy.codec.entry_run.decode_run`."""
    run = ffi.new("rmq_run *")
    length = len(text) - start
    count_max = min(RUN_COUNT_MAX, length // _ENTRY_TEXT_MIN + 1)
    target, units = bytearray(length + _ENTRY_TEXT_MAX), bytearray(count_max * INDEX_UNIT_SIZE)
    held = [ffi.from_buffer("uint8_t[]", part) for part in (text, target, units)]
    run.source = held[0] + start
    run.source_length = length
    run.target, run.target_capacity = held[1], len(target)
    run.units, run.count_max = held[2], count_max
    found = lib.rmq_run_decode(run)
    held.clear()
    if not found:
        return None
    data = bytes(memoryview(target)[: run.size])
    return _span(run), data, bytes(units[: run.count * INDEX_UNIT_SIZE]), start + run.used


def _span(run: Any) -> RunSpan:
    return RunSpan(
        first_index=run.first_index,
        first_position=run.first_position,
        first_size=run.first_size,
        first_term=run.first_term,
        last_term=run.last_term,
        count=run.count,
        size=run.size,
    )
