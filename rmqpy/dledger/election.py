"""Leader election: answers to vote requests, the evaluation of a member's own round, and the
candidate's loop.

The protocol (DLedger 0.3.1.2) defines the order of the checks. Log checks precede term checks, so
that a candidate with an old log never changes terms.

===============================================  =====================  ==========================
answers of a round, first match counts           verdict                next round
===============================================  =====================  ==========================
a larger term is known                           WAIT_TO_VOTE_NEXT      random; in the known term
a member knows a leader                          WAIT_TO_REVOTE         random + the leak time
no quorum answered                               WAIT_TO_REVOTE         random
no quorum with a log no longer than ours         WAIT_TO_REVOTE         random + longest interval
a quorum accepted                                PASSED                 leader
a quorum accepted or must reach this term        REVOTE_IMMEDIATELY     now
none of these                                    WAIT_TO_VOTE_NEXT      random; in a new term
===============================================  =====================  ==========================

Five rules are specific to rmqpy and invisible to peers. First, a new term is entered only after an
unsuccessful round in the old term that a quorum answered: a member that is cut off keeps its term
and deposes no leader when it returns. Second, a member never leads a term again that it may have
led before a restart, because entries of that term may have been lost. Third, a member that follows
a leader votes for no other candidate of that term, even if its own vote is not given. Fourth, a
member votes for no candidate whose log ends before an entry that the member knows to be committed,
even if its own log has lost that entry. Fifth, a member that leads or follows enters a larger term
only if the member that is said to be in it confirms that (:mod:`rmqpy.dledger.term_check`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from attrs import Factory, define, field

from rmqpy.dledger.member import Member, Membership
from rmqpy.dledger.protocol.messages import Response, VoteRequest, VoteResponse, VoteResult
from rmqpy.dledger.quorum import is_quorum
from rmqpy.dledger.state import UNKNOWN_VOTE, DiskState, HardState, LedgerEnd, Role
from rmqpy.dledger.term_check import TermCheck
from rmqpy.model.ids import LedgerIndex, Term

VOTE_WAIT_MS: Final = 2000
"""The time that a round waits for answers, to which a random part of the longest vote interval is
added.
"""

_ROUNDS_ALONE: Final = 3
"""The maximum number of rounds in a row in a group of one member. The first ones may fail because
the term is older than the ledger or the vote of the term is already given.
"""


class VoteParseResult(Enum):
    """The verdict on a round (Java VoteResponse.ParseResult)."""

    WAIT_TO_REVOTE = "WAIT_TO_REVOTE"
    WAIT_TO_VOTE_NEXT = "WAIT_TO_VOTE_NEXT"
    PASSED = "PASSED"
    REVOTE_IMMEDIATELY = "REVOTE_IMMEDIATELY"


class VoteBackoff(Enum):
    """The kind of pause before the next round."""

    NONE = "NONE"
    NORMAL = "NORMAL"
    LONGEST_MORE = "LONGEST_MORE"
    LEAK_MORE = "LEAK_MORE"


@define(slots=True, frozen=True)
class Ballot:
    """The parts of a vote request that a voter checks."""

    candidate: str
    term: Term
    end: LedgerEnd


@define(slots=True, frozen=True)
class Voter:
    """The state that a voter's answer depends on."""

    membership: Membership
    hard_state: HardState
    end: LedgerEnd
    leader: str | None = None
    taking_leadership: bool = False
    known_committed: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)


@define(slots=True, frozen=True)
class VoteAnswer:
    result: VoteResult
    term: Term


def answer_vote(voter: Voter, ballot: Ballot, *, from_self: bool = False) -> VoteAnswer:
    """Return the answer to a ballot without changing anything.

    On ACCEPT the caller makes the vote durable; on REJECT_TERM_NOT_READY it becomes a candidate of
    the ballot's term, or checks first (:mod:`rmqpy.dledger.term_check`).
    """
    term = voter.hard_state.current_term
    result = _answer(voter, ballot, from_self)
    small = result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    return VoteAnswer(result, voter.end.term if small else term)


