"""Garbage collection of a server process, outside of the time in which requests are handled.

Almost all memory of a server is freed by its reference counts. What remains are cycles, such as
those of closed connections and caught exceptions. A full collection looks at every object, in one
turn of the loop: 0.2 to 0.5 s with 200,000 queues in use. Python runs one whenever the number of
objects has grown by a quarter, that is, while requests arrive.

========================  ==========================================================================
objects of the start      are never looked at again (``gc.freeze``)
young objects             are collected as usual: some thousands at once, in about 1 ms
all objects               ``FULL_PERIOD_MS`` after the last time, as soon as no request has arrived
                          for ``QUIET_MS``; after ``FULL_LATEST_MS`` in any case
========================  ==========================================================================
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmqpy.model.clock import Scheduler, Timer

FULL_PERIOD_MS: Final = 600_000
FULL_LATEST_MS: Final = 6 * 3_600_000
QUIET_MS: Final = 100
LOGGED_MS: Final = 20

_NEVER: Final = 1 << 30
"""A number of collections of young objects that is never reached."""

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class QuietCollection:
    """The full collections of this process. ``turn_number`` changes when requests are handled."""

    _scheduler: Scheduler
    _turn_number: Callable[[], int]
    _collect: Callable[[], int] = gc.collect
    _seen: int | None = field(default=None, init=False)
    """The last turn number, while a moment without requests is waited for."""
    _last_ms: int = field(default=0, init=False)
    _timer: Timer | None = field(default=None, init=False)

    def start(self) -> None:
        """Exclude the objects that exist now, and enable collections of young objects only."""
        gc.freeze()
        young, older, _ = gc.get_threshold()
        gc.set_threshold(young, older, _NEVER)
        gc.enable()
        self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        self._last_ms = self._scheduler.monotonic_ms()
        self._seen = None
        self._timer = self._scheduler.call_later(FULL_PERIOD_MS, self._look)

    def _look(self) -> None:
        now_ms, number = self._scheduler.monotonic_ms(), self._turn_number()
        if number != self._seen and now_ms - self._last_ms < FULL_LATEST_MS:
            self._seen = number
            self._timer = self._scheduler.call_later(QUIET_MS, self._look)
            return
        found = self._collect()
        took_ms = self._scheduler.monotonic_ms() - now_ms
        if took_ms >= LOGGED_MS:
            logger.info("a full garbage collection took %d ms and found %d objects", took_ms, found)
        self._plan()
