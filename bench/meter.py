"""The measured time of one load of a client."""

from __future__ import annotations

import time
from typing import Final

CLOCK_EVERY: Final = 64
"""The messages after which the clock is read: in ``ClientLoad.java`` and ``go/``, too, so that the
load itself costs little in each language.
"""


class Meter:
    """Counts messages; the measured time begins after the warm-up."""

    def __init__(self, seconds: float, warm_seconds: float) -> None:
        self.count = self._next = 0
        now = time.monotonic()
        self._begin, self._end = now + warm_seconds, now + warm_seconds + seconds
        self._started: tuple[int, float, float] | None = None
        self.result: dict[str, float] | None = None

    def add(self, count: int) -> bool:
        """Count messages, and return whether to go on."""
        self.count += count
        if self.count < self._next:
            return self.result is None
        self._next = self.count + CLOCK_EVERY
        now = time.monotonic()
        if self._started is None:
            if now >= self._begin:
                self._started = self.count, time.process_time(), now
        elif now >= self._end and self.result is None:
            count, cpu_s, start = self._started
            self.result = {
                "messages": self.count - count,
                "cpu_s": time.process_time() - cpu_s,
                "seconds": now - start,
            }
        return self.result is None
