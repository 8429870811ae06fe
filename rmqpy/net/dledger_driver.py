"""DLedgerDriver: carries out what the DLedger core asks, for one member of a group.

The core (``dledger.node``) computes, the entry store keeps bytes, ``net.dledger_peers`` speaks with
the other members; this driver goes between them. It knows only the scheduler, the network and the
channels that it is given, so a simulator runs it as it is.

=======================  ======================================================================
when                     what
=======================  ======================================================================
the turn's puts are      ``Stored``: what they appended is pushed, all of it to a member at once
written
frames of the peers'     ``Received`` each, then one Ready for all of them
port
answers of members       ``Answered`` for all of a loop turn, then one Ready
a sync has ended         ``Synced``
every ``TICK_MS``        the state of the disk, then ``tick`` (a group of one: until it leads)
=======================  ======================================================================

Invariants: nothing is staged and unreported when the core is stepped; a hard state is durable
before anything that follows from it is done; a Ready is carried out in the order of its fields,
save that the loss of leadership is told first: what waits for a quorum of the old term must not
take the entries of a new one for its own. While the disk has no room for a Ready, nothing else
happens: the member is as if it were paused. A Ready that cannot be carried out for any other reason
is the end of this member until a restart: it neither votes nor answers any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define

from rmqpy.codec.message import encode_messages
from rmqpy.dledger.entries import Part, first_of
from rmqpy.dledger.handshake import Introduction
from rmqpy.dledger.member import Disk, LedgerEnd, Membership, Options, Role
from rmqpy.dledger.messages import DLedgerResponseCode, Entry
from rmqpy.dledger.node import (
    Answered,
    ClientAppend,
    DiskReport,
    Event,
    Node,
    Proposal,
    Ready,
    Refused,
    Reply,
    Stored,
    Synced,
)
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.errors import RemoteFault, StoreFault
from rmqpy.model.flags import TRANSACTION_ROLLBACK
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.model.message import Host, MessageDraft
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.model.runtime import Scheduler, Timer
from rmqpy.net.dledger_peers import Peers
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.entry_scrub import Scrub
from rmqpy.store.health import NO_ROOM
from rmqpy.store.old_log import FileDigest, OldLog, OldLogMark
from rmqpy.store.queue_ends import QueueEnds
from rmqpy.store.results import PutResult
from rmqpy.store.stored_entries import DamagedEntry

TICK_MS: Final = 10
"""Period of the state loop (Java StateMaintainer)."""

EVENTS_MAX: Final = 32
ASK_ENDS_MS: Final = 1000
CHECKPOINT_INTERVAL_MS: Final = 3000
"""checkPointInterval."""

_log = logging.getLogger(__name__)


class GroupStore(Protocol):
    """What a driver needs of the store besides its log; ``MessageStore`` has it."""

    @property
    def failure(self) -> str | None:
        """Why nothing is accepted any more."""

    @property
    def disk_full(self) -> bool: ...

    @property
    def old_log(self) -> OldLog | None: ...

    @property
    def divided_offset(self) -> int | None:
        """Where the old commit log ends, if there is one."""

    def commit(self) -> None:
        """Write what the puts have staged; a failure is told by ``failure``."""

    def log_write_failed(self, error: OSError) -> None:
        """A write found the disk full; the next :meth:`commit` that finds room says that it is
        over.
        """

    def fail(self, reason: str) -> None: ...

    @property
    def queue_ends(self) -> QueueEnds: ...

    def drop_old_log(self) -> None:
        """Remove the commit log in front of the divide, if there still is one."""

    def let_go_to(self, index: int) -> None:
        """The leader has no entry up to ``index`` any more."""

    def log_begins_again(self) -> None:
        """What was in the DLedger log is gone."""

    def tell_queue_ends(self) -> bytes:
        """What ``queue_ends`` of another member wants to be told."""

    def put_record(self, record: bytes) -> PutResult:
        """Append a whole record that somebody else has encoded."""


@define(slots=True, frozen=True, kw_only=True)
class DriverSurroundings:
    """``on_role`` hears of every role at the right moment (see the module); ``flush`` begins to
    make the log durable, unless that is under way; ``store_host`` stands in the marker; ``vouch``
    says why a Java member may not be joined, ``lacks_tables`` whether this member would lead
    without knowing topics and offsets.
    """

    log: DLedgerCommitLog
    store: GroupStore
    scheduler: Scheduler
    network: Network
    store_host: Host
    on_role: Callable[[Role], None]
    flush: Callable[[], None]
    vouch: Callable[[str], str] = lambda _member: ""
    lacks_tables: Callable[[], bool] = lambda: False
    tick_ms: int = TICK_MS


class DLedgerDriver:
    """See the module. A ``RequestHandler`` for the peers' port, and the log's ``Proposer``."""

    def __init__(
        self, membership: Membership, options: Options, around: DriverSurroundings
    ) -> None:
        self.membership = membership
        self.options = options
        self._around = around
        self.entries = around.log.entries
        self._store = around.store
        self._scheduler = around.scheduler
        self.node = Node(
            membership,
            self.entries.member_files.load_hard_state(),
            self.entries,
            self.entries.committed_index,
            options,
        )
        self.peers = Peers(
            membership,
            options,
            around.network,
            around.scheduler,
            self._answered,
            self.introduce,
            lambda: self._store.tell_queue_ends() if self._led_term is not None else None,
            self.node.take_batches,
            around.vouch,
        )
        self._inbox: list[Answered] = []
        self._timers: dict[str, Timer] = {}
        self._ask_ends_ms = 0
        self._led_term: Term | None = None
        """The term in which the broker was told that it leads."""
        self.disk = Disk.GOOD
        self._scrub = Scrub(self.entries, self._fetch)
        self._under_way: Ready | None = None
        """Is not carried out to its end."""
        self._steps_done = 0
        self.is_cutting = False
        """The log is being cut; it stays so while the disk stands in the way, for a while or until
        a restart: its files and what is said of them may differ, and nobody is told anything."""
        self.events: deque[tuple[int, str]] = deque(maxlen=EVENTS_MAX)
        """(wall clock, sentence): what became of the role, and why."""
        self._planned = self._busy = self._saving = self._granted = False
        self._stopped = self._dead = False

    def introduce(self) -> Introduction:
        """What this member says of itself."""
        divided = self._store.divided_offset
        old_log = self._store.old_log
        mark = OldLogMark() if old_log is None else old_log.mark
        return Introduction(
            group=self.membership.group,
            member=self.membership.self_id,
            file_size=self.entries.file_size,
            divided_offset=-1 if divided is None else divided,
            old_log_end=mark.end,
            old_log_digest=mark.digest,
            end_index=self.entries.end.index,
            peers=self.options.addresses,
        )

    # ------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Begin as a candidate; in a group of one leadership is there when this returns."""
        self._around.log.proposer = self
        self.entries.on_stored = self._entries_stored
        self.entries.on_flushed = self._entries_flushed
        self.entries.on_damage = self._damage_met
        end = self.entries.end
        if end.index >= 0:  # recovery has made sure of it
            self._step(Synced(end.index, end.term))
        if len(self.membership.peers) > 1:
            self._around.on_role(self.node.role)
        self._timers["checkpoint"] = self._scheduler.call_later(
            CHECKPOINT_INTERVAL_MS, self._save_checkpoint
        )
        if len(self.membership.peers) > 1:
            self._read_old_log()
        self._tick()

    def _read_old_log(self) -> None:
        """The next file of the old log, where it may block; once all are read, every member is met
        again.
        """
        old_log = self._store.old_log
        work = None if old_log is None else old_log.next_work()
        if old_log is None or work is None:
            return

        def read(found: FileDigest | None, error: BaseException | None) -> None:
            if self._stopped or self._dead:
                return
            if error is not None:
                _log.warning("an old commit log file cannot be read for its digest: %s", error)
            old_log.take(found)
            if old_log.next_work() is None:
                self.peers.tell_more()
            else:
                self._read_old_log()

        self._scheduler.run_blocking(work, read)

    def stop(self) -> None:
        """Take part no more. What is stored still counts in a group of one."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()

    # --------------------------------------------------------------------------------- proposer

    def propose(self, count: int) -> Proposal | Refused:
        # Behind a grant the answers wait: they may end the leadership in which it was given.
        granted, self._granted = self._granted, False
        if self._planned and not self._busy and not granted:
            self._work()
        return Refused.DISK_ERROR if self._dead else self.node.propose(count)

    def grant(self) -> tuple[Proposal, int]:
        if self._planned and not self._busy:
            self._work()
        proposal, room = self.node.grant()
        self._granted = room > 0 and not self._dead
        return proposal, 0 if self._dead else room

    # -------------------------------------------------------------------------- the peers' port

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        if self._stopped or self._dead:
            return
        with _Busy(self):
            if not self._before_steps():
                return
            for command in commands:
                if command.is_response:
                    continue
                received = self.peers.receive(channel, command)
                if received is not None:
                    self._step(received)
        self._carry_out()

    def turn_ended(self) -> None:
        """Everything was done at the end of ``handle``."""

    def channel_closed(self, channel: Channel) -> None:
        """Its requests are answered into the void."""

    # ----------------------------------------------------------------------------------- events

    def _plan_tick(self) -> None:
        """A leader that is alone has nothing to wait for but its disk."""
        alone = len(self.membership.peers) == 1
        if alone and self.node.role is Role.LEADER and self.disk is Disk.GOOD:
            return
        if "tick" not in self._timers and not self._stopped:
            self._timers["tick"] = self._scheduler.call_later(self._around.tick_ms, self._tick)

    def _tick(self) -> None:
        self._timers.pop("tick", None)
        self._plan_tick()
        alone = len(self.membership.peers) == 1
        if self._dead:
            return
        now_ms = self._scheduler.monotonic_ms()
        with _Busy(self):
            if self._before_steps():
                self._guarded(lambda: self.node.tick(now_ms))
                if not alone:
                    self._guarded(lambda: self._scrub.tick(now_ms))
                    if self._store.queue_ends.wanted:
                        self._want_queue_ends(now_ms)
        self._carry_out()

    def _entries_stored(self, index: LedgerIndex) -> None:
        self._step(Stored(index))
        if self.options.ack_after_sync:
            self._around.flush()
        self._carry_out()

    def _entries_flushed(self, end: LedgerEnd) -> None:
        with _Busy(self):
            if end.index >= 0 and self._before_steps():
                self._step(Synced(end.index, end.term))
        if self.options.ack_after_sync:
            self._around.flush()
        self._carry_out()

    def _answered(self, answer: Answered) -> None:
        """An answer to one of our requests; all of a turn are stepped together."""
        self._inbox.append(answer)
        if not self._planned:
            self._planned = True
            self._scheduler.call_soon(self._work)

    def _work(self) -> None:
        self._planned = False
        answers, self._inbox = self._inbox, []
        if self._stopped or self._dead:
            return
        with _Busy(self):
            if self._before_steps():
                for answer in answers:
                    self._step(answer)
        self._carry_out()

    def _before_steps(self) -> bool:
        """What is staged is reported, and so is the disk. False: the core may not be stepped."""
        self._store.commit()
        if self._dead or not self._finish():
            return False
        disk = self._disk_now()
        if disk is not self.disk:
            self.disk = disk
            self._step(DiskReport(disk))
            self._plan_tick()
        return True

    def _disk_now(self) -> Disk:
        if self._store.failure is not None:
            return Disk.FAILED
        alone = len(self.membership.peers) == 1
        if self._scrub.damaged and not alone:
            return Disk.DAMAGED
        lacks_tables = self._store.queue_ends.wanted or self._around.lacks_tables()
        if lacks_tables and not alone:
            return Disk.LACKS_TABLES
        return Disk.FULL if self._store.disk_full else Disk.GOOD

    def _step(self, event: Event) -> None:
        self._guarded(lambda: self.node.step(event))

    def _guarded(self, step: Callable[[], None]) -> None:
        """One call that may meet a damaged entry: who has one does not lead until it is whole."""
        try:
            step()
        except DamagedEntry as fault:
            self._scrub.found(fault)
            if len(self.membership.peers) > 1 and self.disk is not Disk.FAILED:
                self.disk = Disk.DAMAGED
                self.node.step(DiskReport(Disk.DAMAGED))

    def _want_queue_ends(self, now_ms: int) -> None:
        """Ask the leader, every second, until it answers."""
        leader = self.node.leader_id
        if leader is None or leader == self.membership.self_id or now_ms < self._ask_ends_ms:
            return
        self._ask_ends_ms = now_ms + ASK_ENDS_MS
        self.peers.ask_queue_ends(leader, self._queue_ends_told)

    def _queue_ends_told(self, body: bytes) -> None:
        ends = self._store.queue_ends
        if self._dead or self._stopped or not ends.wanted:
            return
        try:
            if body:
                ends.told(body)
            else:
                ends.nobody_knows()
        except (RemoteFault, OSError) as error:
            _log.error("the ends of silent queues are not known yet: %s", error)

    def _damage_met(self, fault: DamagedEntry) -> bool:
        """A reader has met it; the next tick does what follows."""
        if len(self.membership.peers) == 1:
            return False
        self._scrub.found(fault)
        return True

    @property
    def damaged(self) -> frozenset[int]:
        """Indexes of entries that wait for a whole copy."""
        return frozenset(self._scrub.damaged)

    def _fetch(self, index: int, done: Callable[[Entry | None], None]) -> bool:
        """Ask the leader for an entry; False when there is none to ask."""
        leader = self.node.leader_id
        if leader is None or leader == self.membership.self_id:
            return False
        self.peers.fetch(leader, index, done, lambda: self._expired(index))
        return True

    def _expired(self, index: int) -> None:
        """The leader has let go of an entry that is damaged here."""
        if self._dead or self._stopped or index not in self._scrub.damaged:
            return
        self._note(f"entry {index} is damaged here and has expired with the leader: it goes")
        try:
            self._store.let_go_to(index)
        except OSError as error:
            _log.error("files up to entry %d are kept for now: %s", index, error)

    # ------------------------------------------------------------------------------ carrying out

    def _carry_out(self) -> None:
        """Do all that the core asks, unless somebody who is busy does it at his end."""
        if self._busy or self._dead:
            return
        with _Busy(self):
            while self._finish():
                self._under_way = self.node.take_ready()
                if self._under_way is None:
                    break
        self.peers.write_replies()

    def _finish(self) -> bool:
        """Carry out what is under way; False when it cannot be done now, or never."""
        ready = self._under_way
        if ready is None:
            return True
        steps = (
            self._keep_vote,
            self._cut_log,
            self._write_entries,
            self._tell,
            self._append_marker,
            self._settle_clients,
        )
        try:
            while self._steps_done < len(steps):
                steps[self._steps_done](ready)
                self._steps_done += 1
            self._store.commit()
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._die(error)
            self._store.log_write_failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - logged, and the end of this member
            self._die(error)
            return False
        self._under_way, self._steps_done = None, 0
        return True

    def _keep_vote(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.entries.member_files.save_hard_state(ready.hard_state)
        self._tell_loss()

    def _cut_log(self, ready: Ready) -> None:
        self.is_cutting = True
        if ready.begin_again:
            first = ready.entries[0]
            if first_of(first) > 0:
                self._store.queue_ends.want()
            self._drop_old_log(first)
            self.entries.begin_again(first_of(first), first.position)
            self._store.log_begins_again()
        elif ready.truncate_from is not None:
            self.entries.truncate_from(ready.truncate_from)
        self.is_cutting = False

    def _drop_old_log(self, first: Part) -> None:
        """This member comes back so late that everything up to ``first`` has expired with the
        leader: the log in front of the divide goes as its entries go.
        """
        divided = self._store.divided_offset
        if divided is None or first.position == divided:
            return
        if first.position < divided or first_of(first) == 0:
            raise StoreFault(
                self.entries.data.first.path,
                f"a leader whose log begins with entry {first_of(first)} at {first.position}, and"
                f" an old commit log that ends at {divided}",
                "entry 0 to stand where the old log ends",
                "compare this directory with the leader's: rmqpy upgrade check names the one that"
                " is wrong; rmqpy upgrade join gives it what the other has",
            )
        self._store.drop_old_log()
        self._note(
            f"the old commit log up to {divided} is removed: it has expired with the others, whose"
            f" log begins at {first.position}"
        )

    def _write_entries(self, ready: Ready) -> None:
        if ready.entries:
            self.entries.receive(ready.entries)
            self.entries.commit()

    def _tell(self, ready: Ready) -> None:
        """The other members, the readers, the broker."""
        for message in ready.messages:
            if isinstance(message, Reply):
                self.peers.reply(message)
            elif not self._stopped:
                self.peers.send(message)
        if ready.committed_index is not None:
            self.entries.commit_to(ready.committed_index)
        self._tell_role(ready)

    def _settle_clients(self, ready: Ready) -> None:
        for append in ready.appends:
            self._append_for(append)
        for told in ready.acknowledged:
            self.peers.acknowledge(told)
        for notice in ready.notices:
            group, self_id = self.membership.group, self.membership.self_id
            self.peers.once.warn(notice, "group %s, %s: %s", group, self_id, notice)
            self._note(notice)

    def _tell_loss(self) -> None:
        """Tell the broker, first of all, that it does not lead any more."""
        leads = self.node.role is Role.LEADER and self.node.term == self._led_term
        if self._led_term is not None and not leads:
            self._led_term = None
            self._around.on_role(Role.CANDIDATE)

    def _tell_role(self, ready: Ready) -> None:
        if self.node.role is Role.LEADER:
            if self._led_term is None:
                self._led_term = self.node.term
                self._around.on_role(Role.LEADER)
        elif ready.role is not None:
            if ready.role is Role.FOLLOWER:
                self._note(f"follows {self.node.leader_id} in term {self.node.term}")
            self._around.on_role(ready.role)

    def _note(self, text: str) -> None:
        if not self.events or self.events[-1][1] != text:
            self.events.append((self._scheduler.now_ms(), text))

    def _append_marker(self, ready: Ready) -> None:
        """The one entry that a leader makes itself: a record that no queue and no index takes."""
        proposal = ready.marker
        if proposal is None:
            return
        now_ms = self._scheduler.now_ms()
        draft = MessageDraft(
            topic=LEADER_MARKER_TOPIC.encode(),
            queue_id=0,
            body=f"term {proposal.term} of {self.membership.self_id}".encode(),
            properties=b"",
            sys_flag=TRANSACTION_ROLLBACK,
            born_timestamp_ms=now_ms,
            born_host=self._around.store_host,
            store_host=self._around.store_host,
        )
        records = encode_messages([draft])
        self.entries.append(proposal.term, proposal.first_index, records, now_ms)

    def _append_for(self, append: ClientAppend) -> None:
        """A client of DLedger's own protocol appends records. What stands in front of one that is
        refused stays, as in Java.
        """
        for body in append.bodies:
            result = self._store.put_record(body)
            if result.status is not PutMessageStatus.PUT_OK:
                break
        else:
            self.peers.appended(append.ticket, result.physical_offsets[0])
            self.node.wait(self.entries.end.index, append.ticket)
            return
        illegal = result.status is PutMessageStatus.MESSAGE_ILLEGAL
        refused = self.node.refusal()
        code = DLedgerResponseCode.INTERNAL_ERROR
        if illegal:
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        elif refused is not None:
            code = DLedgerResponseCode(refused.value)
        self.peers.refuse_append(append.ticket, code)

    def _die(self, error: Exception) -> None:
        """The core and the files may not agree any more."""
        self._dead = True
        if isinstance(error, (OSError, StoreFault)):
            _log.error("this member leaves its group until a restart: %s", error)
        else:
            _log.exception("this member leaves its group until a restart")
        self._store.fail(f"the DLedger log cannot be kept: {error}")
        self._around.on_role(Role.CANDIDATE)

    # -------------------------------------------------------------------------------- checkpoint

    def _save_checkpoint(self) -> None:
        self._timers["checkpoint"] = self._scheduler.call_later(
            CHECKPOINT_INTERVAL_MS, self._save_checkpoint
        )
        if not self._saving:
            self._saving = True
            self._scheduler.run_blocking(self.entries.checkpoint_task(), self._checkpoint_saved)

    def _checkpoint_saved(self, _result: None, error: BaseException | None) -> None:
        self._saving = False
        if error is not None:
            _log.error("the committed index could not be saved: %s", error)


class _Busy:
    """While it is held, nothing is carried out by those who are called in between."""

    __slots__ = ("_before", "_driver")

    def __init__(self, driver: DLedgerDriver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        self._before = self._driver._busy
        self._driver._busy = True

    def __exit__(self, *_exception: object) -> None:
        self._driver._busy = self._before
