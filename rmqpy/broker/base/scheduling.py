"""Work that a broker does again and again: each under a name, with a period of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define, field

from rmqpy.model.clock import Scheduler, Timer

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class PeriodicWork:
    """A round that fails is logged; the next one comes all the same."""

    _scheduler: Scheduler
    _timers: dict[str, Timer] = field(factory=dict, init=False)

    def every(self, name: str, period_ms: Callable[[], int], work: Callable[[], None]) -> None:
        """Work again and again; the period may change while the broker runs."""

        def run() -> None:
            self.once(name, period_ms(), run)
            try:
                work()
            except Exception:
                logger.exception("periodic work %s failed", name)

        self.once(name, period_ms(), run)

    def once(self, name: str, delay_ms: int, work: Callable[[], None]) -> None:
        """Work once, a while from now."""
        self._timers[name] = self._scheduler.call_later(delay_ms, work)

    def stop(self) -> None:
        """No round begins any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
