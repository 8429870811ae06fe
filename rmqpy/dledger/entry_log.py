"""The log as the core sees it: an :class:`EntryLog` that others keep, and a view ahead of it.

The core owns no log bytes. It reads entries through :class:`EntryLog` and asks for changes through
``Ready``; :class:`LogView` answers as if those changes had been made already, so that several
messages can be stepped before one ``Ready`` is carried out.

The keeper's part (``store.entry_store`` on files, ``testing.memory_entries`` in memory): indexes
are dense from ``begin_index`` to ``end.index``; ``entry`` answers for everything that has been
stored; after ``reset`` the log holds nothing but the entries that come with it, the first of
which begins a data file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqpy.codec.entry import EntryHeader
from rmqpy.codec.layout import ENTRY_FILLER_SIZE
from rmqpy.dledger.entries import Buffer, Entry, EntryRun, Part, first_of, last_of
from rmqpy.dledger.member import LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term


class EntryLog(Protocol):
    """Reading side of a member's ledger."""

    @property
    def file_size(self) -> int:
        """Size of a data file: decides where an entry goes (:func:`frame`)."""

    @property
    def begin_index(self) -> LedgerIndex:
        """First entry; -1 when there is none."""

    @property
    def end(self) -> LedgerEnd:
        """Index and term of the last entry, staged ones counted; -1 and -1 when there is none."""

    @property
    def end_offset(self) -> int:
        """Offset after the last entry; where the first one goes when there is none."""

    def term_of(self, index: int) -> Term:
        """Term of a stored entry. Raises IndexError outside begin..end."""

    def entry(self, index: int) -> tuple[EntryHeader, Buffer]:
        """Header and body of a stored entry. Raises IndexError outside begin..end."""

    def batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        """Stored entries from ``first`` on, none behind ``last``: until they have ``size_max``
        bytes, or fewer; at least one. Raises IndexError outside begin..end.
        """


def collect(
    entry: Callable[[int], Entry], first: int, last: int, size_max: int
) -> tuple[Entry, ...]:
    """Return a batch, entry by entry."""
    entries = [entry(first)]
    size = entries[0].size
    while size < size_max and first + len(entries) <= last:
        entries.append(entry(first + len(entries)))
        size += entries[-1].size
    return tuple(entries)


def frame(end_offset: int, size: int, file_size: int) -> int:
    """Return where an entry of ``size`` bytes goes when the last one ends at ``end_offset``: there,
    or at the start of the next file when no filler would fit after it.
    """
    rest = file_size - end_offset % file_size
    return end_offset + rest if size + ENTRY_FILLER_SIZE > rest else end_offset


class LogView:
    """An :class:`EntryLog` with the changes that are asked for and not yet carried out.

    Invariant: what :meth:`take` has handed out is in the log before the next call.
    """

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self._kept: LedgerIndex | None = None
        self._again = False
        self._new: list[Part] = []
        self._new_end = LedgerEnd()
        """The end, when there are new entries."""

    @property
    def file_size(self) -> int:
        return self._log.file_size

    @property
    def changed(self) -> bool:
        """Whether there is anything to carry out."""
        return bool(self._new) or self._kept is not None

    @property
    def begin_index(self) -> LedgerIndex:
        if self._again or self._log.begin_index < 0:
            return first_of(self._new[0]) if self._new else LedgerIndex(-1)
        return self._log.begin_index

    @property
    def end(self) -> LedgerEnd:
        if self._new:
            return self._new_end
        if self._kept is not None:
            return LedgerEnd(self._kept, self._log.term_of(self._kept))
        return self._log.end

    @property
    def end_offset(self) -> int:
        if self._new:
            return self._new[-1].end_offset
        if self._kept is not None:
            return self._stored(self._kept).end_offset
        return self._log.end_offset

    def has(self, index: int) -> bool:
        """Return whether there is an entry ``index``."""
        return self.begin_index <= index <= self.end.index and index >= 0

    def term_of(self, index: int) -> Term:
        """Term of an entry that the log has."""
        assert self.has(index), f"no entry {index}"
        if self._new and index >= first_of(self._new[0]):
            return self._new_entry(index).term
        return self._log.term_of(index)

    def term_if_there(self, index: int) -> Term | None:
        """Term of an entry; None when the log does not have it."""
        if not self._new and self._kept is None:
            try:
                return self._log.term_of(index)
            except IndexError:  # it may be staged
                pass
        return self.term_of(index) if self.has(index) else None

    def entry(self, index: int) -> Entry:
        """Return an entry that the log has."""
        assert self.has(index), f"no entry {index}"
        if self._new and index >= first_of(self._new[0]):
            return self._new_entry(index)
        return self._stored(index)

    def batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        """See :meth:`EntryLog.batch`."""
        if self._new or self._kept is not None:
            return collect(self.entry, first, last, size_max)
        return self._log.batch(first, last, size_max)

    def end_offset_of(self, index: int) -> int:
        """Offset behind entry ``index``, which is the end or has one after it."""
        return self.end_offset if index == self.end.index else self.entry(index).end_offset

    def append(self, part: Part) -> None:
        """Put an entry, or a run of them, after the end."""
        end = self.end
        assert first_of(part) == end.index + 1, "entries are appended in order"
        assert last_of(part)[1] >= end.term, "terms never fall"
        self._add(part)

    def truncate_after(self, index: int) -> None:
        """Drop everything behind ``index``, which stays."""
        assert self.has(index), f"no entry {index} to keep"
        if self._new and index >= first_of(self._new[0]):
            self._keep_new(index)
        elif index < self.end.index:
            self._new.clear()
            if index < self._log.end.index:
                self._kept = LedgerIndex(index)

    def reset(self, entry: Entry) -> None:
        """Drop everything; ``entry`` is the first of what comes now."""
        assert entry.position % self.file_size == 0, "a log begins with a file"
        self._kept = None
        self._again = True
        self._new = []
        self._add(entry)

    def take(self) -> tuple[LedgerIndex | None, bool, tuple[Part, ...]]:
        """(first index to drop, drop everything, entries to append) since the last call."""
        first = LedgerIndex(self._kept + 1) if self._kept is not None else None
        taken = first, self._again, tuple(self._new)
        self._kept, self._again, self._new = None, False, []
        return taken

    def _add(self, part: Part) -> None:
        self._new.append(part)
        self._new_end = LedgerEnd(*last_of(part))

    def _new_entry(self, index: int) -> Entry:
        part = next(part for part in reversed(self._new) if first_of(part) <= index)
        return part[index - part.first_index] if isinstance(part, EntryRun) else part

    def _keep_new(self, index: int) -> None:
        """Of the new ones those up to ``index``."""
        kept = [part for part in self._new if first_of(part) <= index]
        last = kept.pop()
        self._new = kept
        if isinstance(last, EntryRun) and last.last_index > index:
            for entry in last[: index - last.first_index + 1]:
                self._add(entry)
        else:
            self._add(last)

    def _stored(self, index: int) -> Entry:
        header, body = self._log.entry(index)
        return Entry(header, body)
