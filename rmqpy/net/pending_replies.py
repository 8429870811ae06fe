"""Pending replies: a reply is sent once the watermarks of its mode have passed its log offset.

There is one mechanism for every mode. A put returns the offset at which the message ends; the store
decides which watermarks must pass it (written, flushed, replicated, committed by a quorum), and the
broker decides how long each may take::

    hold ──► waiting ──► released   every watermark of the lane >= end
                 ├─────► late       the timeouts of all lagging ones are over; the last decides
                 └─────► failed     fail(status): leadership lost, disk failed

Replies that wait for the same watermarks form a *lane*: a queue in the order in which they were
held, so that one comparison at its head decides. Ends grow along a lane, as positions in a log do;
a reply whose end is smaller than its predecessor's only leaves later than it could, never earlier.

Invariants: every held reply is answered exactly once; none is released before its watermarks; the
number of waiting replies never exceeds ``limit``. Writes of one release are joined per channel.
``release`` must be called once after ``hold`` in the same loop turn; from then on growth of a
watermark releases on its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import define, field

from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.watermark import Watermark

Ticket = TypeVar("Ticket")

WAITING_LIMIT = 200_000
"""Maximum number of waiting replies; above it requests are refused before anything is stored."""


@define(slots=True, frozen=True)
class AckTimeout:
    """How long a reply waits for a watermark, and its status after that time."""

    timeout_ms: int
    status: PutMessageStatus


UNNAMED_PATIENCE = AckTimeout(10_000, PutMessageStatus.UNKNOWN_ERROR)
"""The timeout of a watermark for which the broker has not set one."""


@define(slots=True, eq=False, repr=False)
class PendingReply(Generic[Ticket]):
    """One encoded reply. From ``ticket`` the broker builds another one if this one must not be
    sent.
    """

    channel: Channel
    end: int
    reply: bytes
    ticket: Ticket
    held_ms: int = 0
    count: int = 1
    """The number of requests it answers: replies with nearly the same end may wait as one."""


LateReply = Callable[[Ticket, PutMessageStatus], bytes]
"""The function that returns the frame sent in place of a reply that was not released."""


class PendingReplies(Generic[Ticket]):
    """Replies that wait for watermarks. ``late`` builds the frames of late and failed replies."""

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
        self._lanes: dict[tuple[Watermark, ...], _WatermarkQueue[Ticket]] = {}
        self._subscribed: set[Watermark] = set()
        self._timer: Timer | None = None
        self.waiting = 0
        """The number of requests whose replies wait."""
        self.late_count = 0
        self.failed_count = 0

    def change_patience(self, patience: Mapping[str, AckTimeout]) -> None:
        """Change the timeouts of replies held from now on."""
        self._patience = dict(patience)
        for lane in self._lanes.values():
            lane.patience = self._patience_of(lane.watermarks)

    def has_room(self, count: int) -> bool:
        """Return whether ``count`` more replies may wait. Check before storing what they answer."""
        return self.waiting + count <= self._limit

    def waits_for(self, watermark: Watermark) -> bool:
        """Return whether a reply needs ``watermark`` to grow (group commit then starts a flush)."""
        return any(
            lane.replies and lane.replies[0].end > watermark.value
            for lane in self._lanes.values()
            if watermark in lane.watermarks
        )

    def hold(
        self, watermarks: Sequence[Watermark], replies: Iterable[PendingReply[Ticket]]
    ) -> None:
        """Hold ``replies`` until all of ``watermarks`` have passed their ends."""
        lane = self._lane(tuple(watermarks))
        now_ms = self._scheduler.monotonic_ms()
        for waiting in replies:
            waiting.held_ms = now_ms
            lane.replies.append(waiting)
            self.waiting += waiting.count

    def release(self) -> None:
        """Send every reply that may leave and watch the deadlines of the others."""
        if not self.waiting:
            return
        leaving: _Leaving = {}
        for lane in self._lanes.values():
            self.waiting -= lane.collect_passed(leaving)
        _write(leaving)
        self._watch_deadline()

    def fail(self, status: PutMessageStatus) -> None:
        """Answer every reply whose watermarks have not passed with ``status``."""
        self.release()
        leaving: _Leaving = {}
        for lane in self._lanes.values():
            while lane.replies:
                waiting = lane.replies.popleft()
                self.waiting -= waiting.count
                self.failed_count += 1
                _add(leaving, waiting.channel, self._late(waiting.ticket, status))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _write(leaving)

    def _lane(self, watermarks: tuple[Watermark, ...]) -> _WatermarkQueue[Ticket]:
        lane = self._lanes.get(watermarks)
        if lane is None:
            lane = self._lanes[watermarks] = _WatermarkQueue(
                watermarks, self._patience_of(watermarks)
            )
            for mark in watermarks:
                if mark not in self._subscribed:
                    self._subscribed.add(mark)
                    mark.subscribe(self._grown)
        return lane

    def _patience_of(self, watermarks: tuple[Watermark, ...]) -> list[AckTimeout]:
        return [self._patience.get(mark.name, UNNAMED_PATIENCE) for mark in watermarks]

    def _grown(self, _value: int) -> None:
        self.release()

    def _watch_deadline(self) -> None:
        if self._timer is not None:
            return
        now_ms = self._scheduler.monotonic_ms()
        checks = [lane.check_ms(now_ms) for lane in self._lanes.values() if lane.replies]
        if checks:
            delay_ms = max(0, min(checks) - now_ms)
            self._timer = self._scheduler.call_later(delay_ms, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        now_ms = self._scheduler.monotonic_ms()
        leaving: _Leaving = {}
        for lane in self._lanes.values():
            self.waiting -= lane.collect_passed(leaving)
            while lane.replies and lane.deadline_ms(lane.replies[0]) <= now_ms:
                waiting = lane.replies.popleft()
                self.waiting -= waiting.count
                self.late_count += 1
                status = lane.status_behind(waiting.end)
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
        """Return when ``waiting`` is late: the longest timeout among the lagging watermarks.

        It never decreases along the lane: a reply lacks no watermark that the next one has.
        """
        behind = [
            patience.timeout_ms
            for mark, patience in zip(self.watermarks, self.patience, strict=True)
            if mark.value < waiting.end
        ]
        return waiting.held_ms + max(behind, default=0)

    def check_ms(self, now_ms: int) -> int:
        """Return when to check the head again: the first timeout of the lane that ends later than
        now, because a watermark that lags now may have passed until then.
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

    def status_behind(self, end: int) -> PutMessageStatus:
        """Return the status of the last watermark that has not passed ``end`` (a replica outweighs
        the disk).
        """
        for mark, patience in zip(reversed(self.watermarks), reversed(self.patience), strict=True):
            if mark.value < end:
                return patience.status
        raise AssertionError("a reply that may leave was not released")


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
"""The pending replies to sends; a ticket is the reply as a command, or the frames of several."""
