"""Tests of the answer to VOTE: each row of the table, and the order of the rows."""

from __future__ import annotations

import itertools

import pytest

from rmqpy.dledger.election import Ballot, Voter, answer_vote
from rmqpy.dledger.member import Membership
from rmqpy.dledger.protocol.messages import VoteResult
from rmqpy.dledger.state import HardState, LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term

GROUP = Membership("group", "n0", ("n0", "n1", "n2"))


def end(term: int, index: int) -> LedgerEnd:
    return LedgerEnd(LedgerIndex(index), Term(term))


def voter(
    term: int = 5,
    voted_for: str | None = None,
    own: tuple[int, int] = (3, 10),
    leader: str | None = None,
    taking: bool = False,
    committed: int = -1,
) -> Voter:
    state = HardState(Term(term), voted_for)
    return Voter(GROUP, state, end(*own), leader, taking, LedgerIndex(committed))


def ballot(candidate: str = "n1", term: int = 5, theirs: tuple[int, int] = (3, 10)) -> Ballot:
    return Ballot(candidate, Term(term), end(*theirs))


CASES = [
    (voter(), ballot("n9"), VoteResult.REJECT_UNKNOWN_LEADER, 5),
    (voter(), ballot("n0"), VoteResult.REJECT_UNEXPECTED_LEADER, 5),
    (voter(), ballot(theirs=(2, 99)), VoteResult.REJECT_EXPIRED_LEDGER_TERM, 5),
    (voter(), ballot(theirs=(3, 9)), VoteResult.REJECT_SMALL_LEDGER_END_INDEX, 5),
    (
        voter(own=(3, 9), committed=10),
        ballot(theirs=(3, 9)),
        VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
        5,
    ),
    (
        voter(committed=10),
        ballot(term=4, theirs=(4, 9)),
        VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
        5,
    ),
    (voter(own=(3, 9), committed=10), ballot(), VoteResult.ACCEPT, 5),
    (voter(), ballot(term=4), VoteResult.REJECT_EXPIRED_VOTE_TERM, 5),
    (voter(voted_for="n2", leader="n2"), ballot(), VoteResult.REJECT_ALREADY_HAS_LEADER, 5),
    (voter(leader="n2"), ballot(), VoteResult.REJECT_ALREADY_HAS_LEADER, 5),
    (voter(leader="n1"), ballot(), VoteResult.ACCEPT, 5),
    (voter(voted_for="n2"), ballot(), VoteResult.REJECT_ALREADY_VOTED, 5),
    (voter(), ballot(term=6), VoteResult.REJECT_TERM_NOT_READY, 5),
    (
        voter(term=2, own=(3, 10)),
        ballot(term=2),
        VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,
        3,
    ),
    (voter(taking=True), ballot(), VoteResult.REJECT_TAKING_LEADERSHIP, 5),
    (voter(), ballot(), VoteResult.ACCEPT, 5),
    (voter(voted_for="n1"), ballot(), VoteResult.ACCEPT, 5),
    (voter(), ballot(theirs=(4, 0)), VoteResult.ACCEPT, 5),
    (voter(), ballot(theirs=(3, 11)), VoteResult.ACCEPT, 5),
    (voter(taking=True), ballot(theirs=(3, 11)), VoteResult.ACCEPT, 5),
    (voter(term=0, own=(-1, -1)), ballot(term=0, theirs=(-1, -1)), VoteResult.ACCEPT, 0),
]


@pytest.mark.parametrize(("member", "received", "result", "term"), CASES)
def test_each_row_of_the_table(
    member: Voter, received: Ballot, result: VoteResult, term: int
) -> None:
    answer = answer_vote(member, received)
    assert (answer.result, answer.term) == (result, term)


def test_a_candidate_votes_for_itself_if_it_has_not_voted() -> None:
    """A candidate also requests its own vote."""
    assert answer_vote(voter(), ballot("n0"), from_self=True).result is VoteResult.ACCEPT
    already = voter(voted_for="n2")
    rejected = answer_vote(already, ballot("n0"), from_self=True)
    assert rejected.result is VoteResult.REJECT_ALREADY_VOTED


def expected(member: Voter, received: Ballot) -> VoteResult:
    """Return the result of the first row of the table that applies."""
    mine, theirs, term = member.end, received.end, member.hard_state.current_term
    voted = member.hard_state.voted_for
    rows = [
        (received.candidate not in GROUP.peers, VoteResult.REJECT_UNKNOWN_LEADER),
        (received.candidate == GROUP.self_id, VoteResult.REJECT_UNEXPECTED_LEADER),
        (theirs.term < mine.term, VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (
            theirs.term == mine.term and theirs.index < mine.index,
            VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
        ),
        (theirs.index < member.known_committed, VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (received.term < term, VoteResult.REJECT_EXPIRED_VOTE_TERM),
        (
            received.term == term
            and member.leader is not None
            and (voted not in (None, received.candidate) or member.leader != received.candidate),
            VoteResult.REJECT_ALREADY_HAS_LEADER,
        ),
        (
            received.term == term and voted not in (None, received.candidate),
            VoteResult.REJECT_ALREADY_VOTED,
        ),
        (received.term > term, VoteResult.REJECT_TERM_NOT_READY),
        (received.term < mine.term, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER),
        (
            member.taking_leadership and theirs.term == mine.term and mine.index >= theirs.index,
            VoteResult.REJECT_TAKING_LEADERSHIP,
        ),
        (True, VoteResult.ACCEPT),
    ]
    return next(result for applies, result in rows if applies)


def test_every_combination_of_small_numbers_follows_the_table() -> None:
    seen = set()
    voters = itertools.product(
        (1, 2),
        (None, "n1", "n2"),
        ((0, 0), (1, 1), (2, 1), (3, 1)),
        (None, "n2"),
        (False, True),
        (-1, 1, 2),
    )
    for parts in voters:
        member = voter(*parts)
        for candidate, term, theirs in itertools.product(
            ("n0", "n1", "n9"), (0, 1, 2, 3), ((0, 0), (1, 0), (1, 1), (2, 1), (3, 2))
        ):
            received = ballot(candidate, term, theirs)
            result = answer_vote(member, received).result
            assert result is expected(member, received), (member, received)
            seen.add(result)
    assert len(seen) == 11
