"""One member of a group as a state machine: ``step``, ``tick``, ``propose`` in, :class:`Ready` out.

The caller's part, after each call: take :meth:`Node.take_ready` and, in this order, make
``hard_state`` durable; note ``committed_index``; tell the broker the ``role``. Entries are stored
by whoever proposed them, in order of index, and reported by ``step(Stored(index))``; only then do
they count towards a quorum.

This version knows groups of one member: its vote is its own, an entry is committed when it is
stored, and the whole tail commits when it becomes leader. A configuration with more peers is
refused when the store is opened.

Invariants: at most one vote a term; ``committed_index`` never falls and never passes what is
stored; only a leader proposes, and indexes are dense.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from rmqpy.dledger.election import VoteRequest, VoteResult, answer_vote
from rmqpy.dledger.member import HardState, LedgerEnd, Membership, Role
from rmqpy.dledger.quorum import is_quorum, quorum_index
from rmqpy.model.ids import LedgerIndex, Term


class Refused(Enum):
    """Why nothing may be appended now (DLedgerResponseCode numbers)."""

    NOT_LEADER = 404
    LEADER_PENDING_FULL = 503


@define(slots=True, frozen=True)
class Proposal:
    """Leave to append entries ``first_index``, ``first_index`` + 1, … in ``term``."""

    term: Term
    first_index: LedgerIndex


@define(slots=True, frozen=True)
class Stored:
    """Local event: the log holds every entry up to ``index``."""

    index: LedgerIndex


@define(slots=True, frozen=True)
class Ready:
    """What the caller has to do, in the order of the fields. None: no change."""

    hard_state: HardState | None = None
    committed_index: LedgerIndex | None = None
    role: Role | None = None


class Node:
    """``end`` is the last entry found on disk, ``committed_index`` what the checkpoint remembers
    (at most ``end``).
    """

    def __init__(
        self,
        membership: Membership,
        hard_state: HardState,
        end: LedgerEnd,
        committed_index: LedgerIndex,
        pending_limit: int,
    ) -> None:
        assert len(membership.peers) == 1, (
            "groups of several members are not supported by this version"
        )
        self._membership = membership
        self._hard_state = hard_state
        self._stored = end
        self._proposed_index = end.index
        self._pending_limit = pending_limit
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.committed_index = LedgerIndex(min(committed_index, end.index))
        self._ready_hard_state: HardState | None = None
        self._ready_committed: LedgerIndex | None = None
        self._ready_role: Role | None = None

    @property
    def term(self) -> Term:
        return self._hard_state.current_term

    def tick(self, now_ms: int) -> None:
        """Time has passed. A candidate asks for votes; in a group of one that is its own."""
        if self.role is Role.CANDIDATE:
            self._request_votes()

    def step(self, event: Stored) -> None:
        """Something has happened."""
        assert event.index <= self._proposed_index, "stored what was never proposed"
        if event.index > self._stored.index:
            self._stored = LedgerEnd(event.index, self.term)
            self._count_watermarks()

    def propose(self, count: int) -> Proposal | Refused:
        """Ask to append ``count`` entries. With a Proposal they must be appended: the indexes are
        taken.
        """
        assert count > 0
        if self.role is not Role.LEADER:
            return Refused.NOT_LEADER
        if self._proposed_index - self.committed_index > self._pending_limit:
            return Refused.LEADER_PENDING_FULL
        first = LedgerIndex(self._proposed_index + 1)
        self._proposed_index = LedgerIndex(self._proposed_index + count)
        return Proposal(self.term, first)

    def grant(self) -> tuple[Proposal, int]:
        """What ``propose`` would give now, and for how many entries in all; takes nothing."""
        pending = self._proposed_index - self.committed_index
        room = max(0, self._pending_limit + 1 - pending) if self.role is Role.LEADER else 0
        return Proposal(self.term, LedgerIndex(self._proposed_index + 1)), room

    def take_ready(self) -> Ready | None:
        """What is to be done since the last call; None when nothing is."""
        ready = Ready(self._ready_hard_state, self._ready_committed, self._ready_role)
        self._ready_hard_state = self._ready_committed = self._ready_role = None
        return None if ready == Ready() else ready

    def _request_votes(self) -> None:
        """A round in the current term first (even 0), in the next one if that term is behind the
        ledger.
        """
        own = self._membership.self_id
        for _ in range(2):
            request = VoteRequest(own, self.term, self._stored)
            answer = answer_vote(
                self._membership, self._hard_state, self._stored, self.leader_id, request
            )
            if answer.result is VoteResult.ACCEPT:
                if self._hard_state.voted_for is None:
                    self._set_hard_state(HardState(self.term, own))
                if is_quorum(1, len(self._membership.peers)):
                    self._become_leader()
                return
            self._set_hard_state(HardState(Term(max(self.term + 1, answer.term)), None))

    def _become_leader(self) -> None:
        self.role = self._ready_role = Role.LEADER
        self.leader_id = self._membership.self_id
        self._count_watermarks()

    def _count_watermarks(self) -> None:
        if self.role is not Role.LEADER:
            return
        reached = LedgerIndex(quorum_index([self._stored.index]))
        if reached > self.committed_index:
            self.committed_index = self._ready_committed = reached

    def _set_hard_state(self, hard_state: HardState) -> None:
        self._hard_state = self._ready_hard_state = hard_state
