"""Virtual time: a scheduler (``model.clock``) whose time advances only on request of the test.

Callbacks run in the order in which they are due; those due at the same time run in the order in
which they were added. An exception of a callback propagates out of ``advance``/``run_until_idle``
at once, so that a test cannot overlook it.

Invariants: ``monotonic_ms`` never goes back; no callback runs before its time; a cancelled timer
never runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVar

from attrs import define, field

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""The wall clock at virtual time 0, a fixed day in 2023."""

RUNAWAY_CALLBACKS = 1_000_000
"""The number of callbacks at one moment above which an endless loop is assumed."""


@define(slots=True, order=False, eq=False, repr=False)
class ManualTimer:
    """One scheduled callback."""

    due_ms: int
    sequence: int
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: ManualTimer) -> bool:
        return (self.due_ms, self.sequence) < (other.due_ms, other.sequence)


@define(slots=True)
class ManualScheduler:
    """A scheduler in virtual time.

    ``blocking_ms`` is the duration of ``run_blocking``; the work and ``done`` run in one callback.
    """

    start_ms: int = START_MS
    blocking_ms: int = 0
    _monotonic_ms: int = 0
    _wall_skew_ms: int = 0
    _sequence: int = 0
    _timers: list[ManualTimer] = field(factory=list)

    def now_ms(self) -> int:
        return self.start_ms + self._wall_skew_ms + self._monotonic_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        assert delay_ms >= 0, delay_ms
        self._sequence += 1
        timer = ManualTimer(self._monotonic_ms + delay_ms, self._sequence, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        def run() -> None:
            result: T | None = None
            fault: BaseException | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - passed on, as that of a worker thread
                fault = error
            done(result, fault)

        self.call_later(self.blocking_ms, run)

    def advance(self, delay_ms: int) -> None:
        """Advance by ``delay_ms``; callbacks that become due meanwhile run at their due times."""
        assert delay_ms >= 0, delay_ms
        self._run_until(self._monotonic_ms + delay_ms)

    def run_until_idle(self) -> None:
        """Run all callbacks that are due now, including those they add; time does not advance."""
        self._run_until(self._monotonic_ms)

    def jump_wall_clock(self, delta_ms: int) -> None:
        """Move the wall clock forward or back by ``delta_ms``; timers are not affected."""
        self._wall_skew_ms += delta_ms

    @property
    def waiting(self) -> int:
        """The number of callbacks that have not run yet."""
        return sum(1 for timer in self._timers if timer.callback is not None)

    @property
    def next_due_ms(self) -> int | None:
        """The monotonic time of the next callback, or None."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].due_ms if self._timers else None

    def _run_until(self, end_ms: int) -> None:
        ran_at_this_time = 0
        while (due_ms := self.next_due_ms) is not None and due_ms <= end_ms:
            timer = heapq.heappop(self._timers)
            if timer.due_ms > self._monotonic_ms:
                self._monotonic_ms = timer.due_ms
                ran_at_this_time = 0
            ran_at_this_time += 1
            assert ran_at_this_time <= RUNAWAY_CALLBACKS, "callbacks keep adding callbacks"
            callback = timer.callback
            assert callback is not None
            timer.callback = None
            callback()
        self._monotonic_ms = end_ms
