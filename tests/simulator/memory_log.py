"""An ``EntryLog`` in memory that loses unsynced entries when the power fails.

``entries`` are those that the member reads (the files in the page cache), and ``durable`` those
that survive a power failure. A killed process leaves the first, a power failure the second or
something in between.

Invariants: indexes are dense; each entry is at the position that
:func:`rmqpy.dledger.entry_log.frame` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqpy.codec.entry import EntryHeader
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.dledger.entry_log import collect, frame
from rmqpy.dledger.protocol.messages import Buffer, Entry
from rmqpy.dledger.state import LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term

FILE_SIZE = 4096


class MemoryLog:
    """An implementation of :class:`rmqpy.dledger.entry_log.EntryLog`."""

    def __init__(self, file_size: int = FILE_SIZE, base_offset: int = 0) -> None:
        self.file_size = file_size
        self._base_offset = base_offset
        self.entries: list[Entry] = []
        self.durable: list[Entry] = []
        self._same_count = 0

    @property
    def begin_index(self) -> LedgerIndex:
        return self.entries[0].index if self.entries else LedgerIndex(-1)

    @property
    def end(self) -> LedgerEnd:
        if not self.entries:
            return LedgerEnd()
        return LedgerEnd(self.entries[-1].index, self.entries[-1].term)

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset if self.entries else self._base_offset

    def term_of(self, index: int) -> Term:
        return self._at(index).term

    def entry(self, index: int) -> tuple[EntryHeader, Buffer]:
        entry = self._at(index)
        return entry.header, entry.body

    def batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        return collect(self._at, first, last, size_max)

    def propose(self, term: Term, first_index: LedgerIndex, bodies: Iterable[bytes]) -> list[Entry]:
        """Append as a leader does: the log assigns the positions."""
        proposed = []
        for number, body in enumerate(bodies):
            position = frame(self.end_offset, ENTRY_HEADER_SIZE + len(body), self.file_size)
            entry = Entry.of(first_index + number, term, position, body)
            self.append([entry])
            proposed.append(entry)
        return proposed

    def append(self, entries: Iterable[Entry]) -> None:
        """Append entries unchanged, as a follower does."""
        for entry in entries:
            if self.entries:
                assert entry.index == self.entries[-1].index + 1, "indexes are dense"
                expected = frame(self.end_offset, entry.size, self.file_size)
                assert entry.position == expected, "a gap between entries"
            self.entries.append(entry)

    def truncate_from(self, index: int) -> None:
        """Drop the entries from ``index`` on; the first entry must remain."""
        kept = index - self.begin_index
        assert 0 < kept < len(self.entries), f"cannot cut at {index}"
        del self.entries[kept:]
        self._same_count = min(self._same_count, kept)

    def begin_again(self) -> None:
        """Drop everything; the next entry appended becomes the first."""
        self.entries.clear()
        self._same_count = 0

    def expire_before(self, index: int) -> None:
        """Drop all files before the one with entry ``index``."""
        keep_file = self._at(index).position // self.file_size
        count = sum(1 for entry in self.entries if entry.position // self.file_size < keep_file)
        del self.entries[:count]
        self.durable = self.durable[count:] if self._same_count >= count else []
        self._same_count = max(0, self._same_count - count)
        if not self.durable:
            self.sync()

    def sync(self) -> LedgerEnd:
        """Make everything durable. Return the last durable entry."""
        same = self._same_count
        self.durable[same:] = self.entries[same:]
        self._same_count = len(self.entries)
        return self.end

    @property
    def durable_index(self) -> int:
        """The last entry that a power failure does not change; -1 if there is none."""
        return self.entries[self._same_count - 1].index if self._same_count else -1

    def lose_power(self, kept_unsynced: int) -> None:
        """Keep the durable entries.

        If entries were only appended since the sync, also keep the first ``kept_unsynced`` of them.
        """
        lost = self.entries[self._same_count :]
        only_appended = self._same_count == len(self.durable)
        self.entries = list(self.durable)
        if only_appended:
            self.entries += lost[:kept_unsynced]
        self.durable = list(self.entries)
        self._same_count = len(self.entries)

    def _at(self, index: int) -> Entry:
        number = index - self.entries[0].index if self.entries else -1
        if not 0 <= number < len(self.entries):
            raise IndexError(f"entry {index} is outside {self.begin_index}..{self.end.index}")
        return self.entries[number]
