"""ProcessQueue: the pulled and unfinished messages of one queue. Pure.

::

    put ──► waiting ──take──► running ──done──► removed
                ▲                │
                └─────requeue────┘     (ordered: the same messages once more)

``commit_offset`` is the offset at which the group resumes after a crash: the offset of the oldest
unfinished message, or the next offset to pull if there is none (messages that were filtered out
never appear here).

Invariants: messages are taken in the order of their queue offsets, each by one taker;
``commit_offset`` decreases only through ``reset_to``; nothing is taken from a dropped queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import define, field

from rmqpy.client.core.message import MessageExt


@define(slots=True, frozen=True, kw_only=True)
class FlowControlLimits:
    """The limits on the held messages of a queue, at which pulling pauses (Java:
    pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan).
    """

    messages_max: int = 1_000
    bytes_max: int = 100 << 20
    span_max: int = 2_000


@define(slots=True, eq=False, repr=False)
class ProcessQueue:
    """The held messages of one queue (Java: ProcessQueue); ``next_offset`` is the next offset to
    pull.
    """

    next_offset: int
    dropped: bool = False
    locked_ms: int | None = None
    """The time of the last grant of the lock (ordered consumption), in ms of a monotonic clock."""

    last_pull_ms: int = 0
    last_consume_ms: int = 0
    """The time of the last listener call, in ms of a monotonic clock; 0 before the first."""

    byte_count: int = 0
    """The size of the unfinished messages' bodies, as they are stored."""
    _held: dict[int, int] = field(factory=dict)
    """The sizes of the unfinished messages' bodies, by queue offset."""
    _waiting: deque[MessageExt] = field(factory=deque)
    _reached: int = -1

    def put(self, messages: Iterable[MessageExt]) -> int:
        """Add pulled messages, except those that are held or finished. Return the number of added
        messages.
        """
        held, waiting, reached = self._held, self._waiting, self._reached
        count = len(waiting)
        for message in messages:
            offset = message.queue_offset
            if offset >= reached:
                held[offset] = size = message.stored_bytes
                self.byte_count += size
                waiting.append(message)
                reached = offset + 1
        self._reached = reached
        return len(waiting) - count

    def take(self, max_count: int) -> list[MessageExt]:
        """Return the next messages to consume, in order; empty if there are none."""
        waiting = self._waiting
        if self.dropped or not waiting:
            return []
        if max_count == 1:
            return [waiting.popleft()]
        return [waiting.popleft() for _ in range(min(max_count, len(waiting)))]

    def done(self, messages: Sequence[MessageExt]) -> None:
        """Remove messages that are consumed or sent back."""
        for message in messages:
            self.byte_count -= self._held.pop(message.queue_offset, 0)

    def requeue(self, messages: Sequence[MessageExt]) -> None:
        """Return taken ``messages`` to the front of the queue."""
        self._waiting.extendleft(reversed(messages))

    def reset_to(self, offset: int) -> None:
        """Continue at ``offset``, as the broker demands; messages from that offset count as new."""
        self.next_offset = offset
        self._reached = min(self._reached, offset)

    @property
    def commit_offset(self) -> int:
        """The offset at which the group resumes."""
        # The messages are held in the order of their offsets: pulls add them in this order, and
        # removal preserves it.
        return next(iter(self._held), self.next_offset)

    @property
    def count(self) -> int:
        """The number of unfinished messages."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """The number of messages that were not taken yet."""
        return len(self._waiting)

    @property
    def offsets(self) -> tuple[int, int]:
        """The smallest and largest queue offset that is held; 0 and 0 if there is none."""
        if not self._held:
            return 0, 0
        return next(iter(self._held)), self._reached - 1

    def is_full(self, limits: FlowControlLimits, ordered: bool) -> bool:
        """Return whether pulling must pause.

        The span limits how many messages are consumed again after a restart because one slow
        message was unfinished. In ordered consumption no message overtakes another, so there is no
        span limit.
        """
        if self.count >= limits.messages_max or self.byte_count >= limits.bytes_max:
            return True
        first, last = self.offsets
        return not ordered and last - first > limits.span_max
