"""The copy of a master's log: a store that appends what an observer receives.

The bytes before the end of the copy are requested again on each connection and compared, so that a
master with another history is noticed. The observer's link reports what it requested first, and
nothing else (:class:`rmqpy.ha.follower.SlaveLink`; with a controller
:class:`rmqpy.ha.learner.LearnerLink`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rmqpy.codec.epochs import Epoch
from rmqpy.config.loading import StoreSettings
from rmqpy.ha.follower import FollowerLink, SlaveLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.ha.learner import LearnedCopy, LearnerLink
from rmqpy.ha.link import LinkSettings
from rmqpy.model.clock import Clock
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.rehearsal.rehearsed_group import LogEnds
from rmqpy.rehearsal.suitability import first_request
from rmqpy.store.message_store import StoreContext, open_store

OVERLAP: Final = 64 << 10
"""The bytes before the end of the copy that each connection compares."""


class Shadow:
    """A copy, opened for appending. Raises StoreError if its directory is not sound.

    ``epochs`` are those of the copy of a controller group, as far as they are known; ``keep``
    records what the master says of them, before bytes that belong to them are appended.
    """

    def __init__(
        self,
        settings: StoreSettings,
        files: FileSystem,
        clock: Clock,
        memory_bytes: int,
        epochs: tuple[Epoch, ...] = (),
        keep: Callable[[tuple[Epoch, ...]], None] = lambda epochs: None,
    ) -> None:
        self._settings = settings
        self.store: Final = open_store(StoreContext(settings, files, clock, memory_bytes))
        self.store.set_role(slave=True)
        self._epochs = epochs
        self._keep = keep
        self._learner: LearnerLink | None = None
        self.fault = ""
        """Why nothing more can be appended; "" if nothing is wrong."""

    @property
    def begin(self) -> int:
        return self.store.log.min_offset

    @property
    def end(self) -> int:
        """The end of the copy; 0 if it is empty."""
        return self.store.log.max_offset

    @property
    def is_whole(self) -> bool:
        """Whether the copy ends with a whole message: a master sends pieces of bytes."""
        if self.store.dispatcher.behind_bytes:
            self.store.dispatch()
        return not self.store.dispatcher.behind_bytes

    def link(self, ends: LogEnds, now_ms: int, *, controlled: bool = False) -> FollowerLink:
        """Return the link for a new connection to a master whose log is at ``ends``."""
        request = PhysicalOffset(first_request(ends, self.end, overlap=OVERLAP))
        settings = LinkSettings.from_settings(self._settings)
        if controlled:
            copy = LearnedCopy(begin=ends.begin, end=self.end, request=request, epochs=self._epochs)
            self._learner = LearnerLink(settings, copy, now_ms)
            return self._learner
        begin_at = None if request else PhysicalOffset(0)
        return SlaveLink(settings, request, now_ms, begin_at=begin_at, observer=True)

    def check_continues(self, ends: LogEnds) -> None:
        """Raise StoreError if the master no longer has what follows the copy."""
        if self.end and not ends.begin <= self.end <= ends.end:
            raise StoreError(
                self._settings.store_path_commit_log,
                f"a copy that ends at {self.end}, and a master with {ends.begin} to {ends.end}",
                "a copy that the master can continue",
                "remove the directory of the rehearsal, and repeat",
            )

    def append(self, transfer: TransferFrame) -> int:
        """Append what the copy lacks, and return its size. Raises StoreError."""
        size = len(transfer.body)
        if self._learner is not None and self._learner.epochs != self._epochs:
            self._epochs = self._learner.epochs
            self._keep(self._epochs)
        known = min(self.end - transfer.offset, size) if self.end else 0
        try:
            self._compare(transfer, known)
            if known < size:
                place = PhysicalOffset(transfer.offset + known)
                self.store.append_raw(place, transfer.body[known:])
                self.store.dispatch()
        except (OSError, StoreError) as error:
            self.fault = str(error)
            raise
        return size - known

    def _compare(self, transfer: TransferFrame, size: int) -> None:
        own = self.store.log.read(transfer.offset, size) if size else b""
        if own is None or own != memoryview(transfer.body)[:size]:
            raise StoreError(
                self._settings.store_path_commit_log,
                f"other bytes at offset {transfer.offset} than the master has there",
                "the same history",
                "the group was restored or created again: remove the directory of the rehearsal,"
                " and repeat",
            )

    async def flush(self) -> None:
        """Make everything durable, so that the next start has little to recover."""
        tracker = self.store.flush_tracker
        if (task := tracker.flush_task()) is not None:
            await asyncio.to_thread(task.run)
            tracker.flushed(task.offset)
        if (queues := tracker.queue_flush_task()) is not None:
            await asyncio.to_thread(queues.run)
            tracker.queues_flushed(queues)

    def close(self) -> None:
        """Finish queues and index, and release the directory as a clean stop does."""
        while self.store.health.is_healthy and self.store.catch_up_index():
            self.store.dispatch()
        self.store.shutdown()
