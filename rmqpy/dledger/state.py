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
    """The state of the disk: ``FULL`` accepts no entries, ``FAILED`` cannot even store a vote.

    A member with a ``DAMAGED`` entry follows and votes but does not lead, because the others would
    copy the entry. A member that ``LACKS_TABLES`` does not lead either, because the others would
    copy its tables and lose their own.
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
"""The states in which a member does not lead, with the reason for each."""


UNKNOWN_VOTE: Final = "?"
"""The vote of a term in which this member may have voted, for a candidate that it no longer knows.
It is the id of no member, so the vote counts as given.
"""


@define(slots=True, frozen=True)
class HardState:
    """The persistent state (file ``currterm``). ``voted_for`` is the vote of ``current_term``."""

    current_term: Term = Term(0)  # noqa: RUF009 (a NewType)
    voted_for: str | None = None


@define(slots=True, frozen=True)
class LedgerEnd:
    """The last entry of a member; index -1 and term -1 if it has none."""

    index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    term: Term = NO_TERM


@define(slots=True, frozen=True)
class PushGrant:
    """The conditions under which the log accepts a batch push in its usual text without asking the
    core.

    The push must be of this leader and term, and its entries must follow the end of the log within
    its file, with terms between that of the end and the leader's. It is appended and answered with
    SUCCESS.
    """

    group: str
    self_id: str
    leader_id: str
    term: Term
