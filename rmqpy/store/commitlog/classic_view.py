"""ClassicView: the committed part of a log with DLedger entries, read as the classic log into which
leaving DLedger turns it (:mod:`rmqpy.codec.reframe`), so that classic slaves can follow it.

The conversion moves no byte boundary but the first of each file: a record grows over the header of
the entry after it, so the offset of every byte is that of the DLedger log, and no table of offsets
is needed. A range of the view is computed from the entries in it and from the header after the
last of them. It depends on the log alone, so all members show the same bytes, whoever leads and
whatever has expired.

::

    entries    | header | record A | header | record B | header | record C
    view       | record A, grown            | record B, grown   | not yet visible

The last committed record is not visible until the entry after it is committed, because its bytes
depend on what follows: an entry, or the end of the file.

Invariants: nothing here changes a file; the view only grows, and its bytes never change; at most
``PAGES_MAX`` pages of ``PAGE_BYTES`` and one record each are in memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.reframe import DataFile, Piece, edits_of
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_store import EntryStore

PAGE_BYTES: Final = 64 << 10
"""The size of the pages in which entries are converted; a page ends with a whole record."""
PAGES_MAX: Final = 4

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class _Page:
    """Converted records: the bytes of the view from ``start`` on."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@define(slots=True, eq=False, repr=False)
class ClassicView:
    """The view of ``log``, the log of a member of a DLedger group."""

    log: JoinedCommitLog | DLedgerCommitLog
    page_bytes: int = PAGE_BYTES
    _committed: int = field(default=-1, init=False)
    _end: int = field(default=0, init=False)
    """The end of the view, and the end of the committed entries for which it holds."""
    _pages: OrderedDict[int, _Page] = field(factory=OrderedDict, init=False)
    """Pages by their start, the one used last at the end."""

    @property
    def _new(self) -> DLedgerCommitLog:
        log = self.log
        return log.new if isinstance(log, JoinedCommitLog) else log

    @property
    def rows(self) -> Sequence[MappedFiles]:
        return self.log.rows

    @property
    def written(self) -> Watermark:
        """The watermark that advances whenever the view may have grown."""
        return self._new.entries.committed

    @property
    def min_offset(self) -> PhysicalOffset:
        return self.log.min_offset

    @property
    def confirm_offset(self) -> PhysicalOffset:
        """The end of the view: the start of the last committed record."""
        entries = self._new.entries
        committed = entries.committed.value
        if committed != self._committed:
            try:
                self._end = max(self._end, self._end_of(entries, committed))
                self._committed = committed
            except CorruptEntryError as fault:  # The end stays where it was until the repair.
                logger.warning("%s", fault)
        return PhysicalOffset(self._end)

    @staticmethod
    def _end_of(entries: EntryStore, committed: int) -> int:
        """Return the start of the last record before ``committed``. Raises CorruptEntryError."""
        if committed <= entries.base_offset:
            return entries.base_offset
        last = entries.unit(entries.committed_index)
        if last.position + last.size != committed:  # A damaged entry hides those after it.
            last = entries.last_entry_to(committed - 1)
        return _visible_start(last.position, entries.file_size)

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        """Return the bytes ``[offset, offset+size)``, which are in one file; None if any of them is
        not readable. Raises StoreError for a damaged entry.
        """
        if isinstance(self.log, JoinedCommitLog) and offset < self.log.divided_offset:
            return self.log.old.read(offset, size)
        end = offset + size
        if end > self.confirm_offset:
            return None
        pieces = []
        while offset < end:
            page = self._page(offset)
            if page is None:
                return None
            piece = page.data[offset - page.start : end - page.start]
            pieces.append(piece)
            offset = PhysicalOffset(offset + len(piece))
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _page(self, offset: int) -> _Page | None:
        """Return a page that contains ``offset``; None if the file no longer exists."""
        follows = False
        for page in reversed(self._pages.values()):
            if page.start <= offset < page.end:
                self._pages.move_to_end(page.start)
                return page
            follows = follows or page.end == offset
        file = self._new.entries.file_at(offset)
        if file is None:
            return None
        page = self._convert(file, offset, follows)
        self._pages.pop(page.start, None)
        self._pages[page.start] = page
        if len(self._pages) > PAGES_MAX:
            self._pages.popitem(last=False)
        return page

    def _convert(self, file: MappedFile, offset: int, is_start: bool) -> _Page:
        """Return the page of the record that contains ``offset`` and of those that follow it.
        ``is_start`` means that a record starts there.
        """
        entries, base = self._new.entries, file.first_offset
        start = offset if is_start else base
        if not is_start and offset - base >= ENTRY_HEADER_SIZE:
            # A header belongs to the record before it.
            first = entries.last_entry_to(offset - ENTRY_HEADER_SIZE)
            start = _visible_start(first.position, file.size)
        end = visible = min(file.end_offset, self.confirm_offset)
        if visible - start > self.page_bytes + ENTRY_HEADER_SIZE:
            last = entries.last_entry_to(start + self.page_bytes)
            following = entries.unit(last.index + 1).position
            end = min(visible, _visible_start(following, file.size))
        data = bytearray(file.read(start - base, end - base))
        for edit in edits_of(DataFile(file.view, base, file.size), Piece(start - base, end - base)):
            position = base + edit.position - start
            data[position : position + len(edit.data)] = edit.data
        assert start <= offset < end, (start, offset, end)
        return _Page(start, bytes(data))


def _visible_start(position: int, file_size: int) -> int:
    """Return the start in the view of the record of the entry at ``position``."""
    return position if position % file_size == 0 else position + ENTRY_HEADER_SIZE
