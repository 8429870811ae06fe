"""What a member knows of itself and its group (Java MemberState), and its transitions.

``HardState`` must be durable before anything that follows from it leaves the process: a vote that
is forgotten may be given twice.

==================  ===================  =========================================================
transition          only if              effect
==================  ===================  =========================================================
become_candidate    term ≥ current_term  known_max_term at least term; no leader, no transferee;
                                         current_term stays
become_leader       candidate            leader is oneself
become_follower     leader is a peer     leader known, no transferee; never changes the term
next_term                                current_term the known maximum, or one more; no vote
==================  ===================  =========================================================

Invariants: ``current_term`` never falls; ``voted_for`` belongs to it and changes from None only;
``committed_index`` never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from attrs import define, field

from rmqpy.model.ids import LedgerIndex, Term

if TYPE_CHECKING:
    from rmqpy.dledger.entry_log import LogView
    from rmqpy.dledger.outbox import Outbox

RandomBelow = Callable[[int], int]
"""``rng(n)``: any of 0 … n - 1."""

NO_TERM: Final = Term(-1)


class Role(Enum):
    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class DiskState(Enum):
    """What the disk can do: ``FULL`` takes no entries, ``FAILED`` cannot even keep a vote. With an
    entry that is ``DAMAGED`` a member follows and votes, but does not lead: others read it there.
    Nor does one that ``LACKS_TABLES``: it would take from the others what only they know.
    """

    GOOD = "GOOD"
    DAMAGED = "DAMAGED"
    LACKS_TABLES = "LACKS_TABLES"
    FULL = "FULL"
    FAILED = "FAILED"


NOT_LEADING: Final = {
    DiskState.FAILED: "the disk has failed",
    DiskState.DAMAGED: "an entry is damaged",
    DiskState.LACKS_TABLES: "topics and offsets are not known",
}
"""With these a member does not lead, and why."""


@define(slots=True, frozen=True)
class Membership:
    """The group as configured; ``peers`` are member ids, own one included. No membership change."""

    group: str
    self_id: str
    peers: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        assert self.self_id in self.peers, f"{self.self_id} is not one of its own peers"

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.peers if peer != self.self_id)


@define(slots=True, frozen=True)
class HardState:
    """The persistent part: file ``currterm``. ``voted_for`` belongs to ``current_term``."""

    current_term: Term = Term(0)  # noqa: RUF009 (a NewType)
    voted_for: str | None = None


@define(slots=True, frozen=True)
class LedgerEnd:
    """The last entry a member has; index -1 and term -1 when it has none."""

    index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    term: Term = NO_TERM


def _no_dice(_below: int) -> int:
    raise AssertionError("a group of several members needs a source of chance")


@define(slots=True, frozen=True, kw_only=True)
class RaftOptions:
    """The settings of a member, Java's key behind each. All members of a group should have the
    same times: a follower that waits shorter than the leader beats deposes it again and again.
    """

    rng: RandomBelow = field(default=_no_dice, repr=False)
    """Source of chance for the vote intervals; split votes end only if members differ in it."""

    addresses: Mapping[str, str] = field(factory=dict)
    """Address by member id, told to clients that ask for METADATA."""

    election: bool = True
    """enableLeaderElector. Without it roles are not maintained: no votes, no heartbeats."""

    heartbeat_interval_ms: int = 2000
    """heartBeatTimeIntervalMs: a leader beats this often, and waits this long for answers."""

    max_heartbeat_leak: int = 3
    """maxHeartBeatLeak: after so many intervals without a beat a follower stands for election, and
    without a quorum of answers a leader steps down.
    """

    min_vote_interval_ms: int = 300
    """minVoteIntervalMs: shortest wait between two rounds of votes."""

    max_vote_interval_ms: int = 1000
    """maxVoteIntervalMs: longest such wait; chance decides between the two."""

    min_take_leadership_vote_interval_ms: int = 30
    """minTakeLeadershipVoteIntervalMs: the same for the one that leadership is transferred to."""

    max_take_leadership_vote_interval_ms: int = 100
    """maxTakeLeadershipVoteIntervalMs."""

    pending_limit: int = 10_000
    """maxPendingRequestsNum: entries that may wait for their quorum."""

    ack_timeout_ms: int = 2500
    """maxWaitAckTimeMs: after this a waiter is told so; the entry stays."""

    push_timeout_ms: int = 1000
    """maxPushTimeOutMs: an unanswered push is sent again."""

    rpc_timeout_ms: int = 3000
    """A request without an answer counts as failed."""

    push_window: int = 1000
    """Pushes to one follower that may be unanswered."""

    batch_push: bool = False
    """isEnableBatchPush. Must be off while members of DLedger 0.2.3 are in the group: they answer
    a batch with another index.
    """

    batch_push_bytes: int = 4096
    """maxBatchPushSize: a batch is sent once it has this many bytes, or all there is."""

    throttle_point_bytes: int = 300 * 1024 * 1024
    """peerPushThrottlePoint: a follower that lags more (and more than ``push_window`` entries) gets
    no more than ``push_quota_bytes`` a second.
    """

    push_quota_bytes: int = 20 * 1024 * 1024
    """peerPushQuota."""

    preferred_leader_ids: tuple[str, ...] = ()
    """preferredLeaderIds: a leader outside this list hands over to one on it."""

    transfer_wait_index: int = 1000
    """maxLeadershipTransferWaitIndex: a successor may lag by fewer entries than this."""

    transfer_wait_ms: int = 1000
    """leadershipTransferWaitTimeout: so long it may take to catch up."""

    ack_after_sync: bool = False
    """Count and confirm entries when they are synced, not when they are written. Java members
    confirm what is written.
    """


@define(slots=True, eq=False, repr=False)
class Member:
    """State that the parts of a node share. Only the transitions below change it."""

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
    """Members known to take batches of any size, whatever ``batch_push`` says."""

    role_changed: Callable[[], None] = field(default=lambda: None)
    """Called after each transition, to let the parts of the old role end."""

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
        """Look for a leader. A larger ``term`` is only noted: ``next_term`` goes there."""
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
        """Go to the largest term known, or one further."""
        self.set_hard_state(HardState(Term(max(self.term + 1, self.known_max_term)), None))

    def vote_for(self, candidate: str) -> None:
        if self.hard_state.voted_for is None:
            self.set_hard_state(HardState(self.term, candidate))
        assert self.hard_state.voted_for == candidate, "one vote a term"

    def set_hard_state(self, hard_state: HardState) -> None:
        assert hard_state.current_term >= self.term, "the term never falls"
        self.hard_state = self.outbox.hard_state = hard_state

    def commit(self, index: int) -> None:
        """A quorum has every entry up to ``index``."""
        assert index > self.committed_index, "the committed index only grows"
        self.committed_index = self.outbox.committed_index = LedgerIndex(index)

    def _change(self, role: Role, leader: str | None) -> None:
        if role is not self.role:
            self.outbox.role = role
        self.role = role
        self.leader_id = leader
        self.transferee = None
        self.role_changed()
