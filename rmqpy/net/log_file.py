"""The file of ``--log-file``: it is opened again when another program has moved or removed it, as
logrotate does. If it cannot be written, the lines go to standard error until it can.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from contextlib import suppress


class RotatedFile(logging.handlers.WatchedFileHandler):
    """A log file that other programs may move or remove at any time."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.reopenIfNeeded()
            if self.stream is None:  # a reopening has failed before
                self.stream = self._open()
                self._statstream()
            self.stream.write(self.format(record) + self.terminator)
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._write_elsewhere(record, error)
        else:
            self._failed = False

    def _write_elsewhere(self, record: logging.LogRecord, error: Exception) -> None:
        """Write the line to standard error; say why once."""
        self._give_up()
        try:
            if not self._failed:
                self._failed = True
                print(
                    f"the log file {self.baseFilename} cannot be written: {error}", file=sys.stderr
                )
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):  # neither can be written
            self._failed = True

    def _give_up(self) -> None:
        """Drop the stream with what it could not write, which is on standard error."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.close()
