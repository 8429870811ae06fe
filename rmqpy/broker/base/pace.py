"""Keeps work that grows with a table from taking the whole loop, however often the table changes.

Who creates topic after topic makes the broker encode all of them again and again. After a piece of
work it rests for ``REST_TIMES`` as long as it took, so that it has a tenth of the time at the most;
small tables cost nothing and are not delayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmqpy.model.clock import Scheduler, Timer

REST_TIMES: Final = 10
REST_LONGEST_MS: Final = 1_000
"""No change waits longer for its turn."""


@define(slots=True, eq=False, repr=False)
class Throttled:
    """``request`` for ``work`` as often as you like: it runs now, or once when its rest is over."""

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
        """What waits will not run."""
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
