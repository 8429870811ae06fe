"""The opening of a directory, which depends on the files found and on the flag.

=====================  ============================  ==============================================
enableDLegerCommitLog  found                         action
=====================  ============================  ==============================================
false                  no DLedger data               recover the classic log
false                  DLedger data                  refuse: its messages would not be readable
true                   DLedger data, no classic      recover the DLedger log
true                   DLedger data and classic      recover the DLedger log, join at its first byte
true                   classic files only            recover them, seal the last one, start the
                                                     DLedger log after it: the flip
true                   neither                       start a DLedger log at 0
=====================  ============================  ==============================================

The last four rows are implemented in :mod:`.dledger_opening`.

The flip may be interrupted anywhere: sealing is idempotent, and once the first DLedger file exists,
the directory is a joined one. After an unclean stop the classic log is recovered following the
abnormal rules, and everything from the start of the scan is dispatched again (4.9.7 recovers
following the normal rules in that case, and loses consume queue tails).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve, field

from rmqpy.config.loading import FlushDiskType, StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import (
    KEPT_BYTES_MAX,
    DurablePoint,
    LogRecovery,
    WalkEnd,
    clean_start,
    unclean_start,
)
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.files.record_search import age_ms
from rmqpy.store.files.recovery_point import RecoveryPoint

if TYPE_CHECKING:
    from rmqpy.store.commitlog.dledger import DLedgerCommitLog
    from rmqpy.store.ledger.classic_prefix import ClassicPrefix
    from rmqpy.store.ledger.entry_store import EntryStore

COMMIT_LOG_SIZE_KEY = "mappedFileSizeCommitLog"
CHECKPOINT_WITHIN_MS = 60_000
"""The time within which a log gets a checkpoint: Java's flushConsumeQueueThoroughInterval."""


@define(slots=True, frozen=True)
class Stop:
    """The end of the last run. ``safe_timestamp_ms``, ``physic_timestamp_ms`` and
    ``flushed_offset`` are those of the checkpoint.
    """

    clean: bool
    safe_timestamp_ms: int
    physic_timestamp_ms: int = 0
    flushed_offset: int | None = None
    point: RecoveryPoint | None = None
    no_power_loss: bool = False
    """True if the process was killed and the machine has not been restarted since: the files are as
    they were written (:mod:`rmqpy.store.files.boot_note`).
    """
    has_unit: Callable[[int], bool] = lambda _offset: False
    """Returns whether a consume queue has a unit of the record at an offset."""


@define(slots=True, eq=False, repr=False)
class OpenedLog:
    """A log that is ready to be read.

    Up to ``dispatch_from`` the derived files are known to be complete; after an unclean stop
    everything from there must be dispatched again. ``written_end`` is the end of the bytes that
    were found, committed or not. ``dledger`` is None without a DLedger part, and ``divided_offset``
    without a classic log before it. ``notes`` are logged by the broker.
    """

    log: CommitLog
    dispatch_from: PhysicalOffset
    written_end: PhysicalOffset
    classic: ClassicCommitLog | None = None
    dledger: DLedgerCommitLog | None = None
    divided_offset: PhysicalOffset | None = None
    notes: list[str] = field(factory=list)
    old_log: ClassicPrefix | None = None
    """The end and digests of the log before the divide, if there is or was one."""

    @property
    def entries(self) -> EntryStore | None:
        """The entries of the DLedger part, if there is one."""
        return self.dledger.entries if self.dledger is not None else None


