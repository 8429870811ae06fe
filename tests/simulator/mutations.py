"""Planted bugs: each breaks one rule of the production code.

The checkers must find all of them in ordinary seeds.

``MUTATIONS`` lists them; ``planted(mutation)`` is a context with the bug in the code. The bugs
replace attributes of classes and modules, so they are in every member of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from attrs import evolve

from rmqpy.broker.assembly import dledger_group as broker_group
from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.broker.replication.role import GroupRole
from rmqpy.dledger import election, follower, member, node, outbox, replication, state
from rmqpy.dledger.election import Ballot, Voter
from rmqpy.dledger.entries import Part
from rmqpy.dledger.node import Node
from rmqpy.dledger.protocol.messages import DLedgerResponseCode, PushEntryRequest, VoteResult
from rmqpy.dledger.state import HardState, LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.net.pending_replies import PendingReplies
from rmqpy.store import startup
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger import entry_store
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.store.message_store import MessageStore
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.reader import QueueMessageReader
from simulator import (
    mutations_disk,
    mutations_environment,
    mutations_fast_path,
    mutations_live,
    mutations_progress,
    mutations_side,
)
from simulator.mutation_engine import (
    MUTATIONS,
    Mutation,
    Patches,
    aimed_mutation,
    consensus_mutation,
    group_mutation,
    node_mutation,
    planted,
)
from simulator.node_disk import NodeDisk

__all__ = [
    "MUTATIONS",
    "Mutation",
    "mutations_disk",
    "mutations_environment",
    "mutations_fast_path",
    "mutations_live",
    "mutations_progress",
    "mutations_side",
    "planted",
]


@contextmanager
def _set(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _patch_less(base: int) -> Callable[[bytearray, int, int | None, int, int], None]:
    original = Patches.original(entry_store, "set_offsets")

    def patch(record: bytearray, at: int, queue: int | None, offset: int, ms: int) -> None:
        original(record, at, queue, offset - base, ms)

    return patch


def _lead_without_marker() -> Callable[[Node], None]:
    original = Patches.original(Node, "_lead")

    def lead(self: Node) -> None:
        original(self)
        self._member.outbox.marker = None
        self._ready_index = LedgerIndex(-1)
        self._proposed_index = self._member.log.end.index

    return lead


# Votes and terms


@consensus_mutation
def vote_not_persisted(patches: Patches) -> None:
    original = patches.original(outbox.Outbox, "take")

    def take(self: outbox.Outbox, log: tuple[LedgerIndex | None, bool, tuple[Part, ...]]) -> object:
        if self.hard_state is not None and self.hard_state.voted_for is not None:
            self.hard_state = None
        return original(self, log)

    patches.replace(outbox.Outbox, "take", take)


@group_mutation
def vote_written_and_not_synced(patches: Patches) -> None:
    def save_hard_state(self: MemberFiles, state: HardState) -> None:
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n".encode()
        file = self.files.open(self._current_term, size=len(text))
        file.write(0, text)

    patches.replace(MemberFiles, "save_hard_state", save_hard_state)


@consensus_mutation
def hard_state_forgotten_at_restart(patches: Patches) -> None:
    patches.replace(MemberFiles, "load_hard_state", lambda self: HardState())
    patches.replace(NodeDisk, "load_hard_state", lambda self: HardState())


@consensus_mutation
def vote_given_twice(patches: Patches) -> None:
    original = patches.original(election, "_answer")

    def answer(voter: Voter, ballot: Ballot, from_self: bool) -> object:
        result = original(voter, ballot, from_self)
        return VoteResult.ACCEPT if result is VoteResult.REJECT_ALREADY_VOTED else result

    def vote_for(self: member.Member, candidate: str) -> None:
        self.set_hard_state(HardState(self.term, candidate))

    patches.replace(election, "_answer", answer)
    patches.replace(member.Member, "vote_for", vote_for)


@consensus_mutation
def leader_by_half_of_the_votes(patches: Patches) -> None:
    patches.replace(election, "is_quorum", lambda count, members: count >= members // 2)


@consensus_mutation
def log_of_the_candidate_ignored(patches: Patches) -> None:
    original = patches.original(election, "_answer")

    def answer(voter: Voter, ballot: Ballot, from_self: bool) -> object:
        return original(evolve(voter, end=LedgerEnd()), ballot, from_self)

    patches.replace(election, "_answer", answer)


@node_mutation
def term_led_again_after_power_failure(patches: Patches) -> None:
    patches.replace(election.Election, "__attrs_post_init__", lambda self: None)


# The quorum


@consensus_mutation
def committed_before_quorum(patches: Patches) -> None:
    patches.replace(replication, "quorum_index", max)


@consensus_mutation
def match_one_too_far(patches: Patches) -> None:
    original = patches.original(replication.Progress, "enter")

    def enter(self: replication.Progress, state: replication.PeerState, index: int) -> None:
        original(self, state, index)
        if state is replication.PeerState.APPEND:
            self.match = max(self.match, index + 1)

    patches.replace(replication.Progress, "enter", enter)


@group_mutation
def acknowledged_before_quorum(patches: Patches) -> None:
    patches.replace(DLedgerCommitLog, "acknowledged", lambda self, wait_store_ok: ())


@consensus_mutation
def stale_term_committed_by_counting(patches: Patches) -> None:
    quorum_index = patches.original(replication, "quorum_index")

    def count(self: replication.Replication) -> None:
        marks = [self.counted_index, *(peer.match for peer in self.peers.values())]
        reached = min(quorum_index(marks), self.stored_index)
        if reached > self.member.committed_index:
            self.member.commit(LedgerIndex(reached))

    patches.replace(replication.Replication, "count", count)


@consensus_mutation
def push_answered_before_sync(patches: Patches) -> None:
    original = patches.original(follower.Follower, "_settle")

    def settle(self: follower.Follower, held: follower._HeldPush, done: bool) -> None:
        self.synced_index = self.member.log.end.index
        original(self, held, done)

    patches.replace(follower.Follower, "_settle", settle)


@group_mutation
def sync_flush_ignored(patches: Patches) -> None:
    original = patches.original(broker_group, "options_of")

    def options_of(*deps: object) -> object:
        return evolve(original(*deps), ack_after_sync=False)

    patches.replace(broker_group, "options_of", options_of)


@group_mutation
def log_reported_durable_unsynced(patches: Patches) -> None:
    patches.replace(FlushTask, "run", lambda self: None)


@node_mutation
def acknowledged_by_the_node_at_once(patches: Patches) -> None:
    def wait(self: Node, index: LedgerIndex, token: int) -> None:
        self._acknowledge(node._Waiter(token, index, 0), DLedgerResponseCode.SUCCESS)

    patches.replace(Node, "wait", wait)


@node_mutation
def no_marker_of_a_new_leader(patches: Patches) -> None:
    patches.replace(Node, "_lead", _lead_without_marker())


# The follower's log


@consensus_mutation
def appended_without_comparison(patches: Patches) -> None:
    end = property(lambda self: self.member.log.end.index)
    patches.replace(follower.Follower, "matched_index", end)


@consensus_mutation
def committed_without_comparison(patches: Patches) -> None:
    def apply_commit(self: follower.Follower, index: int, _proven: int) -> None:
        reached = min(index, self.member.log.end.index)
        if reached > self.member.committed_index:
            self.member.commit(LedgerIndex(reached))

    patches.replace(follower.Follower, "_apply_commit", apply_commit)


@consensus_mutation
def entries_not_compared(patches: Patches) -> None:
    patches.replace(
        follower.Follower, "_equal", lambda self, entry: self.member.log.has(entry.index)
    )


@consensus_mutation
def committed_entries_cut(patches: Patches) -> None:
    def truncate(self: follower.Follower, request: PushEntryRequest) -> bool:
        entry, log = request.entries[0], self.member.log
        if self._equal(entry):
            log.truncate_after(max(entry.index - 1, log.begin_index))
            self._forget_synced(log.end.index)
            if log.end.index < entry.index:
                log.append(entry)
        elif not self._replace_tail(entry, request.term):
            return False
        self._match(entry.index)
        return True

    patches.replace(follower.Follower, "_truncate", truncate)


@consensus_mutation
def push_after_a_gap_answered(patches: Patches) -> None:
    original = patches.original(follower.Follower, "_hold")

    def hold(self: follower.Follower, held: follower._HeldPush) -> None:
        if held.request.first_index > self.member.log.end.index + 1:
            self._answer(held, DLedgerResponseCode.SUCCESS)
        else:
            original(self, held)

    patches.replace(follower.Follower, "_hold", hold)


@aimed_mutation(
    "nodes",
    sync_flush=False,
    crash_interval_ms=3000,
    down_ms=1500,
    partition_interval_ms=3000,
)
def checkpoint_believes_everything_committed(patches: Patches) -> None:
    patches.replace(MemberFiles, "load_committed_index", lambda self: 1 << 60)
    patches.replace(NodeDisk, "load_committed_index", lambda self: self.log.end.index)


# Positions


@group_mutation
def physical_offset_without_entry_header(patches: Patches) -> None:
    patches.replace(entry_store, "set_offsets", _patch_less(48))


@group_mutation
def physical_offset_of_the_whole_log(patches: Patches) -> None:
    """Positions ignore the old commit log before the DLedger log."""
    original = patches.original(entry_store.EntryStore, "append")

    def append(
        self: entry_store.EntryStore,
        term: Term,
        first: LedgerIndex,
        records: Sequence[bytearray],
        ms: int,
    ) -> object:
        with _set(entry_store, "set_offsets", _patch_less(self.base_offset)):
            return original(self, term, first, records, ms)

    patches.replace(entry_store.EntryStore, "append", append)


@group_mutation
def off_by_one_at_the_divide(patches: Patches) -> None:
    """The first message after the divide is looked up in the old log."""

    def part(self: JoinedCommitLog, offset: int) -> object:
        return self.old if offset <= self.divided_offset + 48 else self.new

    patches.replace(JoinedCommitLog, "part", part)


@group_mutation
def batch_with_one_queue_offset(patches: Patches) -> None:
    original = patches.original(DLedgerCommitLog, "append")

    def append(self: DLedgerCommitLog, records: Sequence[bytearray], now_ms: int) -> object:
        for record in records:
            record[20:28] = records[0][20:28]
        return original(self, records, now_ms)

    patches.replace(DLedgerCommitLog, "append", append)


# What readers see


@group_mutation
def dispatched_before_commit(patches: Patches) -> None:
    original = patches.original(DLedgerCommitLog, "ranges")

    def ranges(self: DLedgerCommitLog, offset: int) -> Iterator[object]:
        with _set(self.entries, "committed", Watermark("all", self.entries.written_offset)):
            yield from original(self, offset)

    written = property(lambda self: self.entries.written_offset)
    patches.replace(DLedgerCommitLog, "ranges", ranges)
    patches.replace(DLedgerCommitLog, "confirm_offset", written)


@group_mutation
def last_message_of_a_page_skipped(patches: Patches) -> None:
    original = patches.original(QueueMessageReader, "_page")

    def page(self: QueueMessageReader, *arguments: object) -> object:
        result = original(self, *arguments)
        if len(result.messages) > 3:
            result.messages.pop()
        return result

    patches.replace(QueueMessageReader, "_page", page)


@group_mutation
def nothing_dispatched_again_after_a_crash(patches: Patches) -> None:
    original = patches.original(startup, "_cursors")

    def cursors(opened: OpenedLog, *others: object) -> tuple[int, int]:
        original(opened, *others)
        return opened.written_end, opened.written_end

    patches.replace(startup, "_cursors", cursors)


@group_mutation
def page_begins_one_too_far(patches: Patches) -> None:
    original = patches.original(QueueMessageReader, "_page")

    def page(self: QueueMessageReader, queue: ConsumeQueue, offset: int, *others: object) -> object:
        return original(self, queue, min(offset + 1, queue.max_offset - 1), *others)

    patches.replace(QueueMessageReader, "_page", page)


@group_mutation
def waiting_replies_released_at_a_new_role(patches: Patches) -> None:
    def fail(self: PendingReplies[int], status: object) -> None:
        for queue in self._queues.values():
            while queue.replies:
                waiting = queue.replies.popleft()
                waiting.channel.write(waiting.reply)

    patches.replace(PendingReplies, "fail", fail)


# Roles


@group_mutation
def queue_offsets_not_learned_by_a_new_leader(patches: Patches) -> None:
    def set_role(self: MessageStore, *, slave: bool) -> None:
        self.health.set_role(slave=slave)

    patches.replace(MessageStore, "set_role", set_role)


@group_mutation
def master_before_its_log_is_committed(patches: Patches) -> None:
    def changed(self: GroupRole, role: state.Role) -> None:
        if role is state.Role.LEADER:
            self._change.become_master()
        else:
            self._change.become_slave(self._slave_id)

    def learn(self: MessageAppender) -> bool:
        self.commit()
        self._dispatcher.run()
        self.tails.replace(
            {
                (topic.encode(), queue_id): queue.max_offset
                for (topic, queue_id), queue in self._queues.items()
            }
        )
        self._tails_known = True
        return True

    patches.replace(Node, "_lead", _lead_without_marker())
    patches.replace(GroupRole, "changed", changed)
    patches.replace(MessageAppender, "_learn_tails", learn)


@group_mutation
def lost_leadership_not_reported_to_senders(patches: Patches) -> None:
    patches.replace(BrokerServer, "leadership_lost", lambda self: None)
