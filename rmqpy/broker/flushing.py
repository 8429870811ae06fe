"""When the log is made durable: on an interval, and at once when a reply waits for it (group
commit).

``flush_task`` is taken on the loop, run where it may block, and reported back; one runs at a time.
A flush serves everybody who waited when it began; whoever came later is served by the next, which
begins at once.

A failed flush is final: what may be lost cannot be told, so the store accepts nothing more and
every waiting sender is told that its message is not safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmqpy.broker.ports import Store
from rmqpy.broker.send import SendGate
from rmqpy.model.runtime import Scheduler
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.queue_flush import QueueFlush

FLUSHED = "flushed"
"""Name of the watermark that a flush raises."""

_log = logging.getLogger(__name__)


class LogFlushing:
    """See the module's text. ``on_failure`` is told once, after the store has been told."""

    def __init__(
        self, store: Store, gate: SendGate, scheduler: Scheduler, on_failure: Callable[[], None]
    ) -> None:
        self._store = store
        self._gate = gate
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._running = False
        self._stopped: Callable[[], None] | None = None

    @property
    def running(self) -> bool:
        return self._running

    def begin_if_awaited(self) -> None:
        """Begin to flush when a reply waits for it."""
        if not self._running and self._awaited():
            self.begin()

    def begin(self) -> None:
        """Begin to flush what is written, unless a flush is under way."""
        if self._running or self._stopped is not None or self._store.failure is not None:
            return
        task = self._store.flush_task()
        if task is None:
            return
        self._running = True
        self._scheduler.run_blocking(task.run, lambda _none, error: self._ended(task, error))

    def stop(self, done: Callable[[], None]) -> None:
        """Begin no more; ``done`` when the one that runs has ended."""
        self._stopped = done
        if not self._running:
            done()

    def _awaited(self) -> bool:
        return any(
            mark.name == FLUSHED and self._gate.waits_for(mark)
            for mark in self._store.acknowledged(True)
        )

    def _ended(self, task: FlushTask, error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            _log.error("making the commit log durable failed: %s", error)
            self._store.fail(f"making the commit log durable failed: {error}")
            self._on_failure()
        else:
            self._store.flushed(task.offset)
        if self._stopped is not None:
            self._stopped()
        elif error is None:
            self.begin_if_awaited()


class QueueFlushing:
    """The same for the derived files: on an interval only, nobody waits for it."""

    def __init__(self, store: Store, scheduler: Scheduler, on_failure: Callable[[], None]) -> None:
        self._store = store
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._running = False
        self._stopped: Callable[[], None] | None = None

    def begin(self) -> None:
        """Begin to flush what has changed, unless a flush is under way."""
        if self._running or self._stopped is not None:
            return
        task = self._store.queue_flush_task()
        if task is None:
            return
        self._running = True
        self._scheduler.run_blocking(task.run, lambda _none, error: self._ended(task, error))

    def stop(self, done: Callable[[], None]) -> None:
        """Begin no more; ``done`` when the one that runs has ended."""
        self._stopped = done
        if not self._running:
            done()

    def _ended(self, task: QueueFlush, error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            _log.error("making the consume queues durable failed: %s", error)
            self._store.fail(f"making the consume queues durable failed: {error}")
            self._on_failure()
        else:
            self._store.queues_flushed(task)
        if self._stopped is not None:
            self._stopped()
