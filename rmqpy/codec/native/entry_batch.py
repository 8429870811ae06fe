"""The C functions of :mod:`rmqpy.codec.entry_batch`, and a decoder that exists in C only, which
stages a push directly in a log. Only :mod:`rmqpy.codec.backend` imports this module.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec.entry_batch import PLACE_MAX, RUN_COUNT_MAX, RunSpan
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from rmqpy.codec.native.binding import memory_of

__all__ = ["PushTaker", "decode_run", "encode_run", "read_run", "run_units"]

_ENTRY_TEXT_MAX: Final = 256
"""A generous upper bound for the size of an entry's text without its body."""

_ENTRY_TEXT_MIN: Final = 90

_memory: Final = ffi.new_allocator(should_clear_after_alloc=False)


def read_run(
    view: memoryview, index: int, position: int, *, count_max: int, size_max: int
) -> tuple[RunSpan, bytes] | None:
    """See :func:`rmqpy.codec.entry_batch.read_run`."""
    run = ffi.new("rmq_run *")
    source_held = _set_source(run, view, index, position)
    run.count_max, run.size_max = count_max, size_max
    lib.rmq_run_read(run, 1)
    del source_held
    return (_span(run), bytes(view[: run.size])) if run.count else None


def encode_run(span: RunSpan, data: bytes) -> bytes:
    """See :func:`rmqpy.codec.entry_batch.encode_run`."""
    run = ffi.new("rmq_run *")
    source_held = _set_source(run, data, span.first_index, span.first_position)
    run.count_max = span.count
    run.target_capacity = span.size // 3 * 4 + _ENTRY_TEXT_MAX * (span.count + 1)
    target = run.target = _memory("uint8_t[]", run.target_capacity)
    lib.rmq_run_encode(run)
    del source_held
    assert run.count == span.count, "the entries of a run can be encoded"
    return bytes(ffi.buffer(target, run.target_length))


def run_units(data: memoryview, index: int, position: int) -> tuple[RunSpan, bytes] | None:
    """See :func:`rmqpy.codec.entry_batch.run_units`."""
    if max(index, position) > PLACE_MAX:
        return None
    run = ffi.new("rmq_run *")
    source_held = _set_source(run, data, index, position)
    run.count_max = min(RUN_COUNT_MAX, len(data) // ENTRY_HEADER_SIZE)
    run.size_max = len(data)
    units = run.units = _memory("uint8_t[]", run.count_max * INDEX_UNIT_SIZE)
    lib.rmq_run_read(run, 0)
    del source_held
    if not run.count or run.size != len(data):
        return None
    return _span(run), bytes(ffi.buffer(units, run.count * INDEX_UNIT_SIZE))


def _set_source(run: Any, data: bytes | memoryview, index: int, position: int) -> Any:
    """Set where a run is read from. The returned object keeps it in memory."""
    run.source = source = ffi.from_buffer("uint8_t[]", data)
    run.source_length = len(data)
    run.first_index, run.first_position = index, position
    return source


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

    def allow(self, group: bytes, names: bytes, members: bytes, term: int) -> None:
        grant = self._grant
        texts = ffi.new("char[]", group), ffi.new("char[]", names)
        grant.group, grant.names = texts
        grant.members = member_bytes = ffi.from_buffer("uint8_t[]", members)
        grant.members_length = len(members)
        grant.term = term
        self._alive = (*self._alive[:3], *texts, member_bytes)

    def take(self, body: bytes) -> tuple[int, int, int] | None:
        return self._taken(lib.rmq_push_take(self._grant, body, len(body)))

    def take_run(self, body: bytes) -> tuple[int, int, int] | None:
        return self._taken(lib.rmq_push_take_run(self._grant, body, len(body)))

    def _taken(self, found: int) -> tuple[int, int, int] | None:
        grant = self._grant
        return (grant.first_index, grant.count, grant.commit_index) if found else None


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
