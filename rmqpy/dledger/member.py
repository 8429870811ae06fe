"""What a member knows of itself and its group (Java MemberState). Plain data, changed by ``node``
only.

``HardState`` must be durable before anything that follows from it leaves the process: a vote that
is forgotten may be given twice.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from rmqpy.model.ids import LedgerIndex, Term


class Role(Enum):
    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


@define(slots=True, frozen=True)
class Membership:
    """The group as configured; ``peers`` are member ids, own one included. No membership change."""

    group: str
    self_id: str
    peers: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        assert self.self_id in self.peers, f"{self.self_id} is not one of its own peers"


@define(slots=True, frozen=True)
class HardState:
    """The persistent part: file ``currterm``. ``voted_for`` belongs to ``current_term``."""

    current_term: Term = Term(0)  # noqa: RUF009 (a NewType)
    voted_for: str | None = None


@define(slots=True, frozen=True)
class LedgerEnd:
    """The last entry a member has; index -1 and term -1 when it has none."""

    index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    term: Term = Term(-1)  # noqa: RUF009 (a NewType)
