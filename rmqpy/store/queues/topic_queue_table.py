"""TopicQueueTable (Java topicQueueTable): the queue offset that each queue assigns next.

The numbers are in one array, ``cells``, so that the C core can assign offsets without a copy; a
queue keeps its cell until the table is replaced. ``generation`` changes whenever ``cells`` or the
meaning of a cell changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping

QueueKey = tuple[bytes, int]
"""Topic and queue id."""

_FIRST_CELLS = 64


class TopicQueueTable:
    """The next queue offsets of one store."""

    __slots__ = ("_cell_numbers", "cells", "generation")

    def __init__(self) -> None:
        self.cells = array("q", bytes(8 * _FIRST_CELLS))
        self._cell_numbers: dict[QueueKey, int] = {}
        self.generation = 0

    def index_of(self, key: QueueKey) -> int:
        """Return the number of the queue's cell; a new queue starts at 0."""
        found = self._cell_numbers.get(key)
        if found is None:
            found = len(self._cell_numbers)
            if found == len(self.cells):
                self.cells = self.cells + array("q", bytes(8 * found))
                self.generation += 1
            self._cell_numbers[key] = found
        return found

    def items(self) -> list[tuple[QueueKey, int]]:
        """Return every queue with its next offset."""
        return [(key, self.cells[number]) for key, number in self._cell_numbers.items()]

    def replace(self, offsets: Mapping[QueueKey, int]) -> None:
        """Replace the whole table."""
        self.cells = array("q", bytes(8 * max(_FIRST_CELLS, 2 * len(offsets))))
        self._cell_numbers = {key: number for number, key in enumerate(offsets)}
        for number, offset in enumerate(offsets.values()):
            self.cells[number] = offset
        self.generation += 1

    def forget(self, deleted: Container[QueueKey]) -> None:
        """Remove queues that were deleted: they start at 0 again."""
        self.replace({key: offset for key, offset in self.items() if key not in deleted})

    def forget_topic(self, topic: bytes) -> None:
        """Remove all queues of a topic, which were deleted."""
        self.forget({key for key, _ in self.items() if key[0] == topic})
