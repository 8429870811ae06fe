"""DeferredFileWriter: writes a small file whenever its content has changed, without blocking the
loop.

States: idle -> writing (one at a time, in a worker) -> idle, or writing again if there was a change
in the meantime. Changes that arrive during a write are written together.

Invariants: ``done`` of a ``save`` is called exactly once, after a write of the content as of that
``save`` or later, with the error of that write if it failed; at most WAITING_MAX of them wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define, field

from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.atomic import write_atomically

logger = logging.getLogger(__name__)

WAITING_MAX = 1024

Saved = Callable[[BaseException | None], None]


@define(slots=True, eq=False, repr=False)
class DeferredFileWriter:
    """The writer of one file."""

    path: str
    _files: FileSystem
    _scheduler: Scheduler
    _waiting: list[Saved] = field(factory=list)
    _content: Callable[[], bytes] | None = None
    _writing: bool = False

    def check_not_full(self) -> None:
        """Raise RequestRejectedError if no further change can wait for its write."""
        if len(self._waiting) >= WAITING_MAX:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} changes are waiting for {self.path}"
            )

    def save(self, content: Callable[[], bytes], done: Saved) -> None:
        """Replace the file by ``content()``, evaluated when the write starts. The previous content
        is kept as ``.bak``.
        """
        assert len(self._waiting) < WAITING_MAX
        self._content = content
        self._waiting.append(done)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        content, self._content = self._content, None
        told, self._waiting = self._waiting, []
        if content is None:
            return
        self._writing = True

        def written(_: None, error: BaseException | None) -> None:
            self._writing = False
            if error is not None:
                logger.error("%s could not be written: %s", self.path, error)
            for done in told:
                done(error)
            if not self._writing:
                self._write()

        whole = content()
        self._scheduler.run_blocking(
            lambda: write_atomically(self._files, self.path, whole), written
        )
