"""Tests of answers to votes and of the results of rounds: tables, and invariants of all of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.dledger.election import (
    Ballot,
    VoteAnswer,
    VoteBackoff,
    VoteParseResult,
    Voter,
    VoteTally,
    answer_vote,
    evaluate_round,
)
from rmqpy.dledger.member import Membership
from rmqpy.dledger.protocol.messages import VoteResult
from rmqpy.dledger.quorum import is_quorum
from rmqpy.dledger.state import HardState, LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term

PEERS = ("n0", "n1", "n2")


def end(index: int, term: int) -> LedgerEnd:
    return LedgerEnd(LedgerIndex(index), Term(term))


def tally(members: int, term: int = 5, **answers: int) -> VoteTally:
    counted = VoteTally(members, Term(term), Term(-1))
    for name, count in answers.items():
        for _ in range(count):
            counted.count(VoteAnswer(VoteResult[name.upper()], Term(term)))
    return counted


@pytest.mark.parametrize(
    ("answers", "verdict", "pause"),
    [
        ({"accept": 2}, VoteParseResult.PASSED, VoteBackoff.NONE),
        ({"accept": 1}, VoteParseResult.WAIT_TO_REVOTE, VoteBackoff.NORMAL),
        ({"accept": 1, "unknown": 2}, VoteParseResult.WAIT_TO_REVOTE, VoteBackoff.NORMAL),
        (
            {"accept": 1, "reject_already_voted": 1},
            VoteParseResult.WAIT_TO_VOTE_NEXT,
            VoteBackoff.NORMAL,
        ),
        (
            {"accept": 1, "reject_unknown_leader": 1},
            VoteParseResult.WAIT_TO_VOTE_NEXT,
            VoteBackoff.NORMAL,
        ),
        (
            {"accept": 1, "reject_unexpected_leader": 1},
            VoteParseResult.WAIT_TO_VOTE_NEXT,
            VoteBackoff.NORMAL,
        ),
        (
            {"accept": 1, "reject_taking_leadership": 1},
            VoteParseResult.WAIT_TO_VOTE_NEXT,
            VoteBackoff.NORMAL,
        ),
        (
            {"accept": 1, "reject_term_not_ready": 1},
            VoteParseResult.REVOTE_IMMEDIATELY,
            VoteBackoff.NONE,
        ),
        (
            {"accept": 2, "reject_already_has_leader": 1},
            VoteParseResult.WAIT_TO_REVOTE,
            VoteBackoff.LEAK_MORE,
        ),
        (
            {"accept": 1, "reject_small_ledger_end_index": 1},
            VoteParseResult.WAIT_TO_REVOTE,
            VoteBackoff.LONGEST_MORE,
        ),
        (
            {"accept": 1, "reject_expired_ledger_term": 2},
            VoteParseResult.WAIT_TO_REVOTE,
            VoteBackoff.LONGEST_MORE,
        ),
        ({"accept": 2, "reject_expired_ledger_term": 1}, VoteParseResult.PASSED, VoteBackoff.NONE),
    ],
)
def test_a_round_is_judged_by_its_answers(
    answers: dict[str, int], verdict: VoteParseResult, pause: VoteBackoff
) -> None:
    assert evaluate_round(tally(3, **answers)) == (verdict, pause)


@pytest.mark.parametrize("name", ["REJECT_EXPIRED_VOTE_TERM", "REJECT_TERM_SMALL_THAN_LEDGER"])
def test_a_larger_term_takes_precedence(name: str) -> None:
    counted = tally(3, accept=2, reject_already_has_leader=1)
    counted.count(VoteAnswer(VoteResult[name], Term(6)))
    assert evaluate_round(counted) == (VoteParseResult.WAIT_TO_VOTE_NEXT, VoteBackoff.NORMAL)
    assert counted.known_max_term == 6


def test_a_round_that_cannot_be_won_never_passes() -> None:
    counted = tally(3, accept=3)
    counted.can_pass = False
    assert evaluate_round(counted)[0] is VoteParseResult.WAIT_TO_VOTE_NEXT
    assert counted.decided
    assert not tally(5, accept=1, reject_already_voted=2).decided


hard_states = st.builds(
    HardState, st.integers(0, 3).map(Term), st.sampled_from([None, "n0", "n1", "n2"])
)
ends = st.builds(end, st.integers(-1, 3), st.integers(-1, 3))
voters = st.builds(
    Voter,
    st.just(Membership("g", "n0", PEERS)),
    hard_states,
    ends,
    st.sampled_from([None, "n1", "n2"]),
    st.booleans(),
)
ballots = st.builds(Ballot, st.sampled_from([*PEERS, "n9", ""]), st.integers(0, 4).map(Term), ends)


@given(voters, ballots)
def test_only_a_candidate_with_a_log_at_least_as_long_gets_a_vote(
    voter: Voter, ballot: Ballot
) -> None:
    answer = answer_vote(voter, ballot)
    if answer.result is not VoteResult.ACCEPT:
        return
    assert ballot.candidate in ("n1", "n2")
    assert ballot.term == voter.hard_state.current_term == answer.term
    assert voter.hard_state.voted_for in (None, ballot.candidate)
    assert (ballot.end.term, ballot.end.index) >= (voter.end.term, voter.end.index)
    assert ballot.term >= voter.end.term


@given(voters, ballots)
def test_a_candidate_with_a_shorter_log_never_raises_the_term(voter: Voter, ballot: Ballot) -> None:
    shorter = (ballot.end.term, ballot.end.index) < (voter.end.term, voter.end.index)
    is_raised = answer_vote(voter, ballot).result is VoteResult.REJECT_TERM_NOT_READY
    assert not (shorter and is_raised)


def test_every_result_occurs() -> None:
    membership = Membership("g", "n0", PEERS)
    seen = set()
    for term, vote, leader, taking, candidate, requested, own, theirs in product(
        (0, 2), (None, "n1"), (None, "n1"), (False, True), ("n0", "n1", "n2", "n9"), (0, 2, 3),
        (end(-1, -1), end(2, 2)), (end(-1, -1), end(1, 2), end(2, 2)),
    ):  # fmt: skip
        voter = Voter(membership, HardState(Term(term), vote), own, leader, taking)
        seen.add(answer_vote(voter, Ballot(candidate, Term(requested), theirs)).result)
    assert seen == set(VoteResult) - {VoteResult.UNKNOWN}


@given(st.integers(1, 7), st.lists(st.sampled_from(VoteResult), max_size=7))
def test_only_a_quorum_of_votes_passes(members: int, results: list[VoteResult]) -> None:
    counted = VoteTally(members, Term(1), Term(-1))
    for result in results[:members]:
        counted.count(VoteAnswer(result, Term(1)))
    verdict, _ = evaluate_round(counted)
    accepted = results[:members].count(VoteResult.ACCEPT)
    if verdict is VoteParseResult.PASSED:
        assert is_quorum(accepted, members)
        assert VoteResult.REJECT_ALREADY_HAS_LEADER not in results[:members]
