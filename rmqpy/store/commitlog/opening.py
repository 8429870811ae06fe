"""Opening a directory: what is there, what the flag asks for, and the way from one to the other.

======================  ==========================================  =============================================
enableDLegerCommitLog   found                                       then
======================  ==========================================  =============================================
false                   no DLedger data                             recover the classic log
false                   DLedger data                                refused: its messages would vanish
true                    DLedger data, no classic files              recover the DLedger log
true                    DLedger data and classic files              recover the DLedger log, join at its first byte
true                    classic files only                          recover them, seal the last one, begin the
                                                                    DLedger log behind it: the flip
true                    neither                                     begin a DLedger log at 0
======================  ==========================================  =============================================

The flip may be interrupted anywhere: sealing is idempotent, and once the first DLedger file exists the directory is a
joined one. After an unclean stop the classic log is recovered by the abnormal rules, with everything from the start of
the walk dispatched again (4.9.7 recovers by the normal ones then, and loses consume queue tails).
"""

from __future__ import annotations

from attrs import define, field

from rmqpy.model.config import StoreSettings
from rmqpy.model.errors import StoreFault
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.dledger import DLedgerCommitLog, NobodyLeads
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.commitlog.recovery import Framing, Walker, clean_start, unclean_start
from rmqpy.store.entry_store import EntryPaths, EntryStore, open_entries
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFiles
from rmqpy.store.paths import StorePaths

COMMIT_LOG_SIZE_KEY = "mappedFileSizeCommitLog"


@define(slots=True, frozen=True)
class Stop:
    """How the last run ended. ``safe_timestamp_ms`` is the checkpoint's."""

    clean: bool
    safe_timestamp_ms: int


@define(slots=True)
class OpenedLog:
    """A log ready to be read. ``walked_from`` is where recovery began: after an unclean stop everything from there on has
    to be dispatched again. ``entries`` and ``divided_offset`` only where there is a DLedger part.
    """

    log: CommitLog
    walked_from: PhysicalOffset
    written_end: PhysicalOffset
    classic: ClassicCommitLog | None = None
    entries: EntryStore | None = None
    divided_offset: PhysicalOffset | None = None
    notes: list[str] = field(factory=list)


