"""The opening of a directory with enableDLegerCommitLog=true: the last four cases of the table in
:mod:`.opening`, which end in a DLedger log, alone or joined to the classic log before it.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.dledger import DLedgerCommitLog, NoLeaderProposer
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.commitlog.opening import OpenedLog, Opening
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import clean_start, last_safe_file
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger.classic_prefix import ClassicPrefix, open_old_log
from rmqpy.store.ledger.entry_recovery import EntryOpening, EntryPaths, open_entries
from rmqpy.store.ledger.entry_store import EntryStore


@define(slots=True, frozen=True, eq=False, repr=False)
class DLedgerOpening(Opening):
    """One attempt to open a directory with enableDLegerCommitLog=true."""

    def _open_log(self, row: MappedFiles) -> OpenedLog:
        if self._has_files(self.settings.dledger_data_path):
            return self._open_joined(row)
        if row:
            return self._flip(row)
        entries, notes = self._open_entries(None)
        log = DLedgerCommitLog(entries, NoLeaderProposer())
        return OpenedLog(log, PhysicalOffset(0), entries.end_offset, dledger=log, notes=notes)

    def _flip(self, row: MappedFiles) -> OpenedLog:
        """Perform the first start with the flag on: seal the classic log, and start the DLedger log
        after it.
        """
        opened = self._recover_classic(row)
        old = opened.classic
        assert old is not None
        if old.max_offset == 0:
            # A file was created, but no record was written: there is nothing to join.
            row.drop_last()
            row.sync_directories()
            return self._open_log(row)
        self.join(opened)
        return opened

    def join(
        self, opened: OpenedLog, old_log: Callable[[int], ClassicPrefix] | None = None
    ) -> None:
        """Seal the classic log of ``opened`` and start the DLedger log after it. The log may be in
        use, but no flush of it may be running. ``old_log`` returns what is known of the sealed log
        by its divided offset; without it, the last files are read.
        """
        old = opened.classic
        assert old is not None and old.max_offset > 0
        old.drop_unused()
        row = old.segments
        task = old.flush_task()
        if task is not None:
            # A sealed log is not flushed again.
            task.run()
            old.flushed(task.offset)
        divided = old.seal()
        row.sync_directories()
        entries, notes = self._open_entries(divided)
        opened.notes += notes
        opened.notes.append(
            f"classic log sealed, DLedger log starts at dividedCommitlogOffset {divided}"
        )
        opened.dledger = DLedgerCommitLog(entries, NoLeaderProposer())
        opened.log = JoinedCommitLog(old, opened.dledger, divided)
        opened.written_end = entries.end_offset
        opened.divided_offset = divided
        opened.old_log = old_log(divided) if old_log else self._old_log(row, divided)

    def _old_log(self, row: MappedFiles, divided: int) -> ClassicPrefix:
        return open_old_log(self.files, row, divided, self._paths.own)

    def _open_joined(self, row: MappedFiles) -> OpenedLog:
        entries, notes = self._open_entries(row.last.end_offset if row else None)
        divided = entries.base_offset
        new = DLedgerCommitLog(entries, NoLeaderProposer())
        opened = OpenedLog(
            new,
            self._entries_safe_to(entries, row),
            entries.derived_end,
            dledger=new,
            notes=notes,
            old_log=self._old_log(row, divided),
        )
        if row:
            opened.classic = ClassicCommitLog(row)
            opened.log = JoinedCommitLog(opened.classic, new, divided)
            opened.divided_offset = divided
        return opened

    def _entries_safe_to(self, entries: EntryStore, row: MappedFiles) -> PhysicalOffset:
        """Return the start of the last file, of either log, whose first message is older than the
        checkpoint. After an unclean stop, entries that are not known to be committed may be
        replaced, so what was derived from them does not count.
        """
        data = entries.data
        if self.stop.clean:
            return PhysicalOffset(data[clean_start(data)].first_offset)
        for files, framing in ((data, Framing.DLEDGER), (row, Framing.CLASSIC)):
            number = last_safe_file(files, framing, self.stop.safe_timestamp_ms)
            if number is not None:
                return PhysicalOffset(min(files[number].first_offset, entries.derived_end))
        return PhysicalOffset(0)

    def _open_entries(self, divided_offset: int | None) -> tuple[EntryStore, list[str]]:
        """Open the entries. ``divided_offset`` is the end of a classic log before them, if any."""
        settings = self.settings
        self_id = settings.dledger_self_id
        assert self_id is not None, "the settings are checked before the store is opened"
        opening = EntryOpening(
            self.files,
            EntryPaths(self._paths.dledger(self_id), (settings.dledger_data_path,)),
            settings.mapped_file_size_commit_log,
            divided_offset,
            quarantine=self._paths.quarantine,
            safe_timestamp_ms=None if self.stop.clean else self.stop.safe_timestamp_ms,
            no_power_loss=self.stop.no_power_loss,
            force=self.force,
            can_mend=len(settings.dledger_members) > 1,
        )
        entries, end = open_entries(opening)
        notes = [self._torn_note(end)] if end.torn_bytes else []
        notes += [
            f"entry {index} is damaged: nothing from offset {hole.offset} is read here until it"
            " has been fetched from the group"
            for index, hole in entries.holes.items()
        ]
        return entries, notes
