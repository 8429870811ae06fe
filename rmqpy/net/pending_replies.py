"""Pending replies: a reply is sent once the watermarks of its mode have passed its log offset.

All modes use the same mechanism. A put returns the offset at which the message ends; the store
decides which watermarks must pass it (written, flushed, replicated, committed by a quorum), and the
broker decides how long each may take::

    hold ──► waiting ──► released   every watermark of the queue >= end
                 ├─────► late       the timeouts of all lagging watermarks have passed; the
                 │                  status is that of the last one
                 └─────► failed     fail(status): leadership lost, disk failed

Replies that wait for the same watermarks form a queue in the order in which they were held, so only
its head must be compared. Ends increase along a queue, as offsets in a log do; a reply with a
smaller end than its predecessor leaves later than necessary, but never too early.

Invariants: every held reply is answered exactly once; none is released before its watermarks have
passed; the number of waiting replies never exceeds ``limit``. The writes of one release are joined
per channel. Call ``release`` once after ``hold`` in the same loop turn; afterwards the growth of a
watermark triggers it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import field

from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.values import define
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.watermark import Watermark

Ticket = TypeVar("Ticket")

WAITING_LIMIT = 200_000
"""The maximum number of waiting replies. Beyond it, requests are refused before anything is stored.
"""


@define(slots=True, frozen=True)
class AckTimeout:
    """The time that a reply waits for a watermark, and its status after that time."""

    timeout_ms: int
    status: PutMessageStatus


UNNAMED_PATIENCE = AckTimeout(10_000, PutMessageStatus.UNKNOWN_ERROR)
"""The timeout of a watermark for which the broker has not set one."""


@define(slots=True, eq=False, repr=False)
class PendingReply(Generic[Ticket]):
    """An encoded reply. If it must not be sent, the broker builds another reply from ``ticket``."""

    channel: Channel
    end: int
    reply: bytes
    ticket: Ticket
    held_ms: int = 0
    count: int = 1
    """The number of requests that it answers. Replies with nearly the same end may wait as one."""


LateReply = Callable[[Ticket, PutMessageStatus], bytes]
"""A function that returns the frame to send instead of a reply that was not released."""


class PendingReplies(Generic[Ticket]):
    """The replies that wait for watermarks. ``late`` builds late and failed replies."""

    def __init__(
        self,
        scheduler: Scheduler,
        late: LateReply[Ticket],
        patience: Mapping[str, AckTimeout],
        limit: int = WAITING_LIMIT,
    ) -> None:
        self._scheduler = scheduler
        self._late = late
        self._patience = dict(patience)
        self._limit = limit
        self._queues: dict[tuple[Watermark, ...], _WatermarkQueue[Ticket]] = {}
        self._subscribed: set[Watermark] = set()
        self._timer: Timer | None = None
        self.waiting = 0
        """The number of requests whose replies wait."""
        self.late_count = 0
        self.failed_count = 0

    def change_patience(self, patience: Mapping[str, AckTimeout]) -> None:
        """Change the timeouts of all replies, including those that are waiting."""
        self._patience = dict(patience)
        for queue in self._queues.values():
            queue.patience = self._patience_of(queue.watermarks)

    def has_room(self, count: int) -> bool:
        """Return whether ``count`` more replies may wait. Check this before storing messages."""
        return self.waiting + count <= self._limit

    def waits_for(self, watermark: Watermark) -> bool:
        """Return whether a reply waits for ``watermark``, so that group commit must flush."""
        return any(
            queue.replies and queue.replies[0].end > watermark.value
            for queue in self._queues.values()
            if watermark in queue.watermarks
        )

    def hold(
        self, watermarks: Sequence[Watermark], replies: Iterable[PendingReply[Ticket]]
    ) -> None:
        """Hold ``replies`` until all of ``watermarks`` have passed their ends."""
        queue = self._queue(tuple(watermarks))
        now_ms = self._scheduler.monotonic_ms()
        for waiting in replies:
            waiting.held_ms = now_ms
            queue.replies.append(waiting)
            self.waiting += waiting.count

    def release(self) -> None:
        """Send every reply whose watermarks have passed, and watch the deadlines of the others."""
        if not self.waiting:
            return
        leaving: _Leaving = {}
        for queue in self._queues.values():
            self.waiting -= queue.collect_passed(leaving)
        _write(leaving)
        self._watch_deadline()

    def fail(self, status: PutMessageStatus) -> None:
        """Send every reply whose watermarks have passed, and answer all others with ``status``."""
        self.release()
        leaving: _Leaving = {}
        for queue in self._queues.values():
            while queue.replies:
                waiting = queue.replies.popleft()
                self.waiting -= waiting.count
                self.failed_count += 1
                _add(leaving, waiting.channel, self._late(waiting.ticket, status))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _write(leaving)

    def _queue(self, watermarks: tuple[Watermark, ...]) -> _WatermarkQueue[Ticket]:
        queue = self._queues.get(watermarks)
        if queue is None:
            queue = self._queues[watermarks] = _WatermarkQueue(
                watermarks, self._patience_of(watermarks)
            )
            for mark in watermarks:
                if mark not in self._subscribed:
                    self._subscribed.add(mark)
                    mark.subscribe(self._grown)
        return queue

    def _patience_of(self, watermarks: tuple[Watermark, ...]) -> list[AckTimeout]:
        return [self._patience.get(mark.name, UNNAMED_PATIENCE) for mark in watermarks]

    def _grown(self, _value: int) -> None:
        self.release()

    def _watch_deadline(self) -> None:
        if self._timer is not None:
            return
        now_ms = self._scheduler.monotonic_ms()
        checks = [queue.check_ms(now_ms) for queue in self._queues.values() if queue.replies]
        if checks:
            delay_ms = max(0, min(checks) - now_ms)
            self._timer = self._scheduler.call_later(delay_ms, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        now_ms = self._scheduler.monotonic_ms()
        leaving: _Leaving = {}
        for queue in self._queues.values():
            self.waiting -= queue.collect_passed(leaving)
            while queue.replies and queue.deadline_ms(queue.replies[0]) <= now_ms:
                waiting = queue.replies.popleft()
                self.waiting -= waiting.count
                self.late_count += 1
                status = queue.lagging_status(waiting.end)
                _add(leaving, waiting.channel, self._late(waiting.ticket, status))
        _write(leaving)
        self._watch_deadline()


_Leaving = dict[Channel, list[bytes]]


@define(slots=True, eq=False, repr=False)
class _WatermarkQueue(Generic[Ticket]):
    watermarks: tuple[Watermark, ...]
    patience: list[AckTimeout]
    replies: deque[PendingReply[Ticket]] = field(factory=deque)

    def deadline_ms(self, waiting: PendingReply[Ticket]) -> int:
        """Return the time at which ``waiting`` is late, after the longest timeout of the lagging
        watermarks.

        It never decreases along the queue, because a watermark that lags for a reply also lags for
        the next one.
        """
        lagging = [
            patience.timeout_ms
            for mark, patience in zip(self.watermarks, self.patience, strict=True)
            if mark.value < waiting.end
        ]
        return waiting.held_ms + max(lagging, default=0)

    def check_ms(self, now_ms: int) -> int:
        """Return the time of the next check of the head: the first timeout that ends after
        ``now_ms``. By then a watermark that lags now may have passed.
        """
        held_ms = self.replies[0].held_ms
        ends = (held_ms + patience.timeout_ms for patience in self.patience)
        return min((end for end in ends if end > now_ms), default=now_ms)

    def collect_passed(self, leaving: _Leaving) -> int:
        """Move the replies that may leave to ``leaving``; return how many requests they answer."""
        replies = self.replies
        if not replies:
            return 0
        marks = self.watermarks
        if len(marks) == 1:
            passed = marks[0].value
        else:
            passed = min([mark.value for mark in marks], default=replies[-1].end)
        count = 0
        while replies and replies[0].end <= passed:
            waiting = replies.popleft()
            count += waiting.count
            channel = waiting.channel
            if channel in leaving:
                leaving[channel].append(waiting.reply)
            else:
                leaving[channel] = [waiting.reply]
        return count

    def lagging_status(self, end: int) -> PutMessageStatus:
        """Return the status of the last watermark that has not passed ``end``, so that the status
        of a replica takes precedence over that of the disk.
        """
        for mark, patience in zip(reversed(self.watermarks), reversed(self.patience), strict=True):
            if mark.value < end:
                return patience.status
        raise AssertionError("a reply whose watermarks have passed was not released")


def _add(leaving: _Leaving, channel: Channel, reply: bytes) -> None:
    replies = leaving.get(channel)
    if replies is None:
        leaving[channel] = [reply]
    else:
        replies.append(reply)


def _write(leaving: _Leaving) -> None:
    for channel, replies in leaving.items():
        channel.write(replies[0] if len(replies) == 1 else b"".join(replies))


SendGate = PendingReplies[RemotingCommand | bytes]
"""The pending replies to sends. A ticket is the reply as a command, or the frames of several
replies.
"""
