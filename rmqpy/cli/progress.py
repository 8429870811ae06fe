"""The line on stderr that shows a state, or progress: amount, rate, and remaining time.

On a terminal it is drawn over itself, disappears at the end, and makes room for anything that is
printed meanwhile; in a file a new line is added every ``FILE_INTERVAL_S``. Work that takes less
than an interval shows no progress.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TextIO

from rmqpy.cli.terminal import console_of, printable

if TYPE_CHECKING:
    from rich.console import Console

TERMINAL_INTERVAL_S = 0.5
FILE_INTERVAL_S = 10.0
BAR_WIDTH = 20
_ERASE = "\r\x1b[K"


class StatusLine:
    """A line that is drawn over itself on a terminal; a context manager that erases it."""

    def __init__(
        self, stream: TextIO | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._console: Console | None = console_of(self._stream)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._shown = False
        self._shown_s = now_s() - FILE_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Draw ``text`` now; a file or a pipe gets a line only every ``FILE_INTERVAL_S``."""
        text = printable(text)
        with self._lock:
            now_s = self._now_s()
            if self._console is not None:
                self._write(text[: self._console.width - 1])
            elif now_s - self._shown_s >= FILE_INTERVAL_S:
                self._shown_s = now_s
                self._write(text)

    def clear(self) -> None:
        """Erase the line, if there is one. The next report draws it again."""
        with self._lock:
            if self._shown:
                self._stream.write(_ERASE)
                self._stream.flush()
                self._shown = False

    def _write(self, text: str) -> None:
        if self._console is None:
            self._stream.write(f"{text}\n")
        else:
            self._stream.write(f"{_ERASE}{text}")
            self._shown = True
        self._stream.flush()


class ProgressLine(StatusLine):
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
        super().__init__(stream, now_s)
        self._verb = verb
        self._things = things
        self._interval_s = FILE_INTERVAL_S if self._console is None else TERMINAL_INTERVAL_S
        self._begin_s = self._shown_s = now_s()
        self._total = self._done = 0

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
            text = self.text(now_s - self._begin_s)
            self._write(text if self._console is None else self._drawn(self._console, text))

    def text(self, elapsed_s: float) -> str:
        """Return the line after ``elapsed_s`` seconds of work."""
        rate = self._done / elapsed_s if elapsed_s > 0 else 0.0
        if self._things is None:
            text = f"{self._verb} {_size(self._done)} of {_size(self._total)}, {_size(rate)}/s"
        else:
            text = f"{self._verb} {self._done} of {self._total} {self._things}, {rate:.1f}/s"
        if rate and self._total > self._done:
            text += f", {_duration((self._total - self._done) / rate)} left"
        return text

    def _drawn(self, console: Console, text: str) -> str:
        """Return the bar and the text in one line, cut to the width: a line that the terminal
        breaks could not be erased.
        """
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = ProgressBar(total=max(self._total, 1), completed=self._done, width=BAR_WIDTH)
        row = Table.grid(padding=(0, 1))
        row.add_column()
        row.add_column(no_wrap=True)
        row.add_row(bar, text)
        with console.capture() as captured:
            console.print(row, end="", width=console.width - 1)
        return captured.get().rstrip("\n")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
