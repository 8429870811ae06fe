"""The driver of a DLedger member, which passes events to the core and has its decisions carried
out.

The core (``dledger.node``) computes, the entry store contains the bytes, :mod:`.peers` communicates
with the other members, and :mod:`.ready_processor` carries out decisions with both. The driver uses
only the scheduler, network and channels that are passed to it, so a simulator can run it unchanged.

=======================  ======================================================================
event                    effect
=======================  ======================================================================
the turn's puts are      ``Stored``: the appended entries are pushed to each member together
written
frames on the peers'     granted pushes use :mod:`rmqpy.net.dledger.push_fast_path`; the others
port                     are ``Received``; then one Ready for all of them
answers of members       ``Answered`` for all answers of a loop turn, then one Ready
a sync has ended         ``Synced``
every ``TICK_MS``        the state of the disk, then ``tick`` (a group of one: until it leads)
=======================  ======================================================================

Invariants: when the core is stepped, every staged entry has been reported. While the disk is too
full for a Ready (:mod:`rmqpy.net.dledger.ready_processor`), the member is effectively paused. If a
Ready cannot be carried out for any other reason, the member no longer votes or answers.
A member that is :attr:`paused <DLedgerDriver.is_paused>` is to the others like one whose process is
stopped: it steps no message, answer, or tick, and accepts no puts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rmqpy.dledger.handshake import PeerHello
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import (
    Answered,
    DiskReport,
    Event,
    Node,
    Proposal,
    ProposalRejected,
    Stored,
    Synced,
)
from rmqpy.dledger.protocol.messages import Entry
from rmqpy.dledger.state import UNKNOWN_VOTE, DiskState, LedgerEnd, Role
from rmqpy.model.clock import Timer
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import UNREACHED_TERM, LedgerIndex
from rmqpy.net.dledger.context import DriverDependencies
from rmqpy.net.dledger.election_record import ElectionRecord
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.net.dledger.push_fast_path import PushFastPath
from rmqpy.net.dledger.ready_processor import ReadyProcessor
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.ledger.classic_prefix import ClassicPrefixMark, FileDigest
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_scrub import Scrub

EVENTS_MAX: Final = 32
QUEUE_ENDS_REQUEST_MS: Final = 1000
OLD_LOG_WAIT_MS: Final = 1000
"""The time from the start until the rest of the old log is read: elections do not wait for the
disk.
"""
CHECKPOINT_INTERVAL_MS: Final = 3000
"""The interval at which the committed index is saved (Java checkPointInterval)."""

logger = logging.getLogger(__name__)


class DLedgerDriver:
    """The driver: the ``RequestHandler`` of the peers' port, and the ``Proposer`` of the log."""

    def __init__(
        self, membership: Membership, options: RaftOptions, deps: DriverDependencies
    ) -> None:
        self.membership = membership
        self._alone = len(membership.peers) == 1
        self.options = options
        self._deps = deps
        self.entries = deps.log.entries
        self._store = deps.store
        self._scheduler = deps.scheduler
        hard_state = self.entries.member_files.load_hard_state()
        if hard_state.voted_for == UNKNOWN_VOTE:
            logger.warning(
                "currterm of member %s cannot be read; the term %d of its backup is used, and this"
                " member does not vote in that term",
                membership.self_id,
                hard_state.current_term,
            )
        if hard_state.current_term >= UNREACHED_TERM:
            logger.error(
                "member %s is in term %d, which no elections reach: a forged message has raised it,"
                " and once the leader is lost the group elects no other; stop all members and"
                " lower currTerm as docs/reference/dledger.md describes, or leave the group with"
                " 'rmqpy upgrade leave'",
                membership.self_id,
                hard_state.current_term,
            )
        self.node = Node(
            membership,
            hard_state,
            self.entries,
            self.entries.committed_index,
            options,
            self.entries.durable.index,
        )
        self.peers = PeerTransport(
            membership,
            options,
            deps.network,
            deps.scheduler,
            self._answered,
            self.introduce,
            lambda: self._store.encode_queue_ends() if self.carrier.leads else None,
            self.node.take_batches,
            deps.vouch,
            deps.serves_client,
            deps.admission,
            deps.is_open,
        )
        self._push_fast_path = PushFastPath(self.node, self.entries, self.peers)
        self.elections = ElectionRecord(deps.scheduler)
        self.carrier = ReadyProcessor(
            deps,
            self.node,
            self.peers,
            self._push_fast_path.receipts,
            self._note,
            self.elections,
        )
        self._inbox: list[Answered] = []
        self._timers: dict[str, Timer] = {}
        self._next_request_ms = 0
        self.disk = DiskState.GOOD
        self._scrub = Scrub(self.entries, self._fetch)
        self._fetches = 0
        self.events: deque[tuple[int, str]] = deque(maxlen=EVENTS_MAX)
        """The latest changes of role and their reasons, as (wall clock in ms, sentence)."""
        self.grants = 1
        """A counter of changes that may affect the grants of the core."""
        self._busy = False
        """True while a method that the loop has called is active. Nested calls then carry out
        nothing.
        """
        self._planned = self._saving = self._granted = False
        self.is_paused = False
        self._excluded = ""

    def introduce(self) -> PeerHello:
        """Return the introduction of this member for a handshake."""
        divided = self._store.opened.divided_offset
        old_log = self._store.opened.old_log
        mark = ClassicPrefixMark() if old_log is None else old_log.mark
        return PeerHello(
            group=self.membership.group,
            member=self.membership.self_id,
            file_size=self.entries.file_size,
            divided_offset=-1 if divided is None else divided,
            old_log_end=mark.end,
            old_log_digest=mark.digest,
            end_index=max(self.entries.end.index, self.node.known_committed),
            peers=self.options.addresses,
        )

    # -------------------------------------------------------------------------------- lifecycle

    def start(self, *, announce: bool = True, wait_ms: int | None = None) -> None:
        """Start as a candidate. In a group of one the member leads when this returns. Without
        ``announce``, only the next role is reported. With ``wait_ms``, another member is expected
        to lead: this one does not ask for votes for that time and one vote interval.
        """
        self._deps.log.set_proposer(self)
        self.entries.subscribe(
            stored=self._entries_stored,
            flushed=self._entries_flushed,
            damaged=self._on_damage_read,
        )
        end = self.entries.end
        if end.index >= 0:  # recovery has made them durable
            self._step(Synced(end.index, end.term))
        if announce and not self._alone:
            self._deps.on_role(self.node.role)
        if wait_ms is not None:
            self.node.let_another_lead(self._scheduler.monotonic_ms(), wait_ms)
        self._save_checkpoint()  # From now on, it shows what was on the disk.
        if not self._alone:
            self._scheduler.call_later(OLD_LOG_WAIT_MS, self._read_old_log)
        self._tick()

    def _read_old_log(self) -> None:
        """Read the next files of the old log in a worker thread. Once all are read, repeat all
        handshakes.
        """
        old_log = self._store.opened.old_log
        work = None if old_log is None else old_log.next_digest_task()
        if old_log is None or work is None or self.carrier.is_over:
            return

        def read(found: Sequence[FileDigest] | None, error: BaseException | None) -> None:
            if self.carrier.is_over:
                return
            if error is not None:
                logger.warning("cannot read an old commit log file for its digest: %s", error)
            old_log.take(found)
            if old_log.next_digest_task() is None:
                self.peers.handshakes.renew()
            else:
                self._read_old_log()

        self._scheduler.run_blocking(work, read)

    def stop(self) -> None:
        """Stop taking part in the group. In a group of one, stored entries still count."""
        self.carrier.stop()
        for timer in self._timers.values():
            timer.cancel()

    def pause(self) -> None:
        """Take no part in the group until :meth:`resume`. May precede :meth:`start`."""
        self.is_paused = True
        self.grants += 1

    def resume(self) -> None:
        """Take part in the group again."""
        if not self.is_paused:
            return
        self.is_paused = False
        self.grants += 1
        self._scheduler.call_soon(self._work)

    # --------------------------------------------------------------------------------- proposer

    def propose(self, count: int) -> Proposal | ProposalRejected:
        # After a grant, waiting answers are not stepped yet: they may end the leadership of it.
        granted, self._granted = self._granted, False
        self.grants += 1
        if self._planned and not self._busy and not granted:
            self._work()
        if self.is_paused:
            return ProposalRejected.NOT_LEADER
        return ProposalRejected.DISK_ERROR if self.carrier.dead else self.node.propose(count)

    def grant(self) -> tuple[Proposal, int]:
        if self._planned and not self._busy:
            self._work()
        proposal, count = self.node.grant()
        if self.carrier.dead or self.is_paused:
            count = 0
        self._granted = count > 0
        return proposal, count

    def consume_grant(self, count: int) -> None:
        self.node.consume_grant(count)

    # -------------------------------------------------------------------------- the peers' port

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand]:
        rest: Sequence[RemotingCommand] = ()
        if self.carrier.is_over or self.is_paused:
            return rest
        if commands and self.peers.replies.must_wait(channel, commands[0]):
            return commands
        self._busy = True
        try:
            if not self._before_steps():
                return rest
            for number, command in enumerate(commands, 1):
                if self._push_fast_path.take(channel, command) or command.is_response:
                    continue
                if self.peers.replies.must_wait(channel, command):
                    rest = commands[number - 1 :]
                    break
                if not self.carrier.finish():
                    break  # the remaining frames are dropped, because nothing can be written
                received = self.peers.receive(channel, command)
                if received is not None:
                    self.elections.request_came(received)
                    self._step(received)
                if self.peers.replies.has_large_reply(received) or channel.congested:
                    rest = commands[number:]
                    break
        finally:
            self._busy = False
        self._carry_out()
        return rest

    def turn_ended(self) -> None:
        """Answer further requests for entries. ``handle`` has carried out everything else."""
        self.peers.replies.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        """Forget whether the connection was that of a member. A closed channel drops the answers to
        its requests.
        """
        self.peers.channel_closed(channel)

    # ----------------------------------------------------------------------------------- events

    def _plan_tick(self) -> None:
        """Schedule the next tick. A leader in a group of one needs ticks only for its disk."""
        if self._alone and self.node.role is Role.LEADER and self.disk is DiskState.GOOD:
            return
        if "tick" not in self._timers and not self.carrier.stopped:
            self._timers["tick"] = self._scheduler.call_later(self._deps.tick_ms, self._tick)

    def _tick(self) -> None:
        self._timers.pop("tick", None)
        self._plan_tick()
        if self.carrier.dead or self.is_paused:
            return
        now_ms = self._scheduler.monotonic_ms()
        self._busy = True
        try:
            if self._before_steps():
                self._note_excluded()
                self.peers.handshakes.repeated.tick()
                try:
                    self.node.tick(now_ms)
                    if not self._alone:
                        self._scrub.tick(now_ms)
                except CorruptEntryError as fault:
                    self._entry_damaged(fault)
                if not self._alone and self._store.queue_ends.is_requested:
                    self._request_queue_ends(now_ms)
        finally:
            self._busy = False
        self._carry_out()

    def _note_excluded(self) -> None:
        excluded = self.peers.handshakes.excluded
        if excluded != self._excluded:
            self._excluded = excluded
            self._deps.on_excluded(excluded)

    def _entries_stored(self, index: LedgerIndex) -> None:
        if self.node.counts_stored:
            self._step(Stored(index))
        if self.options.ack_after_sync:
            self._deps.flush()
        if not self._busy:
            self._carry_out()

    def _entries_flushed(self, end: LedgerEnd) -> None:
        self._busy = True
        try:
            if end.index >= 0 and self._before_steps():
                self._step(Synced(end.index, end.term))
        finally:
            self._busy = False
        if self.options.ack_after_sync:
            self._deps.flush()
        self._carry_out()

    def _answered(self, answer: Answered) -> None:
        """Collect an answer to a request of this member. All answers of a turn are stepped
        together.
        """
        self._inbox.append(answer)
        if not self._planned:
            self._planned = True
            self._scheduler.call_soon(self._work)

    def _work(self) -> None:
        self._planned = False
        if self.is_paused:  # The answers are stepped when it ends.
            return
        answers, self._inbox = self._inbox, []
        if self.carrier.is_over:
            return
        self._busy = True
        try:
            if self._before_steps():
                for answer in answers:
                    self.elections.answer_came(answer)
                    self._step(answer)
        finally:
            self._busy = False
        self._carry_out()

    def _before_steps(self) -> bool:
        """Report staged entries and the state of the disk. Return False if the core must not be
        stepped.
        """
        self.grants += 1
        self._store.appender.commit()
        if self.carrier.dead or not self.carrier.finish():
            return False
        disk = self._disk_now()
        if disk is not self.disk:
            self.disk = disk
            self._step(DiskReport(disk))
            self._plan_tick()
        return True

    def _disk_now(self) -> DiskState:
        if self._store.health.failure is not None:
            return DiskState.FAILED
        if self._scrub.damaged and not self._alone:
            return DiskState.DAMAGED
        lacks_tables = self._store.queue_ends.is_requested or self._deps.lacks_tables()
        if lacks_tables and not self._alone:
            return DiskState.LACKS_TABLES
        return DiskState.FULL if self._store.health.is_out_of_space else DiskState.GOOD

    def _step(self, event: Event) -> None:
        self.grants += 1
        try:
            self.node.step(event)
        except CorruptEntryError as fault:
            self._entry_damaged(fault)

    def _entry_damaged(self, fault: CorruptEntryError) -> None:
        """Stop leading until the damaged entry is repaired."""
        self._scrub.on_damage_found(fault)
        if not self._alone and self.disk is not DiskState.FAILED:
            self.disk = DiskState.DAMAGED
            self.node.step(DiskReport(DiskState.DAMAGED))

    def _request_queue_ends(self, now_ms: int) -> None:
        """Request the queue ends from the leader every second until it answers."""
        leader = self.node.leader_id
        if leader is None or leader == self.membership.self_id or now_ms < self._next_request_ms:
            return
        self._next_request_ms = now_ms + QUEUE_ENDS_REQUEST_MS
        self.peers.ask_queue_ends(leader, self._queue_ends_received)

    def _queue_ends_received(self, body: bytes) -> None:
        ends = self._store.queue_ends
        if self.carrier.is_over or not ends.is_requested:
            return
        try:
            if body:
                ends.merge_answer(body)
            else:
                ends.mark_unavailable()
        except (RemoteProtocolError, OSError) as error:
            logger.error("cannot take over the ends of queues without messages: %s", error)

    def _on_damage_read(self, fault: CorruptEntryError) -> bool:
        """Record a damaged entry that a reader has found. The next tick handles it."""
        if self._alone:
            return False
        self._scrub.on_damage_found(fault)
        return True

    @property
    def damaged(self) -> frozenset[int]:
        """The indexes of damaged entries that wait for an intact copy."""
        return frozenset(self._scrub.damaged)

    def _fetch(self, index: int, done: Callable[[Entry | None], None]) -> bool:
        """Request an entry from the leader, or while there is none from the other members in turn:
        perhaps none of them may lead before its own damage is repaired. Return False if this member
        leads.
        """
        leader = self.node.leader_id
        if leader == self.membership.self_id:
            return False
        if leader is not None:
            self.peers.fetch(leader, index, done, lambda: self._expired(index))
            return True
        others = self.membership.others
        self._fetches += 1
        self.peers.fetch(others[self._fetches % len(others)], index, done, lambda: None)
        return True

    def _expired(self, index: int) -> None:
        """Handle a damaged entry that the leader has already expired."""
        if self.carrier.is_over or index not in self._scrub.damaged:
            return
        self._note(f"entry {index} is damaged here and has expired on the leader: removing it")
        try:
            self._store.discard_through(index)
        except OSError as error:
            logger.error("keeping the files up to entry %d for now: %s", index, error)

    # ------------------------------------------------------------------------------ carrying out

    def _carry_out(self) -> None:
        """Carry out all decisions of the core, unless an outer call will do so when it ends."""
        if self._busy or self.carrier.dead:
            return
        self.grants += 1
        self._busy = True
        try:
            self.carrier.process_all()
        finally:
            self._busy = False
        self.peers.replies.write_all()

    def _note(self, text: str) -> None:
        self.elections.note(self.node.term, text)
        if not self.events or self.events[-1][1] != text:
            self.events.append((self._scheduler.now_ms(), text))

    # -------------------------------------------------------------------------------- checkpoint

    def _save_checkpoint(self) -> None:
        """Sync the index, then save the checkpoint that covers it."""
        self._timers["checkpoint"] = self._scheduler.call_later(
            CHECKPOINT_INTERVAL_MS, self._save_checkpoint
        )
        if self._saving or self._store.health.failure is not None:
            return
        self._saving = True
        files = self.entries.take_dirty_index()

        def sync() -> None:
            for file in files:
                file.sync()

        def synced(_result: None, error: BaseException | None) -> None:
            if error is not None:  # Units may be missing on the disk, and no later sync tells.
                self._saving = False
                reason = f"flushing the DLedger index failed: {error}"
                logger.error("%s", reason)
                self._store.health.fail(reason)
                return
            self.entries.mark_index_flushed()
            self._scheduler.run_blocking(self.entries.checkpoint_task(), self._checkpoint_saved)

        self._scheduler.run_blocking(sync, synced)

    def _checkpoint_saved(self, _result: None, error: BaseException | None) -> None:
        self._saving = False
        if error is not None:
            logger.error("cannot save the committed index: %s", error)
