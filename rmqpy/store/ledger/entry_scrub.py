"""Scrub: finds damaged entries of a member, and repairs them with intact copies from the leader,
or without one from other members.

All entries are checked in order, repeatedly, a few at a time. Otherwise damage in an entry that no
client reads would only be found when the entry is needed. ::

    intact ──found──► damaged ──fetch──► requested ──the same entry, intact──► intact
                         ▲                   │
                         └── no answer, another entry ─────────────┘   (again after RETRY_MS)

Invariant: an entry is only overwritten by one at the same position with the same index, term and
size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from rmqpy.dledger.entries import Entry
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_store import EntryStore

PERIOD_MS: Final = 1000
REST_MS: Final = 5000
"""The pause between two passes over the log, so that a small log is not checked all the time."""

ENTRIES_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1024 * 1024
RETRY_MS: Final = 1000

Fetch = Callable[[int, Callable[[Entry | None], None]], bool]
"""Requests an entry from another member; returns False if this member leads."""

logger = logging.getLogger(__name__)


class Scrub:
    """The scrub of one member."""

    def __init__(self, entries: EntryStore, fetch: Fetch) -> None:
        self._entries = entries
        self._fetch = fetch
        self.damaged: set[int] = set(entries.holes)
        self._next = 0
        self._due_ms = 0

    def on_damage_found(self, fault: CorruptEntryError) -> None:
        """Record a damaged entry that a reader has found."""
        if fault.index not in self.damaged:
            logger.error("%s", fault)
            self.damaged.add(fault.index)
            self._due_ms = 0

    def tick(self, now_ms: int) -> None:
        """Check some entries, or request a damaged one. Raises CorruptEntryError."""
        if now_ms < self._due_ms:
            return
        self._discard_removed()
        self._due_ms = now_ms + (RETRY_MS if self.damaged else PERIOD_MS)
        if self.damaged:
            index = min(self.damaged)
            self._fetch(index, partial(self._fetched, index))
        else:
            self._check_next()

    def _discard_removed(self) -> None:
        """Discard damaged entries that have expired or were cut off with the tail."""
        entries = self._entries
        if self.damaged:
            self.damaged = {
                index
                for index in self.damaged
                if entries.begin_index <= index <= entries.stored_index
            }

    def _check_next(self) -> None:
        entries = self._entries
        if entries.begin_index < 0:
            return
        first = self._next
        if not entries.begin_index <= first <= entries.committed_index:
            first = entries.begin_index
        last = min(entries.committed_index, first + ENTRIES_AT_ONCE - 1)
        left = BYTES_AT_ONCE
        while first <= last and left > 0:
            count, size = entries.check(first, last, left)
            left -= size
            self._next = first = first + count
        if first > entries.committed_index:
            # Start over: continuing with new entries would never check the old ones again.
            self._next = 0
            self._due_ms += REST_MS - PERIOD_MS

    def _fetched(self, index: int, entry: Entry | None) -> None:
        if entry is None or entry.index != index or index not in self.damaged:
            return
        try:
            self._entries.repair(entry)
        except (CorruptEntryError, OSError) as fault:
            logger.error("entry %d could not be repaired; trying again: %s", index, fault)
            return
        self.damaged.discard(index)
        logger.warning("entry %d was repaired with the copy of the leader", index)
