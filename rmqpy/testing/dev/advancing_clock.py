"""A scheduler whose clock can be advanced: timers that become due run at once.

Only broker and store use it. Connections, the DLedger group, and the name server keep the real
time, so that an hour that is skipped disconnects and elects nobody.

Invariants: both clocks advance together and never go back; callbacks run in the loop, in the order
in which they are due; after :meth:`AdvancingScheduler.halt` no callback runs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final, TypeVar

from attrs import define

from rmqpy.net.loop import AsyncioScheduler

T = TypeVar("T")

STEP_MS: Final = 59 * 60_000
"""The largest step of an advance. Expired files are deleted in a certain hour of the day, which no
step skips.
"""


@define(slots=True, order=False, eq=False, repr=False)
class AdvancingTimer:
    """One scheduled callback."""

    due_ms: int
    sequence: int
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: AdvancingTimer) -> bool:
        return (self.due_ms, self.sequence) < (other.due_ms, other.sequence)


class AdvancingScheduler:
    """A ``model.clock.Scheduler`` above another one, whose time is ``skipped_ms`` ahead."""

    def __init__(self, base: AsyncioScheduler, skipped_ms: int = 0) -> None:
        self._base = base
        self._skipped_ms = skipped_ms
        self._sequence = 0
        self._timers: list[AdvancingTimer] = []
        self._wake: asyncio.TimerHandle | None = None
        self._wake_due_ms = 0
        self._blocking = 0
        self._halted = False

    def now_ms(self) -> int:
        return self._base.now_ms() + self._skipped_ms

    def monotonic_ms(self) -> int:
        return self._base.monotonic_ms() + self._skipped_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._base.call_soon(lambda: self._run(callback))

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> AdvancingTimer:
        assert delay_ms >= 0, delay_ms
        self._sequence += 1
        timer = AdvancingTimer(self.monotonic_ms() + delay_ms, self._sequence, callback)
        heapq.heappush(self._timers, timer)
        self._plan()
        return timer

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        def ended(result: T | None, error: BaseException | None) -> None:
            self._blocking -= 1
            self._run(lambda: done(result, error))

        self._blocking += 1
        self._base.run_blocking(work, ended)

    async def advance(self, delay_ms: int, skipped: Callable[[], None]) -> None:
        """Skip ``delay_ms``, and return when the timers that are due and their work are done.

        A timer that is due several times in a step of ``STEP_MS`` runs once. ``skipped`` is called
        in each step before the timers.
        """
        assert delay_ms >= 0, delay_ms
        while delay_ms > 0:
            step_ms = min(delay_ms, STEP_MS)
            delay_ms -= step_ms
            self._skipped_ms += step_ms
            skipped()
            self._run_due()
            await self._settled()

    def halt(self) -> None:
        """Run no callback any more, as if the process had been killed."""
        self._halted = True
        self._timers.clear()
        if self._wake is not None:
            self._wake.cancel()

    async def _settled(self) -> None:
        """Wait until blocking work has ended, and what follows it in the next turns."""
        for _ in range(3):
            await asyncio.sleep(0)
            while self._blocking and not self._halted:
                await asyncio.sleep(0.001)

    def _plan(self) -> None:
        """Wake up when the first timer is due."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return
        due_ms = self._timers[0].due_ms
        if self._wake is not None:
            if self._wake_due_ms <= due_ms:
                return
            self._wake.cancel()
        self._wake_due_ms = due_ms
        delay_ms = max(0, due_ms - self.monotonic_ms())
        self._wake = self._base.call_later(delay_ms, self._run_due)

    def _run_due(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        now_ms, sequence = self.monotonic_ms(), self._sequence
        while self._timers and self._timers[0].due_ms <= now_ms:
            timer = self._timers[0]
            if timer.sequence > sequence:  # Added by one of these callbacks: in the next turn.
                break
            heapq.heappop(self._timers)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self._guard(callback)
        self._plan()

    def _run(self, callback: Callable[[], None]) -> None:
        if not self._halted:
            callback()

    def _guard(self, callback: Callable[[], None]) -> None:
        try:
            self._run(callback)
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            where = getattr(callback, "__qualname__", repr(callback))
            self._base.failure_log.report(where, error)