def _answer(voter: Voter, ballot: Ballot, from_self: bool) -> VoteResult:
    term, own_end = voter.hard_state.current_term, voter.end
    if ballot.candidate not in voter.membership.peers:
        return VoteResult.REJECT_UNKNOWN_LEADER
    if ballot.candidate == voter.membership.self_id and not from_self:
        return VoteResult.REJECT_UNEXPECTED_LEADER
    if ballot.end.term < own_end.term:
        return VoteResult.REJECT_EXPIRED_LEDGER_TERM
    if ballot.end.term == own_end.term and ballot.end.index < own_end.index:
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    if ballot.end.index < voter.known_committed:  # nobody leads without the committed entries
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    if ballot.term < term:
        return VoteResult.REJECT_EXPIRED_VOTE_TERM
    if ballot.term > term:
        return VoteResult.REJECT_TERM_NOT_READY
    voted_for_another = voter.hard_state.voted_for not in (None, ballot.candidate)
    if voter.leader is not None and (voted_for_another or voter.leader != ballot.candidate):
        return VoteResult.REJECT_ALREADY_HAS_LEADER
    if voted_for_another:
        return VoteResult.REJECT_ALREADY_VOTED
    if ballot.term < own_end.term:
        return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    # Here the ledgers end in the same term, or the candidate's ends in a later one.
    if (
        voter.taking_leadership
        and not from_self
        and ballot.end.term == own_end.term
        and own_end.index >= ballot.end.index
    ):
        return VoteResult.REJECT_TAKING_LEADERSHIP
    return VoteResult.ACCEPT


@define(slots=True)
class VoteTally:
    """The answers of one round, including the member's own vote."""

    member_count: int
    term: Term
    known_max_term: Term
    accepted: int = 0
    not_ready: int = 0
    valid: int = 0
    bigger_ledger: int = 0
    has_leader: bool = False
    can_pass: bool = True
    """False if the round cannot be won and only determines whether a new term is due."""

    def count(self, answer: VoteAnswer) -> None:
        result = answer.result
        if result is VoteResult.UNKNOWN:
            return
        self.valid += 1
        if result is VoteResult.ACCEPT:
            self.accepted += 1
        elif result is VoteResult.REJECT_TERM_NOT_READY:
            self.not_ready += 1
        elif result is VoteResult.REJECT_ALREADY_HAS_LEADER:
            self.has_leader = True
        elif result in _LEDGER_IS_BIGGER:
            self.bigger_ledger += 1
        elif result in _TERM_IS_LARGER:
            self.known_max_term = max(self.known_max_term, answer.term)

    @property
    def decided(self) -> bool:
        """True if further answers cannot change the outcome."""
        if self.has_leader or is_quorum(self.accepted + self.not_ready, self.member_count):
            return True
        # A quorum that knows no leader is enough, because a quorum knows a healthy leader.
        return not self.can_pass and is_quorum(self.valid - self.bigger_ledger, self.member_count)


_LEDGER_IS_BIGGER: Final = frozenset(
    {VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX}
)
_TERM_IS_LARGER: Final = frozenset(
    {VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER}
)


def evaluate_round(tally: VoteTally) -> tuple[VoteParseResult, VoteBackoff]:
    """Return verdict and pause of a round, following the table at the top of this module."""
    if tally.known_max_term > tally.term:
        return VoteParseResult.WAIT_TO_VOTE_NEXT, VoteBackoff.NORMAL
    if tally.has_leader:
        return VoteParseResult.WAIT_TO_REVOTE, VoteBackoff.LEAK_MORE
    if not is_quorum(tally.valid, tally.member_count):
        return VoteParseResult.WAIT_TO_REVOTE, VoteBackoff.NORMAL
    if not is_quorum(tally.valid - tally.bigger_ledger, tally.member_count):
        return VoteParseResult.WAIT_TO_REVOTE, VoteBackoff.LONGEST_MORE
    if tally.can_pass and is_quorum(tally.accepted, tally.member_count):
        return VoteParseResult.PASSED, VoteBackoff.NONE
    if tally.can_pass and is_quorum(tally.accepted + tally.not_ready, tally.member_count):
        return VoteParseResult.REVOTE_IMMEDIATELY, VoteBackoff.NONE
    return VoteParseResult.WAIT_TO_VOTE_NEXT, VoteBackoff.NORMAL


