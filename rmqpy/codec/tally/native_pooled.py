"""The C versions of :func:`rmqpy.codec.tally.pooled.pool_units_in_python`, and of
:func:`rmqpy.codec.tally.kernel.queue_digest`; and a sum over folders, which has none in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.tally.pooled import PooledUnits

__all__ = ["FolderPool", "pool_units", "queue_digest"]

_PIECE_BYTES: Final = 3276 * QUEUE_UNIT_SIZE
_ROWS_FIRST: Final = 4096
_ROW: Final = Struct("=4q")


def pool_units(view: memoryview, number: int, units: PooledUnits) -> int:
    """See :func:`rmqpy.codec.tally.pooled.pool_units_in_python`."""
    if not len(view):
        return 0
    content = ffi.from_buffer("uint8_t[]", view)
    state = ffi.new(
        "rmq_pooled_units *",
        (
            *(content, len(view), 0, number, units.queue, units.any_tags, units.irregular),
            *(units.low, units.high, units.first, units.place, units.count, units.sum),
        ),
    )
    lib.rmq_pool_units(state)
    units.first, units.place = state.first, state.place
    units.count, units.sum = state.count, state.sum
    units.irregular = bool(state.irregular)
    return int(state.position)


def queue_digest(topic: bytes, queue_id: int) -> int:
    """See :func:`rmqpy.codec.tally.kernel.queue_digest`."""
    return int(lib.rmq_queue_digest(ffi.from_buffer("uint8_t[]", topic), len(topic), queue_id))


class FolderPool:
    """The units of all queues in the folders of topics (``native/folders.c``).

    ``descriptor`` is one of the folder that has them; units of messages from ``low`` on count.
    """

    def __init__(self, descriptor: int, low: int) -> None:
        self._state = state = ffi.new("rmq_pooled_queues *")
        state.descriptor, state.low = descriptor, low
        self._buffer = state.buffer = ffi.new("uint8_t[]", _PIECE_BYTES)
        state.buffer_length = _PIECE_BYTES
        self._rows: Any = None
        self._reserve(_ROWS_FIRST)

    @property
    def count(self) -> int:
        """The number of units."""
        return int(self._state.units)

    @property
    def sum(self) -> int:
        """The sum of the units, as :class:`~rmqpy.codec.tally.pooled.PooledUnits` has it."""
        return int(self._state.sum)

    @property
    def file_size(self) -> int:
        """The size that all files have; 0 if there is none."""
        return int(self._state.file_size)

    def add(self, name: bytes, *, any_tags: bool) -> int | None:
        """Add the queues of a topic, and return how many it has. None means that something there is
        not as usual, and that the sum means nothing.
        """
        state = self._state
        before, units, total = state.count, state.units, state.sum
        while not lib.rmq_pool_topic(state, name, len(name), any_tags):
            if state.count < state.capacity:
                return None
            state.count, state.units, state.sum = before, units, total
            self._reserve(2 * state.capacity)
        return int(state.count - before)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (queue id, first queue offset, queue offset after the last unit, end of the last
        message in the log) of all queues, those of a topic in the order of their names.
        """
        return _ROW.iter_unpack(ffi.buffer(self._rows, self._state.count * _ROW.size))

    def _reserve(self, capacity: int) -> None:
        state, known = self._state, self._rows
        self._rows = state.rows = ffi.new("rmq_pooled_queue[]", capacity)
        if known is not None:
            ffi.memmove(self._rows, known, state.count * _ROW.size)
        state.capacity = capacity
