"""The C functions of :mod:`rmqpy.codec.entry_batch`, and a decoder that exists in C only, which
stages a push directly in a log. Only :mod:`rmqpy.codec.backend` imports this module.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec.entry_batch import RUN_COUNT_MAX, RunSpan
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, INDEX_UNIT_SIZE
from rmqpy.codec.native.binding import memory_of

__all__ = ["PushTaker", "decode_run", "encode_run"]

_ENTRY_TEXT_MAX: Final = 256
"""A generous upper bound for the size of an entry's text without its body."""

_ENTRY_TEXT_MIN: Final = 90

_memory: Final = ffi.new_allocator(should_clear_after_alloc=False)


def encode_run(
    view: memoryview, index: int, position: int, *, count_max: int, size_max: int
) -> tuple[RunSpan, bytes] | None:
    """See :func:`rmqpy.codec.entry_batch.encode_run`."""
    run = ffi.new("rmq_run *")
    # The last entry may begin just below size_max. An entry that does not fit ends the run, which
    # has no effect unless it is the first.
    first_size = int.from_bytes(view[4:8], signed=True) if len(view) >= ENTRY_HEADER_SIZE else 0
    raw = min(len(view), size_max + min(max(first_size, 0), ENTRY_SIZE_MAX))
    target = run.target = _memory("uint8_t[]", raw * 2 + _ENTRY_TEXT_MAX * 2)
    run.target_capacity = len(target)
    run.source = source_held = ffi.from_buffer("uint8_t[]", view)
    run.source_length = len(view)
    run.count_max, run.size_max = count_max, size_max
    run.first_index, run.first_position = index, position
    lib.rmq_run_encode(run)
    del source_held
    return (_span(run), bytes(ffi.buffer(target, run.target_length))) if run.count else None


def decode_run(text: bytes, start: int) -> tuple[RunSpan, bytes, bytes, int] | None:
    """See :func:`rmqpy.codec.entry_batch.decode_run`."""
    run = ffi.new("rmq_run *")
    length = len(text) - start
    count_max = min(RUN_COUNT_MAX, length // _ENTRY_TEXT_MIN + 1)
    target = run.target = _memory("uint8_t[]", length + _ENTRY_TEXT_MAX)
    units = run.units = _memory("uint8_t[]", count_max * INDEX_UNIT_SIZE)
    source = ffi.from_buffer("uint8_t[]", text)
    run.source, run.source_length = source + start, length
    run.target_capacity, run.count_max = len(target), count_max
    found = lib.rmq_run_decode(run)
    del source
    if not found:
        return None
    data = bytes(ffi.buffer(target, run.size))
    return _span(run), data, bytes(ffi.buffer(units, run.count * INDEX_UNIT_SIZE)), start + run.used


class PushTaker:
    """See :class:`rmqpy.codec.backend.PushDecoder`."""

    __slots__ = ("_alive", "_grant")

    def __init__(self, file_size: int) -> None:
        self._grant = ffi.new("rmq_grant *")
        self._grant.file_size = file_size
        self._alive: tuple[Any, ...] = ()

    def share(self, buffer: memoryview, units: memoryview, state: array[int]) -> None:
        grant = self._grant
        grant.staging = staging = memory_of(buffer)
        grant.units = unit_bytes = memory_of(units)
        grant.log = log = ffi.from_buffer("int64_t[]", state)
        grant.staging_capacity = len(buffer)
        grant.units_capacity = len(units) // INDEX_UNIT_SIZE
        self._alive = (staging, unit_bytes, log, *self._alive[3:])

    def allow(self, group: bytes, names: bytes, term: int) -> None:
        texts = ffi.new("char[]", group), ffi.new("char[]", names)
        self._grant.group, self._grant.names = texts
        self._grant.term = term
        self._alive = (*self._alive[:3], *texts)

    def take(self, body: bytes) -> tuple[int, int, int] | None:
        grant = self._grant
        if not lib.rmq_push_take(grant, body, len(body)):
            return None
        return grant.first_index, grant.count, grant.commit_index


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
