"""The renderer of progress: a line on stderr with amount, rate, and remaining time.

On a terminal the line is overwritten; in a file a new line is added every ``FILE_INTERVAL_S``. Work
that takes less than an interval prints nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rmqpy.model.text import format_duration

TERMINAL_INTERVAL_S = 0.5
FILE_INTERVAL_S = 10.0


class ProgressLine:
    """A progress line (implements ``rmqpy.model.progress.ProgressSink``).

    ``verb`` describes the work ("checked"). ``things`` names the items that are counted; None means
    bytes. The clock starts with the first expected amount. Several threads may report.
    """

    def __init__(
        self,
        verb: str,
        stream: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
        things: str | None = None,
    ) -> None:
        self._verb = verb
        self._things = things
        self._stream = stream or sys.stderr
        self._now_s = now_s
        self._overwrites = self._stream.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._overwrites else FILE_INTERVAL_S
        self._lock = threading.Lock()
        self._begin_s = self._shown_s = now_s()
        self._total = self._done = 0
        self._shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown and self._overwrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def expect(self, total: int) -> None:
        """Add ``total`` to the expected amount."""
        with self._lock:
            if not self._total:
                self._begin_s = self._shown_s = self._now_s()
            self._total += total

    def advance(self, done: int) -> None:
        with self._lock:
            self._done += done
            now_s = self._now_s()
            if now_s - self._shown_s < self._interval_s:
                return
            self._shown_s = now_s
            self._show(self.text(now_s - self._begin_s))

    def text(self, elapsed_s: float) -> str:
        """Return the line after ``elapsed_s`` seconds of work."""
        rate = self._done / elapsed_s if elapsed_s > 0 else 0.0
        if self._things is None:
            text = f"{self._verb} {_size(self._done)} of {_size(self._total)}, {_size(rate)}/s"
        else:
            text = f"{self._verb} {self._done} of {self._total} {self._things}, {rate:.1f}/s"
        if rate and self._total > self._done:
            text += f", {format_duration((self._total - self._done) / rate)} left"
        return text

    def _show(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}" if self._overwrites else f"{text}\n")
        self._stream.flush()
        self._shown = True


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
