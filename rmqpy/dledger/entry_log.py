"""The log as the core sees it: an :class:`EntryLog` that the caller owns, and a view with the
pending changes.

The core owns no log bytes. It reads entries through :class:`EntryLog` and requests changes through
``Ready``. :class:`LogView` answers as if those changes were already carried out, so that several
messages can be stepped before a ``Ready`` is carried out.

Duties of an implementation (``store.ledger.entry_store`` on files): indexes are consecutive from
``begin_index`` to ``end.index``; ``entry`` returns everything that has been stored; after ``reset``
the log contains only the entries passed with it, the first of which begins a data file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqpy.codec.entry import EntryHeader
from rmqpy.codec.layout import ENTRY_FILLER_SIZE
from rmqpy.dledger.entries import Buffer, Entry, EntryRun, Part, first_of, last_of
from rmqpy.dledger.state import LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term


class EntryLog(Protocol):
    """The reading side of a member's ledger."""

    @property
    def file_size(self) -> int:
        """The size of a data file, which determines the offset of an entry (:func:`frame`)."""

    @property
    def begin_index(self) -> LedgerIndex:
        """The index of the first entry; -1 if there is none."""

    @property
    def end(self) -> LedgerEnd:
        """The index and term of the last entry, which may be staged; -1 and -1 if there is none."""

    @property
    def end_offset(self) -> int:
        """The offset after the last entry, or the offset of the first entry if the log is empty."""

    def term_of(self, index: int) -> Term:
        """Return the term of a stored entry. Raises IndexError outside begin..end."""

    def entry(self, index: int) -> tuple[EntryHeader, Buffer]:
        """Return header and body of a stored entry. Raises IndexError outside begin..end."""

    def batch(self, first: int, last: int, size_max: int) -> Sequence[Entry]:
        """Return stored entries from ``first`` up to ``last``, until they have ``size_max`` bytes,
        but at least one entry. Raises IndexError outside begin..end.
        """


def collect(
    entry: Callable[[int], Entry], first: int, last: int, size_max: int
) -> tuple[Entry, ...]:
    """Return the batch from ``first``, built entry by entry; see :meth:`EntryLog.batch`."""
    entries = [entry(first)]
    size = entries[0].size
    while size < size_max and first + len(entries) <= last:
        entries.append(entry(first + len(entries)))
        size += entries[-1].size
    return tuple(entries)


def frame(end_offset: int, size: int, file_size: int) -> int:
    """Return the offset of an entry of ``size`` bytes that follows an entry ending at
    ``end_offset``.

    It is that offset, or the start of the next file if no filler would fit after the entry.
    """
    rest = file_size - end_offset % file_size
    return end_offset + rest if size + ENTRY_FILLER_SIZE > rest else end_offset


class LogView:
    """An :class:`EntryLog` together with the changes that are requested but not yet carried out.

    Invariant: the caller applies the changes that :meth:`take` returns before the next call.
    """

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self._kept: LedgerIndex | None = None
        """The last stored entry to keep, or None if all are kept."""
        self._reset = False
        """True if all stored entries are to be dropped."""
        self._new: list[Part] = []
        self._new_end = LedgerEnd()
        """The end of the log if there are new entries."""

    @property
    def file_size(self) -> int:
        return self._log.file_size

    @property
    def changed(self) -> bool:
        """True if there are changes to carry out."""
        return bool(self._new) or self._kept is not None

    @property
    def begin_index(self) -> LedgerIndex:
        if self._reset or self._log.begin_index < 0:
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
        """Return whether the log has an entry ``index``."""
        return self.begin_index <= index <= self.end.index and index >= 0

    def term_of(self, index: int) -> Term:
        """Return the term of an entry that the log has."""
        assert self.has(index), f"no entry {index}"
        if self._new and index >= first_of(self._new[0]):
            return self._new_entry(index).term
        return self._log.term_of(index)

    def term_if_there(self, index: int) -> Term | None:
        """Return the term of an entry; None if the log does not have it."""
        if not self._new and self._kept is None:
            try:
                return self._log.term_of(index)
            except IndexError:  # the entry may be staged
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
        """Return the offset after entry ``index``, which is the last one or has a successor."""
        return self.end_offset if index == self.end.index else self.entry(index).end_offset

    def append(self, part: Part) -> None:
        """Append an entry or a run."""
        end = self.end
        assert first_of(part) == end.index + 1, "entries are appended in order"
        assert last_of(part)[1] >= end.term, "terms never decrease"
        self._add(part)

    def truncate_after(self, index: int) -> None:
        """Drop all entries after ``index``."""
        assert self.has(index), f"no entry {index} to keep"
        if self._new and index >= first_of(self._new[0]):
            self._keep_new(index)
        elif index < self.end.index:
            self._new.clear()
            if index < self._log.end.index:
                self._kept = LedgerIndex(index)

    def reset(self, entry: Entry) -> None:
        """Drop all entries and start over with ``entry``."""
        assert entry.position % self.file_size == 0, "a log begins with a file"
        self._kept = None
        self._reset = True
        self._new = []
        self._add(entry)

    def take(self) -> tuple[LedgerIndex | None, bool, tuple[Part, ...]]:
        """Return the changes since the last call: the first index to drop, whether to drop all
        entries, and the entries to append.
        """
        first = LedgerIndex(self._kept + 1) if self._kept is not None else None
        taken = first, self._reset, tuple(self._new)
        self._kept, self._reset, self._new = None, False, []
        return taken

    def _add(self, part: Part) -> None:
        self._new.append(part)
        self._new_end = LedgerEnd(*last_of(part))

    def _new_entry(self, index: int) -> Entry:
        part = next(part for part in reversed(self._new) if first_of(part) <= index)
        return part[index - part.first_index] if isinstance(part, EntryRun) else part

    def _keep_new(self, index: int) -> None:
        """Keep only the new entries up to ``index``."""
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
