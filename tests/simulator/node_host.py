"""A machine with a bare DLedger node: the production state machine, and a log in memory.

The host carries out each Ready in the order of its fields, as the production driver does, and
passes each step to the checker. It may leave a Ready for the next event (``plan.lazy``), and a
crash may happen between any two steps that change the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from attrs import define, field

from rmqpy.dledger.entries import as_singletons, first_of
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import (
    Acknowledged,
    Answered,
    DiskReport,
    Event,
    Node,
    Proposal,
    Ready,
    Received,
    Reply,
    Send,
    Stored,
    Synced,
)
from rmqpy.dledger.protocol.json_bodies import (
    RESPONSE_FRAME_CODE,
    decode_request,
    decode_response,
    encode,
)
from rmqpy.dledger.protocol.messages import DLedgerResponseCode, Request
from rmqpy.dledger.state import DiskState, Role
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import LedgerIndex
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from simulator.host import LEDGER_PORT, Host, ledger_address
from simulator.network import NetworkClient
from simulator.node_checker import NodeView
from simulator.node_disk import NodeDisk
from simulator.plan import GROUP_NAME

BATCH_BYTES = 300
MIN_VOTE_INTERVAL_MS, MAX_VOTE_INTERVAL_MS = 30, 150
CHECKPOINT_CHANCE = 0.05
"""The probability per tick that the checkpoint is written."""


@define(slots=True, eq=False, repr=False)
class NodeHost(Host):
    """A machine that runs a bare DLedger node."""

    view: NodeView = field(kw_only=True)
    log: Callable[[str], None] = field(kw_only=True)
    disk: NodeDisk = field(kw_only=True)
    node: Node | None = field(default=None, init=False)
    waiting: dict[int, tuple[int, int]] = field(factory=dict, init=False)
    """The (index, term) of the entry whose commit a client waits for, by token."""

    _requests: dict[int, tuple[Channel, RemotingCommand]] = field(factory=dict, init=False)
    """The requests of other members that have no answer yet, by ticket."""

    _disk_state: DiskState = field(default=DiskState.GOOD, init=False)
    _is_sync_due: bool = field(default=False, init=False)
    _numbers: count[int] = field(factory=count, init=False)

    def start(self, *, force: bool = False) -> None:
        life = self.begin_life()
        self._requests.clear()
        self.waiting.clear()
        self._is_sync_due = False
        self._disk_state = DiskState.GOOD
        committed = LedgerIndex(self.disk.load_committed_index())
        self.view.restarted(committed)
        peers = tuple(f"n{number}" for number in range(self.plan.members))
        membership = Membership(GROUP_NAME, self.name, peers)
        hard_state = self.disk.load_hard_state()
        self.node = Node(membership, hard_state, self.disk.log, committed, self._options())
        self.client = NetworkClient(self.network, self.machine, life)
        self.network.listen(self.machine, LEDGER_PORT, self)
        self._sync_later()
        self._tick()

    def _options(self) -> RaftOptions:
        plan = self.plan
        return RaftOptions(
            rng=self.rng.randrange,
            heartbeat_interval_ms=plan.heartbeat_ms,
            min_vote_interval_ms=MIN_VOTE_INTERVAL_MS,
            max_vote_interval_ms=MAX_VOTE_INTERVAL_MS,
            push_timeout_ms=plan.push_timeout_ms,
            rpc_timeout_ms=2 * plan.push_timeout_ms,
            push_window=plan.push_window,
            batch_push=plan.batch_push,
            batch_push_bytes=BATCH_BYTES,
            ack_after_sync=plan.power and not plan.ack_unsynced,
        )

    def end_life(self) -> None:
        self.node = None
        Host.end_life(self)

    def put(self, bodies: list[bytes]) -> bool:
        """Propose entries with these bodies. Return whether the node accepts them."""
        self._process_ready()
        assert self.node is not None
        proposal = self.node.propose(len(bodies))
        if not isinstance(proposal, Proposal):
            return False
        self._append_own(proposal, bodies, wait=True)
        return True

    def expire(self) -> None:
        """Remove the files of the log before the last committed entry."""
        log = self.disk.log
        self._process_ready()
        assert self.node is not None
        if self.node.committed_index > log.begin_index >= 0:
            log.expire_before(self.node.committed_index)

    # The port of the other members

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            ticket = next(self._numbers)
            self._requests[ticket] = channel, command
            self._step(Received(ticket, decode_request(command.code, command.body)))

    def turn_ended(self) -> None:
        """Do nothing: ``handle`` answers at once."""

    def channel_closed(self, channel: Channel) -> None:
        """Do nothing: there is no state per channel."""

    # Events

    def _tick(self) -> None:
        assert self.life is not None and self.node is not None
        self.life.call_later(self.plan.tick_ms, self._tick)
        disk = self.disk
        state = DiskState.FULL if disk.full else DiskState.GOOD
        state = DiskState.FAILED if disk.failing or disk.syncs_fail else state
        if state is not self._disk_state:
            self._disk_state = state
            self._step(DiskReport(state))
        self.node.tick(self.life.monotonic_ms())
        self._process_ready()
        if self.rng.random() < CHECKPOINT_CHANCE:
            # As the checkpoint of an entry store, which counts no further after an unclean stop.
            disk.checkpoint = min(self.node.committed_index, disk.log.durable_index)

    def _step(self, event: Event) -> None:
        assert self.node is not None
        self.node.step(event)
        if self.rng.random() >= self.plan.lazy:
            self._process_ready()

    def _sync_later(self) -> None:
        if not self.plan.power or self._is_sync_due:
            return
        assert self.life is not None
        self._is_sync_due = True
        self.life.call_later(1 + self.rng.randrange(self.plan.sync_ms), self._sync)

    def _sync(self) -> None:
        self._is_sync_due = False
        self._process_ready()
        if self.disk.syncs_fail:
            self._sync_later()
            return
        end = self.disk.log.sync()
        self._step(Synced(end.index, end.term))

    # A Ready

    def _process_ready(self) -> None:
        node = self.node
        assert node is not None
        while (ready := node.ready()) is not None:
            self._process(node, ready)

    def _process(self, node: Node, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.disk.hard_state = ready.hard_state
            self.view.saved(ready.hard_state)
            self.disk.changed()
        self._change_log(ready)
        for message in ready.messages:
            if isinstance(message, Send):
                self._send(message)
            else:
                self._reply(message)
        if ready.committed_index is not None:
            # If the role is new, it is unknown in which role this was committed.
            leads = node.role is Role.LEADER and ready.role is None
            self.view.committed(ready.committed_index, node.term, leads=leads)
        if ready.role is not None:
            self.log(f"{self.name} is {ready.role.value} in term {node.term}")
        if ready.role is Role.LEADER:
            self.view.check_leader(node.term)
        for notice in ready.notices:
            self.log(f"{self.name}: {notice}")
        for acknowledged in ready.acknowledged:
            self._acknowledge(acknowledged)
        if ready.marker is not None:
            self._append_own(ready.marker, [b"marker"], wait=False)

    def _change_log(self, ready: Ready) -> None:
        log = self.disk.log
        if ready.begin_again:
            log.begin_again()
            self.view.reset(first_of(ready.entries[0]))
        elif ready.truncate_from is not None:
            for entry in log.entries[ready.truncate_from - log.begin_index :]:
                self.view.dropped(entry)
            log.truncate_from(ready.truncate_from)
            self.disk.changed()
        for entry in as_singletons(ready.entries):
            before = log.end.term if log.entries or entry.index == 0 else -2
            log.append([entry])
            self.view.wrote(entry, before)
            self.disk.changed()
        if ready.entries or ready.truncate_from is not None:
            self._sync_later()

    def _append_own(self, proposal: Proposal, bodies: list[bytes], *, wait: bool) -> None:
        node, log = self.node, self.disk.log
        assert node is not None
        before = log.end.term
        for entry in log.propose(proposal.term, proposal.first_index, bodies):
            self.view.wrote(entry, before)
            before = entry.term
        self.disk.changed()
        if wait:
            token = next(self._numbers)
            self.waiting[token] = log.end.index, log.end.term
            node.wait(log.end.index, token)
        node.step(Stored(log.end.index))
        self._sync_later()
        self._process_ready()

    def _acknowledge(self, acknowledged: Acknowledged) -> None:
        entry = self.waiting.pop(acknowledged.token)
        if acknowledged.code is DLedgerResponseCode.SUCCESS:
            self.view.check_acknowledged(*entry)

    def _send(self, send: Send) -> None:
        assert self.client is not None
        command = RemotingCommand(int(send.request.CODE), body=encode(send.request))
        address, timeout_ms = ledger_address(int(send.to[1:])), 2 * self.plan.push_timeout_ms
        done = partial(self._answered, send.ticket, type(send.request))
        self.client.request(address, command, timeout_ms, done)

    def _answered(
        self,
        ticket: int,
        kind: type[Request],
        command: RemotingCommand | None,
        _fault: RmqError | None,
    ) -> None:
        response = None if command is None else decode_response(kind, command.body)
        self._step(Answered(ticket, response))

    def _reply(self, reply: Reply) -> None:
        channel, command = self._requests.pop(reply.ticket)
        if reply.response is not None:
            body = encode(reply.response)
            response = RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=body)
            channel.write(encode_command(response))
