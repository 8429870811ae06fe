"""The state of a member and its group (Java MemberState), and its transitions.

``HardState`` must be durable before a message that depends on it is sent: a vote that is lost may
be given twice.

==================  ===================  =========================================================
transition          only if              effect
==================  ===================  =========================================================
become_candidate    term ≥ current_term  known_max_term at least term; no leader, no transferee;
                                         current_term is unchanged
become_leader       candidate            leader is the member itself
become_follower     leader is a peer     leader known, no transferee; never changes the term;
                                         known_max_term is current_term again
next_term                                current_term is the known maximum, or one more; no vote
==================  ===================  =========================================================

Invariants: ``current_term`` and ``committed_index`` never decrease; ``voted_for`` is the vote of
``current_term`` and changes only from None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define, field

from rmqpy.dledger.entry_log import LogView
from rmqpy.dledger.outbox import Outbox
from rmqpy.dledger.protocol.messages import VoteRequest
from rmqpy.dledger.state import NO_TERM, NOT_LEADING, DiskState, HardState, Role
from rmqpy.model.ids import LedgerIndex, Term

RandomBelow = Callable[[int], int]
"""A source of randomness: ``rng(n)`` returns an integer from 0 to n - 1."""


@define(slots=True, frozen=True)
class Membership:
    """The configured group. ``peers`` contains the ids of all members, including this one. It never
    changes.
    """

    group: str
    self_id: str
    peers: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        assert self.self_id in self.peers, f"{self.self_id} is not one of its own peers"

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.peers if peer != self.self_id)


def _no_rng(_below: int) -> int:
    raise AssertionError("a group of several members needs a source of randomness")


@define(slots=True, frozen=True, kw_only=True)
class RaftOptions:
    """The settings of a member, each with Java's key.

    All members of a group should have the same times: a follower whose timeout is shorter than the
    leader's heartbeat interval deposes it repeatedly.
    """

    rng: RandomBelow = field(default=_no_rng, repr=False)
    """The source of randomness for vote intervals. Split votes end only if members draw different
    numbers.
    """

    addresses: Mapping[str, str] = field(factory=dict)
    """The address of each member by id, returned to clients that request METADATA."""

    election: bool = True
    """enableLeaderElector: take part in elections. If False, roles are not maintained: there are
    neither votes nor heartbeats.
    """

    heartbeat_interval_ms: int = 2000
    """heartBeatTimeIntervalMs: the interval of heartbeats, and the timeout for answers."""

    max_heartbeat_leak: int = 3
    """maxHeartBeatLeak: the number of intervals after which a follower without a heartbeat becomes
    a candidate, and a leader without a quorum of answers steps down.
    """

    min_vote_interval_ms: int = 300
    """minVoteIntervalMs: the shortest pause between two rounds of votes."""

    max_vote_interval_ms: int = 1000
    """maxVoteIntervalMs: the longest such pause. The pause is random between the two."""

    min_take_leadership_vote_interval_ms: int = 30
    """minTakeLeadershipVoteIntervalMs: the shortest pause of a member to which leadership is
    transferred.
    """

    max_take_leadership_vote_interval_ms: int = 100
    """maxTakeLeadershipVoteIntervalMs: the longest pause of such a member."""

    pending_limit: int = 10_000
    """maxPendingRequestsNum: the maximum number of entries that may wait for their quorum."""

    ack_timeout_ms: int = 2500
    """maxWaitAckTimeMs: the time after which a waiter is notified that no quorum has confirmed its
    entry yet. The entry remains in the log.
    """

    push_timeout_ms: int = 1000
    """maxPushTimeOutMs: the time after which an unanswered push is sent again."""

    rpc_timeout_ms: int = 3000
    """The time after which a request without an answer counts as failed."""

    push_window: int = 1000
    """The maximum number of unanswered pushes to one follower."""

    batch_push: bool = False
    """isEnableBatchPush: push several entries in one request. Must be False while the group has
    members with DLedger 0.2.3, which answer a batch with another index.
    """

    batch_push_bytes: int = 4096
    """maxBatchPushSize: the size at which a batch is sent. A batch that contains every waiting
    entry is sent at once.
    """

    throttle_point_bytes: int = 300 * 1024 * 1024
    """peerPushThrottlePoint: a follower that lags by more (and by more than ``push_window``
    entries) receives at most ``push_quota_bytes`` per second.
    """

    push_quota_bytes: int = 20 * 1024 * 1024
    """peerPushQuota: the maximum rate for such a follower, in bytes per second."""

    preferred_leader_ids: tuple[str, ...] = ()
    """preferredLeaderIds: a leader outside this list transfers leadership to a member on it."""

    transfer_wait_index: int = 1000
    """maxLeadershipTransferWaitIndex: a successor must lag by fewer entries than this."""

    transfer_wait_ms: int = 1000
    """leadershipTransferWaitTimeout: the time that a successor may take to catch up."""

    ack_after_sync: bool = False
    """If True, entries are counted and confirmed once they are synced, otherwise once they are
    written, as by Java members.
    """


@define(slots=True, eq=False, repr=False)
class Member:
    """The state that the parts of a node share. Only its transitions change role, term and vote."""

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
    required_index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    """The last entry that is known to have been committed and durable here. Beyond the end of the
    log, it shows that entries were lost since.
    """
    now_ms: int = 0
    batching: set[str] = field(factory=set)
    """The members known to accept batches of any size, regardless of ``batch_push``."""

    role_changed: Callable[[], None] = field(default=lambda: None)
    """A callback that is called after each transition to end the parts of the old role."""

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

    @property
    def known_committed(self) -> LedgerIndex:
        """The last entry known to be committed, even if this log has lost it. A log that ends
        before it is not that of a leader.
        """
        return max(self.committed_index, self.required_index)

    @property
    def lacks_entries(self) -> bool:
        """True if this log ends before an entry that it is known to have had."""
        return self.required_index > self.log.end.index

    @property
    def obstacle(self) -> str | None:
        """The reason why this member must not lead; None if it may."""
        if self.lacks_entries:
            return (
                f"its log ends at entry {self.log.end.index}, but entry {self.required_index} was"
                " committed and on its disk"
            )
        return NOT_LEADING.get(self.disk)

    def vote_request(self, peer: str) -> VoteRequest:
        """Return a request for the vote of ``peer`` in the current term."""
        end = self.log.end
        return VoteRequest(
            group=self.membership.group,
            remote_id=peer,
            local_id=self.self_id,
            leader_id=self.self_id,
            term=self.term,
            ledger_end_index=end.index,
            ledger_end_term=end.term,
        )

    def become_candidate(self, term: Term) -> None:
        """Become a candidate. A larger ``term`` is only recorded: ``next_term`` enters it."""
        if term < self.term:
            return
        self.known_max_term = max(self.known_max_term, term)
        self._change(Role.CANDIDATE, None)

    def become_leader(self) -> None:
        assert self.role is Role.CANDIDATE, "only a candidate becomes leader"
        assert self.hard_state.voted_for == self.self_id, "a leader has voted for itself"
        self._change(Role.LEADER, self.self_id)

    def become_follower(self, leader: str) -> None:
        assert leader != self.self_id and leader in self.membership.peers
        assert self.role is not Role.LEADER, "two leaders in one term"
        self.known_max_term = self.term  # a larger one has led to nothing
        self._change(Role.FOLLOWER, leader)

    def next_term(self) -> None:
        """Enter the largest known term, or the next term if none larger is known."""
        self.set_hard_state(HardState(Term(max(self.term + 1, self.known_max_term)), None))

    def vote_for(self, candidate: str) -> None:
        if self.hard_state.voted_for is None:
            self.set_hard_state(HardState(self.term, candidate))
        assert self.hard_state.voted_for == candidate, "one vote per term"

    def set_hard_state(self, hard_state: HardState) -> None:
        assert hard_state.current_term >= self.term, "the term never decreases"
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
