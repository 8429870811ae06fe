"""RecentChanges: the names of the entries of a table that have changed, for those who keep values
derived from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Final

from attrs import define, field

KEPT: Final = 1024


@define(slots=True, eq=False, repr=False)
class RecentChanges:
    """The last ``KEPT`` changes of a table; ``count`` is the number of all changes so far."""

    count: int = field(default=0, init=False)
    _names: deque[str] = field(factory=lambda: deque(maxlen=KEPT), init=False)
    """The names of the last changes, none of which changed the whole table."""

    def note(self, name: str) -> None:
        """Record that an entry was added, replaced, or removed."""
        self._names.append(name)
        self.count += 1

    def note_all(self) -> None:
        """Record that any entry may have changed."""
        self._names.clear()
        self.count += 1

    def since(self, count: int) -> Collection[str] | None:
        """Return the names of the entries that have changed since there were ``count`` changes, or
        None if it may be any.
        """
        missed = self.count - count
        if missed > len(self._names):
            return None
        return set(islice(reversed(self._names), missed))
