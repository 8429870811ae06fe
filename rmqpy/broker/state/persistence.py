"""Tables that live in memory and are kept in one JSON file each, beside Java's (``config/*.json``).

Reading: the file; when it is missing, empty or unreadable as a table, its ``.bak``. Neither there:
an empty table. A file that is there and a ``.bak`` that does not help either: StoreError, nothing
is guessed.

Writing: the former content becomes ``X.bak``, then ``X`` is replaced in one step. A table is
encoded on the loop and written in a worker thread, one write a file at a time; changes during a
write lead to one more write, for which a large table takes its time (``Throttled``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from attrs import define

from rmqpy.broker.base.scheduling import Throttled
from rmqpy.model.clock import Scheduler
from rmqpy.model.files import FileSystem
from rmqpy.store.files.atomic import read_with_backup, write_atomically

T = TypeVar("T")

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class TableFile:
    """One file and its backup."""

    files: FileSystem
    path: str

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """The decoded table, None when there never was one. Raises StoreError."""
        return read_with_backup(self.files, self.path, decode)

    def save(self, content: bytes) -> None:
        """Replace the content, keeping the former one as backup. Blocks until it is durable."""
        write_atomically(self.files, self.path, content)


class TableWriter:
    """Writes one table when it was marked as changed."""

    def __init__(self, file: TableFile, scheduler: Scheduler, encode: Callable[[], bytes]) -> None:
        self._file = file
        self._scheduler = scheduler
        self._encode = encode
        self._changed = False
        self._writing = False
        self._suspended = False
        self._closed: Callable[[], None] | None = None
        self._pace = Throttled(scheduler, self._begin)

    def suspend(self) -> None:
        """Write nothing until :meth:`resume`."""
        self._suspended = True

    def resume(self) -> None:
        """Write again, and now if the writer is free."""
        self._suspended = False
        self.changed()

    def mark(self) -> None:
        """The table has changed; written by the next :meth:`write`."""
        self._changed = True

    def changed(self) -> None:
        """The table has changed: write it as soon as the writer is free."""
        self._changed = True
        self.write()

    def write(self) -> None:
        """Begin to write if there is something to write and no write under way."""
        if not self._writing and self._changed and self._closed is None:
            self._pace.request()

    def _begin(self) -> None:
        if self._writing or not self._changed or self._closed is not None or self._suspended:
            return
        self._changed = False
        self._writing = True
        content = self._encode()
        self._scheduler.run_blocking(lambda: self._file.save(content), self._written)

    def close(self, done: Callable[[], None]) -> None:
        """Write the last state, after the write that is under way; then ``done``. Nothing is
        written later.
        """
        self._closed = done
        self._pace.cancel()
        if not self._writing:
            self._write_last(done)

    def _write_last(self, done: Callable[[], None]) -> None:
        self._changed = False
        try:
            if not self._suspended:
                self._file.save(self._encode())
        except OSError as error:
            logger.error("%s could not be written: %s", self._file.path, error)
        done()

    def _written(self, _result: None, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._changed = True
            logger.error("%s could not be written: %s", self._file.path, error)
        if self._closed is not None:
            self._write_last(self._closed)
        elif error is None:
            self.write()
