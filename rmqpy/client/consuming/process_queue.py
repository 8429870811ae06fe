"""ProcessQueue: what a consumer has fetched of one queue and not finished. Pure.

::

    put ──► waiting ──take──► running ──done──► gone
                ▲                │
                └──────again─────┘     (ordered: the same messages once more)

``commit_offset`` is where the group goes on after a crash: the offset of the oldest message that is
not done; where pulling goes on when all are (what was filtered out is never seen here).

Invariants: messages are handed out in the order of their queue offsets, each to one taker;
``commit_offset`` never falls but by ``reset_to``; a dropped queue hands out nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import define, field

from rmqpy.client.core.message import MessageExt


@define(slots=True, frozen=True, kw_only=True)
class FlowControlLimits:
    """How much of a queue may be held before pulling pauses (Java's pullThresholdForQueue,
    pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan).
    """

    messages_max: int = 1_000
    bytes_max: int = 100 << 20
    span_max: int = 2_000


@define(slots=True, eq=False, repr=False)
class ProcessQueue:
    """``next_offset`` is where pulling goes on."""

    next_offset: int
    dropped: bool = False
    locked_ms: int | None = None
    """When the broker last granted the lock (ordered consumption); monotonic."""

    last_pull_ms: int = 0
    last_consume_ms: int = 0
    byte_count: int = 0
    _held: dict[int, MessageExt] = field(factory=dict)
    _waiting: deque[MessageExt] = field(factory=deque)
    _reached: int = -1

    def put(self, messages: Iterable[MessageExt]) -> int:
        """Add what a pull brought; what is here already or was done is left out. Returns how many
        were added.
        """
        count = 0
        for message in messages:
            offset = message.queue_offset
            if offset < self._reached:
                continue
            self._held[offset] = message
            self._waiting.append(message)
            self._reached = offset + 1
            self.byte_count += len(message.stored.body)
            count += 1
        return count

    def take(self, max_count: int) -> list[MessageExt]:
        """The next messages to consume, in order; empty when there are none."""
        if self.dropped:
            return []
        return [self._waiting.popleft() for _ in range(min(max_count, len(self._waiting)))]

    def done(self, messages: Sequence[MessageExt]) -> None:
        """They are consumed, or sent back: never again."""
        for message in messages:
            if self._held.pop(message.queue_offset, None) is not None:
                self.byte_count -= len(message.stored.body)

    def requeue(self, messages: Sequence[MessageExt]) -> None:
        """Hand the taken ``messages`` out once more, before all others."""
        self._waiting.extendleft(reversed(messages))

    def reset_to(self, offset: int) -> None:
        """The broker goes on elsewhere: pulling does, and what comes from there is new."""
        self.next_offset = offset
        self._reached = min(self._reached, offset)

    @property
    def commit_offset(self) -> int:
        """Where the group goes on."""
        # Held in order of offset: pulls bring them so, and removal keeps the order.
        return next(iter(self._held), self.next_offset)

    @property
    def count(self) -> int:
        """Messages that are not done."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Messages that nobody has taken."""
        return len(self._waiting)

    @property
    def offsets(self) -> tuple[int, int]:
        """Smallest and largest queue offset that is held, 0 and 0 where there is none."""
        if not self._held:
            return 0, 0
        return next(iter(self._held)), self._reached - 1

    def is_full(self, limits: FlowControlLimits, ordered: bool) -> bool:
        """Whether pulling pauses. The span bounds what a slow message makes the next start repeat;
        in ordered consumption nothing overtakes, so there is none.
        """
        if self.count >= limits.messages_max or self.byte_count >= limits.bytes_max:
            return True
        first, last = self.offsets
        return not ordered and last - first > limits.span_max
