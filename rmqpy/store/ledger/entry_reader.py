"""EntryReader: reads entries from the DLedger files of one member.

An entry is found by its index unit and accepted only if its header agrees with the unit and its
record is complete; otherwise a :class:`CorruptEntryError` is raised, and a copy of another member
repairs the entry (:mod:`rmqpy.store.ledger.entry_scrub`). The files are written by
:mod:`rmqpy.store.ledger.entry_store`.

Invariants: nothing here changes a file; a cached batch is discarded before stored entries change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rmqpy.codec.backend import read_run, scan_records
from rmqpy.codec.entry import EntryHeader, IndexUnit, decode_entry_header, encode_index_unit
from rmqpy.codec.entry_batch import RunSpan
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from rmqpy.codec.message import check_record
from rmqpy.codec.scan import Scan
from rmqpy.dledger.entries import Entry, EntryRun
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.store.files.log_recovery import LogGap
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.ledger.entry_index import EntryIndex

READ_ENDS_MAX: Final = 16


class CorruptEntryError(StoreError):
    """Raised for a stored entry that is damaged. ``index`` is its number."""

    def __init__(self, path: str, index: int, found: str) -> None:
        super().__init__(
            path,
            f"entry {index} is damaged: {found}",
            "the entry as the leader wrote it",
            "it is fetched from the leader while the group has one; otherwise copy the store"
            " of another member",
        )
        self.index = LedgerIndex(index)


class EntryReader:
    """The reader of the entries ``begin_index`` to ``stored_index`` of these files."""

    def __init__(self, data: MappedFiles, index: EntryIndex) -> None:
        self._data = data
        self._index = index
        self.begin_index = LedgerIndex(-1)
        self.stored_index = LedgerIndex(-1)
        """The highest index in the files."""
        self.holes: dict[int, LogGap] = {}
        """The damaged entries that recovery has skipped, by index. Entries from the first of them
        on are not readable until they are repaired.
        """
        self._on_damage: Callable[[CorruptEntryError], bool] = lambda _fault: False
        self._batch: tuple[tuple[int, int, int], Sequence[Entry]] = ((-1, -1, -1), ())
        """The last request for a batch, and its result."""
        self._read_ends: dict[int, tuple[Term, int]] = {}
        """The term and end of the last entries of runs that were read or written, by index. With
        them, the units of these entries and of those that follow need not be read.
        """

    @property
    def file_size(self) -> int:
        """The size of a data file."""
        return self._data.file_size

    @property
    def data(self) -> MappedFiles:
        """The data files."""
        return self._data

    def entry(self, index: int) -> tuple[EntryHeader, memoryview]:
        """Return header and body of a stored entry. Raises IndexError outside begin..end, and
        CorruptEntryError if it is damaged.
        """
        self._check_index(index)
        unit = self.unit(index)
        file = self._data.find(unit.position)
        if file is None:
            raise self._outside(index)
        start = unit.position - file.first_offset
        try:
            header = decode_entry_header(file.view, start, unit.position)
            if (header.index, header.term, header.size) != (index, unit.term, unit.size):
                raise InvalidRecordError(unit.position, "index, term or size", header.index, index)
            body = file.view[start + ENTRY_HEADER_SIZE : start + header.size]
            check_record(body, unit.position + ENTRY_HEADER_SIZE)
        except InvalidRecordError as fault:
            raise CorruptEntryError(file.path, index, str(fault)) from fault
        return header, body

    def batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        """Return entries as :meth:`rmqpy.dledger.entry_log.EntryLog.batch` does. An immediate
        repeat of the request, for the next follower, is answered from memory. Raises
        CorruptEntryError if the first entry is damaged.
        """
        request = (first, last, size_max)
        if self._batch[0] != request:
            self._batch = (request, self._read_batch(first, last, size_max))
        return self._batch[1]

    def check(self, first: int, last: int, size_max: int) -> tuple[int, int]:
        """Check entries from ``first``, up to ``last`` and up to about ``size_max`` bytes. Return
        the number of complete entries and their size in bytes. Raises CorruptEntryError.
        """
        scan = scan_records(
            self._view_of(first, last)[:size_max],
            self.unit(first).position,
            dledger=True,
            check_crc=True,
            max_records=last - first + 1,
        )
        expected = range(first, first + len(scan))
        whole = len(scan) if list(scan.entry_index) == list(expected) else 0
        units = units_of(scan)
        while whole and not self._index.matches(first, units[: whole * INDEX_UNIT_SIZE]):
            whole //= 2  # A shorter run may end before the unit that differs.
        if first + whole <= last:  # The next entry is damaged, or cut off by the limit.
            self.entry(first + whole)
            whole += 1
        end = self.unit(first + whole - 1)
        return whole, end.position + end.size - self.unit(first).position

    def _view_of(self, first: int, last: int) -> memoryview:
        """Return the bytes of these entries, as far as they are in the file of the first one."""
        self._check_index(first)
        self._check_index(last)
        unit, end = self.unit(first), self.unit(last)
        file = self._data.find(unit.position)
        if file is None:
            raise self._outside(first)
        start = unit.position - file.first_offset
        return file.view[start : min(end.position + end.size, file.end_offset) - file.first_offset]

    def _read_batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        found = self._read_continuation(first, last, size_max)
        if found is None:
            view, position = self._view_of(first, last), self.unit(first).position
            found = read_run(view, first, position, count_max=last - first + 1, size_max=size_max)
        if found is None:
            return (Entry(*self.entry(first)),)
        span, data = found
        end = span.first_position + span.size
        self._note_end(span.first_index + span.count - 1, Term(span.last_term), end)
        return EntryRun(span, data)

    def _note_end(self, index: int, term: Term, end: int) -> None:
        """Record term and end of the last entry of a run that was read or written."""
        ends = self._read_ends
        ends[index] = term, end
        if len(ends) > READ_ENDS_MAX:
            for oldest in tuple(ends)[: READ_ENDS_MAX // 2]:
                del ends[oldest]

    def _read_continuation(
        self, first: int, last: int, size_max: int
    ) -> tuple[RunSpan, bytes] | None:
        """Return the entries from ``first`` if they continue a run that was read or written, or
        None.
        """
        previous = self._read_ends.get(first - 1)
        file = self._data.find(previous[1]) if previous is not None else None
        if previous is None or file is None or last > self.stored_index:
            return None
        position = previous[1]
        view = file.view[position - file.first_offset : file.wrote_position]
        return read_run(view, first, position, count_max=last - first + 1, size_max=size_max)

    def term_of(self, index: int) -> Term:
        """Return the term of a stored entry. Raises IndexError outside begin..end."""
        self._check_index(index)
        known = self._read_ends.get(index)
        return known[0] if known is not None else self.unit(index).term

    def is_awaiting_repair(self, offset: int) -> bool:
        """Return whether the record at ``offset`` belongs to a damaged entry that will be
        repaired.
        """
        position = offset - ENTRY_HEADER_SIZE
        try:
            if self.stored_index >= 0:
                found = self.last_entry_to(position)
                if found.position == position:
                    self.entry(found.index)
        except CorruptEntryError as fault:
            return self._on_damage(fault)
        return False

    def last_entry_to(self, position: int) -> IndexUnit:
        """Return the unit of the last stored entry that starts at ``position`` or before it; that
        of the first entry if there is none. Raises CorruptEntryError.
        """
        low, high = int(self.begin_index), int(self.stored_index)
        while low < high:
            middle = (low + high + 1) // 2
            if self.unit(middle).position <= position:
                low = middle
            else:
                high = middle - 1
        return self.unit(low)

    def is_body_start(self, offset: int) -> bool:
        """Return whether the record of an entry starts at ``offset`` (right after its header)."""
        file = self._data.find(offset)
        if file is None or offset - file.first_offset < ENTRY_HEADER_SIZE:
            return False
        position = offset - ENTRY_HEADER_SIZE
        try:
            decode_entry_header(file.view, position - file.first_offset, position)
        except InvalidRecordError:
            return False
        return True

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the data file that holds ``offset``, if there is one."""
        return self._data.find(offset)

    def knows(self, position: int) -> bool:
        """Return whether the header at ``position`` can be read and its unit names the same entry,
        in any term.
        """
        file = self._data.find(position)
        if file is None:
            return False
        try:
            header = decode_entry_header(file.view, position - file.first_offset, position)
        except InvalidRecordError:
            return False
        unit = self._index.get(header.index)
        return unit is not None and (unit.position, unit.size) == (position, header.size)

    def _first_index_in(self, file: MappedFile) -> LedgerIndex:
        """Return the first index in a file, from its index unit or, if that is damaged, from its
        header.
        """
        unit = self._index.find(file.first_offset)
        if unit is not None:
            return unit.index
        try:
            found = decode_entry_header(file.view, 0, file.first_offset).index
        except InvalidRecordError as fault:
            raise CorruptEntryError(file.path, self.begin_index, str(fault)) from fault
        if not self.begin_index < found <= self.stored_index:
            raise CorruptEntryError(file.path, self.begin_index, f"entry {found} at its start")
        return found

    def _first_index(self, first: MappedFile) -> LedgerIndex:
        for hole in self.holes.values():
            if hole.offset == first.first_offset:
                return LedgerIndex(hole.index)
        return decode_entry_header(first.view, 0, first.first_offset).index

    @staticmethod
    def _holds(file: MappedFile, entry: Entry) -> bool:
        start = entry.position - file.first_offset
        return bytes(file.view[start : start + entry.size]) == entry.header.encode() + entry.body

    def _path_of(self, position: int) -> str:
        file = self._data.find(position)
        return file.path if file is not None else str(position)

    def _forget_batch(self) -> None:
        self._batch = ((-1, -1, -1), ())
        self._read_ends.clear()

    def end_of(self, index: int) -> int:
        """Return the offset after a stored entry."""
        known = self._read_ends.get(index)
        if known is not None:
            return known[1]
        unit = self.unit(index)
        return unit.position + unit.size

    def _check_index(self, index: int) -> None:
        if not self.begin_index <= index <= self.stored_index or index < 0:
            raise IndexError(f"entry {index} is outside {self.begin_index}..{self.stored_index}")

    def unit(self, index: int) -> IndexUnit:
        """Return the unit of a stored entry. Raises CorruptEntryError."""
        try:
            return self._index.unit(index)
        except StoreError as fault:
            raise CorruptEntryError(fault.path, index, fault.found) from fault

    def _outside(self, index: int) -> CorruptEntryError:
        return CorruptEntryError(
            self._index.folder, index, "its unit leads outside of the data files"
        )


def units_of(scan: Scan) -> bytes:
    """Return the index units of the entries that a scan has found."""
    fields = zip(scan.frame_offset, scan.size, scan.entry_index, scan.term, strict=True)
    return b"".join(
        encode_index_unit(position, ENTRY_HEADER_SIZE + size, index, term)
        for position, size, index, term in fields
    )
