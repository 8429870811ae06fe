"""Opening a directory with enableDLegerCommitLog=true: the rows of :mod:`.opening`'s table that end
in a DLedger log, alone or joined to the classic log in front of it.
"""

from __future__ import annotations

from attrs import define

from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.dledger import DLedgerCommitLog, NobodyLeads
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.commitlog.opening import OpenedLog, Opening
from rmqpy.store.commitlog.recovery import Framing, clean_start, last_safe_file
from rmqpy.store.entry_recovery import EntryOpening, EntryPaths, open_entries
from rmqpy.store.entry_store import EntryStore
from rmqpy.store.mapped_files import MappedFiles
from rmqpy.store.old_log import OldLog, open_old_log


@define(slots=True, frozen=True, eq=False, repr=False)
class DLedgerOpening:
    """``row``: the files of the classic log, which may be none."""

    around: Opening
    row: MappedFiles

    def open(self) -> OpenedLog:
        """See :meth:`Opening.open`."""
        data_path = self.around.settings.dledger_data_path
        if self.around.has_files(data_path):
            return self._open_joined()
        if self.row:
            return self._flip()
        entries, notes = self._open_entries(None)
        log = DLedgerCommitLog(entries, NobodyLeads())
        return OpenedLog(
            log,
            PhysicalOffset(0),
            entries.end_offset,
            dledger=log,
            entries=entries,
            notes=notes,
        )

    def _flip(self) -> OpenedLog:
        """First start with the flag on: the classic log ends here, the DLedger log begins."""
        row = self.row
        opened = self.around.recover_classic(row)
        old = opened.classic
        assert old is not None
        if old.max_offset == 0:
            # A file was made, but no record written: there is nothing to join.
            row.drop_last()
            row.sync_directories()
            return self.open()
        divided = old.seal()
        row.sync_directories()
        entries, notes = self._open_entries(divided)
        opened.notes += notes
        opened.notes.append(
            f"classic log sealed, DLedger log begins at dividedCommitlogOffset {divided}"
        )
        opened.dledger = DLedgerCommitLog(entries, NobodyLeads())
        opened.log = JoinedCommitLog(old, opened.dledger, divided)
        opened.written_end = entries.end_offset
        opened.entries = entries
        opened.divided_offset = divided
        opened.old_log = self._old_log(divided)
        return opened

    def _old_log(self, divided: int) -> OldLog:
        return open_old_log(self.around.files, self.row, divided, self.around.paths.own)

    def _open_joined(self) -> OpenedLog:
        row = self.row
        entries, notes = self._open_entries(row.last.end_offset if row else None)
        divided = entries.base_offset
        new = DLedgerCommitLog(entries, NobodyLeads())
        opened = OpenedLog(
            new,
            self._entries_safe_to(entries),
            entries.end_offset,
            dledger=new,
            entries=entries,
            notes=notes,
            old_log=self._old_log(divided),
        )
        if row:
            opened.classic = ClassicCommitLog(row)
            opened.log = JoinedCommitLog(opened.classic, new, divided)
            opened.divided_offset = divided
        return opened

    def _entries_safe_to(self, entries: EntryStore) -> PhysicalOffset:
        """Start of the last file, of either log, whose first message is older than the
        checkpoint.
        """
        data = entries.data
        stop = self.around.stop
        if stop.clean:
            return PhysicalOffset(data[clean_start(data)].first_offset)
        for files, framing in ((data, Framing.DLEDGER), (self.row, Framing.CLASSIC)):
            number = last_safe_file(files, framing, stop.safe_timestamp_ms)
            if number is not None:
                return PhysicalOffset(files[number].first_offset)
        return PhysicalOffset(0)

    def _open_entries(self, divided_offset: int | None) -> tuple[EntryStore, list[str]]:
        """The entries; ``divided_offset`` is where a classic log in front of them ends."""
        around, settings = self.around, self.around.settings
        self_id = settings.dledger_self_id
        assert self_id is not None, "the settings are checked before the store is opened"
        opening = EntryOpening(
            around.files,
            EntryPaths(around.paths.dledger(self_id), (settings.dledger_data_path,)),
            settings.mapped_file_size_commit_log,
            divided_offset,
            quarantine=around.paths.quarantine,
            safe_timestamp_ms=None if around.stop.clean else around.stop.safe_timestamp_ms,
            force=around.force,
            can_mend=len(settings.dledger_members) > 1,
        )
        entries, torn_bytes = open_entries(opening)
        notes = [around.torn_note(torn_bytes, entries.end_offset)] if torn_bytes else []
        notes += [
            f"entry {index} is damaged: nothing from offset {hole.offset} on is read here until it"
            " has been fetched from the group"
            for index, hole in entries.holes.items()
        ]
        return entries, notes
