"""The queues that were used lately, and a limit for those that are open.

The files of a queue are mapped when it is used, and closed at the second flush after its last use.
The system limits the number of mappings, so with more than ``open_max`` open queues the one that
was opened first is closed before that. Its next use opens it again. A queue that is only written is
not opened then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableSet
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from rmqpy.store.queues.consume_queue import ConsumeQueue

SETS: Final = 128


class WalkedQueues(MutableSet[ConsumeQueue]):
    """A set of queues that may change while somebody walks through it, in many small sets: the
    growth of a set of 200,000 takes 10 to 20 ms at once, and each garbage collection that meets a
    copy of it as long.
    """

    def __init__(self) -> None:
        self._sets: tuple[dict[ConsumeQueue, None], ...] = tuple({} for _ in range(SETS))
        """Dicts, which keep the order, chosen by the number of the queue, not by its address: a
        simulation that is repeated must be the same.
        """

    def __contains__(self, queue: object) -> bool:
        return isinstance(queue, ConsumeQueue) and queue in self._sets[queue.number % SETS]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return chain.from_iterable(self._sets)

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def add(self, queue: ConsumeQueue) -> None:
        self._sets[queue.number % SETS][queue] = None

    def discard(self, queue: ConsumeQueue) -> None:
        self._sets[queue.number % SETS].pop(queue, None)

    def clear(self) -> None:
        for queues in self._sets:
            queues.clear()

    def walk(self) -> Iterator[ConsumeQueue]:
        """Yield each queue that is in the set now, unless it is removed before its turn, and
        perhaps some that are added meanwhile; each once.
        """
        for queues in filter(None, self._sets):  # An emptied set is as large as it was.
            for queue in list(queues):
                if queue in queues:
                    yield queue


class TouchedQueues(WalkedQueues):
    """The queues that were used or removed since the last flush, or whose changes may not be
    durable. A flush therefore costs the same with any number of queues. Those in ``shared`` are
    open for others and count elsewhere.
    """

    def __init__(self, shared: AbstractSet[ConsumeQueue], open_max: int) -> None:
        super().__init__()
        self.shared = shared
        self._open_max = open_max
        self._open: OrderedDict[ConsumeQueue, None] = OrderedDict()
        """In the order in which they were opened."""

    def add(self, queue: ConsumeQueue) -> None:
        super().add(queue)
        if queue in self._open or queue in self.shared:
            return
        self._open[queue] = None
        if len(self._open) > self._open_max:
            oldest, _ = self._open.popitem(last=False)
            if oldest not in self.shared:
                oldest.close()

    def note(self, queue: ConsumeQueue) -> None:
        """Record that a queue was changed without being open."""
        super().add(queue)

    def add_written(self, queue: ConsumeQueue) -> bool:
        """Record that a queue is written. Return False if it should not be opened for that, because
        another one would have to be closed.
        """
        self.note(queue)
        if queue in self._open or queue in self.shared:
            return True
        if len(self._open) >= self._open_max:
            return False
        self._open[queue] = None
        return True

    def closed(self, queue: ConsumeQueue) -> None:
        """Record that a queue was closed because it was not used."""
        self._open.pop(queue, None)
