"""Planted bugs that lose nothing, but keep a healthy group from its work.

:mod:`.mutations` lists them with its own.
"""

from __future__ import annotations

from rmqpy.dledger import election
from rmqpy.dledger.election import Ballot, Election, Voter, VoteTally
from rmqpy.dledger.follower import Follower
from rmqpy.dledger.handshake import compare, decode_introduction
from rmqpy.dledger.heartbeat import Heartbeat
from rmqpy.dledger.node import Node
from rmqpy.dledger.protocol.messages import (
    HeartBeatRequest,
    PushEntryRequest,
    VoteResult,
)
from rmqpy.dledger.replication import PeerState, Progress, Replication
from rmqpy.dledger.state import DiskState, Role
from rmqpy.dledger.term_check import TermCheck
from rmqpy.dledger.transfer import LeadershipTransfer
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.handshakes import PeerHandshakes
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.net.dledger.repeated_requests import RepeatedRequests
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from simulator.mutation_engine import (
    Patches,
    aimed_mutation,
    consensus_mutation,
    group_mutation,
)

REIGN_MS = 4000


@consensus_mutation
def leader_resigns_every_four_seconds(patches: Patches) -> None:
    original = patches.original(Node, "tick")
    began_ms: dict[int, tuple[int, int]] = {}

    def tick(self: Node, now_ms: int) -> None:
        original(self, now_ms)
        member = self._member
        if member.role is not Role.LEADER:
            return
        term, since_ms = began_ms.setdefault(id(self), (member.term, now_ms))
        if term != member.term:
            began_ms[id(self)] = member.term, now_ms
        elif now_ms - since_ms > REIGN_MS:
            member.become_candidate(member.term)

    patches.replace(Node, "tick", tick)


@aimed_mutation(
    members=3,
    heartbeat_ms=300,
    send_interval_ms=400,
    crash_interval_ms=8000,
    down_ms=12_000,
    transfer_interval_ms=1500,
    truce_interval_ms=5000,
    quiet=True,
)
def vote_against_a_live_leader(patches: Patches) -> None:
    """A voter that follows a leader accepts others in its term if its own vote is not given. This
    needs a leader that was elected while the voter was down, and a third member that loses the
    leader and no entry.
    """
    original = patches.original(election, "_answer")

    def answer(voter: Voter, ballot: Ballot, from_self: bool) -> VoteResult:
        result: VoteResult = original(voter, ballot, from_self)
        free = voter.hard_state.voted_for in (None, ballot.candidate)
        if result is VoteResult.REJECT_ALREADY_HAS_LEADER and free:
            return VoteResult.ACCEPT
        return result

    patches.replace(election, "_answer", answer)


@consensus_mutation
def new_term_without_a_quorum(patches: Patches) -> None:
    """A member that is cut off enters one term after another, and deposes the leader later."""

    def is_due(self: Election, tally: VoteTally) -> bool:
        return tally.known_max_term <= tally.term and not self.member.alone

    patches.replace(Election, "_new_term_is_due", is_due)


@consensus_mutation
def impatient_follower(patches: Patches) -> None:
    patience = property(lambda self: self.member.options.heartbeat_interval_ms)
    patches.replace(Heartbeat, "_patience_ms", patience)


@consensus_mutation
def push_never_repeated(patches: Patches) -> None:
    patches.replace(Replication, "_repeat_oldest", lambda self, progress: None)


@consensus_mutation
def comparison_never_repeated(patches: Patches) -> None:
    """A follower whose comparison failed once is forgotten."""
    original = patches.original(Replication, "_compare")

    def compare(self: Replication, progress: Progress) -> None:
        if progress.retry_ms <= 0 or self.member.now_ms < progress.retry_ms:
            original(self, progress)

    patches.replace(Replication, "_compare", compare)


@consensus_mutation
def endless_round_of_comparisons(patches: Patches) -> None:
    """A follower that keeps entries which the leader lacks acknowledges their removal. The next
    push does not fit, and the leader compares again at once: both are busy, and nothing advances.
    """
    original = patches.original(Follower, "_truncate")

    def truncate(self: Follower, request: PushEntryRequest) -> bool:
        entry = request.entries[0]
        if not self._equal(entry):
            done: bool = original(self, request)
            return done
        self._match(entry.index)
        return True

    patches.replace(Follower, "_truncate", truncate)
    patches.replace(Progress, "restart", lambda self, now_ms: self.enter(PeerState.COMPARE, -1))


@group_mutation
def candidate_that_waits_for_ever(patches: Patches) -> None:
    """A round without a quorum of answers is the last one."""
    original = patches.original(Election, "_pause_ms")

    def pause_ms(self: Election, pause: election.VoteBackoff) -> int:
        if self.verdict is election.VoteParseResult.WAIT_TO_REVOTE:
            return 1 << 40
        result: int = original(self, pause)
        return result

    patches.replace(Election, "_pause_ms", pause_ms)


@group_mutation
def leader_stays_with_a_full_disk(patches: Patches) -> None:
    original = patches.original(LeadershipTransfer, "_better_leaders")

    def better_leaders(self: LeadershipTransfer) -> list[str]:
        found: list[str] = [] if self.member.disk is DiskState.FULL else original(self)
        return found

    patches.replace(LeadershipTransfer, "_better_leaders", better_leaders)


# Strangers


@group_mutation
def strangers_speak_for_members(patches: Patches) -> None:
    patches.replace(PeerAdmission, "admits", lambda self, channel: True)


@group_mutation
def absurd_terms_believed(patches: Patches) -> None:
    """One vote in term 2^63-1 uses up the terms, also if only members are heard."""
    patches.replace(PeerAdmission, "admits", lambda self, channel: True)
    patches.replace(Node, "_is_implausible", lambda self, term: False)


@group_mutation
def larger_terms_believed(patches: Patches) -> None:
    """A heartbeat in a slightly larger term ends a leadership, whoever sends it."""
    original = patches.original(PeerTransport, "receive")

    def receive(self: PeerTransport, channel: Channel, command: RemotingCommand) -> object:
        is_stranger = not self.admission.admits(channel)
        if is_stranger and command.code == HeartBeatRequest.CODE:
            self.admission.admit(channel)
        try:
            return original(self, channel, command)
        finally:
            if is_stranger:
                self.admission.closed(channel)

    patches.replace(PeerTransport, "receive", receive)
    patches.replace(TermCheck, "seen", lambda self, name, term: self.entered(term))


@group_mutation
def introductions_believed(patches: Patches) -> None:
    """A member is judged by what somebody says in its name, not by what its address says."""
    original = patches.original(PeerHandshakes, "receive")

    def receive(self: PeerHandshakes, channel: Channel, command: RemotingCommand) -> None:
        other = decode_introduction(command.body)
        link = self.links.get(other.member)
        if link is not None and compare(self.introduce(), other).refusals:
            self._judge(link, other)
        original(self, channel, command)

    patches.replace(PeerHandshakes, "receive", receive)


@aimed_mutation(heartbeat_ms=300, truce_interval_ms=1000, line_interval_ms=5000)
def lost_handshake_not_repeated(patches: Patches) -> None:
    """A member waits for the answer to its introduction until the request times out."""
    patches.replace(RepeatedRequests, "tick", lambda self: None)
