"""Planted bugs: each breaks one rule of the production code, and each has to be found by the
standing checkers in scenarios that know nothing of it.

``MUTATIONS`` is the list; ``planted(mutation)`` is a context in which the bug is there. The bugs
are set over classes and modules, so they are in every member of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import evolve

from rmqpy.broker.assembly import dledger_group as broker_group
from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.broker.replication.role import GroupRole
from rmqpy.dledger import election, follower, member, node, outbox, replication
from rmqpy.dledger.election import Ballot, Voter
from rmqpy.dledger.member import HardState, LedgerEnd
from rmqpy.dledger.messages import DLedgerResponseCode, PushEntryRequest, VoteResult
from rmqpy.dledger.node import Node
from rmqpy.model.ids import LedgerIndex
from rmqpy.net.pending_replies import PendingReplies
from rmqpy.store import startup
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger import entry_store
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.store.message_store import MessageStore
from rmqpy.store.reader import QueueMessageReader
from simulator import mutations_environment
from simulator.mutation_engine import (
    MUTATIONS,
    Mutation,
    Planting,
    bug,
    consensus_bug,
    node_bug,
    planted,
)
from simulator.node_disk import NodeDisk

__all__ = ["MUTATIONS", "Mutation", "mutations_environment", "planted"]


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _patch_less(base: int) -> Any:
    real = Planting.real(entry_store, "patch_record")

    def patch(record: bytearray, at: int, queue: int | None, offset: int, ms: int) -> None:
        real(record, at, queue, offset - base, ms)

    return patch


def _lead_without_marker() -> Any:
    real = Planting.real(Node, "_lead")

    def lead(self: Node) -> None:
        real(self)
        self._member.outbox.marker = None
        self._ready_index = LedgerIndex(-1)
        self._proposed_index = self._member.log.end.index

    return lead


# Votes and terms


@consensus_bug
def vote_not_persisted(to: Planting) -> None:
    real = to.real(outbox.Outbox, "take")

    def take(self: outbox.Outbox, log: Any) -> Any:
        if self.hard_state is not None and self.hard_state.voted_for is not None:
            self.hard_state = None
        return real(self, log)

    to.put(outbox.Outbox, "take", take)


@bug
def vote_written_and_not_synced(to: Planting) -> None:
    def save_hard_state(self: MemberFiles, state: HardState) -> None:
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n".encode()
        file = self.files.open(self._current_term, size=len(text))
        file.write(0, text)

    to.put(MemberFiles, "save_hard_state", save_hard_state)


@consensus_bug
def hard_state_forgotten_at_restart(to: Planting) -> None:
    to.put(MemberFiles, "load_hard_state", lambda self: HardState())
    to.put(NodeDisk, "load_hard_state", lambda self: HardState())


@consensus_bug
def vote_given_twice(to: Planting) -> None:
    real = to.real(election, "_answer")

    def answer(voter: Voter, ballot: Ballot, from_self: bool) -> Any:
        result = real(voter, ballot, from_self)
        return VoteResult.ACCEPT if result is VoteResult.REJECT_ALREADY_VOTED else result

    def vote_for(self: member.Member, candidate: str) -> None:
        self.set_hard_state(HardState(self.term, candidate))

    to.put(election, "_answer", answer)
    to.put(member.Member, "vote_for", vote_for)


@consensus_bug
def leader_by_half_of_the_votes(to: Planting) -> None:
    to.put(election, "is_quorum", lambda count, members: count >= members // 2)


@consensus_bug
def log_of_the_candidate_ignored(to: Planting) -> None:
    real = to.real(election, "_answer")

    def answer(voter: Voter, ballot: Ballot, from_self: bool) -> Any:
        return real(evolve(voter, end=LedgerEnd()), ballot, from_self)

    to.put(election, "_answer", answer)


@node_bug
def term_led_again_after_power_failure(to: Planting) -> None:
    to.put(election.Election, "__attrs_post_init__", lambda self: None)


# The quorum


@consensus_bug
def committed_before_quorum(to: Planting) -> None:
    to.put(replication, "quorum_index", max)


@consensus_bug
def match_one_too_far(to: Planting) -> None:
    real = to.real(replication.Progress, "enter")

    def enter(self: replication.Progress, state: replication.PeerState, index: int) -> None:
        real(self, state, index)
        if state is replication.PeerState.APPEND:
            self.match = max(self.match, index + 1)

    to.put(replication.Progress, "enter", enter)


@bug
def acknowledged_before_quorum(to: Planting) -> None:
    to.put(DLedgerCommitLog, "acknowledged", lambda self, wait_store_ok: ())


@consensus_bug
def stale_term_committed_by_counting(to: Planting) -> None:
    quorum_index = to.real(replication, "quorum_index")

    def count(self: replication.Replication) -> None:
        marks = [self.counted_index, *(peer.match for peer in self.peers.values())]
        reached = min(quorum_index(marks), self.stored_index)
        if reached > self.member.committed_index:
            self.member.commit(LedgerIndex(reached))

    to.put(replication.Replication, "count", count)


@consensus_bug
def push_answered_before_sync(to: Planting) -> None:
    real = to.real(follower.Follower, "_settle")

    def settle(self: follower.Follower, held: Any, done: bool) -> None:
        self.synced_index = self.member.log.end.index
        real(self, held, done)

    to.put(follower.Follower, "_settle", settle)


@bug
def sync_flush_ignored(to: Planting) -> None:
    real = to.real(broker_group, "options_of")

    def options_of(*deps: Any) -> Any:
        return evolve(real(*deps), ack_after_sync=False)

    to.put(broker_group, "options_of", options_of)


@bug
def log_reported_durable_unsynced(to: Planting) -> None:
    to.put(FlushTask, "run", lambda self: None)


@node_bug
def acknowledged_by_the_node_at_once(to: Planting) -> None:
    def wait(self: Node, index: LedgerIndex, token: int) -> None:
        self._acknowledge(node._Waiter(token, index, 0), DLedgerResponseCode.SUCCESS)

    to.put(Node, "wait", wait)


@node_bug
def no_marker_of_a_new_leader(to: Planting) -> None:
    to.put(Node, "_lead", _lead_without_marker())


# The follower's log


@consensus_bug
def appended_without_comparison(to: Planting) -> None:
    end = property(lambda self: self.member.log.end.index)
    to.put(follower.Follower, "matched_index", end)


@consensus_bug
def committed_without_comparison(to: Planting) -> None:
    def apply_commit(self: follower.Follower, index: int) -> None:
        reached = min(index, self.member.log.end.index)
        if reached > self.member.committed_index:
            self.member.commit(LedgerIndex(reached))

    to.put(follower.Follower, "_apply_commit", apply_commit)


@consensus_bug
def entries_not_compared(to: Planting) -> None:
    to.put(follower.Follower, "_equal", lambda self, entry: self.member.log.has(entry.index))


@consensus_bug
def committed_entries_cut(to: Planting) -> None:
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

    to.put(follower.Follower, "_truncate", truncate)


@consensus_bug
def push_behind_a_gap_answered(to: Planting) -> None:
    real = to.real(follower.Follower, "_hold")

    def hold(self: follower.Follower, held: Any) -> None:
        if held.request.first_index > self.member.log.end.index + 1:
            self._answer(held, DLedgerResponseCode.SUCCESS)
        else:
            real(self, held)

    to.put(follower.Follower, "_hold", hold)


@consensus_bug
def checkpoint_believes_everything_committed(to: Planting) -> None:
    to.put(MemberFiles, "load_committed_index", lambda self: 1 << 60)
    to.put(NodeDisk, "load_committed_index", lambda self: self.log.end.index)


# Positions


@bug
def physical_offset_without_entry_header(to: Planting) -> None:
    real = to.real(entry_store, "patch_record")

    def patch(record: bytearray, at: int, queue: int | None, offset: int, now_ms: int) -> None:
        real(record, at, queue, offset - 48, now_ms)

    to.put(entry_store, "patch_record", patch)


@bug
def physical_offset_of_the_whole_log(to: Planting) -> None:
    """The old commit log in front is forgotten."""
    real = to.real(entry_store.EntryStore, "append")

    def append(self: entry_store.EntryStore, term: Any, first: Any, records: Any, ms: int) -> Any:
        with _set(entry_store, "patch_record", _patch_less(self.base_offset)):
            return real(self, term, first, records, ms)

    to.put(entry_store.EntryStore, "append", append)


@bug
def off_by_one_at_the_divide(to: Planting) -> None:
    """The first message behind it is looked for in the old log."""

    def part(self: JoinedCommitLog, offset: int) -> Any:
        return self.old if offset <= self.divided_offset + 48 else self.new

    to.put(JoinedCommitLog, "part", part)


@bug
def batch_with_one_queue_offset(to: Planting) -> None:
    real = to.real(DLedgerCommitLog, "append")

    def append(self: DLedgerCommitLog, records: Any, now_ms: int) -> Any:
        for record in records:
            record[20:28] = records[0][20:28]
        return real(self, records, now_ms)

    to.put(DLedgerCommitLog, "append", append)


# What readers see


@bug
def dispatched_before_commit(to: Planting) -> None:
    real = to.real(DLedgerCommitLog, "ranges")

    def ranges(self: DLedgerCommitLog, offset: Any) -> Any:
        with _set(self.entries, "committed", Watermark("all", self.entries.written_offset)):
            yield from real(self, offset)

    written = property(lambda self: self.entries.written_offset)
    to.put(DLedgerCommitLog, "ranges", ranges)
    to.put(DLedgerCommitLog, "confirm_offset", written)


@bug
def page_one_message_short_and_stepped_over(to: Planting) -> None:
    real = to.real(QueueMessageReader, "_page")

    def page(self: QueueMessageReader, *arguments: Any) -> Any:
        result = real(self, *arguments)
        if len(result.messages) > 3:
            result.messages.pop()
        return result

    to.put(QueueMessageReader, "_page", page)


@bug
def nothing_dispatched_again_after_a_crash(to: Planting) -> None:
    real = to.real(startup, "_cursors")

    def cursors(opened: Any, *others: Any) -> tuple[int, int]:
        real(opened, *others)
        return opened.written_end, opened.written_end

    to.put(startup, "_cursors", cursors)


@bug
def page_begins_one_too_far(to: Planting) -> None:
    real = to.real(QueueMessageReader, "_page")

    def page(self: QueueMessageReader, queue: Any, offset: int, *others: Any) -> Any:
        return real(self, queue, min(offset + 1, queue.max_offset - 1), *others)

    to.put(QueueMessageReader, "_page", page)


@bug
def waiting_replies_released_at_a_new_role(to: Planting) -> None:
    def fail(self: PendingReplies[Any], status: Any) -> None:
        for lane in self._lanes.values():
            while lane.replies:
                waiting = lane.take()
                waiting.channel.write(waiting.reply)

    to.put(PendingReplies, "fail", fail)


# Roles


@bug
def queue_offsets_not_learned_by_a_new_leader(to: Planting) -> None:
    def become(self: MessageStore, *, slave: bool) -> None:
        self.health.is_slave = self._reader.is_slave = slave

    to.put(MessageStore, "become", become)


@bug
def master_before_its_log_is_committed(to: Planting) -> None:
    def changed(self: GroupRole, role: Any) -> None:
        if role is member.Role.LEADER:
            self._change.become_master()
        else:
            self._change.become_slave(self._slave_id)

    def learn(self: MessageAppender) -> bool:
        self.commit()
        self._dispatch.run()
        self.tails.replace(
            {
                (topic.encode(), queue_id): queue.max_offset
                for (topic, queue_id), queue in self._queues.items()
            }
        )
        self._tails_known = True
        return True

    to.put(Node, "_lead", _lead_without_marker())
    to.put(GroupRole, "changed", changed)
    to.put(MessageAppender, "_learn_tails", learn)


@bug
def senders_not_told_of_lost_leadership(to: Planting) -> None:
    to.put(BrokerServer, "leadership_lost", lambda self: None)
