"""EntryStore: the DLedger files of one member: entries in ``data/``, index units in ``index/``,
``checkpoint``, ``currterm``.

Data file: entries of [48-byte header][record]. An entry fits only if 8 bytes remain free after it;
otherwise the file is closed by a filler (int32 -1, int32 rest, zeros to the end). Index unit ``n``
(32 bytes at ``32 * n``) contains the position of entry ``n``.

A leader appends records, a follower stores entries byte for byte. A new leader may make a follower
drop the tail after the committed entries, and a member that has no entry in common with the leader
restarts with an empty log (see :mod:`rmqpy.dledger.entry_log`, whose ``EntryLog`` this implements).
The code that only reads is in :mod:`rmqpy.store.ledger.entry_reader`.

Invariants: indexes are dense from ``begin_index`` to ``end.index``; the bytes after the last entry
are zero, and a cut is durable before anything is written after it; the first data file starts at
``base_offset`` (0, or the divided offset); ``committed_index <= stored_index``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmqpy.codec.entry import (
    IndexUnit,
    decode_index_unit,
    encode_entry_header,
    encode_filler_head,
    encode_index_unit,
)
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.layout import (
    ENTRY_FILLER_SIZE,
    ENTRY_HEADER_SIZE,
    ENTRY_SIZE_MAX,
    INDEX_UNIT_SIZE,
)
from rmqpy.codec.message import set_offsets
from rmqpy.codec.scan import Scan, is_end_filler
from rmqpy.dledger.entries import Entry, EntryRun, Part, as_singletons
from rmqpy.dledger.entry_log import frame
from rmqpy.dledger.state import LedgerEnd
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import LedgerIndex, PhysicalOffset, Term
from rmqpy.store.files.log_recovery import LogGap
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.staging import (
    END,
    FILE_END,
    INDEX,
    STAGED,
    TERM,
    UNITS,
    UNITS_CAPACITY,
    Staging,
)
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger.entry_index import EntryIndex
from rmqpy.store.ledger.entry_reader import CorruptEntryError, EntryReader, units_of
from rmqpy.store.ledger.member_state import DurableEntry, LedgerCheckpoint, MemberFiles

_ZEROS = bytes(1 << 16)


class EntryStore(EntryReader):
    """The entries of one member, created by
    :func:`rmqpy.store.ledger.entry_recovery.open_entries`.
    """

    def __init__(self, data: MappedFiles, index: EntryIndex, member_files: MemberFiles) -> None:
        super().__init__(data, index)
        self.member_files = member_files
        self.staging = Staging(data.wrote_offset, units=True)
        self.released_index = -1
        """The index up to which entries have expired on the leader, so that damaged ones cannot be
        repaired.
        """

        self.committed_index = LedgerIndex(-1)
        self.derived_end = PhysicalOffset(data.wrote_offset)
        """The end of the entries from which consume queues and index may stem after recovery."""
        self._on_stored: Callable[[LedgerIndex], None] = lambda _index: None
        self._on_flushed: Callable[[LedgerEnd], None] = lambda _end: None
        self.committed = Watermark("committed", data.min_offset)
        """The offset at which the last committed entry ends."""
        self.flushed_offset = PhysicalOffset(data.wrote_offset)
        self._synced_index = -1
        """The last entry that a sync has covered."""
        self._flushing_end = LedgerEnd()
        self._flushing_to = 0
        """The last entry and the end of the bytes that the running sync covers; a cut lowers
        both.
        """
        self.durable = DurableEntry()
        """The last entry known to have been committed and durable here, as are all entries up to
        it and their units. If the log ends before it, damage has removed entries.
        """

    def subscribe(
        self,
        *,
        stored: Callable[[LedgerIndex], None] | None = None,
        flushed: Callable[[LedgerEnd], None] | None = None,
        damaged: Callable[[CorruptEntryError], bool] | None = None,
    ) -> None:
        """Set the listeners that are given.

        ``stored`` receives the index of the last entry written; ``flushed`` receives, after a sync,
        the last entry as of its start; ``damaged`` receives damage that a reader has found, and
        returns True if the entry will be repaired.
        """
        self._on_stored = stored or self._on_stored
        self._on_flushed = flushed or self._on_flushed
        self._on_damage = damaged or self._on_damage

    @property
    def base_offset(self) -> PhysicalOffset:
        """The offset at which the first data file starts."""
        return PhysicalOffset(self._data.min_offset)

    @property
    def end_offset(self) -> PhysicalOffset:
        """The offset after the last entry, including staged ones; the position of the first entry
        if there is none.
        """
        end = self.staging.state[END]
        return PhysicalOffset(end if end % self.file_size else self._last_end())

    @property
    def end(self) -> LedgerEnd:
        """The index and term of the last entry, including staged ones."""
        state = self.staging.state
        return LedgerEnd(LedgerIndex(state[INDEX] - 1), Term(state[TERM]))

    @property
    def written_offset(self) -> PhysicalOffset:
        """The offset below which all bytes are in the files."""
        return PhysicalOffset(self.staging.staged_from)

    # Writing

    def append(
        self,
        term: Term,
        first_index: LedgerIndex,
        records: Sequence[bytearray],
        store_timestamp_ms: int,
    ) -> list[PhysicalOffset]:
        """Stage one entry per record. Return the physical offset of each record (entry position +
        48), which is also written into it.
        """
        assert first_index == self.end.index + 1, "entries are appended in order"
        offsets = []
        for number, record in enumerate(records):
            size = ENTRY_HEADER_SIZE + len(record)
            assert size <= ENTRY_SIZE_MAX
            self._undo_roll_for(size)
            self.make_room(size)
            position = self.staging.state[END]
            offset = PhysicalOffset(position + ENTRY_HEADER_SIZE)
            set_offsets(record, 0, None, offset, store_timestamp_ms)
            index = first_index + number
            header = encode_entry_header(index, term, position, len(record))
            self._stage(header, record, LedgerEnd(LedgerIndex(index), term))
            offsets.append(offset)
        return offsets

    def receive(self, parts: Sequence[Part]) -> None:
        """Stage entries of another member byte for byte, each at the position in its header. If the
        call is repeated after an OSError, it continues where the last one ended.
        """
        for part in parts:
            if isinstance(part, EntryRun) and part.first_index == self.end.index + 1:
                self._receive_run(part)
            else:
                self._receive_singly(part)

    def _receive_run(self, run: EntryRun) -> None:
        span = run.span
        self._undo_roll_for(span.first_size)
        self.make_room(span.size, span.count)
        assert run.position == self.staging.state[END], "it was placed by the same rule"
        self.staging.put(run.data)
        self.staging.put_units(run.units)
        self._set_end(LedgerEnd(run.last_index, run.last_term))

    def _receive_singly(self, part: Part) -> None:
        for entry in as_singletons([part]):
            if entry.index <= self.end.index:
                continue
            assert entry.index == self.end.index + 1, "entries are received in order"
            self._undo_roll_for(entry.size)
            self.make_room(entry.size)
            assert entry.position == self.staging.state[END], "it was placed by the same rule"
            self._stage(entry.header.encode(), entry.body, LedgerEnd(entry.index, entry.term))

    def _stage(self, header: bytes, body: bytes | bytearray | memoryview, end: LedgerEnd) -> None:
        staging, state = self.staging, self.staging.state
        size = len(header) + len(body)
        unit = encode_index_unit(state[END], size, end.index, end.term)
        staging.put(header)
        staging.put(body)
        staging.put_units(unit)
        state[INDEX] = end.index + 1
        state[TERM] = end.term

    @property
    def has_staged(self) -> bool:
        """True if :meth:`commit` has something to write or to report."""
        state = self.staging.state
        return state[STAGED] != 0 or state[UNITS] != 0

    def commit(self) -> None:
        """Write the staged bytes: entries with one write per file, then their index units."""
        self._commit_data()
        state = self.staging.state
        if state[UNITS]:
            first = LedgerIndex(state[INDEX] - state[UNITS])
            self._index.put(first, self.staging.staged_units)
            state[UNITS] = 0
            if self.begin_index < 0:
                self.begin_index = first
            self.stored_index = index = LedgerIndex(state[INDEX] - 1)
            if state[END] % self._data.file_size:  # Otherwise a new file was started.
                self._note_end(index, Term(state[TERM]), state[END])
            self._on_stored(index)

    def make_files(self, sizes: Sequence[int]) -> None:
        """Create the files that entries of these sizes will need."""
        end = self.end_offset
        for size in sizes:
            end = PhysicalOffset(frame(end, size, self.file_size) + size)
        while self._data.last.end_offset < end:
            self._data.create(self._data.last.end_offset)

    def truncate_from(self, index: int) -> None:
        """Drop the entries from ``index``, durably; the first entry is always kept. Blocks."""
        assert not self.staging.state[STAGED] and not self.staging.state[UNITS]
        assert max(self.committed_index, self.begin_index) < index <= self.stored_index
        self._forget_batch()
        kept = self._index.unit(index - 1)
        end = kept.position + kept.size
        file_end = end - end % self.file_size + self.file_size
        zero_to = self._end_in_file(index, file_end)
        # A unit without its entry would be taken for damage if the process is killed here.
        self._index.cut(index)
        self._cut_data(end, zero_to)
        self.holes = {number: hole for number, hole in self.holes.items() if number < index}
        self._set_end(LedgerEnd(kept.index, kept.term))
        self.stored_index = kept.index
        self._synced_index = min(self._synced_index, kept.index)
        if self._flushing_end.index > kept.index:
            self._flushing_end = LedgerEnd(kept.index, kept.term)
        self._flushing_to = min(self._flushing_to, end)
        self.flushed_offset = PhysicalOffset(min(self.flushed_offset, end))

    def begin_again(self, index: int, position: int) -> None:
        """Drop all entries. The next one is ``index``, at ``position``, the start of a data
        file.
        """
        assert not self.staging.state[STAGED] and position % self.file_size == 0
        self._forget_batch()
        while self._data:
            self._data.drop_last()
        self.holes.clear()
        self._index.remove_all()
        self._data.create(position).sync()
        self._data.sync_directories()
        self.staging.restart(position)
        self.staging.state[FILE_END] = 0
        self._set_end(LedgerEnd(LedgerIndex(index - 1), Term(-1)))
        self.begin_index = self.stored_index = LedgerIndex(-1)
        self._synced_index = -1
        self._flushing_end = LedgerEnd()
        self.durable = DurableEntry()
        self._flushing_to = self.flushed_offset = PhysicalOffset(position)

    def repair(self, entry: Entry) -> None:
        """Rewrite a damaged entry, or its index unit, with the copy of another member. Raises
        CorruptEntryError if neither of the two shows that it is the same entry.
        """
        unit = encode_index_unit(entry.position, entry.size, entry.index, entry.term)
        file = self._data.find(entry.position)
        if file is not None and self._index.matches(entry.index, unit):
            file.file.write(entry.position - file.first_offset, entry.header.encode() + entry.body)
            file.sync()
        elif file is not None and self._holds(file, entry):
            self._index.put(entry.index, unit)
            self._index.sync()
        else:
            found = f"another entry, at {entry.position}, of {entry.size} bytes, term {entry.term}"
            raise CorruptEntryError(self._path_of(entry.position), entry.index, found)
        self.entry(entry.index)
        if self.holes.pop(entry.index, None) is not None and self.committed_index >= 0:
            self._show_committed(self.end_of(self.committed_index))

    def release_first_file(self) -> MappedFile:
        """Remove the first data file from the log and return it; remove the index files that only
        cover it. All its entries are committed, and another file follows. Raises CorruptEntryError
        if the first entry of the next file cannot be determined.
        """
        begin = self._first_index_in(self._data[1])
        self._forget_batch()
        file = self._data.take_first()
        self.begin_index = LedgerIndex(begin)
        self._index.expire(begin)
        if self.holes and self.committed_index >= 0:
            self.holes = {number: hole for number, hole in self.holes.items() if number >= begin}
            self._show_committed(self.end_of(self.committed_index))
        return file

    @property
    def first_file_is_discardable(self) -> bool:
        """True if the first data file only contains committed entries that the leader no longer
        has.
        """
        if not 0 <= self.begin_index <= self.released_index <= self.committed_index:
            return False
        return self.unit(self.committed_index).position >= self._data.first.end_offset

    def release_through(self, index: int) -> None:
        """Record that the entries up to ``index`` have expired on the leader."""
        self.released_index = index

    # Reading

    def commit_to(self, index: LedgerIndex) -> None:
        """Commit the entries up to ``index``, which a quorum has."""
        if index <= self.committed_index:
            return
        assert index <= self.stored_index, "committed before it was stored"
        end = self.end_of(index)
        self.committed_index = index
        self._show_committed(end)

    def _show_committed(self, end: int) -> None:
        """Make committed entries readable, up to the first gap."""
        if self.holes:
            end = min([end, *(hole.offset for hole in self.holes.values())])
        if end > self.committed.value:
            self.committed.advance(end)

    # Durability

    def dirty_files(self) -> tuple[MappedFile, ...]:
        """Return the data files with bytes that no sync has covered."""
        start, stop = self.flushed_offset, self._stored_offset
        if start >= stop:
            return ()
        self._flushing_to = stop
        if self.stored_index >= 0:
            self._flushing_end = LedgerEnd(self.stored_index, self.term_of(self.stored_index))
        return tuple(file for file in self._data if file.end_offset > start)

    @property
    def _stored_offset(self) -> int:
        """The offset below which all entries are in the files and have their units.

        The write of a unit may fail for lack of disk space after that of its entry. If a sync
        counted such an entry, no later sync would cover its unit.
        """
        if not self.staging.state[UNITS]:
            return self.staging.staged_from
        if self.stored_index < 0:
            return self.flushed_offset
        return self.end_of(self.stored_index)

    def mark_flushed(self, offset: PhysicalOffset) -> None:
        """Record that the files returned by :meth:`dirty_files` are durable."""
        durable = min(offset, self._flushing_to)
        self.flushed_offset = PhysicalOffset(max(self.flushed_offset, durable))
        self._synced_index = max(self._synced_index, self._flushing_end.index)
        self._on_flushed(self._flushing_end)

    def take_dirty_index(self) -> tuple[MappedFile, ...]:
        """Return the index files with units that no sync has covered. To be synced before a
        checkpoint, and reported with :meth:`mark_index_flushed`.
        """
        return self._index.take_dirty(self.stored_index + 1)

    def mark_index_flushed(self) -> None:
        """Record that the files returned by :meth:`take_dirty_index` are durable."""
        self._index.flushed()

    def checkpoint_task(self) -> Callable[[], None]:
        """Return a task that stores the committed index and the durable point as of now (every 3 s
        and at shutdown). It blocks and may run in a thread, one at a time.
        """
        self._advance_durable()
        committed = LedgerIndex(max(self.committed_index, self.durable.index))
        checkpoint = LedgerCheckpoint(committed, self.stored_index, self.durable)
        return partial(self.member_files.save_checkpoint, checkpoint)

    def _advance_durable(self) -> None:
        synced = min(self._synced_index, self._index.durable_index)
        index = LedgerIndex(min(self.committed_index, synced))
        if index > self.durable.index:
            try:
                self.durable = DurableEntry(index, self.end_of(index))
            except CorruptEntryError as fault:
                self._on_damage(fault)

    def close(self) -> None:
        self._forget_batch()
        self._data.close()
        self._index.close()

    def make_room(self, size: int, count: int = 1) -> None:
        """Make room for an entry of ``size`` bytes (or a run of ``count`` entries) after the end:
        in its file, rolling to the next one if no filler head would fit after it, and in staging.
        """
        staging = self.staging
        end = staging.state[END]
        file = self._data.find(end)
        if file is None:
            file = self._data.create(end - end % self._data.file_size)
        rest = file.end_offset - end
        if size + ENTRY_FILLER_SIZE > rest:
            # Each of these steps may fail and is repeated by the next call.
            self._commit_data()
            following = self._data.find(file.end_offset) or self._data.create(file.end_offset)
            # The bytes after the filler head are zero: in a new file anyway, and recovery and cuts
            # zero the bytes that they remove.
            file.file.write(file.size - rest, encode_filler_head(rest))
            file.wrote_position = file.size
            staging.restart(file.end_offset)
            file = following
        staging.state[FILE_END] = file.end_offset
        if not staging.has_room(size) or staging.state[UNITS] + count > UNITS_CAPACITY:
            self.commit()
            staging.grow(size)

    def _commit_data(self) -> None:
        staging = self.staging
        if not staging.state[STAGED]:
            return
        start, size = staging.staged_from, staging.state[STAGED]
        file = self._data.find(start)
        assert file is not None
        position = start - file.first_offset
        file.file.write(position, staging.buffer[:size])
        file.wrote_position = position + size
        staging.written()

    def _last_end(self) -> int:
        """Return the offset after the last entry, whose unit may be staged."""
        state, index = self.staging.state, self.end.index
        if self.end.term < 0:
            return state[END]
        if state[UNITS]:
            place_of_unit = (state[UNITS] - 1) * INDEX_UNIT_SIZE
            units = self.staging.units
            last = decode_index_unit(units, place_of_unit, index * INDEX_UNIT_SIZE)
        else:
            last = self._index.unit(index)
        return last.position + last.size

    def _undo_roll_for(self, size: int) -> None:
        """Undo a roll to a new file without entries if an entry of ``size`` belongs in the previous
        file: on all members, the end of the last entry determines the position of the next
        (:func:`rmqpy.dledger.entry_log.frame`).
        """
        end = self.staging.state[END]
        if end % self.file_size == 0 and frame(self._last_end(), size, self.file_size) != end:
            self.commit()
            self.rewind()

    def _set_end(self, end: LedgerEnd) -> None:
        self.staging.state[INDEX] = end.index + 1
        self.staging.state[TERM] = end.term

    def _end_in_file(self, index: int, file_end: int) -> int:
        """Return the offset after the last entry, from ``index``, that is below ``file_end``,
        including its filler.
        """
        stop = 0
        for number in range(index, self.stored_index + 1):
            unit = self._index.unit(number)
            if unit.position >= file_end:
                break
            stop = unit.position + unit.size
        return min(stop + ENTRY_FILLER_SIZE, file_end)

    def _cut_data(self, end: int, zero_to: int) -> None:
        """Make ``end`` the end of the data, durably, and zero the rest of its file up to
        ``zero_to``, after which nothing was written.
        """
        self._data.cut(end)
        self._data.sync_directories()
        file = self._data.last
        for start in range(end, zero_to, len(_ZEROS)):
            count = min(len(_ZEROS), zero_to - start)
            file.file.write(start - file.first_offset, _ZEROS[:count])
        file.sync()
        self.staging.restart(end)
        self.staging.state[FILE_END] = 0

    # Recovery

    def resume(self, end_offset: int) -> None:
        """Set the end of the data that recovery has found."""
        self.staging.restart(end_offset)

    def rewind(self) -> None:
        """Undo the roll to a new file without entries, because on all members the end of the last
        entry determines the position of the next.
        """
        state = self.staging.state
        if self.end.term < 0 or state[STAGED] or state[UNITS]:
            return
        end = self._last_end()
        file = self._data.find(end)
        assert file is not None
        position, rest = end - file.first_offset, file.end_offset - end
        if is_end_filler(file.view, position, rest, dledger=True):
            self._cut_data(end, end + ENTRY_FILLER_SIZE)

    def accept_tail(self, scan: Scan, *, believe: bool) -> list[IndexUnit]:
        """Accept entries found by recovery, in order. Index units that are missing or differ are
        written.

        Units that name the same entry with another term are returned and not overwritten, unless
        ``believe`` is set, which means that the entries are correct.
        """
        units = units_of(scan)
        if not units:
            return []
        first = scan.entry_index[0]
        if not self._index.matches(first, units):
            doubtful = [] if believe else self._index.conflicting_units(first, units)
            if doubtful:
                return doubtful
            self._index.put(first, units)
        self._set_end(LedgerEnd(LedgerIndex(scan.entry_index[-1]), Term(scan.term[-1])))
        return []

    def accept_hole(self, hole: LogGap) -> None:
        """Accept a damaged entry as the last one; its unit is there."""
        self._set_end(LedgerEnd(LedgerIndex(hole.index), Term(hole.term)))

    def invalidate_index(self) -> None:
        """Remove all units, so that they are written again."""
        self._index.remove_all()

    def settle(self, committed_index: int, durable: DurableEntry) -> None:
        """Finish recovery, after which all entries are synced: set the first index from the first
        entry, cut the index files to the end, and set what the checkpoint says.
        """
        self.durable = durable
        self.derived_end = self.end_offset
        self.stored_index = self.end.index
        self._synced_index = self.end.index
        self.flushed_offset = self.end_offset
        self._index.settled(self.end.index + 1)
        if self.end.index < 0:
            return
        first = self._data.first
        try:
            self.begin_index = self._first_index(first)
        except InvalidRecordError as fault:
            raise StoreError(
                first.path, str(fault), "an entry at its start", "restore it from another member"
            ) from fault
        if committed_index >= self.begin_index:
            self.commit_to(LedgerIndex(min(committed_index, self.end.index)))