@define(slots=True, frozen=True)
class Opening:
    """One attempt to open a directory. ``force`` cuts at damage in the middle instead of refusing."""

    files: FileLayer
    settings: StoreSettings
    stop: Stop
    force: bool = False

    def open(self) -> OpenedLog:
        """Raises StoreFault with what was found, what was expected and what to do; then nothing has been changed but a
        torn tail that was moved to the quarantine.
        """
        row = MappedFiles(
            self.files, (self._paths.commit_log,), self.settings.mapped_file_size_commit_log
        )
        row.load(COMMIT_LOG_SIZE_KEY)
        if not self.settings.enable_dledger_commit_log:
            self._refuse_dledger_data()
            return self._open_classic(row)
        return self._open_dledger(row)

    @property
    def _paths(self) -> StorePaths:
        return StorePaths.of(self.settings)

    def _open_classic(self, row: MappedFiles) -> OpenedLog:
        opened = self._recover_classic(row)
        assert opened.classic is not None
        return opened

    def _recover_classic(self, row: MappedFiles) -> OpenedLog:
        notes: list[str] = []
        walked_from = 0
        if row:
            if self.stop.clean:
                start = clean_start(row)
            else:
                start = unclean_start(row, Framing.CLASSIC, self.stop.safe_timestamp_ms)
            walked_from = row[start].first_offset
            walker = Walker(
                self.files,
                row,
                Framing.CLASSIC,
                self._paths.quarantine,
                check_crc=self.settings.check_crc_on_recover,
                force=self.force,
            )
            end = walker.recover(start)
            if end.torn_bytes:
                notes.append(
                    f"{end.torn_bytes} bytes of a torn record at offset {end.end} moved to {self._paths.quarantine}"
                )
        sync = self.settings.flush_disk_type.name == "SYNC_FLUSH"
        log = ClassicCommitLog(row, sync_flush=sync)
        return OpenedLog(log, PhysicalOffset(walked_from), log.max_offset, classic=log, notes=notes)

    def _open_dledger(self, row: MappedFiles) -> OpenedLog:
        if self._has_data():
            return self._open_joined(row)
        if not row:
            entries = self._open_entries(0)
            log = DLedgerCommitLog(entries, NobodyLeads())
            return OpenedLog(log, PhysicalOffset(0), entries.end_offset, entries=entries)
        return self._flip(row)

    def _flip(self, row: MappedFiles) -> OpenedLog:
        """First start with the flag on: the classic log ends here, the DLedger log begins."""
        opened = self._recover_classic(row)
        old = opened.classic
        assert old is not None
        if not row:
            # Recovery found no record at all: there is nothing to join.
            return self._open_dledger(row)
        divided = old.seal()
        row.sync_directories()
        entries = self._open_entries(divided)
        entries.data.sync_directories()
        opened.notes.append(f"classic log sealed, DLedger log begins at dividedCommitlogOffset {divided}")
        opened.log = JoinedCommitLog(old, DLedgerCommitLog(entries, NobodyLeads()), divided)
        opened.written_end = entries.end_offset
        opened.entries = entries
        opened.divided_offset = divided
        return opened

    def _open_joined(self, row: MappedFiles) -> OpenedLog:
        entries = self._open_entries(0)
        new = DLedgerCommitLog(entries, NobodyLeads())
        walked_from = self._entries_walked_from(entries)
        if not row:
            return OpenedLog(new, walked_from, entries.end_offset, entries=entries)
        divided = entries.base_offset
        if row.last.end_offset != divided:
            entries.close()
            raise StoreFault(
                row.last.path,
                f"an old commit log that ends at {row.last.end_offset}",
                f"its end at {divided}, where the first DLedger file begins",
                "restore the missing files of the old log from another member; or, when files of both logs cover"
                " the same offsets, ask which of them is wanted before anything is moved away",
            )
        old = ClassicCommitLog(row)
        return OpenedLog(
            JoinedCommitLog(old, new, divided),
            walked_from,
            entries.end_offset,
            classic=old,
            entries=entries,
            divided_offset=divided,
        )

    def _entries_walked_from(self, entries: EntryStore) -> PhysicalOffset:
        data = entries.data
        if self.stop.clean:
            return PhysicalOffset(data[clean_start(data)].first_offset)
        number = unclean_start(data, Framing.DLEDGER, self.stop.safe_timestamp_ms)
        return PhysicalOffset(data[number].first_offset)

    def _open_entries(self, base_offset: int) -> EntryStore:
        self_id = self.settings.dledger_self_id
        assert self_id is not None, "the settings are checked before the store is opened"
        paths = EntryPaths(self._paths.dledger(self_id), (self._paths.dledger_data_of(self_id),))
        return open_entries(
            self.files,
            paths,
            self.settings.mapped_file_size_commit_log,
            base_offset,
            quarantine=self._paths.quarantine,
            safe_timestamp_ms=None if self.stop.clean else self.stop.safe_timestamp_ms,
            force=self.force,
        )

    def _has_data(self) -> bool:
        self_id = self.settings.dledger_self_id
        assert self_id is not None
        return bool(self.files.list_dir(self._paths.dledger_data_of(self_id)))

    def _refuse_dledger_data(self) -> None:
        folders = [f"{self._paths.root}/{name}/data" for name in self._dledger_folders()]
        if self._paths.dledger_data is not None:
            folders.append(self._paths.dledger_data)
        for folder in folders:
            if self.files.list_dir(folder):
                raise StoreFault(
                    folder,
                    "data of a DLedger log, and enableDLegerCommitLog=false",
                    "a classic store",
                    "set enableDLegerCommitLog=true: a classic start would hide every message written since the switch"
                    " and give their queue offsets a second time",
                )

    def _dledger_folders(self) -> list[str]:
        return [name for name in self.files.list_dir(self._paths.root) if name.startswith("dledger-")]
