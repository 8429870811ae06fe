"""The simulated cluster: brokers, clients and the misfortunes of a plan, on one timeline.

``World(plan).run()`` does all of it: faults and traffic for the planned time, then everything is
mended, a leader must be there within ten seconds and all members equal soon after, and at last
every queue of every broker is read to its end. ``InvariantViolationError`` is raised by the first
event that breaks a promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256

from attrs import define, evolve, field

from rmqpy.dledger.member import Role
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import MASTER_ID
from simulator.bit_rot import BitRot
from simulator.broker_host import BrokerHost
from simulator.checkers import Checker, ClassicWatch, GroupWatch, classic_records
from simulator.disks import SimulatedDisk
from simulator.invariants import InvariantViolationError, StartRefusedError
from simulator.name_servers import NameServerHost, name_server_addresses
from simulator.nemesis import Nemesis
from simulator.network import Machine, MachineNetwork, NetworkFaults, SimulatedNetwork
from simulator.operators import Operator, may_cut
from simulator.plan import SimulationPlan
from simulator.routes import Routes
from simulator.virtual_time import MachineCrashError, ProcessLifetime, Timeline
from simulator.workload import TOPIC, WorkloadProducer, WorkloadReader

LEADER_WITHIN_MS = 10_000
TAKES_WITHIN_MS = 10_000
EQUAL_WITHIN_MS = 30_000
MENDED_WITHIN_MS = 30_000
LED_BY_PREFERENCE_WITHIN_MS = 15_000
ROUTED_WITHIN_MS = 25_000
READ_WITHIN_MS = 60_000
HOURS_MS = 3 * 3_600_000
"""Longer than any file is kept."""

READ_ATTEMPTS = 10
STEP_MS = 100


@define(slots=True, frozen=True)
class Outcome:
    """What a run has done; ``digest`` is the same for each run of the same plan."""

    operations: int
    stored: int
    read: int
    elections: int
    crashes: int
    events: int
    simulated_ms: int
    digest: str


@define(slots=True, eq=False, repr=False)
class World:
    """See the module. The smaller steps are there for tests that tell a story."""

    plan: SimulationPlan
    timeline: Timeline = field(factory=Timeline)
    hosts: dict[str, BrokerHost] = field(factory=dict)
    wires: SimulatedNetwork = field(init=False)
    watch: Checker = field(init=False)
    name_servers: tuple[NameServerHost, ...] = field(init=False)
    producer: WorkloadProducer = field(init=False)
    reader: WorkloadReader = field(init=False)
    crashes: int = 0
    trace: list[str] | None = None
    """Filled with what happened, when it is a list."""

    _dice: random.Random = field(init=False)
    _misfortunes: Nemesis = field(init=False)
    _operator: Operator = field(init=False)
    _rot: BitRot = field(init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        self._dice = random.Random(f"world {plan.seed}")
        self.wires = SimulatedNetwork(
            self.timeline, self._dice, NetworkFaults(delay_ms=plan.delay_ms)
        )
        for number in range(plan.members):
            host = BrokerHost(
                plan, number, self.timeline, self.wires, self._dice, self._looked_at, self.died
            )
            self.hosts[host.name] = host
        self.name_servers = tuple(
            NameServerHost(number, self.timeline, self.wires) for number in range(plan.name_servers)
        )
        hosts = tuple(self.hosts.values())
        self.watch = (GroupWatch if plan.dledger else ClassicWatch).of(plan, hosts)
        views = self.watch.views if isinstance(self.watch, GroupWatch) else {}
        self._rot = BitRot(self.hosts, views, self._dice)
        self._operator = Operator(self._client("operator", "10.0.1.3")[1])
        self.wires.stamp = self.watch.stamp
        self.wires.tap = self.watch.overhears
        self.producer, self.reader = self._producer(), self._reader()
        self._misfortunes = Nemesis(self, plan, self._dice)

    # The whole

    def run(self) -> Outcome:
        self.begin()
        self.wires.weather = NetworkFaults(
            loss=self.plan.loss,
            repeat=self.plan.repeat,
            delay_ms=self.plan.delay_ms,
            slow=self.plan.slow,
        )
        self.producer.routes.start()
        self.producer.start()
        self.reader.start()
        self._misfortunes.begin()
        self.advance(self.plan.duration_ms)
        self.settle()
        self.read_all()
        return self.outcome()

    def begin(self) -> None:
        """All brokers run; with a classic log in front, where the plan wants one."""
        if self.plan.old_messages:
            self.make_old_log()
        for server in self.name_servers:
            server.start()
        for host in self.hosts.values():
            self.start(host)

    def settle(self) -> None:
        """Mend everything; then there must be a leader soon, and all members must become equal."""
        self._misfortunes.heal()
        self.wires.blocked.clear()
        self.wires.weather = NetworkFaults(delay_ms=self.plan.delay_ms)
        for host in self.hosts.values():
            host.disk.heal()
            if host.life is not None:
                host.life.resume()
                if host.running is not None and host.running.store.health.failure is not None:
                    self.crash(host, power=False)  # what a broken disk needs: a restart
            if host.life is None:
                self.start(host)
        self._wait(LEADER_WITHIN_MS, self._has_leader, "a leader")
        stored = self.producer.stored
        self._wait(TAKES_WITHIN_MS, lambda: self.producer.stored > stored, "message taken")
        self.producer.running = self.reader.running = False
        self._wait(EQUAL_WITHIN_MS, self._is_equal, "equal members")
        self._wait(MENDED_WITHIN_MS, self._is_whole, "whole entries")
        if self.plan.preferred >= 0:
            self._wait(LED_BY_PREFERENCE_WITHIN_MS, self._is_as_preferred, "preferred leader")
        if self.name_servers:
            self._wait(ROUTED_WITHIN_MS, self._is_routed, "right routes")
        # Sends that were under way for long may have come since.
        self._wait(EQUAL_WITHIN_MS, self._is_equal, "equal members")
        self.watch.audit()

    def read_all(self) -> None:
        """Every queue of every broker, to its end, as a client reads it."""
        open_reads = 0

        def read(name: str, queue_id: int, offset: int, attempts: int) -> None:
            def then(after: int, found: bool) -> None:
                nonlocal open_reads
                if after < 0 and attempts < READ_ATTEMPTS:
                    self.timeline.at(STEP_MS, lambda: read(name, queue_id, offset, attempts + 1))
                elif found or after > offset:
                    if not found:
                        self.watch.was_sent_on(name, queue_id, after)
                    read(name, queue_id, after, 0)
                elif offset < self._min_offset(name, queue_id):  # slaves do not say where to go on
                    read(name, queue_id, self._min_offset(name, queue_id), 0)
                else:
                    open_reads -= 1
                    # A slave that was never told of the topic shows nothing of it.
                    if after >= 0 or self.hosts[name] is self.leader():
                        self.watch.read_to_end(name, queue_id, max(after, 0))

            self.reader.pull(name, queue_id, offset, 0, then)

        for name in self.hosts:
            self.reader.make_topic(name)
            for queue_id in range(self.plan.queues):
                open_reads += 1
                read(name, queue_id, self._min_offset(name, queue_id), 0)
        self._wait(READ_WITHIN_MS, lambda: not open_reads, "answers to the last pulls")

    def outcome(self) -> Outcome:
        producer, reader, timeline = self.producer, self.reader, self.timeline
        return Outcome(
            operations=producer.sent + reader.pulls,
            stored=producer.stored,
            read=reader.found,
            elections=self.watch.elections,
            crashes=self.crashes,
            events=timeline.events,
            simulated_ms=timeline.now_ms,
            digest=self._digest(),
        )

    # Its steps

    def advance(self, duration_ms: int) -> None:
        self.timeline.run_until(self.timeline.now_ms + duration_ms)

    def start(self, host: BrokerHost, *, force: bool = False) -> None:
        """A new life, unless the disk is broken or the crash comes at once: then another later."""
        host.disk.now_ms = self.timeline.now_ms
        try:
            host.start(force=force)
        except (MachineCrashError, OSError):
            self.died(host)
            return
        except StoreError as fault:
            self._after_refusal(host, fault, forced=force)
            return
        self.log(f"{host.name} starts")
        self.watch.started(host)

    def _after_refusal(self, host: BrokerHost, fault: StoreError, *, forced: bool) -> None:
        """An operator does what the broker asks for."""
        host.kill()
        if self._operator.restores(host, fault):
            self.log(f"{host.name} does not start: {fault.path} is copied from a replica")
            self.start(host)
        elif self.plan.power and not forced and may_cut(host, fault):
            self.log(f"{host.name} does not start: a torn write in {fault.path} is cut off")
            self.start(host, force=True)
        else:
            raise StartRefusedError(f"{host.name} does not start: {fault}") from fault

    def crash(self, host: BrokerHost, *, power: bool, working: bool = False) -> None:
        """End a life; ``working``: in the middle of an event."""
        self.crashes += 1
        when = " at work" if working else ""
        self.log(f"{host.name} {'loses its power' if power else 'is killed'}{when}")
        self.watch.ended(host, power_lost=power, working=working)
        if power:
            host.lose_power()
        else:
            host.kill()

    def died(self, host: BrokerHost) -> None:
        """A crash in the middle of an event; the machine comes back."""
        self.crash(host, power=self.plan.power, working=True)
        self._misfortunes.start_later(host)

    def hand_over(self, leader: BrokerHost, successor: BrokerHost) -> None:
        """An operator asks for another leader."""
        self.log(f"{leader.name} is asked to hand leadership over to {successor.name}")
        self._operator.hand_over(leader, successor)

    def flip_a_bit(self) -> None:
        """On one of the disks, if one may."""
        told = self._rot.flip()
        if told is not None:
            self.log(told)

    def advance_hours(self) -> None:
        """On all machines; what was written before may expire."""
        self.log("hours pass")
        for host in self.hosts.values():
            host.skew_ms += HOURS_MS
            host.disk.written_back()
            if host.life is not None:
                host.life.skew_ms = host.skew_ms

    def restart_name_server(self) -> None:
        """It forgets all that it knew."""
        server = self._dice.choice(self.name_servers)
        server.kill()
        server.start()
        self.log(f"{server.name} is restarted")

    def leader(self) -> BrokerHost | None:
        """Who leads in the largest term."""
        leading = [
            host
            for host in self.hosts.values()
            if host.running is not None
            and host.running.node is not None
            and host.running.node.role is Role.LEADER
        ]
        return max(leading, key=_term_of, default=None)

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now_ms} {text}")

    # Inside

    def _producer(self) -> WorkloadProducer:
        life, network = self._client("producer", "10.0.1.1")
        servers = name_server_addresses(self.plan.name_servers)
        routes = Routes(TOPIC, life, network, servers, self._dice)
        return WorkloadProducer(
            self.plan, life, network, self._addresses, self._dice, self.watch, routes
        )

    def _reader(self) -> WorkloadReader:
        life, network = self._client("reader", "10.0.1.2")
        return WorkloadReader(self.plan, life, network, self._addresses, self._dice, self.watch)

    @property
    def _addresses(self) -> dict[str, str]:
        return {host.name: host.address for host in self.hosts.values()}

    def _client(self, name: str, host: str) -> tuple[ProcessLifetime, MachineNetwork]:
        machine = Machine(name, host)
        life = ProcessLifetime(self.timeline, _nothing, _nothing, lambda: 1, SimulatedDisk())
        machine.life = life
        return life, MachineNetwork(self.wires, machine, life)

    def _looked_at(self, host: BrokerHost) -> None:
        self.watch.look(host)

    def make_old_log(self) -> None:
        """A broker with the classic log takes messages, is stopped, and is copied to all."""
        old = World(
            evolve(
                self.plan, members=1, dledger=False, power=False, old_messages=0, name_servers=0
            ),
            timeline=self.timeline,
        )
        old.begin()
        while old.producer.stored < self.plan.old_messages:
            old.producer.send()
            old.advance(20)
        (host,) = old.hosts.values()
        host.stop()
        while host.life is not None:
            old.advance(100)
        for path, node in host.disk.nodes.items():
            for other in self.hosts.values():
                other.disk.now_ms = host.disk.now_ms
                other.disk.put(path, bytes(node.data))
        self.watch.begins_with(classic_records(host))

    def _has_leader(self) -> bool:
        return not self.plan.dledger or self.leader() is not None

    def _is_equal(self) -> bool:
        leader = self.leader()
        if not self.plan.dledger:
            return True
        if leader is None or leader.running is None:
            return False
        entries = leader.running.store.opened.entries
        assert entries is not None
        if entries.end.index < 0:
            self.producer.send()  # an empty ledger cannot be compared
        return all(_is_caught_up(host, entries.end.index) for host in self.hosts.values())

    def _is_whole(self) -> bool:
        return self.watch.is_whole

    def _is_as_preferred(self) -> bool:
        return self.leader() is self.hosts[f"n{self.plan.preferred}"]

    def _is_routed(self) -> bool:
        """Every name server knows every broker, and the leader as the master."""
        leader = self.leader() if self.plan.dledger else next(iter(self.hosts.values()))
        wanted = {
            MASTER_ID if host is leader else host.number_as_slave: host.address
            for host in self.hosts.values()
        }
        for machine in self.name_servers:
            assert machine.server is not None
            brokers = machine.server.routes.cluster_info().broker_addr_table.values()
            if [broker.broker_addrs for broker in brokers] != [wanted]:
                return False
        return True

    def _min_offset(self, name: str, queue_id: int) -> int:
        running = self.hosts[name].running
        assert running is not None
        return running.store.reader.min_queue_offset(TOPIC, queue_id)

    def _wait(self, limit_ms: int, holds: Callable[[], bool], what: str) -> None:
        deadline_ms = self.timeline.now_ms + limit_ms
        while not holds():
            if self.timeline.now_ms >= deadline_ms:
                raise InvariantViolationError(
                    f"no {what} within {limit_ms} ms after everything was mended: {self._state()}"
                )
            self.advance(STEP_MS)

    def _state(self) -> str:
        return "; ".join(_state_of(host) for host in self.hosts.values())

    def _digest(self) -> str:
        told = repr((self.timeline.events, self.timeline.now_ms, self.wires.carried))
        return sha256((told + self.watch.digest()).encode()).hexdigest()[:16]


def _nothing() -> None:
    pass


def _term_of(host: BrokerHost) -> int:
    assert host.running is not None and host.running.node is not None
    return host.running.node.term


def _is_caught_up(host: BrokerHost, end: int) -> bool:
    running = host.running
    if running is None or running.store.opened.entries is None:
        return False
    entries = running.store.opened.entries
    return (
        entries.end.index == end
        and entries.committed_index == end
        and not running.store.dispatcher.behind_bytes
    )


def _state_of(host: BrokerHost) -> str:
    running = host.running
    if running is None:
        return f"{host.name} is down"
    entries, node = running.store.opened.entries, running.node
    if entries is None or node is None:
        return f"{host.name} runs"
    return (
        f"{host.name} {node.role.value} term {node.term} end {entries.end.index}"
        f" committed {entries.committed_index} dispatch behind"
        f" {running.store.dispatcher.behind_bytes} bytes failure {running.store.health.failure}"
    )
