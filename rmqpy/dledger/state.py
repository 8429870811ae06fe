"""The small values that every part of the core shares: roles, the hard state, the end of a log."""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import define

from rmqpy.model.ids import LedgerIndex, Term

NO_TERM: Final = Term(-1)


class Role(Enum):
    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class DiskState(Enum):
    """The abilities of the disk: ``FULL`` accepts no entries, ``FAILED`` cannot even store a vote.

    With a ``DAMAGED`` entry a member follows and votes but does not lead, because others would read
    the entry from it. Neither does one that ``LACKS_TABLES``: as a leader it would deprive the
    others of tables that only they have.
    """

    GOOD = "GOOD"
    DAMAGED = "DAMAGED"
    LACKS_TABLES = "LACKS_TABLES"
    FULL = "FULL"
    FAILED = "FAILED"


NOT_LEADING: Final = {
    DiskState.FAILED: "the disk has failed",
    DiskState.DAMAGED: "an entry is damaged",
    DiskState.LACKS_TABLES: "topics and offsets are not known",
}
"""The states in which a member does not lead, and the reasons."""


@define(slots=True, frozen=True)
class HardState:
    """The persistent state, file ``currterm``. ``voted_for`` belongs to ``current_term``."""

    current_term: Term = Term(0)  # noqa: RUF009 (a NewType)
    voted_for: str | None = None


@define(slots=True, frozen=True)
class LedgerEnd:
    """The last entry of a member; index -1 and term -1 if it has none."""

    index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    term: Term = NO_TERM
