"""A limit of the rate at which work in the background reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import define

from rmqpy.model.progress import ProgressSink


@define(slots=True)
class Pace:
    """A limit of bytes per second, over the whole time; 0 means none."""

    bytes_per_second: float
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due_s: float = 0.0

    def spend(self, count: int) -> None:
        """Wait until ``count`` bytes more may have been read."""
        if not self.bytes_per_second:
            return
        now_s = self.now_s()
        self._due_s = max(self._due_s, now_s) + count / self.bytes_per_second
        self.sleep(self._due_s - now_s)


@define(slots=True)
class PacedProgress:
    """Limits the rate of work that reports its progress in bytes (implements ProgressSink)."""

    inner: ProgressSink
    pace: Pace

    def expect(self, total: int) -> None:
        self.inner.expect(total)

    def advance(self, done: int) -> None:
        self.inner.advance(done)
        self.pace.spend(done)
