"""Flushing of the store: on an interval, and at once when a reply waits for it (group commit).

A task is taken on the loop, run where it may block, and reported back; one of each kind runs at a
time. A flush of the log serves all replies that waited when it started; later ones are served by
the next flush, which waits a moment for more of them (:class:`GroupCommitDelay`). No reply waits
for a flush of the derived files.

A failed flush is final: it is unknown which data was lost, so the store accepts nothing more, and
every waiting sender is refused.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from attrs import define, field

from rmqpy.broker.base.scheduling import Sliced
from rmqpy.broker.base.store_api import StoreFlush
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.net.pending_replies import SendGate
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.files.lost_pages import LostRange
from rmqpy.store.flush_tracker import QueueFlush
from rmqpy.store.health import StoreHealth

FLUSHED = "flushed"
"""The name of the watermark that a flush advances."""

COMPANY_MS: Final = 1
ALONE_FIRST: Final = 8
ALONE_MAX: Final = 512
"""The maximum number of flushes that start without a delay after one whose delay was useless."""

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class StoreFailureHandler:
    """The reaction to a failed store or a full disk: waiting senders are refused, and the reason is
    logged once.
    """

    _health: StoreHealth
    _gate: SendGate
    _messages: InternalMessageWriter
    _note_lost_pages: Callable[[], Sequence[LostRange]]
    _reported: str | None = field(default=None, init=False)

    def on_failure(self) -> None:
        """Fail all waiting replies and messages, which will never be acknowledged."""
        reason = self._health.failure or self._health.disk_full_reason
        if reason != self._reported:
            self._reported = reason
            logger.error("the store accepts no messages: %s", reason)
        self._gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        self._messages.fail()

    def check_pages(self) -> None:
        """Log the files that have lost pages, and refuse senders if one of them is written."""
        for lost in self._note_lost_pages():
            logger.error(
                "%s: bytes %d to %d cannot be read (a bad sector, or the file was truncated):"
                " requests for them are answered with code 1",
                lost.path,
                lost.begin,
                lost.end,
            )
            if self._health.failure is not None:
                self.on_failure()

    def on_room(self) -> None:
        """Log once that a full disk has space again."""
        if self._reported is not None and self._health.failure is None:
            self._reported = None
            logger.warning("disk space is available again; accepting messages")


class _Task(Protocol):
    def run(self) -> None: ...


T = TypeVar("T", bound=_Task)


class _Flushing(ABC, Generic[T]):
    """A runner of flush tasks, one at a time. ``on_failure`` is called after a failure has been
    reported to the store.
    """

    def __init__(
        self, store: StoreFlush, scheduler: Scheduler, on_failure: Callable[[], None]
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._running = False
        self._stopped: Callable[[], None] | None = None

    @property
    def running(self) -> bool:
        return self._running

    @abstractmethod
    def begin(self) -> None:
        """Start a flush if there is something to flush and no flush is in progress."""

    def _run(self, task: T) -> None:
        self._scheduler.run_blocking(task.run, lambda _none, error: self._ended(task, error))

    def stop(self, done: Callable[[], None]) -> None:
        """Start no more flushes, and call ``done`` when the running one has ended."""
        self._stopped = done
        if not self._running:
            done()

    @abstractmethod
    def _ended(self, task: T, error: BaseException | None) -> None:
        """Handle the end of a task."""

    def _next(self, error: BaseException | None) -> None:
        """Stop, or start another flush, after one that ended."""
        if self._stopped is not None:
            self._stopped()
        elif error is None:
            self._continue()

    def _continue(self) -> None:
        """Start another flush if a reply already waits for one."""


@define(slots=True, eq=False, repr=False)
class GroupCommitDelay:
    """The rule by which a flush is delayed until more replies need it.

    A sync costs the same for one message as for a thousand. Without a delay, the senders would
    split into two halves, one of which waits while the other is synced. After a flush, the next one
    therefore waits until as many replies wait as were in flight when the first one ended, for
    ``COMPANY_MS`` at most. If they do not arrive, the following flushes start at once, more of them
    each time.
    """

    _expected: int = 0
    _alone: int = 0
    """The number of coming flushes that start at once."""
    _alone_next: int = ALONE_FIRST

    def flushed(self, in_flight: int) -> None:
        """Record the end of a flush, and the number of replies that waited then for
        this flush or the next one.
        """
        self._expected = 0 if self._alone else in_flight
        self._alone = max(0, self._alone - 1)

    def is_batch_full(self, waiting: int) -> bool:
        if waiting < self._expected:
            return False
        if self._expected:
            self._expected, self._alone_next = 0, ALONE_FIRST
        return True

    def on_timeout(self) -> None:
        """Record that the expected replies did not arrive in time."""
        self._expected = 0
        self._alone = self._alone_next
        self._alone_next = min(2 * self._alone_next, ALONE_MAX)


class LogFlusher(_Flushing[FlushTask]):
    """The flushes of the commit log, in intervals of ``period_ms`` and when replies wait for one.

    The interval begins when a flush ends, as in Java (``ServiceThread.waitForRunning``): a flush
    that takes as long as the interval would otherwise be followed by the next one at once.
    """

    def __init__(
        self,
        store: StoreFlush,
        gate: SendGate,
        scheduler: Scheduler,
        on_failure: Callable[[], None],
        period_ms: Callable[[], int],
    ) -> None:
        super().__init__(store, scheduler, on_failure)
        self._gate = gate
        self._delay = GroupCommitDelay()
        self._timer: Timer | None = None
        self._period_ms = period_ms
        self._interval: Timer | None = None

    def start(self) -> None:
        """Start the intervals. The period is read for each of them, so it may change."""
        self._interval = self._scheduler.call_later(self._period_ms(), self._on_interval)

    def _on_interval(self) -> None:
        self._interval = None
        try:
            self.begin()
        finally:
            if not self._running:
                self.start()

    def begin(self) -> None:
        if self._running or self._stopped is not None:
            return
        task = self._store.flush_task()
        if task is None:
            return
        self._running = True
        self._run(task)

    def _ended(self, task: FlushTask, error: BaseException | None) -> None:
        self._running = False
        if error is None:
            self._delay.flushed(self._gate.waiting)
            self._store.flushed(task.offset)
        else:
            logger.error("flushing the commit log failed: %s", error)
            self._store.flush_failed(error)
            self._on_failure()
        self._next(error)
        if self._interval is None and not self._running and self._stopped is None:
            self.start()

    def begin_if_awaited(self) -> None:
        """Start a flush if a reply waits for it and the expected replies have arrived."""
        if self._running or not self._awaited():
            return
        if self._delay.is_batch_full(self._gate.waiting):
            self._begin_now()
        elif self._timer is None:
            self._timer = self._scheduler.call_later(COMPANY_MS, self._on_timer)

    def stop(self, done: Callable[[], None]) -> None:
        if self._interval is not None:
            self._interval.cancel()
        if self._timer is not None:  # A flush waits for more replies, and no more will arrive.
            self._begin_now()
        super().stop(done)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._running and self._awaited():
            self._delay.on_timeout()
            self._begin_now()

    def _begin_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.begin()

    def _awaited(self) -> bool:
        return any(
            mark.name == FLUSHED and self._gate.waits_for(mark)
            for mark in self._store.log.acknowledged(True)
        )

    def _continue(self) -> None:
        self.begin_if_awaited()


class QueueFlusher(_Flushing[QueueFlush]):
    """The flushes of consume queues, key index and checkpoint. What is done for each queue before
    and after a flush is done in slices, because there may be any number of them.
    """

    held = False
    """True if none may begin now: requests wait for a change that no flush may overlap."""

    def begin(self) -> None:
        if self._running or self.held or self._stopped is not None:
            return
        self._running = True
        Sliced(self._scheduler, self._store.queue_flush_steps(), self._taken).run()

    def _taken(self, task: QueueFlush | None, error: BaseException | None) -> None:
        if task is not None:
            self._run(task)
            return
        if error is not None:
            logger.error("preparing a flush of the consume queues failed", exc_info=error)
        self._running = False
        self._next(error)

    def _ended(self, task: QueueFlush, error: BaseException | None) -> None:
        if error is None:
            Sliced(self._scheduler, self._store.queues_flushed_steps(task), self._noted).run()
            return
        self._running = False
        logger.error("flushing the consume queues failed: %s", error)
        self._store.queue_flush_failed(error)
        self._on_failure()
        self._next(error)

    def _noted(self, _none: None, error: BaseException | None) -> None:
        if error is not None:
            logger.error("recording a flush of the consume queues failed", exc_info=error)
        self._running = False
        self._next(error)
