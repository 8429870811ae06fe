"""TopicQueueTable (Java topicQueueTable): the queue offset that each queue assigns next.

The numbers are in one array, ``cells``, so that the C core can assign offsets without a copy. A
queue gets its cell when it is first used, with the number that ``end_of`` returns, and keeps it
until it is forgotten or the table is replaced: a change of role or the deletion of a topic costs
the same with any number of queues. ``generation`` changes when the table is replaced, and with it
the meaning of all cells; ``cells`` becomes another object when it grows, too. Cells of deleted
queues are used again: ``ConsumeQueueTable.changes`` names their topics.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

QueueKey = tuple[bytes, int]
"""Topic and queue id."""

_FIRST_CELLS = 64


class TopicQueueTable:
    """The next queue offsets of one store. ``end_of`` returns that of a queue without a cell."""

    __slots__ = ("_cell_numbers", "_count", "_end_of", "_free", "cells", "generation")

    def __init__(self, end_of: Callable[[QueueKey], int] = lambda _key: 0) -> None:
        self.cells = array("q", bytes(8 * _FIRST_CELLS))
        self._end_of = end_of
        self._cell_numbers: dict[bytes, dict[int, int]] = {}
        """Topic to queue id to the number of the cell."""
        self._count = 0
        self._free: list[int] = []
        """Cells of queues that were forgotten."""
        self.generation = 0

    def index_of(self, key: QueueKey) -> int:
        """Return the number of the queue's cell."""
        topic, queue_id = key
        numbers = self._cell_numbers.get(topic)
        if numbers is None:
            numbers = self._cell_numbers[topic] = {}
        found = numbers.get(queue_id)
        if found is None:
            found = numbers[queue_id] = self._new_cell()
            self.cells[found] = self._end_of(key)
        return found

    def known_cells(self, topic: bytes) -> Mapping[int, int]:
        """Return the numbers of the cells of a topic by queue id; not to be changed."""
        return self._cell_numbers.get(topic, {})

    def _new_cell(self) -> int:
        if self._free:
            return self._free.pop()
        number = self._count
        self._count += 1
        if number == len(self.cells):
            self.cells = self.cells + array("q", bytes(8 * number))
        return number

    def items(self) -> list[tuple[QueueKey, int]]:
        """Return every queue that has a cell with its next offset."""
        return [
            ((topic, queue_id), self.cells[number])
            for topic, numbers in self._cell_numbers.items()
            for queue_id, number in numbers.items()
        ]

    def replace(self, offsets: Mapping[QueueKey, int]) -> None:
        """Replace the whole table: ``offsets`` have precedence over ``end_of``."""
        self.cells = array("q", bytes(8 * max(_FIRST_CELLS, 2 * len(offsets))))
        self._cell_numbers = {}
        self._count = 0
        self._free = []
        for key, offset in offsets.items():
            self.cells[self.index_of(key)] = offset
        self.generation += 1

    def forget(self, deleted: Iterable[QueueKey]) -> None:
        """Remove queues that were deleted: they start at 0 again."""
        for topic, queue_id in deleted:
            number = self._cell_numbers.get(topic, {}).pop(queue_id, None)
            if number is not None:
                self._free.append(number)

    def forget_topic(self, topic: bytes) -> None:
        """Remove all queues of a topic, which were deleted."""
        self._free += self._cell_numbers.pop(topic, {}).values()
