"""Messages that the broker writes itself (delayed deliveries, retries, ends of transactions), and
when they count as stored.

``submit`` stages messages in the log and returns; ``done`` is called once, when every watermark of
their mode has passed their end, or with the failure::

    write ──► refused by the store ───────────────► done(its status)
          └─► waiting ──► passed ─────────────────► done(PUT_OK)
                      ├─► timed out ──────────────► done(UNKNOWN_ERROR): it may be stored or not
                      └─► fail (role, disk) ──────► done(SERVICE_NOT_AVAILABLE): the same

Invariants: every ``done`` is called exactly once, within ``submit`` only if the store refuses.
Writers check ``has_room`` first: at most ``WAITING_LIMIT`` writes wait, and none starts while the
broker is fenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from attrs import field

from rmqpy.broker.base.store_api import StoreWriter
from rmqpy.broker.state.statistics import Statistics
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.values import define
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.results import PutResult

WAITING_LIMIT: Final = 50_000
PATIENCE_MS: Final = 10_000
"""The maximum time that a message waits for its watermarks (a quorum needs 2.5 s at most)."""

TOO_MANY: Final = "too many internal messages are waiting"

Done = Callable[[PutMessageStatus], None]


@define(slots=True, frozen=True)
class _WaitingMessage:
    end: int
    deadline_ms: int
    done: Done


@define(slots=True, eq=False, repr=False)
class InternalMessageWriter:
    """The writer of the broker's own messages, which reports when they are stored."""

    sink: StoreWriter
    scheduler: Scheduler
    statistics: Statistics
    fence: str | None = None
    """The reason why no message may be written now (:mod:`rmqpy.broker.services.fence`)."""
    _on_stored: Callable[[OutgoingMessage], None] = field(default=lambda _: None, init=False)
    _waiting_by_marks: dict[tuple[Watermark, ...], deque[_WaitingMessage]] = field(
        factory=dict, init=False
    )
    _subscribed: set[Watermark] = field(factory=set, init=False)
    _timer: Timer | None = field(default=None, init=False)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting_by_marks.values()))

    def subscribe(self, listener: Callable[[OutgoingMessage], None]) -> None:
        """Call ``listener`` for each message that was staged."""
        self._on_stored = listener

    @property
    def has_room(self) -> bool:
        return self.refusal is None

    def has_room_for(self, count: int) -> bool:
        """Return whether ``count`` more messages may be submitted."""
        return self.fence is None and self.waiting + count <= WAITING_LIMIT

    @property
    def refusal(self) -> str | None:
        """The reason why nothing should be submitted now; None if a message may be."""
        if self.fence is not None:
            return self.fence
        return TOO_MANY if self.waiting >= WAITING_LIMIT else None

    def submit(self, drafts: Sequence[OutgoingMessage], done: Done) -> list[PutResult]:
        """Stage ``drafts``, in their order, for the commit of this turn, and return one result for
        each.

        They count as stored when they are written or, with DLedger, confirmed by a quorum; they
        wait for no flush and no replica. If one is refused, ``done`` receives its status at once,
        and the ones before it are stored nevertheless.
        """
        began_ms = self.scheduler.monotonic_ms()
        results: list[PutResult] = []
        for draft in drafts:
            (result,) = self.sink.put([draft])
            results.append(result)
            if result.status is not PutMessageStatus.PUT_OK:
                self.statistics.put_failed()
                done(result.status)
                return results
            size = result.end - result.physical_offsets[0]
            elapsed_ms = self.scheduler.monotonic_ms() - began_ms
            self.statistics.messages_put(1, size, elapsed_ms)
            self._on_stored(draft)
        self.wait(results[-1].end, done)
        return results

    def fail(self) -> None:
        """Fail all waiting messages with ``SERVICE_NOT_AVAILABLE``, because this broker can confirm
        nothing any more.
        """
        queues = list(self._waiting_by_marks.values())
        self._waiting_by_marks.clear()
        for queue in queues:
            for waiting in queue:
                waiting.done(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    @property
    def stored_offset(self) -> int:
        """The log offset up to which messages count as stored."""
        return min(mark.value for mark in self.sink.acknowledged(False))

    def wait(self, end: int, done: Done) -> None:
        """Call ``done`` when the messages staged up to ``end``, which are not stored yet, are
        stored or have failed.
        """
        marks = tuple(self.sink.acknowledged(False))
        queue = self._waiting_by_marks.setdefault(marks, deque())
        queue.append(_WaitingMessage(end, self.scheduler.monotonic_ms() + PATIENCE_MS, done))
        for mark in marks:
            if mark not in self._subscribed:
                self._subscribed.add(mark)
                mark.subscribe(self._on_advance)
        if self._timer is None:
            self._timer = self.scheduler.call_later(PATIENCE_MS, self._expire)

    def _on_advance(self, _offset: int) -> None:
        for marks, queue in list(self._waiting_by_marks.items()):
            passed = min(mark.value for mark in marks)
            while queue and queue[0].end <= passed:
                queue.popleft().done(PutMessageStatus.PUT_OK)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self.scheduler.monotonic_ms()
        for queue in list(self._waiting_by_marks.values()):
            while queue and queue[0].deadline_ms <= now_ms:
                queue.popleft().done(PutMessageStatus.UNKNOWN_ERROR)
        heads = [queue[0].deadline_ms for queue in self._waiting_by_marks.values() if queue]
        if heads:
            wait_ms = max(0, min(heads) - now_ms)
            self._timer = self.scheduler.call_later(wait_ms, self._expire)