@define(slots=True, eq=False, repr=False)
class _VoteRound:
    tally: VoteTally
    open_count: int
    deadline_ms: int


@define(slots=True, eq=False, repr=False)
class Election:
    """A member as a voter and as a candidate."""

    member: Member
    on_leader: Callable[[], None]
    verdict: VoteParseResult = VoteParseResult.WAIT_TO_REVOTE
    next_vote_ms: int = -1
    increase_now: bool = False
    """True if a larger term is known, which must be entered first."""

    _spent_term: Term | None = None
    """The term that this member may have led before it was restarted."""

    _raising: bool = False
    """True if a new term follows the next unsuccessful round that a quorum answers."""

    _round: _VoteRound | None = None
    counts: dict[VoteParseResult, int] = field(factory=dict)
    terms: TermCheck = field(
        init=False,
        default=Factory(lambda self: TermCheck(self.member, self._enter_soon), takes_self=True),
    )

    def __attrs_post_init__(self) -> None:
        member = self.member
        if not member.alone and member.hard_state.voted_for in (member.self_id, UNKNOWN_VOTE):
            self._spent_term = member.term
            self._raising = True

    def role_changed(self) -> None:
        """Discard the current round after a change of role."""
        self._round = None
        if self.member.role is not Role.CANDIDATE:
            self.verdict = VoteParseResult.WAIT_TO_REVOTE
            self.increase_now = False
            self._raising = self._spent_term == self.member.term

    def abort_round(self) -> None:
        """Abort the round, because this member may not lead. Outstanding votes no longer count."""
        if self._round is not None and not self.member.alone:
            self._round = None
            self.next_vote_ms = self.member.now_ms + self._interval()

    def on_leader_timeout(self) -> None:
        """Prepare the election of a follower whose leader has timed out.

        The vote of this term is already given, so after a random pause a round checks whether a
        quorum can be reached, and the member then enters the next term.
        """
        if not self.member.alone:
            self.verdict = VoteParseResult.WAIT_TO_VOTE_NEXT
            self.next_vote_ms = self.member.now_ms + self._interval()

    def answer(self, request: VoteRequest) -> VoteResponse:
        """Return a vote, or the reason for its refusal."""
        end = LedgerEnd(LedgerIndex(request.ledger_end_index), Term(request.ledger_end_term))
        answer = self._vote(Ballot(request.leader_id or "", request.term, end), from_self=False)
        if answer.result is VoteResult.REJECT_TERM_NOT_READY:
            self.terms.seen(request.leader_id or "", request.term)
        return VoteResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=request.leader_id,
            term=answer.term,
            result=answer.result,
        )

    def _enter_soon(self, term: Term) -> None:
        """Leave the current term for a larger one, with the next tick."""
        self.member.become_candidate(term)
        self.increase_now = True

    def tick(self) -> None:
        """Close a round whose deadline has passed, or start a round that is due."""
        now_ms = self.member.now_ms
        if self.member.disk is DiskState.FAILED:
            return
        if self._round is not None:
            if now_ms >= self._round.deadline_ms:
                self._close()
        elif self.increase_now:
            self.enter_next_term()
        elif now_ms >= self.next_vote_ms and self.member.obstacle is None:
            self._begin()

    def enter_next_term(self) -> None:
        """Enter a new term as a candidate; its votes are asked for after a random pause."""
        self.increase_now = False
        self._enter_next_term()
        self.next_vote_ms = self.member.now_ms + self._interval()

    def _begin(self) -> None:
        member = self.member
        for _ in range(_ROUNDS_ALONE if member.alone else 1):
            if member.role is not Role.CANDIDATE:
                return
            if member.known_max_term > member.term:
                self._enter_next_term()
            elif self.verdict is VoteParseResult.WAIT_TO_VOTE_NEXT:
                if member.alone:
                    self._enter_next_term()
                else:
                    self._raising = True
            self._ask_for_votes()

    def _enter_next_term(self) -> None:
        self.member.next_term()
        self.verdict = VoteParseResult.WAIT_TO_REVOTE
        self._raising = False

    def _ask_for_votes(self) -> None:
        member = self.member
        end = member.log.end
        tally = VoteTally(len(member.membership.peers), member.term, member.known_max_term)
        wait_ms = VOTE_WAIT_MS
        if not member.alone:
            wait_ms += member.options.rng(member.options.max_vote_interval_ms)
        others = member.membership.others
        vote_round = self._round = _VoteRound(tally, len(others), member.now_ms + wait_ms)
        own = self._vote(Ballot(member.self_id, member.term, end), from_self=True)
        tally.count(own)
        # A member leads a term only with its own vote. After a restart the vote therefore shows
        # which term it may have led, and that term is not led again.
        led_before = self._spent_term == member.term
        tally.can_pass = own.result is VoteResult.ACCEPT and not led_before
        for peer in others:
            member.outbox.send(
                member.vote_request(peer),
                VoteResponse,
                member.now_ms,
                lambda answer: self._answered(vote_round, answer),
            )
        if not others:
            self._close()

    def _vote(self, ballot: Ballot, *, from_self: bool) -> VoteAnswer:
        member = self.member
        voter = Voter(
            member.membership,
            member.hard_state,
            member.log.end,
            member.leader_id,
            member.is_taking_leadership,
            member.known_committed,
        )
        answer = answer_vote(voter, ballot, from_self=from_self)
        if answer.result is VoteResult.ACCEPT:
            member.vote_for(ballot.candidate)
        return answer

    def _answered(self, vote_round: _VoteRound, response: Response | None) -> None:
        if vote_round is not self._round:
            return
        vote_round.open_count -= 1
        if isinstance(response, VoteResponse):
            vote_round.tally.count(VoteAnswer(response.result, response.term))
        if vote_round.open_count == 0 or vote_round.tally.decided:
            self._close()

    def _close(self) -> None:
        assert self._round is not None
        tally, self._round = self._round.tally, None
        member = self.member
        self.verdict, pause = evaluate_round(tally)
        if self._new_term_is_due(tally):
            self._enter_next_term()
            self._ask_for_votes()
            return
        self.counts[self.verdict] = self.counts.get(self.verdict, 0) + 1
        if tally.known_max_term > tally.term:
            member.become_candidate(tally.known_max_term)
        self.next_vote_ms = member.now_ms + self._pause_ms(pause)
        if self.verdict is VoteParseResult.PASSED:
            member.become_leader()
            self.on_leader()

    def _new_term_is_due(self, tally: VoteTally) -> bool:
        """Return whether a new term is due after a failed round that a quorum has answered."""
        next_term = self.verdict is VoteParseResult.WAIT_TO_VOTE_NEXT
        return self._raising and next_term and tally.known_max_term <= tally.term

    def _pause_ms(self, pause: VoteBackoff) -> int:
        options = self.member.options
        if pause is VoteBackoff.NONE or self.member.alone:
            return 0
        if pause is VoteBackoff.LONGEST_MORE:
            return self._interval() + options.max_vote_interval_ms
        if pause is VoteBackoff.LEAK_MORE:
            return self._interval() + options.heartbeat_interval_ms * options.max_heartbeat_leak
        return self._interval()

    def _interval(self) -> int:
        options = self.member.options
        shortest, longest = options.min_vote_interval_ms, options.max_vote_interval_ms
        if self.member.is_taking_leadership:
            shortest = options.min_take_leadership_vote_interval_ms
            longest = options.max_take_leadership_vote_interval_ms
        if self.member.alone:
            return shortest
        return shortest + options.rng(max(1, longest - shortest))
