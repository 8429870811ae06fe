"""A group of DLedger nodes in virtual time, with a network and disks that fail, from one seed.

Everything that happens is an event on one heap; each random choice comes from the seed, so a seed
replays exactly. The nodes are the production state machines; their surroundings are small: logs in
memory, a network that loses, delays, reorders, repeats and parts, members that are killed, lose
power and come back with what was durable. :class:`~simulator.group_checker.GroupChecker` looks
at each Ready as it is carried out.

A crash may come anywhere between the steps of a Ready. After a power failure entries are lost that
were not synced: safe only with ``ack_after_sync``, which such a plan switches on.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

from attrs import define, evolve, field

from rmqpy.dledger.entries import as_singletons, first_of
from rmqpy.dledger.member import DiskState, HardState, LedgerEnd, Membership, Role
from rmqpy.dledger.messages import (
    DLedgerResponseCode,
    LeadershipTransferRequest,
    Request,
    Response,
    VoteResponse,
    VoteResult,
)
from rmqpy.dledger.node import (
    Acknowledged,
    Answered,
    DiskReport,
    Node,
    Proposal,
    Ready,
    Received,
    Reply,
    Send,
    Stored,
    Synced,
)
from rmqpy.dledger.wire import decode_request, decode_response, encode
from rmqpy.model.ids import LedgerIndex
from simulator.group_checker import GroupChecker, GroupInvariantError
from simulator.group_plan import GroupPlan
from simulator.memory_entries import MemoryEntries

GROUP = "simulated"


class _CrashError(Exception):
    """The member dies in the middle of carrying out a Ready."""


@define(slots=True, eq=False, repr=False)
class Host:
    """One member: what survives a crash, and the node while it lives."""

    name: str
    log: MemoryEntries
    hard_state: HardState = field(factory=HardState)
    checkpoint: int = -1
    node: Node | None = None
    life: int = 0
    paused_until_ms: int = 0
    tickets: dict[int, tuple[str, int, int, type[Request]]] = field(factory=dict)
    """Ticket of a request that came in → (sender, its life, its ticket, what it asked)."""

    waiting: dict[int, tuple[int, int]] = field(factory=dict)
    sync_due: bool = False


@define(slots=True, eq=False, repr=False)
class NodeCluster:
    """``run`` does a whole plan; the smaller steps are there for tests that tell a story."""

    seed: int
    plan: GroupPlan = field(factory=GroupPlan)
    now_ms: int = 0
    checker: GroupChecker = field(factory=GroupChecker)
    hosts: dict[str, Host] = field(factory=dict)
    blocked: set[tuple[str, str]] = field(factory=set)
    """Directions that let nothing through."""

    events: int = 0
    elections: int = 0
    puts: int = 0
    notices: list[str] = field(factory=list)
    trace: list[str] | None = None
    _random: random.Random = field(init=False)
    _heap: list[tuple[int, int, Callable[[], None]]] = field(factory=list)
    _numbers: count[int] = field(factory=count)
    _quiet: bool = False
    """No more faults."""

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.seed)
        for number in range(self.plan.members):
            name = f"n{number}"
            self.hosts[name] = Host(name, MemoryEntries())
        for host in self.hosts.values():
            self.start(host)

    def run(self) -> None:
        """Faults for the planned time, then peace; raises Violation."""
        plan = self.plan
        for interval_ms, action in (
            (plan.put_interval_ms, self._put_somewhere),
            (plan.crash_interval_ms, self._crash_somebody),
            (plan.partition_interval_ms, self._part),
            (plan.transfer_interval_ms, self._transfer),
            (plan.expire_interval_ms, self._expire),
            (plan.disk_interval_ms, self._fill_disk),
            (plan.pause_interval_ms, self._pause),
        ):
            if interval_ms:
                self._repeat(interval_ms, action)
        self.run_until(plan.duration_ms)
        self.settle()

    def settle(self) -> None:
        """Heal everything; then there must be a leader, and all members equal and committed."""
        self._quiet = True
        self.blocked.clear()
        for host in self.hosts.values():
            host.paused_until_ms = 0
            if host.node is None:
                self.start(host)
            self._step(host, DiskReport(DiskState.GOOD))
        deadline_ms = self.now_ms + self.plan.settle_ms
        while self.now_ms < deadline_ms:
            self.run_until(self.now_ms + 200)
            if self._settled():
                return
            leader = self.leader()
            if leader is not None and leader.log.end.index < 0:
                self.put(leader)  # an empty ledger cannot be compared, nor may it get a marker
        states = [
            f"{host.name} {host.node.role.value} term {host.node.term} end {host.log.end.index}"
            f" committed {host.node.committed_index} {host.node.progress}"
            for host in self.hosts.values()
            if host.node is not None
        ]
        raise GroupInvariantError(
            f"not settled {self.plan.settle_ms} ms after healing: {'; '.join(states)}"
        )

    def run_until(self, end_ms: int) -> None:
        """Let time pass."""
        while self._heap and self._heap[0][0] <= end_ms:
            due_ms, _, action = heapq.heappop(self._heap)
            self.now_ms = max(self.now_ms, due_ms)
            self.events += 1
            action()
        self.now_ms = end_ms

    def leader(self) -> Host | None:
        """The leader of the largest term, if there is one."""
        leading = [
            host
            for host in self.hosts.values()
            if host.node is not None and host.node.role is Role.LEADER
        ]
        return max(leading, key=lambda host: host.node.term if host.node else 0, default=None)

    def start(self, host: Host) -> None:
        """A new life, with what was durable."""
        host.life += 1
        host.tickets.clear()
        host.waiting.clear()
        host.sync_due = False
        committed = min(host.checkpoint, host.log.end.index)
        self.checker.restarts(host.name, committed)
        options = evolve(
            self.plan.options,
            rng=lambda below: self._random.randrange(below),
            ack_after_sync=self.plan.power and not self.plan.unsafe,
        )
        membership = Membership(GROUP, host.name, tuple(self.hosts))
        host.node = Node(membership, host.hard_state, host.log, LedgerIndex(committed), options)
        host.node.tick(self.now_ms)
        self._carry_out(host)
        self._stored(host)
        self._tick_later(host, host.life)

    def crash(self, host: Host) -> None:
        """Kill a member, or take its power."""
        if host.node is None:
            return
        self._say(f"{host.name} dies")
        host.node = None
        if self.plan.power:
            host.log.lose_power(self._random.randrange(3))

    def isolate(self, name: str) -> None:
        """Nothing goes in or out."""
        for other in self.hosts:
            if other != name:
                self.blocked |= {(name, other), (other, name)}

    def put(self, host: Host, number: int = 1) -> bool:
        """Propose at a member; whether it was taken."""
        if host.paused_until_ms > self.now_ms:
            return False
        self._carry_out(host)
        if host.node is None:
            return False
        proposal = host.node.propose(number)
        if not isinstance(proposal, Proposal):
            return False
        bodies = []
        for _ in range(number):
            self.puts += 1
            bodies.append(b"put-%d" % self.puts * self._random.randrange(1, 8))
        self._append_own(host, proposal, bodies, wait=True)
        return True

    def step_received(self, host: Host, request: Request) -> None:
        """A request from outside the group; its answer goes nowhere."""
        self._step(host, Received(-next(self._numbers), request))

    def _at(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ms + delay_ms, next(self._numbers), action))

    def _repeat(self, interval_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self._quiet:
                action()
                self._repeat(interval_ms, action)

        self._at(1 + int(self._random.expovariate(1 / interval_ms)), again)

    def _tick_later(self, host: Host, life: int) -> None:
        def tick() -> None:
            if host.life != life or host.node is None:
                return
            if host.paused_until_ms <= self.now_ms:
                host.node.tick(self.now_ms)
                self._carry_out(host)
                if self._random.random() < 0.05 and host.node is not None:
                    host.checkpoint = host.node.committed_index
            self._tick_later(host, life)

        self._at(self.plan.tick_ms, tick)

    def _step(self, host: Host, event: Received | Answered | Stored | Synced | DiskReport) -> None:
        if host.node is not None:
            host.node.step(event)
            if self._random.random() >= self.plan.lazy:
                self._carry_out(host)

    def _carry_out(self, host: Host) -> None:
        try:
            while host.node is not None and (ready := host.node.ready()) is not None:
                self._do(host, host.node, ready)
        except _CrashError:
            self.crash(host)

    def _do(self, host: Host, node: Node, ready: Ready) -> None:
        checker, name = self.checker, host.name
        if ready.hard_state is not None:
            host.hard_state = ready.hard_state
            checker.votes_for(name, ready.hard_state)
            self._may_crash()
        self._change_log(host, ready)
        for message in ready.messages:
            if isinstance(message, Send):
                self._send(host, message)
            else:
                self._reply(host, message)
        self._may_crash()
        if ready.committed_index is not None:
            checker.commits(name, ready.committed_index, node.term, host.log)
        if ready.role is not None:
            self._say(f"{name} is {ready.role.value} in term {node.term}")
        if ready.role is Role.LEADER:
            self.elections += 1
            checker.leads(name, node.term, host.log)
        for notice in ready.notices:
            self.notices.append(f"{self.now_ms} {name}: {notice}")
            self._say(notice)
        for told in ready.acknowledged:
            self._acknowledged(host, told)
        if ready.marker is not None:
            self._append_own(host, ready.marker, [b"marker"], wait=False)

    def _change_log(self, host: Host, ready: Ready) -> None:
        log, checker = host.log, self.checker
        if ready.begin_again:
            log.begin_again()
            self.checker.committed_by[host.name] = min(
                self.checker.committed_by.get(host.name, -1), first_of(ready.entries[0]) - 1
            )
        elif ready.truncate_from is not None:
            for index in range(ready.truncate_from, log.end.index + 1):
                checker.drops(host.name, log.entries[index - log.begin_index])
            log.truncate_from(ready.truncate_from)
            self._may_crash()
        for entry in as_singletons(ready.entries):
            before = log.end.term if log.entries or entry.index == 0 else -2
            log.append([entry])
            checker.writes(host.name, entry, before)
        if ready.entries or ready.truncate_from is not None:
            self._stored(host)
            self._may_crash()

    def _append_own(
        self, host: Host, proposal: Proposal, bodies: list[bytes], *, wait: bool
    ) -> None:
        before = host.log.end.term
        for entry in host.log.propose(proposal.term, proposal.first_index, bodies):
            self.checker.writes(host.name, entry, before)
            before = entry.term
        node = host.node
        assert node is not None
        if wait:
            token = next(self._numbers)
            host.waiting[token] = host.log.end.index, host.log.end.term
            node.wait(host.log.end.index, token)
        node.step(Stored(host.log.end.index))
        self._stored(host)
        self._carry_out(host)

    def _stored(self, host: Host) -> None:
        if not self.plan.power or host.sync_due:
            return
        host.sync_due = True
        life = host.life

        def sync() -> None:
            host.sync_due = False
            if host.life == life and host.node is not None:
                self._carry_out(host)
                end: LedgerEnd = host.log.sync()
                self._step(host, Synced(end.index, end.term))

        longest_ms = 10 if self._quiet else self.plan.sync_ms
        self._at(1 + self._random.randrange(longest_ms), sync)

    def _acknowledged(self, host: Host, told: Acknowledged) -> None:
        entry = host.waiting.pop(told.token)
        if told.code is DLedgerResponseCode.SUCCESS:
            self.checker.acknowledges(host.name, entry)

    def _send(self, host: Host, send: Send) -> None:
        request: Request = send.request
        if self.plan.through_wire:
            request = decode_request(request.CODE, encode(request))
        origin = host.name, host.life, send.ticket, type(request)
        if self._random.random() < self.plan.repeat:
            self._deliver(host.name, send.to, lambda: self._arrive(send.to, origin, request))
        self._deliver(host.name, send.to, lambda: self._arrive(send.to, origin, request))

    def _arrive(
        self, to: str, origin: tuple[str, int, int, type[Request]], request: Request
    ) -> None:
        host = self.hosts[to]
        if host.node is not None:
            ticket = next(self._numbers)
            host.tickets[ticket] = origin
            self._step(host, Received(ticket, request))

    def _reply(self, host: Host, reply: Reply) -> None:
        origin = host.tickets.pop(reply.ticket, None)
        if origin is None or reply.response is None:
            return
        to, life, ticket, kind = origin
        response: Response = reply.response
        if isinstance(response, VoteResponse) and response.result is VoteResult.ACCEPT:
            self.checker.gives_vote(host.name, response.term, to)
        if self.plan.through_wire:
            response = decode_response(kind, encode(response))

        def arrive() -> None:
            if self.hosts[to].life == life:
                self._step(self.hosts[to], Answered(ticket, response))

        self._deliver(host.name, to, arrive)

    def _deliver(self, sender: str, to: str, action: Callable[[], None]) -> None:
        if not self._quiet and self._random.random() < self.plan.loss:
            return
        delay_ms = 1 + self._random.randrange(self.plan.delay_ms)
        if self._random.random() < self.plan.slow:
            delay_ms *= self._random.randrange(1, 100)

        def arrive() -> None:
            if (sender, to) in self.blocked:
                return
            rest_ms = self.hosts[to].paused_until_ms - self.now_ms
            if rest_ms > 0:
                self._at(rest_ms, arrive)
            else:
                action()

        if (sender, to) not in self.blocked:
            self._at(delay_ms, arrive)

    def _may_crash(self) -> None:
        if not self._quiet and self.plan.crash_interval_ms and self._random.random() < 0.0005:
            raise _CrashError

    def _any(self) -> Host:
        return self._random.choice(list(self.hosts.values()))

    def _put_somewhere(self) -> None:
        for host in self.hosts.values():
            self.put(host, self._random.choice((1, 1, 1, 2, 3)))

    def _crash_somebody(self) -> None:
        host = self._any()
        if host.node is None:
            self.start(host)
        else:
            self.crash(host)

    def _part(self) -> None:
        names = list(self.hosts)
        self.blocked.clear()
        kind = self._random.randrange(5)
        self._random.shuffle(names)
        if kind == 0:
            self.isolate(names[0])
        elif kind == 1:
            self.blocked |= {(names[0], other) for other in names[1:]}
        elif kind == 2:
            self.blocked |= {(other, names[0]) for other in names[1:]}
        elif kind == 3:  # a bridge: two sides that meet in one member only
            half = 1 + len(names) // 2
            sides = [(a, b) for a in names[1:half] for b in names[half:]]
            self.blocked |= {*sides, *((b, a) for a, b in sides)}
        if self.blocked:
            self._say(f"blocked {sorted(self.blocked)}")

    def _transfer(self) -> None:
        host, successor = self.leader(), self._any()
        if host is not None and host.node is not None:
            request = LeadershipTransferRequest(
                group=GROUP,
                remote_id=host.name,
                term=host.node.term,
                transfer_id=host.name,
                transferee_id=successor.name,
            )
            self.step_received(host, request)

    def _expire(self) -> None:
        host = self._any()
        self._carry_out(host)
        if host.node is not None and host.node.committed_index > host.log.begin_index >= 0:
            host.log.expire_before(host.node.committed_index)

    def _fill_disk(self) -> None:
        host = self._any()
        disk = self._random.choice((DiskState.FULL, DiskState.FAILED))
        self._say(f"the disk of {host.name} is {disk.value}")
        self._step(host, DiskReport(disk))
        self._at(2000, lambda: self._step(host, DiskReport(DiskState.GOOD)))

    def _pause(self) -> None:
        self._any().paused_until_ms = self.now_ms + self._random.randrange(2000)

    def _settled(self) -> bool:
        leader = self.leader()
        if leader is None or leader.node is None:
            return False
        end = leader.log.end
        return all(
            host.node is not None
            and host.log.end == end
            and host.node.committed_index == end.index
            and host.node.leader_id == leader.name
            for host in self.hosts.values()
        )

    def _say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_ms} {text}")
