"""The line that shows the state of a command once a second, on stderr.

On a terminal it is drawn over itself and disappears at the end; in a file or a pipe a new line is
added every ``FILE_INTERVAL_S``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rmqpy.cli.progress import FILE_INTERVAL_S
from rmqpy.cli.terminal import console_of, printable

_ERASE = "\r\x1b[K"


class StatusLine:
    """A line of state; a context manager that erases it."""

    def __init__(
        self, stream: TextIO | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._console = console_of(self._stream)
        self._now_s = now_s
        self._shown_s = now_s() - FILE_INTERVAL_S

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Make room for other output."""
        if self._console is not None:
            self._stream.write(_ERASE)
            self._stream.flush()

    def show(self, text: str) -> None:
        text = printable(text)
        if self._console is not None:
            self._stream.write(f"{_ERASE}{text[: self._console.width - 1]}")
        elif self._now_s() - self._shown_s >= FILE_INTERVAL_S:
            self._shown_s = self._now_s()
            self._stream.write(f"{text}\n")
        self._stream.flush()
