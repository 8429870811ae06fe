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

from rmqpy.store.queues.consume_queue import ConsumeQueue


class WalkedQueues(MutableSet[ConsumeQueue]):
    """A set of queues that may change while somebody walks through it. A copy would do, but each
    garbage collection that meets a new list of 50,000 queues takes 20 ms.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[ConsumeQueue, int] = OrderedDict()
        """Each with the number of the last walk that has passed it, or during which it was added.
        Those of the last walk follow the others.
        """
        self._walk = 0

    def __contains__(self, queue: object) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: ConsumeQueue) -> None:
        self._queues.setdefault(queue, self._walk)

    def discard(self, queue: ConsumeQueue) -> None:
        self._queues.pop(queue, None)

    def clear(self) -> None:
        self._queues.clear()

    def walk(self) -> Iterator[ConsumeQueue]:
        """Yield each queue that is in the set now, unless it is removed before its turn."""
        self._walk += 1
        return self._pass()

    def _pass(self) -> Iterator[ConsumeQueue]:
        while self._queues:
            queue, walk = next(iter(self._queues.items()))
            if walk == self._walk:
                return
            self._queues[queue] = self._walk
            self._queues.move_to_end(queue)
            yield queue


class TouchedQueues(WalkedQueues):
    """The queues that were used or removed since the last flush, or whose changes may not be
    durable. A flush therefore costs the same with any number of queues. Those in ``shared`` are
    open for others and count elsewhere.
    """

    def __init__(self, shared: AbstractSet[ConsumeQueue], open_max: int) -> None:
        super().__init__()
        self._shared = shared
        self._open_max = open_max
        self._open: OrderedDict[ConsumeQueue, None] = OrderedDict()
        """In the order in which they were opened."""

    def add(self, queue: ConsumeQueue) -> None:
        super().add(queue)
        if queue in self._open or queue in self._shared:
            return
        self._open[queue] = None
        if len(self._open) > self._open_max:
            oldest, _ = self._open.popitem(last=False)
            if oldest not in self._shared:
                oldest.close()

    def note(self, queue: ConsumeQueue) -> None:
        """Record that a queue was changed without being open."""
        super().add(queue)

    def add_written(self, queue: ConsumeQueue) -> bool:
        """Record that a queue is written. Return False if it should not be opened for that, because
        another one would have to be closed.
        """
        self.note(queue)
        if queue in self._open or queue in self._shared:
            return True
        if len(self._open) >= self._open_max:
            return False
        self._open[queue] = None
        return True

    def closed(self, queue: ConsumeQueue) -> None:
        """Record that a queue was closed because it was not used."""
        self._open.pop(queue, None)
