"""Periodic work of a broker, and bounds on the time that work may take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from attrs import define, field

from rmqpy.model.clock import Clock, Scheduler, Timer
from rmqpy.model.steps import Steps

T = TypeVar("T")

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class PeriodicWork:
    """Timers for periodic work, by name. A failure of the work is logged, and the work is run
    again after its period.
    """

    _scheduler: Scheduler
    _timers: dict[str, Timer] = field(factory=dict, init=False)

    def every(self, name: str, period_ms: Callable[[], int], work: Callable[[], None]) -> None:
        """Run ``work`` periodically. The period is read before each run, so it may change."""

        def run() -> None:
            self.once(name, period_ms(), run)
            try:
                work()
            except Exception:
                logger.exception("periodic work %s failed", name)

        self.once(name, period_ms(), run)

    def once(self, name: str, delay_ms: int, work: Callable[[], None]) -> None:
        """Run ``work`` once, after ``delay_ms``."""
        self._timers[name] = self._scheduler.call_later(delay_ms, work)

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


REST_TIMES: Final = 10
REST_LONGEST_MS: Final = 1_000
"""The maximum pause between two runs of throttled work."""


@define(slots=True, eq=False, repr=False)
class Throttled:
    """A limit on the share of time that repeated work may take, such as encoding a large table.

    A client that creates topic after topic makes the broker encode all of them repeatedly. After
    each run the work pauses for ``REST_TIMES`` as long as it took, so it takes at most a tenth of
    the time; work that takes less than a millisecond is not delayed. Requests during the pause lead
    to one run after it.
    """

    _scheduler: Scheduler
    _work: Callable[[], None]
    _rested_ms: int | None = field(default=None, init=False)
    _timer: Timer | None = field(default=None, init=False)

    def request(self) -> None:
        if self._timer is not None:
            return
        now_ms = self._scheduler.monotonic_ms()
        if self._rested_ms is None or now_ms >= self._rested_ms:
            self._run()
        else:
            self._timer = self._scheduler.call_later(self._rested_ms - now_ms, self._rested)

    def cancel(self) -> None:
        """Cancel a run that is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rested(self) -> None:
        self._timer = None
        self._run()

    def _run(self) -> None:
        began_ms = self._scheduler.monotonic_ms()
        self._work()
        now_ms = self._scheduler.monotonic_ms()
        self._rested_ms = now_ms + min((now_ms - began_ms) * REST_TIMES, REST_LONGEST_MS)


SLICE_MS: Final = 2
SLICE_PAUSE_MS: Final = 4


@define(slots=True, eq=False, repr=False)
class Sliced(Generic[T]):
    """Work that grows with the number of queues, groups, or messages, in slices of ``SLICE_MS``
    with pauses of ``SLICE_PAUSE_MS``, in which requests are served.

    ``done`` is called once, with the result of the work or the exception that ended it.
    """

    _scheduler: Scheduler
    _steps: Steps[T]
    _done: Callable[[T | None, BaseException | None], None]
    _timer: Timer | None = field(default=None, init=False)

    def run(self) -> None:
        """Run the next slice: the first one, and later those that follow it."""
        self._timer = None
        until_ms = self._scheduler.monotonic_ms() + SLICE_MS
        try:
            while self._scheduler.monotonic_ms() < until_ms:
                next(self._steps)
        except StopIteration as end:
            self._done(end.value, None)
        except Exception as error:  # noqa: BLE001 - passed on
            self._done(None, error)
        else:
            self._timer = self._scheduler.call_later(SLICE_PAUSE_MS, self.run)

    def cancel(self) -> None:
        """Run no further slice; ``done`` is not called then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._steps.close()


@define(slots=True, eq=False, repr=False)
class AdminTimeBudget:
    """The time that requests of tools may take in one turn of the loop.

    Each may cost milliseconds (the topic table of a large broker), and one connection can send
    hundreds of them at once. A request that has not started within ``SLICE_MS`` waits for the next
    turn, so producers and consumers wait for at most one such request.
    """

    _clock: Clock
    _turn: int = -1
    _until_ms: int = 0

    def begin(self, turn: int) -> bool:
        """Return whether one more request may begin in ``turn``, a number that changes with every
        turn. The first request of a turn always may.
        """
        now_ms = self._clock.monotonic_ms()
        if turn != self._turn:
            self._turn, self._until_ms = turn, now_ms + SLICE_MS
            return True
        return now_ms < self._until_ms
