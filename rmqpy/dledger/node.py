"""A member of a group as a state machine: ``step``, ``tick``, ``propose`` in, :class:`Ready` out.

The caller has these duties. After one or more steps and ticks, take :meth:`Node.ready` and carry it
out completely, in the order of its fields, before the next call. Store the entries that a leader
proposes in order of index and report them with ``step(Stored(index))``; only then does the node
push and count them. When a message is stepped, no entry may be staged but unreported; ``Stored``
itself may be stepped while a Ready is carried out. Call ``tick`` about every 10 ms, with a time
that never decreases. ``Ready.marker``, if present, is a proposal of the node: append one
well-formed record of an internal topic for it.

====================  ==============================================================================
event                 meaning
====================  ==============================================================================
Stored(index)         the log has every entry up to index
Synced(index, term)   they are durable; term is that of the entry when the sync began. Also step it
                      once after the start: the entries of a killed process may not be on disk
DiskReport(disk)      the abilities of the disk from now on
Received(t, message)  a request of another member or a client; a Reply with ticket t answers it
Answered(t, message)  the answer to a Send with ticket t; None if there will be none
====================  ==============================================================================

These differences from a Java member make it safer, and all work with the same wire format:

- ``hard_state`` precedes ``messages``: a vote is durable before any member receives it.
- A leader commits by counting only entries of its own term. If its log ends above the index that it
  knows to be committed, it appends one marker and refuses puts until the marker is committed.
- A leader steps down if it has no quorum of heartbeats, a failed disk, or a damaged entry.
- A member that is cut off keeps its term (see :mod:`rmqpy.dledger.election`), so it deposes no
  leader when it returns.
- A follower appends and commits only entries that it has compared with this leader's log, and never
  drops committed ones.

Invariants: there is at most one vote per term; ``committed_index`` never decreases and never passes
the last stored entry; only a leader proposes, and indexes are consecutive.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, evolve

from rmqpy.dledger.election import Election, VoteParseResult
from rmqpy.dledger.entry_log import EntryLog, LogView
from rmqpy.dledger.follower import Follower
from rmqpy.dledger.heartbeat import Heartbeat
from rmqpy.dledger.member import Member, Membership, RaftOptions
from rmqpy.dledger.outbox import (
    Acknowledged,
    ClientAppend,
    Outbox,
    Ready,
    Reply,
    Send,
)
from rmqpy.dledger.proposals import Proposal, ProposalRejected
from rmqpy.dledger.protocol.messages import (
    RESPONSES,
    AppendEntryRequest,
    DLedgerResponseCode,
    GetEntriesRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MetadataRequest,
    PushEntryRequest,
    Request,
    Response,
    VoteRequest,
)
from rmqpy.dledger.replication import Replication
from rmqpy.dledger.serving import accept_append, get_entry, metadata
from rmqpy.dledger.state import NOT_LEADING, DiskState, HardState, PushGrant, Role
from rmqpy.dledger.transfer import LeadershipTransfer
from rmqpy.model.ids import LedgerIndex, Term

__all__ = [
    "Acknowledged",
    "Answered",
    "ClientAppend",
    "DiskReport",
    "Event",
    "Node",
    "Proposal",
    "ProposalRejected",
    "Ready",
    "Received",
    "Reply",
    "Send",
    "Stored",
    "Synced",
]

TERM_STEP_MAX: Final = 1 << 32
"""The largest difference between the term of a message and the largest known one. Terms rise by one
in an election; a single forged message must not use up the 63 bits that a term has.
"""


@define(slots=True, frozen=True)
class Stored:
    """The local event that the log contains every entry up to ``index``."""

    index: LedgerIndex


@define(slots=True, frozen=True)
class Synced:
    """The local event that every entry up to ``index``, which has this term, is durable."""

    index: LedgerIndex
    term: Term


@define(slots=True, frozen=True)
class DiskReport:
    """The local event that the state of the disk has changed."""

    disk: DiskState


@define(slots=True, frozen=True)
class Received:
    """An incoming request. Its answer has the same ticket."""

    ticket: int
    request: Request


@define(slots=True, frozen=True)
class Answered:
    """The answer to a request of this member; None if there is none."""

    ticket: int
    response: Response | None


Event = Stored | Synced | DiskReport | Received | Answered


@define(slots=True, frozen=True)
class _Waiter:
    token: int
    index: LedgerIndex
    deadline_ms: int


class Node:
    """A member of a group.

    ``log`` is the ledger. ``committed_index`` is the index saved in the checkpoint; it is limited
    to the end of the log. ``required_index`` is the last entry known to have been committed and
    durable here: if the log ends before it, this member does not lead until a leader has supplied
    the entries up to it.
    """

    def __init__(
        self,
        membership: Membership,
        hard_state: HardState,
        log: EntryLog,
        committed_index: LedgerIndex,
        options: RaftOptions,
        required_index: LedgerIndex = LedgerIndex(-1),  # noqa: B008 (a NewType)
    ) -> None:
        view = LogView(log)
        outbox = Outbox(options.rpc_timeout_ms)
        committed = LedgerIndex(min(committed_index, view.end.index))
        self._member = Member(
            membership,
            options,
            hard_state,
            view,
            outbox,
            committed,
            required_index=required_index,
        )
        if self._member.lacks_entries:
            outbox.notices.append(
                f"this member does not lead until another one has supplied the entries:"
                f" {self._member.obstacle}. If all have lost it, start one of them once with"
                " --force-truncate to give it up"
            )
        self._election = Election(self._member, self._lead)
        self._heartbeat = Heartbeat(self._member, self._election)
        self._transfer = LeadershipTransfer(
            self._member, self._election, self._lag_of, self._last_stored, self._live_peers
        )
        self._follower = Follower(self._member, -1)
        self._replication: Replication | None = None
        self._member.role_changed = self._role_changed
        self._proposed_index = view.end.index
        self._ready_index = -1
        self._waiters: deque[_Waiter] = deque()
        self.changes = 0
        """A counter that increases with every change that may create or end a grant of pushes."""

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def leader_id(self) -> str | None:
        return self._member.leader_id

    @property
    def term(self) -> Term:
        return self._member.term

    @property
    def committed_index(self) -> LedgerIndex:
        return self._member.committed_index

    @property
    def known_committed(self) -> LedgerIndex:
        """The last entry known to be committed, even if this log has lost it."""
        return self._member.known_committed

    @property
    def fault(self) -> str | None:
        """The reason why this member must not lead or cannot follow; None if it can do both."""
        return self._follower.divergence or self._member.obstacle

    @property
    def progress(self) -> dict[str, tuple[str, int, int]]:
        """The state, match and next index of each follower; empty unless this member leads."""
        peers = self._replication.peers if self._replication is not None else {}
        return {name: (peer.state.value, peer.match, peer.next) for name, peer in peers.items()}

    @property
    def rounds(self) -> tuple[dict[VoteParseResult, int], int]:
        """The number of vote rounds by outcome, and the time at which the next one may start."""
        return dict(self._election.counts), self._election.next_vote_ms

    def take_batches(self, peer: str, takes: bool) -> None:
        """Record whether ``peer`` accepts batches of any size."""
        (self._member.batching.add if takes else self._member.batching.discard)(peer)

    @property
    def lags(self) -> dict[str, int]:
        """The number of entries by which each follower lags; empty unless this member leads."""
        peers = self._replication.peers if self._replication is not None else ()
        return {peer: self._lag_of(peer) for peer in peers}

    def let_another_lead(self, now_ms: int, wait_ms: int) -> None:
        """Ask for no votes for ``wait_ms`` and one vote interval, before the first :meth:`tick`."""
        self._member.now_ms = now_ms
        self._election.on_leader_timeout()
        self._election.next_vote_ms += wait_ms

    def tick(self, now_ms: int) -> None:
        """Advance the time to ``now_ms``."""
        member = self._member
        assert now_ms >= member.now_ms, "the time never decreases"
        self.changes += 1
        member.now_ms = now_ms
        member.outbox.expire(now_ms)
        self._expire_waiters()
        if member.options.election:
            if member.role is Role.FOLLOWER:
                self._heartbeat.follower_tick()
            if member.role is Role.CANDIDATE:
                self._election.tick()
            if member.role is Role.LEADER:
                self._heartbeat.leader_tick()
        self._transfer.tick()
        self._follower.tick()
        self._pump()

    def step(self, event: Event) -> None:
        """Process one event."""
        self.changes += 1
        if isinstance(event, Answered):
            response = event.response
            if response is not None and self._is_implausible(response.term):
                response = None
            self._member.outbox.answered(event.ticket, response)
        elif isinstance(event, Stored):
            self._stored(event.index)
        elif isinstance(event, Received):
            self._receive(event.ticket, event.request)
        elif isinstance(event, Synced):
            self._synced(event)
        else:
            self._disk(event.disk)
        self._pump()

    def propose(self, count: int) -> Proposal | ProposalRejected:
        """Reserve indexes for ``count`` entries, which the caller must append after a Proposal."""
        assert count > 0
        assert not self._member.log.changed, "a Ready must be carried out first"
        refused = self.refusal()
        if refused is not None:
            return refused
        first = LedgerIndex(self._proposed_index + 1)
        self._proposed_index = LedgerIndex(self._proposed_index + count)
        return Proposal(self._member.term, first)

    def grant(self) -> tuple[Proposal, int]:
        """Return what ``propose`` would return now, and for how many entries, without reserving
        indexes.
        """
        member = self._member
        pending = self._proposed_index - member.committed_index
        count = max(0, member.options.pending_limit + 1 - pending) if not self.refusal() else 0
        return Proposal(member.term, LedgerIndex(self._proposed_index + 1)), count

    def consume_grant(self, count: int) -> None:
        """Reserve the indexes of ``count`` entries of the last ``grant``. No step may have occurred
        since then.
        """
        self._proposed_index = LedgerIndex(self._proposed_index + count)

    def refusal(self) -> ProposalRejected | None:
        """Return the reason why ``propose`` would refuse now, or None."""
        member = self._member
        if member.role is not Role.LEADER:
            failed = member.disk is DiskState.FAILED and member.leader_id is None
            return ProposalRejected.DISK_ERROR if failed else ProposalRejected.NOT_LEADER
        if member.transferee is not None:
            return ProposalRejected.LEADER_TRANSFERRING
        if member.disk is DiskState.FULL:
            return ProposalRejected.DISK_FULL
        if member.committed_index < self._ready_index:
            return ProposalRejected.LEADER_NOT_READY
        if self._proposed_index - member.committed_index > member.options.pending_limit:
            return ProposalRejected.LEADER_PENDING_FULL
        return None

    def grant_pushes(self) -> PushGrant | None:
        """Return the pushes that the owner of the log may append and answer without stepping them,
        in their order; None if there are none. The grant is valid until ``changes`` increases.
        """
        return self._follower.grant() if self._member.outbox.has_at_most_committed else None

    def on_appended(self, last_index: LedgerIndex, commit_index: int) -> None:
        """Record a granted push that is staged. It must be written before any other call."""
        self._follower.on_appended(last_index, commit_index)

    @property
    def counts_stored(self) -> bool:
        """True if ``Stored`` has an effect, as on a leader."""
        return self._replication is not None

    def wait(self, index: LedgerIndex, token: int) -> None:
        """Request that ``Ready.acknowledged`` report the outcome of the proposed entry ``index``
        with ``token``.

        The entry is committed, abandoned because of a change of term, or still unconfirmed at its
        deadline. Call in order of index.
        """
        member = self._member
        assert index <= self._proposed_index, "waits for an entry that was never proposed"
        if member.role is not Role.LEADER:
            self._acknowledge(_Waiter(token, index, 0), DLedgerResponseCode.TERM_CHANGED)
            return
        assert not self._waiters or self._waiters[-1].index <= index, "waiters are in order"
        deadline_ms = member.now_ms + member.options.ack_timeout_ms
        self._waiters.append(_Waiter(token, index, deadline_ms))
        self._release_waiters()

    def ready(self) -> Ready | None:
        """Return the actions collected since the last call; None if there are none."""
        if self._waiters:
            self._release_waiters()
        member = self._member
        if member.outbox.empty and not member.log.changed:
            return None
        self.changes += 1
        return member.outbox.take(member.log.take())

    def take_next(self) -> Ready | LedgerIndex | None:
        """Return the same as :meth:`ready`, but the plain committed index if it is the only
        action.
        """
        outbox = self._member.outbox
        if self._waiters or not outbox.has_at_most_committed or self._member.log.changed:
            return self.ready()
        committed, outbox.committed_index = outbox.committed_index, None
        return committed

    def _stored(self, index: LedgerIndex) -> None:
        assert index <= self._member.log.end.index, "stored an entry that the log does not have"
        replication = self._replication
        if replication is not None and index > replication.stored_index:
            assert index <= self._proposed_index, "stored an entry that was never proposed"
            replication.stored_index = index
            if not self._member.options.ack_after_sync:
                replication.counted_index = index
            replication.count()

    def _synced(self, event: Synced) -> None:
        log = self._member.log
        if not log.has(event.index) or log.term_of(event.index) != event.term:
            return  # the entry has been truncated since then
        if event.index > self._follower.synced_index:
            self._follower.synced(event.index)
        replication = self._replication
        if replication is not None and self._member.options.ack_after_sync:
            replication.counted_index = max(
                replication.counted_index, min(event.index, replication.stored_index)
            )
            replication.count()

    def _disk(self, disk: DiskState) -> None:
        member = self._member
        if disk in NOT_LEADING and member.role is Role.LEADER:
            member.outbox.notices.append(
                f"stepping down as leader of term {member.term}: {NOT_LEADING[disk]}"
            )
            member.become_candidate(member.term)
        if disk in NOT_LEADING:
            self._election.abort_round()
        member.disk = disk
        if member.role is Role.LEADER:
            self._reserve_marker()

    def _receive(self, ticket: int, request: Request) -> None:
        member, reply = self._member, self._member.outbox.reply
        refused = self._refuse(request)
        if refused is not None:
            reply(ticket, refused)
        elif isinstance(request, PushEntryRequest):
            self._follower.receive(ticket, request)
        elif isinstance(request, HeartBeatRequest):
            reply(ticket, self._heartbeat.answer(request))
        elif isinstance(request, VoteRequest):
            # A vote that cannot be made durable must not count, so the request is not answered.
            failed = member.disk is DiskState.FAILED
            reply(ticket, None if failed else self._election.answer(request))
        elif isinstance(request, LeadershipTransferRequest):
            self._transfer.receive(ticket, request)
        elif isinstance(request, AppendEntryRequest):
            accept_append(member, ticket, request, self.refusal())
        elif isinstance(request, GetEntriesRequest):
            reply(ticket, get_entry(member, request))
        else:
            assert isinstance(request, MetadataRequest), type(request).__name__
            reply(ticket, metadata(member, request))

    def _is_implausible(self, term: Term) -> bool:
        """Return whether no member can have reached ``term``. Such messages are ignored."""
        member = self._member
        return term - max(member.term, member.known_max_term) > TERM_STEP_MAX

    def _refuse(self, request: Request) -> Response | None:
        """Return the refusal of a request for another member or group, or in a term that no member
        can have reached; None if the request is to be handled.
        """
        member = self._member
        if request.remote_id != member.self_id:
            code = DLedgerResponseCode.UNKNOWN_MEMBER
        elif request.group != member.membership.group:
            code = DLedgerResponseCode.UNKNOWN_GROUP
        elif self._is_implausible(request.term):
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        else:
            return None
        response = RESPONSES[type(request)](
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=member.leader_id,
            term=request.term,
            code=code,
        )
        if request.leader_id is not None and isinstance(request, VoteRequest):
            return evolve(response, leader_id=request.leader_id)
        return response

    def _pump(self) -> None:
        if self._replication is not None:
            self._replication.pump()

    def _lead(self) -> None:
        """Start leading: compare all followers, and append a marker if the log has entries that are
        not known to be committed.
        """
        member = self._member
        end = member.log.end.index
        if not member.alone:
            member.outbox.notices.append(f"leads in term {member.term}, from entry {end + 1} on")
        synced = min(self._follower.synced_index, end)
        counted = synced if member.options.ack_after_sync else end
        self._replication = Replication.of(member, end, counted)
        self._proposed_index = LedgerIndex(end)
        self._ready_index = -1
        if not member.alone and end > member.committed_index:
            self._ready_index = end + 1
            self._reserve_marker()
        self._replication.count()
        # A member that does not know the leader refuses its pushes, so the heartbeat is first.
        self._heartbeat.leader_tick()

    def _reserve_marker(self) -> None:
        """Reserve the index of the marker if it is due and the disk can store it."""
        if self._proposed_index == self._ready_index - 1 and self._member.disk is DiskState.GOOD:
            self._proposed_index = LedgerIndex(self._ready_index)
            self._member.outbox.marker = Proposal(self._member.term, self._proposed_index)

    def _role_changed(self) -> None:
        """End the parts of the old role. Called during a transition."""
        if self._replication is not None:
            self._replication.ended = True
            self._replication = None
            self._member.outbox.marker = None
            for waiter in self._waiters:
                self._acknowledge(waiter, DLedgerResponseCode.TERM_CHANGED)
            self._waiters.clear()
        self._election.role_changed()
        self._heartbeat.role_changed()
        self._follower.role_changed()
        self._transfer.role_changed()

    def _lag_of(self, peer: str) -> int:
        assert self._replication is not None, "only a leader knows the lag"
        return self._replication.lag_of(peer)

    def _last_stored(self) -> int:
        assert self._replication is not None, "only a leader has followers"
        return self._replication.stored_index

    def _live_peers(self) -> frozenset[str]:
        return frozenset(peer for peer, live in self._heartbeat.peers_live.items() if live)

    def _release_waiters(self) -> None:
        while self._waiters and self._waiters[0].index <= self._member.committed_index:
            self._acknowledge(self._waiters.popleft(), DLedgerResponseCode.SUCCESS)

    def _expire_waiters(self) -> None:
        self._release_waiters()
        while self._waiters and self._waiters[0].deadline_ms <= self._member.now_ms:
            self._acknowledge(self._waiters.popleft(), DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

    def _acknowledge(self, waiter: _Waiter, code: DLedgerResponseCode) -> None:
        acknowledged = Acknowledged(waiter.token, waiter.index, code)
        self._member.outbox.acknowledged.append(acknowledged)
