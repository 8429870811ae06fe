"""The state of a member and its group (Java MemberState), and its transitions.

``HardState`` must be durable before any consequence of it leaves the process: a vote that is lost
may be given twice.

==================  ===================  =========================================================
transition          only if              effect
==================  ===================  =========================================================
become_candidate    term ≥ current_term  known_max_term at least term; no leader, no transferee;
                                         current_term stays
become_leader       candidate            leader is the member itself
become_follower     leader is a peer     leader known, no transferee; never changes the term
next_term                                current_term the known maximum, or one more; no vote
==================  ===================  =========================================================

Invariants: ``current_term`` never falls; ``voted_for`` belongs to it and changes from None only;
``committed_index`` never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define, field

from rmqpy.dledger.entry_log import LogView
from rmqpy.dledger.outbox import Outbox
from rmqpy.dledger.state import NO_TERM, DiskState, HardState, Role
from rmqpy.model.ids import LedgerIndex, Term

RandomBelow = Callable[[int], int]
"""A source of randomness: ``rng(n)`` returns one of 0 … n - 1."""


@define(slots=True, frozen=True)
class Membership:
    """The configured group; ``peers`` are all member ids, its own included. It never changes."""

    group: str
    self_id: str
    peers: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        assert self.self_id in self.peers, f"{self.self_id} is not one of its own peers"

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.peers if peer != self.self_id)


def _no_dice(_below: int) -> int:
    raise AssertionError("a group of several members needs a source of chance")


@define(slots=True, frozen=True, kw_only=True)
class RaftOptions:
    """The settings of a member, each with Java's key.

    All members of a group should have the same times: a follower whose timeout is shorter than the
    leader's heartbeat interval deposes it again and again.
    """

    rng: RandomBelow = field(default=_no_dice, repr=False)
    """Source of randomness for vote intervals; split votes end only if members differ in it."""

    addresses: Mapping[str, str] = field(factory=dict)
    """Address by member id, returned to clients that request METADATA."""

    election: bool = True
    """enableLeaderElector. Without it roles are not maintained: no votes, no heartbeats."""

    heartbeat_interval_ms: int = 2000
    """heartBeatTimeIntervalMs: a leader's heartbeat interval, and its timeout for answers."""

    max_heartbeat_leak: int = 3
    """maxHeartBeatLeak: after so many intervals without a heartbeat a follower stands for election,
    and without a quorum of answers a leader steps down.
    """

    min_vote_interval_ms: int = 300
    """minVoteIntervalMs: shortest wait between two rounds of votes."""

    max_vote_interval_ms: int = 1000
    """maxVoteIntervalMs: longest such wait; the wait is random between the two."""

    min_take_leadership_vote_interval_ms: int = 30
    """minTakeLeadershipVoteIntervalMs: the same for the one that leadership is transferred to."""

    max_take_leadership_vote_interval_ms: int = 100
    """maxTakeLeadershipVoteIntervalMs."""

    pending_limit: int = 10_000
    """maxPendingRequestsNum: entries that may wait for their quorum."""

    ack_timeout_ms: int = 2500
    """maxWaitAckTimeMs: timeout of a waiter, which is then notified; the entry stays."""

    push_timeout_ms: int = 1000
    """maxPushTimeOutMs: an unanswered push is sent again."""

    rpc_timeout_ms: int = 3000
    """A request without an answer counts as failed."""

    push_window: int = 1000
    """Maximum number of unanswered pushes to one follower."""

    batch_push: bool = False
    """isEnableBatchPush. Must be off while members of DLedger 0.2.3 are in the group: they answer
    a batch with another index.
    """

    batch_push_bytes: int = 4096
    """maxBatchPushSize: a batch is sent once it has this size or every waiting entry."""

    throttle_point_bytes: int = 300 * 1024 * 1024
    """peerPushThrottlePoint: a follower that lags more (and more than ``push_window`` entries) gets
    no more than ``push_quota_bytes`` per second.
    """

    push_quota_bytes: int = 20 * 1024 * 1024
    """peerPushQuota."""

    preferred_leader_ids: tuple[str, ...] = ()
    """preferredLeaderIds: a leader outside this list hands over to one on it."""

    transfer_wait_index: int = 1000
    """maxLeadershipTransferWaitIndex: a successor may lag by fewer entries than this."""

    transfer_wait_ms: int = 1000
    """leadershipTransferWaitTimeout: the time a successor has to catch up."""

    ack_after_sync: bool = False
    """Count and confirm entries once they are synced, not once they are written. Java members
    confirm what is written.
    """


@define(slots=True, eq=False, repr=False)
class Member:
    """The state that the parts of a node share. Only the transitions below change it."""

    membership: Membership
    options: RaftOptions
    hard_state: HardState
    log: LogView
    outbox: Outbox
    committed_index: LedgerIndex
    role: Role = Role.CANDIDATE
    leader_id: str | None = None
    known_max_term: Term = NO_TERM
    transferee: str | None = None
    term_to_take: Term = NO_TERM
    disk: DiskState = DiskState.GOOD
    now_ms: int = 0
    batching: set[str] = field(factory=set)
    """Members known to accept batches of any size, regardless of ``batch_push``."""

    role_changed: Callable[[], None] = field(default=lambda: None)
    """Called after each transition to end the parts of the old role."""

    @property
    def term(self) -> Term:
        return self.hard_state.current_term

    @property
    def self_id(self) -> str:
        return self.membership.self_id

    @property
    def alone(self) -> bool:
        return len(self.membership.peers) == 1

    @property
    def is_taking_leadership(self) -> bool:
        return self.term == self.term_to_take

    def become_candidate(self, term: Term) -> None:
        """Become a candidate. A larger ``term`` is only recorded: ``next_term`` enters it."""
        if term < self.term:
            return
        self.known_max_term = max(self.known_max_term, term)
        self._change(Role.CANDIDATE, None)

    def become_leader(self) -> None:
        assert self.role is Role.CANDIDATE, "only a candidate becomes leader"
        assert self.hard_state.voted_for == self.self_id, "a leader has its own vote"
        self._change(Role.LEADER, self.self_id)

    def become_follower(self, leader: str) -> None:
        assert leader != self.self_id and leader in self.membership.peers
        assert self.role is not Role.LEADER, "two leaders in one term"
        self._change(Role.FOLLOWER, leader)

    def next_term(self) -> None:
        """Enter the largest known term, or the next one."""
        self.set_hard_state(HardState(Term(max(self.term + 1, self.known_max_term)), None))

    def vote_for(self, candidate: str) -> None:
        if self.hard_state.voted_for is None:
            self.set_hard_state(HardState(self.term, candidate))
        assert self.hard_state.voted_for == candidate, "one vote a term"

    def set_hard_state(self, hard_state: HardState) -> None:
        assert hard_state.current_term >= self.term, "the term never falls"
        self.hard_state = self.outbox.hard_state = hard_state

    def commit(self, index: int) -> None:
        """Record that a quorum has every entry up to ``index``."""
        assert index > self.committed_index, "the committed index only grows"
        self.committed_index = self.outbox.committed_index = LedgerIndex(index)

    def _change(self, role: Role, leader: str | None) -> None:
        if role is not self.role:
            self.outbox.role = role
        self.role = role
        self.leader_id = leader
        self.transferee = None
        self.role_changed()
