"""Answering a vote request, and judging the answers to one's own: pure functions of what is known.

The orders of the checks are the protocol (DLedger 0.3.1.2). Log checks come before term checks, so
that a candidate with an old log never moves terms.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from rmqpy.dledger.member import HardState, LedgerEnd, Membership
from rmqpy.model.ids import Term


class VoteResult(Enum):
    """Java VoteResponse.RESULT, as on the wire."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


@define(slots=True, frozen=True)
class VoteRequest:
    candidate: str
    term: Term
    end: LedgerEnd


@define(slots=True, frozen=True)
class VoteAnswer:
    result: VoteResult
    term: Term


def answer_vote(
    membership: Membership,
    hard_state: HardState,
    own_end: LedgerEnd,
    leader: str | None,
    request: VoteRequest,
) -> VoteAnswer:
    """The answer of a member that is not taking over leadership. Changes nothing: on ACCEPT the
    caller makes the vote durable, on REJECT_TERM_NOT_READY it moves to the request's term.
    """
    term = hard_state.current_term
    if request.candidate not in membership.peers:
        return VoteAnswer(VoteResult.REJECT_UNKNOWN_LEADER, term)
    if request.end.term < own_end.term:
        return VoteAnswer(VoteResult.REJECT_EXPIRED_LEDGER_TERM, term)
    if request.end.term == own_end.term and request.end.index < own_end.index:
        return VoteAnswer(VoteResult.REJECT_SMALL_LEDGER_END_INDEX, term)
    if request.term < term:
        return VoteAnswer(VoteResult.REJECT_EXPIRED_VOTE_TERM, term)
    if request.term > term:
        return VoteAnswer(VoteResult.REJECT_TERM_NOT_READY, term)
    if hard_state.voted_for not in (None, request.candidate):
        known = VoteResult.REJECT_ALREADY_HAS_LEADER if leader else VoteResult.REJECT_ALREADY_VOTED
        return VoteAnswer(known, term)
    if request.term < own_end.term:
        return VoteAnswer(VoteResult.REJECT_TERM_SMALL_THAN_LEDGER, own_end.term)
    return VoteAnswer(VoteResult.ACCEPT, term)
