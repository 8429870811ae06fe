"""Scrub: finds damaged entries of a member, and mends them with whole copies from the leader.

All entries are looked at, one after the other, again and again, a few at a time: what nobody reads
would be found damaged only when it is needed. ::

    whole ──found──► damaged ──fetch──► asked ──the same entry, whole──► whole
                        ▲                 │
                        └── nobody leads, no answer, another entry ──┘   (again after RETRY_MS)

Invariant: an entry is only overwritten by one that stands at the same place with the same index,
term and size.
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
"""Between two passes over the log: a small one is not looked at all the time."""

ENTRIES_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1024 * 1024
RETRY_MS: Final = 1000

Fetch = Callable[[int, Callable[[Entry | None], None]], bool]
"""Asks the leader for an entry; False when there is nobody to ask."""

logger = logging.getLogger(__name__)


class Scrub:
    """See the module."""

    def __init__(self, entries: EntryStore, fetch: Fetch) -> None:
        self._entries = entries
        self._fetch = fetch
        self.damaged: set[int] = set(entries.holes)
        self._next = 0
        self._due_ms = 0

    def on_damage_found(self, fault: CorruptEntryError) -> None:
        """Somebody has met a damaged entry."""
        if fault.index not in self.damaged:
            logger.error("%s", fault)
            self.damaged.add(fault.index)
            self._due_ms = 0

    def tick(self, now_ms: int) -> None:
        """Look at some entries, or ask for what is damaged. Raises CorruptEntryError."""
        if now_ms < self._due_ms:
            return
        self._forget_what_is_gone()
        self._due_ms = now_ms + (RETRY_MS if self.damaged else PERIOD_MS)
        if self.damaged:
            index = min(self.damaged)
            self._fetch(index, partial(self._fetched, index))
        else:
            self._look()

    def _forget_what_is_gone(self) -> None:
        """Damaged entries may have expired, or been cut off with the tail."""
        entries = self._entries
        if self.damaged:
            self.damaged = {
                index
                for index in self.damaged
                if entries.begin_index <= index <= entries.stored_index
            }

    def _look(self) -> None:
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
            # From the begin: who follows the new entries sees the old ones no more.
            self._next = 0
            self._due_ms += REST_MS - PERIOD_MS

    def _fetched(self, index: int, entry: Entry | None) -> None:
        if entry is None or entry.index != index or index not in self.damaged:
            return
        try:
            self._entries.repair(entry)
        except (CorruptEntryError, OSError) as fault:
            logger.error("entry %d is not mended: %s", index, fault)
            return
        self.damaged.discard(index)
        logger.warning("entry %d is whole again: fetched from the leader", index)
