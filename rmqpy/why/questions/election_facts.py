"""The facts about an election, for :mod:`rmqpy.why.questions.election`."""

from __future__ import annotations

from attrs import define

__all__ = ["ElectionFacts", "OutsiderFacts", "PeerFacts", "VoterFacts"]


@define(slots=True, frozen=True)
class PeerFacts:
    """A peer as a member sees it; ``reason`` says why it is refused."""

    self_id: str
    state: str = ""
    lag: int = -1
    reason: str = ""


@define(slots=True, frozen=True, kw_only=True)
class VoterFacts:
    """One member. ``role`` is "" and ``leader`` None if only its files are known.

    ``unknown`` says what this source could not show ("" if it showed everything); then term, vote,
    and log are -1 or "". ``durable_index`` is the last entry known to have been on disk.
    ``problems`` are those of its files, ``fault`` is why it must not lead.
    """

    name: str
    self_id: str
    running: bool = True
    role: str = ""
    leader: str | None = None
    term: int = -1
    voted_for: str = ""
    end_index: int = -1
    end_term: int = -1
    committed_index: int = -1
    durable_index: int = -1
    peers: str = ""
    group: str = ""
    preferred: str = ""
    fault: str = ""
    problems: tuple[str, ...] = ()
    tables_missing: bool = False
    views: tuple[PeerFacts, ...] = ()
    events: tuple[tuple[int, str], ...] = ()
    unknown: str = ""

    @property
    def log_end(self) -> tuple[int, int]:
        return self.end_term, self.end_index

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(each.partition("-")[0].strip() for each in self.peers.split(";") if each)


@define(slots=True, frozen=True, kw_only=True)
class OutsiderFacts:
    """A broker or a store that is no member of a DLedger group; ``shown_by`` says what shows it.

    ``controllers`` are the controllers of 5.x that elect its master, or "".
    """

    name: str
    shown_by: str
    controllers: str = ""


@define(slots=True, frozen=True, kw_only=True)
class ElectionFacts:
    """The members that were examined, those that turned out to be none, and those that did not
    answer with the reason.
    """

    subject: str
    members: tuple[VoterFacts, ...]
    outsiders: tuple[OutsiderFacts, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()
    heartbeat_ms: int = 2000
    leaks: int = 3
    settings_from: str = "default"

    @property
    def known(self) -> tuple[VoterFacts, ...]:
        """The members whose term, vote, and log are known."""
        return tuple(each for each in self.members if not each.unknown)

    @property
    def all_ids(self) -> tuple[str, ...]:
        """All members of the group: those of dLegerPeers, else those that were examined."""
        for each in self.members:
            if each.peer_ids:
                return each.peer_ids
        viewed = {view.self_id for each in self.members for view in each.views}
        return tuple(sorted({each.self_id for each in self.members if each.self_id} | viewed))

    @property
    def leaders(self) -> set[str]:
        found = {each.self_id for each in self.members if each.role == "LEADER"}
        return found | {each.leader for each in self.members if each.leader}

    @property
    def term(self) -> int:
        return max((each.term for each in self.known), default=-1)