@define(slots=True, frozen=True, eq=False, repr=False)
class Opening:
    """One attempt to open a directory with enableDLegerCommitLog=false. With ``force``, the log is
    cut at damage in the middle instead of being refused.
    """

    files: FileSystem
    settings: StoreSettings
    stop: Stop
    force: bool = False

    def open(self) -> OpenedLog:
        """Open and recover the log.

        Raises StoreError, which names what was found, what was expected and the remedy. Nothing was
        changed then, except that a torn tail may have been moved to the quarantine.
        """
        row = MappedFiles(
            self.files, (self._paths.commit_log,), self.settings.mapped_file_size_commit_log
        )
        row.load(COMMIT_LOG_SIZE_KEY)
        try:
            return self._open_log(row)
        except BaseException:
            row.close()
            raise

    def _open_log(self, row: MappedFiles) -> OpenedLog:
        """Return the log; ``row`` contains the files of the classic log and may be empty."""
        self._refuse_dledger_data()
        return self._recover_classic(row)

    @property
    def _paths(self) -> StorePaths:
        return StorePaths.from_settings(self.settings)

    def _recover_classic(self, row: MappedFiles) -> OpenedLog:
        notes: list[str] = []
        dispatch_from = 0
        durable = None
        if row:
            start, start_offset = self._classic_start(row)
            dispatch_from = start_offset
            walker = LogRecovery(
                self.files,
                row,
                Framing.CLASSIC,
                self._paths.quarantine,
                check_crc=self.settings.check_crc_on_recover,
                force=self.force,
                check_property_crc=self.settings.checks_property_crc,
                durable=self._durable_point(row),
            )
            if self._is_as_written:
                walker = evolve(walker, was_written=self.stop.has_unit)
            if self.force:
                # If this start is killed after the cut, the point must not demand another force.
                self.files.unlink(self._paths.recovery_point)
            end = walker.recover(start, start_offset)
            if end.torn_bytes:
                notes.append(self._torn_note(end))
            if not self.stop.clean:
                # The bytes that a killed process wrote may only be in the page cache: the first
                # flush covers them.
                durable = min(start_offset, row.wrote_offset)
                row.sync_directories()
        sync_flush = self.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        log = ClassicCommitLog(row, sync_flush=sync_flush, flushed_offset=durable)
        return OpenedLog(
            log, PhysicalOffset(dispatch_from), log.max_offset, classic=log, notes=notes
        )

    def _classic_start(self, row: MappedFiles) -> tuple[int, int]:
        """Return the number of the file, and the offset of the record, at which the scan starts."""
        if self.stop.clean:
            start = clean_start(row)
            return start, row[start].first_offset
        point = self.stop.point
        if point is not None and point.holds(row) and row.find(point.offset) is not None:
            return (point.offset - row.min_offset) // row.file_size, point.offset
        start = unclean_start(row, Framing.CLASSIC, self.stop.safe_timestamp_ms)
        return start, row[start].first_offset

    def _durable_point(self, row: MappedFiles) -> DurablePoint:
        """Return what was durable. The recovery point does not count if it is that of another log,
        because no file contains it.

        After an unclean stop the checkpoint has the end of the last flush, or at least its time. A
        log without both that is older than a minute has lost them, because Java's checkpoint is on
        the disk by then: all of it counts as durable. Nothing in a younger one does.
        """
        stop, point = self.stop, self.stop.point
        end = point.offset if point is not None and row.find(point.offset - 1) is not None else 0
        if stop.clean or self._is_as_written:
            return DurablePoint(end)
        if stop.flushed_offset is not None:
            return DurablePoint(end, max(end, stop.flushed_offset))
        unknown = end == stop.physic_timestamp_ms == 0 and age_ms(row) > CHECKPOINT_WITHIN_MS
        return DurablePoint(end, flushed_ms=None if unknown else stop.physic_timestamp_ms)

    @property
    def _is_as_written(self) -> bool:
        """True if a record that is followed by another one had been written completely. A Java
        broker that has run in the meantime may have left earlier bytes after the end of its log.
        """
        return self.stop.no_power_loss and self.stop.flushed_offset is not None

    def _torn_note(self, end: WalkEnd) -> str:
        if end.given_up:
            return (
                f"gave up everything from the damage at offset {end.end} on: {end.torn_bytes} bytes"
                f" with {end.given_up} that could be read, moved to {self._paths.quarantine}"
            )
        if not end.followed or self.force:
            return (
                f"{end.torn_bytes} torn bytes at offset {end.end} moved to {self._paths.quarantine}"
            )
        return (
            f"power was lost before the last writes were flushed: the log now ends at offset"
            f" {end.end}, where the first record is missing; {end.torn_bytes} bytes after it, which"
            f" had not been flushed, were moved to {self._paths.quarantine} (at most"
            f" {KEPT_BYTES_MAX} are kept)"
        )

    def _has_files(self, folder: str) -> bool:
        """Return whether ``folder`` holds more than a file whose creation was interrupted."""
        paths = [f"{folder}/{name}" for name in self.files.list_dir(folder)]
        return any(self.files.is_dir(path) or self.files.size_of(path) > 0 for path in paths)

    def _refuse_dledger_data(self) -> None:
        folders = [
            f"{self._paths.root}/{name}/data"
            for name in self.files.list_dir(self._paths.root)
            if name.startswith("dledger-")
        ]
        if self.settings.store_path_dledger_commit_log is not None:
            folders.append(self.settings.store_path_dledger_commit_log)
        for folder in folders:
            if self._has_files(folder):
                raise StoreError(
                    folder,
                    "data of a DLedger log, and enableDLegerCommitLog=false",
                    "a classic store",
                    "set enableDLegerCommitLog=true: a classic start would hide every message"
                    " written since the switch and give their queue offsets a second time; the way"
                    " back that keeps them is rmqpy upgrade leave",
                )
