"""RetentionCleaner: the removal of expired files (Java CleanCommitLogService,
CleanConsumeQueueService).

========  ===================================================  ================================
trigger   condition                                            removed files
========  ===================================================  ================================
time      the hour is one of deleteWhen                        expired log files
space     disk use above diskMaxUsedSpaceRatio                 expired log files
manual    for 20 rounds after request 329                      expired log files
force     disk use above diskSpaceCleanForciblyRatio, and      log files of any age
          cleanFileForciblyEnable
full      disk use above diskSpaceWarningLevelRatio            like force; puts are refused too
========  ===================================================  ================================

A log file expires fileReservedTime hours after it was last written. Files are removed oldest first,
at most 10 per round, never the current one, and only if the consume queues on disk cover the file
completely: otherwise the next offset of a queue without new messages would be lost. In the same
round, files of consume queues and key index are removed that only refer to removed messages.

In a joined log the old files are removed first, finally all of them (the last one only when the new
log has an entry: until then only that file determines the divided offset). While an old file
exists, no file of the new log is removed (the name of its first file is the divided offset);
afterwards the files of the new log are kept one hour longer, as in DLedger's own cleaning.

A round is a sequence of small steps, so that the loop is never blocked: unlinking runs where it may
block, and pauses are timers. A file is removed first from the log and then from the disk, in order
and each durably, so that an interruption leaves no gap in the files. Readers keep their views.

If everything in the old log of a member has expired on the other members, the leader's log starts
later, and the member drops its old log as a whole (:meth:`RetentionCleaner.drop_old`).

Invariant: while a file that was removed from the log cannot be removed from the disk, no other file
is removed.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Protocol

from attrs import field

from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.interface import AT_ONCE_HOURS, CommitLog
from rmqpy.store.files.mapped_files import MappedFile
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.flush_tracker import FlushTracker
from rmqpy.store.health import StoreHealth
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.queues.table import ConsumeQueueTable

FILES_A_ROUND = 10
MANUAL_ROUNDS = 20
QUEUES_AT_ONCE = 64
"""The number of queues that are examined without a pause."""
HOUR_MS = 3_600_000


class ExpiredFile(Protocol):
    """A file that was removed from its log, queue or index."""

    @property
    def path(self) -> str: ...

    def close(self) -> None: ...


@define(slots=True, frozen=True)
class DeletionTask:
    """A task that removes a file from the disk. ``run`` blocks and uses no state of the store."""

    files: FileSystem
    file: ExpiredFile

    def run(self) -> None:
        self.files.unlink(self.file.path)
        self.files.sync_dir(self.file.path.rpartition("/")[0])
        # The space of a large file is freed when its last user closes it, which takes time.
        self.file.close()


@define(slots=True, frozen=True)
class CleaningPause:
    """A step of a round: a pause of ``delay_ms``."""

    delay_ms: int


Round = Generator[DeletionTask | CleaningPause, BaseException | None, None]
"""The steps of a round. The caller sends back the error of a removal, or None."""


@define(slots=True, eq=False, repr=False)
class RetentionCleaner:
    """The removal of the expired files of one store, one round at a time."""

    _files: FileSystem
    _paths: StorePaths
    _log: CommitLog
    _queues: ConsumeQueueTable
    _index: KeyIndex | None
    _health: StoreHealth
    _flushes: FlushTracker
    _manual_rounds: int = 0
    _forced: bool = False
    _hanging: DeletionTask | None = None
    _removing: DeletionTask | None = None
    """The removal that is running in a worker thread."""

    _tried_ms: int = 0
    _seen_min_offset: int = -1
    wants_flush: bool = False
    """True if a file can only be removed after a flush of the consume queues."""
    removed_count: int = 0
    failure: str | None = field(default=None)
    """The reason why the last removal failed; None if it succeeded."""

    def delete_manually(self) -> None:
        """Remove expired files in the next rounds, whatever the hour (request 329)."""
        self._manual_rounds = MANUAL_ROUNDS

    def use_log(self, log: CommitLog) -> None:
        """Remove the expired files of this log from now on."""
        self._log = log

    def check_disk(self, settings: StoreSettings) -> float:
        """Measure the used fractions of both disks and return the larger one. Puts are refused
        while a disk is nearly full.
        """
        use = max(map(self.disk_use, (self._paths.commit_log, self._paths.root)))
        full = use > settings.disk_space_warning_level_ratio / 100
        self._health.set_disk_full(full)
        self._forced = full or use > settings.disk_space_clean_forcibly_ratio / 100
        return use

    def disk_use(self, path: str) -> float:
        """Return the used fraction of the disk that holds ``path``."""
        total, free = self._files.disk_usage(path)
        return 1 - free / total if total else 0.0

    def drop_old(self, log: ClassicCommitLog) -> None:
        """Remove all files of the log before the divide, whatever their age, because the group has
        discarded them. Blocks. Raises OSError, after which it may be called again.
        """
        for removal in (self._hanging, self._removing):
            if removal is not None:
                self._unlink(removal.file)
        while log.segments:
            self._unlink(log.segments.first)
            log.release_oldest().close()
            self.removed_count += 1

    def _unlink(self, file: ExpiredFile) -> None:
        self._files.unlink(file.path)
        self._files.sync_dir(file.path.rpartition("/")[0])

    def round(self, settings: StoreSettings, now_ms: int) -> Round:
        """Yield the steps of one round at ``now_ms``."""
        use = self.check_disk(settings)
        if self._hanging is not None:
            if now_ms - self._tried_ms < settings.redelete_hanged_file_interval:
                return
            if not (yield from self._remove(self._hanging, now_ms)):
                return
        due = datetime.fromtimestamp(now_ms / 1000).hour in settings.delete_when
        due |= use > settings.disk_max_used_space_ratio / 100 or self._forced
        if self._manual_rounds > 0:
            self._manual_rounds -= 1
            due = True
        if due and not (yield from self._clean_log(settings, now_ms)):
            return
        yield from self._clean_derived(settings, now_ms)

    def _clean_log(
        self, settings: StoreSettings, now_ms: int
    ) -> Generator[DeletionTask | CleaningPause, BaseException | None, bool]:
        for count in range(FILES_A_ROUND):
            file = self._due_file(settings, now_ms, nothing_went=count == 0)
            if file is None:
                break
            if count:
                yield CleaningPause(settings.delete_commit_log_files_interval)
                if self._due_file(settings, now_ms, nothing_went=False) is not file:
                    break  # The log may have been reset, or the file repaired, during the pause.
            try:
                removal = DeletionTask(self._files, self._log.release_oldest())
            except StoreError as fault:
                self.failure = str(fault)
                return False
            if not (yield from self._remove(removal, now_ms)):
                return False
        return True

    def _due_file(
        self, settings: StoreSettings, now_ms: int, *, nothing_went: bool
    ) -> MappedFile | None:
        """Return the first file of the log if this round must remove it, or None."""
        oldest = self._log.oldest_file(nothing_went=nothing_went)
        if oldest is None:
            return None
        file, more_hours = oldest
        kept_ms = (settings.file_reserved_time + more_hours) * HOUR_MS
        forced = self._forced and settings.clean_file_forcibly_enable
        if not forced and now_ms < self._files.mtime_ms(file.path) + kept_ms:
            return None
        in_order = more_hours != AT_ONCE_HOURS  # Otherwise the queue ends are requested anyway.
        if in_order and file.end_offset > self._flushes.queues_durable_to:
            self.wants_flush = True
            return None
        return file

    def _clean_derived(self, settings: StoreSettings, now_ms: int) -> Round:
        min_offset = self._log.min_offset
        if min_offset <= self._seen_min_offset:
            return
        for number, queue in enumerate(list(self._queues), 1):
            before = self.removed_count
            for file in queue.pop_expired(min_offset):
                self._queues.changes.note(queue.name[0])
                if not (yield from self._remove(DeletionTask(self._files, file), now_ms)):
                    return
            if self.removed_count > before:
                yield CleaningPause(settings.delete_consume_queue_files_interval)
            elif number % QUEUES_AT_ONCE == 0:
                yield CleaningPause(0)
        if self._index is not None:
            for expired in self._index.pop_expired(min_offset):
                if not (yield from self._remove(DeletionTask(self._files, expired), now_ms)):
                    return
        self._seen_min_offset = min_offset

    def take_flush_request(self) -> bool:
        """Return whether a flush of the consume queues is wanted, and forget the request."""
        wanted, self.wants_flush = self.wants_flush, False
        return wanted

    def _remove(
        self, removal: DeletionTask, now_ms: int
    ) -> Generator[DeletionTask | CleaningPause, BaseException | None, bool]:
        self._removing = removal
        error = yield removal
        self._removing = None
        if error is None:
            self._hanging = self.failure = None
            self.removed_count += 1
            return True
        self._hanging, self._tried_ms = removal, now_ms
        self.failure = f"{removal.file.path} could not be removed: {error}"
        return False
