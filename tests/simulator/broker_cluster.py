"""A simulated cluster of whole brokers, with clients, name servers and operators.

After all faults are healed, a leader must emerge within ten seconds, and all members must become
equal soon after. Finally, every queue of every broker is read to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attrs import define, evolve, field

from rmqpy.model.errors import StoreError
from rmqpy.model.ids import MASTER_ID
from simulator.bit_rot import BitRot
from simulator.broker_host import ROOT, BrokerHost
from simulator.checkers import BrokerChecker, ClassicChecker, GroupChecker, classic_records
from simulator.cluster import STEP_MS, Cluster, Outcome
from simulator.invariants import InvariantViolationError, StartRefusedError
from simulator.name_servers import NameServerHost, name_server_addresses
from simulator.network import Machine
from simulator.operators import has_diverged, let_join, may_cut
from simulator.records import QUEUE_OFFSET_AT
from simulator.routes import Routes
from simulator.side_traffic import SideTraffic
from simulator.strangers import Stranger
from simulator.table_traffic import TableTraffic
from simulator.workload import TOPIC, WorkloadProducer, WorkloadReader

ACCEPTS_WITHIN_MS = 10_000
EQUAL_WITHIN_MS = 30_000
REPAIRED_WITHIN_MS = 30_000
PREFERRED_LEADS_WITHIN_MS = 40_000
ROUTED_WITHIN_MS = 25_000
DELIVERED_WITHIN_MS = 30_000
IDLE_FROM_MS, IDLE_MS = 2000, 3000
IDLE_SYNCS = 10
"""The number of syncs per second and member that an idle group may need."""

LAG_MS, TAIL_MS = 1500, 8000
"""The time in which members fall behind, and that in which they are among themselves."""

READ_WITHIN_MS = 60_000
HOURS_MS = 3 * 3_600_000
"""Longer than any file is kept."""

READ_ATTEMPTS = 10


@define(slots=True, eq=False, repr=False)
class BrokerCluster(Cluster[BrokerHost]):
    """Brokers with the clients, name servers and operators of a plan."""

    name_servers: tuple[NameServerHost, ...] = field(init=False)
    producer: WorkloadProducer = field(init=False)
    reader: WorkloadReader = field(init=False)
    stranger: Stranger = field(init=False)
    side: SideTraffic | None = field(init=False, default=None)
    tables: TableTraffic | None = field(init=False, default=None)
    checker: BrokerChecker = field(init=False)
    _bit_rot: BitRot = field(init=False)
    _line_broken_ms: int = 0
    _recovery: int = -1
    """The entry that all members must have committed to have recovered from a blackout."""

    def _build(self) -> None:
        plan = self.plan
        for number in range(plan.members):
            host = BrokerHost(
                plan, number, self.timeline, self.network, self.rng, self._checked, self._crashed
            )
            self.hosts[host.name] = host
        self.name_servers = tuple(
            NameServerHost(number, self.timeline, self.network)
            for number in range(plan.name_servers)
        )
        hosts = tuple(self.hosts.values())
        self.checker = (GroupChecker if plan.dledger else ClassicChecker).of(plan, hosts)
        views = self.checker.views if isinstance(self.checker, GroupChecker) else {}
        self._bit_rot = BitRot(self.hosts, views, self.rng)
        self.producer, self.reader = self._producer(), self._reader()
        if plan.side_interval_ms and isinstance(self.checker, GroupChecker):
            life, client = self._client("side", "10.0.1.4")
            self.side = SideTraffic(
                plan,
                life,
                client,
                self._addresses,
                self._leader_name,
                self.rng,
                self.checker.invariants,
                self.checker,
            )
        if plan.table_interval_ms:
            life, client = self._client("admin", "10.0.1.5")
            self.tables = TableTraffic(
                plan.table_interval_ms, life, client, self.hosts, self._leader_name, self.rng
            )
        self.stranger = Stranger(self._client("stranger", "10.0.1.9")[1], self.hosts, self.rng)

    def begin(self) -> None:
        """Start all brokers, with a classic log before the DLedger log if the plan has one."""
        if self.plan.old_messages:
            self.make_old_log()
        for server in self.name_servers:
            server.start()
        for host in self.hosts.values():
            self.start(host)
            hidden = host.running.store.queues.hidden_count if host.running is not None else -1
            if hidden != self.checker.hidden:
                raise InvariantViolationError(
                    f"{host.name} reports {hidden} hidden messages of {self.checker.hidden}"
                )

    def start_workload(self) -> None:
        self.producer.routes.start()
        self.producer.start()
        self.reader.start()
        if self.side is not None:
            self.side.start()
        if self.tables is not None:
            self.tables.start()

    def _converge(self) -> None:
        stored = self.producer.stored
        self._wait(ACCEPTS_WITHIN_MS, lambda: self.producer.stored > stored, "message accepted")
        self.producer.running = self.reader.running = False
        if self.side is not None:
            self.side.running = False
            self._wait(DELIVERED_WITHIN_MS, self.side.check_done, "delivery of side messages")
        if self.tables is not None:
            self.tables.running = False
        if self.tables is not None and self.name_servers:  # which name the master to the slaves
            self._wait(EQUAL_WITHIN_MS, self.tables.are_equal, "equal tables")
        self._wait(EQUAL_WITHIN_MS, self._is_equal, "equal members")
        self._wait(REPAIRED_WITHIN_MS, self.is_undamaged, "undamaged log")
        if self.plan.preferred >= 0:
            self._wait(PREFERRED_LEADS_WITHIN_MS, self._preferred_leads, "preferred leader")
        if self.name_servers:
            self._wait(ROUTED_WITHIN_MS, self._is_routed, "correct routes")
        # Sends that were delayed for long may have arrived since.
        self._wait(EQUAL_WITHIN_MS, self._is_equal, "equal members")
        self.checker.audit()
        self.read_all()
        self.check_idle()

    def check_idle(self) -> None:
        """Check that a group without work is idle: few messages, and hardly any sync."""
        self.advance(IDLE_FROM_MS)
        carried, syncs = self.network.carried, self._sync_count()
        self.advance(IDLE_MS)
        members, seconds = len(self.hosts), IDLE_MS / 1000
        exchanges = (members - 1) * (1000 / self.plan.heartbeat_ms + 1)
        expected = 4 * exchanges + 10 * (members + self.plan.name_servers)
        messages = (self.network.carried - carried) / seconds
        if messages > expected:
            raise InvariantViolationError(
                f"an idle group sends {messages:.0f} messages per second; expected are at most"
                f" {expected:.0f}: {self._state()}"
            )
        synced = (self._sync_count() - syncs) / seconds / members
        if synced > IDLE_SYNCS:
            raise InvariantViolationError(f"an idle member syncs {synced:.1f} files per second")

    def _sync_count(self) -> int:
        return sum(host.disk.sync_count for host in self.hosts.values())

    def read_all(self) -> None:
        """Read every queue of every broker to its end, as a client does."""
        open_reads = 0

        def read(name: str, queue_id: int, offset: int, attempts: int) -> None:
            def then(after: int, found: bool) -> None:
                nonlocal open_reads
                if after < 0 and attempts < READ_ATTEMPTS:
                    self.timeline.at(STEP_MS, lambda: read(name, queue_id, offset, attempts + 1))
                elif found or after > offset:
                    if not found:
                        self.checker.on_offset_moved(name, queue_id, after)
                    read(name, queue_id, after, 0)
                elif offset < self._min_offset(name, queue_id):  # slaves return no next offset
                    read(name, queue_id, self._min_offset(name, queue_id), 0)
                else:
                    open_reads -= 1
                    # A slave that does not know the topic serves none of its messages.
                    if after >= 0 or self.hosts[name] is self.leader():
                        self.checker.check_end(name, queue_id, max(after, 0))

            self.reader.pull(name, queue_id, offset, 0, then)

        for name in self.hosts:
            self.reader.create_topic(name)
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
            elections=self.checker.elections,
            crashes=self.crashes,
            events=timeline.events,
            simulated_ms=timeline.now_ms,
            digest=self._digest(),
        )

    @property
    def _has_power_failures(self) -> bool:
        return self.plan.power or (self.plan.sync_flush and self.plan.blackout_interval_ms > 0)

    def pulse(self, host: BrokerHost, acknowledged: Callable[[], None]) -> None:
        self.producer.send(host.name, acknowledged)

    def start(self, host: BrokerHost, *, force: bool = False) -> None:
        """Start a broker; if it refuses, an operator follows its error message."""
        host.disk.now_ms = self.timeline.now_ms
        tables = TableTraffic.tables_of(host)
        try:
            Cluster.start(self, host, force=force)
            TableTraffic.check_started(host, tables)
        except StoreError as fault:
            self._after_refusal(host, fault, forced=force)

    def _after_refusal(self, host: BrokerHost, fault: StoreError, *, forced: bool) -> None:
        """Let an operator follow the error message of a refused start."""
        host.kill()
        if self.operator.restore(host, fault):
            self.log(f"{host.name} does not start: {fault.path} is copied from a replica")
            self.start(host)
        elif self._has_power_failures and not forced and may_cut(host, fault):
            self.log(f"{host.name} does not start: a torn write in {fault.path} is cut off")
            self.start(host, force=True)
        else:
            raise StartRefusedError(f"{host.name} does not start: {fault}") from fault

    def stop(self, host: BrokerHost) -> None:
        def stopped() -> None:
            self.log(f"{host.name} has stopped")
            self.checker.ended(host.name, power_lost=False, working=False)
            self.nemesis.start_later(host)

        if not host.stopping:
            self.log(f"{host.name} stops")
            host.stop(stopped)

    def flip_bit(self) -> None:
        stopped = [host for host in self.hosts.values() if host.life is None]
        if stopped:
            flipped = self._bit_rot.flip_stopped(self.rng.choice(stopped))
        else:
            flipped = self._bit_rot.flip()
        if flipped is not None:
            self.log(flipped)

    def lose_tail(self) -> None:
        """Let a majority have an entry that the others lack, and all of it end; one of it starts
        again at once, with a flipped bit in that entry.
        """
        leader = self.leader()
        followers = [host for host in self.hosts.values() if host is not leader and host.running]
        quorum = len(self.hosts) // 2 + 1
        if leader is None or len(followers) < quorum or self.progress.calm:
            return
        self.rng.shuffle(followers)
        victim, ended, lagging = followers[0], followers[1 : quorum - 1], followers[quorum - 1 :]
        ended.append(leader)
        for host in lagging:
            self.network.isolate(host.name, [victim.name, *(each.name for each in ended)])
        self.log(f"{' '.join(host.name for host in lagging)} lag behind {victim.name}")

        def stopped() -> None:
            self.log(f"{victim.name} has stopped")
            self.checker.ended(victim.name, power_lost=False, working=False)
            if not self.nemesis.running:
                self.start(victim)
                return
            if not any(host.disk.flips for host in self.hosts.values()):
                self.log(self._bit_rot.flip_last(victim) or "nothing to flip")
            for host in ended:
                if host.life is not None:
                    self.crash(host, power=False)
                self.timeline.at(TAIL_MS, partial(self._start_if_down, host))
            self.network.blocked.clear()
            self.start(victim)

        def stop() -> None:
            if not self.nemesis.running or self.progress.calm:
                return
            if victim.running is not None and not victim.stopping:
                self.log(f"{victim.name} stops")
                victim.stop(stopped)

        self.timeline.at(LAG_MS, stop)

    def break_line(self) -> None:
        """Break the connection from the leader to a member, whose next frame is lost."""
        leader, now_ms = self.leader(), self.timeline.now_ms
        others = [host for host in self.hosts.values() if host is not leader and host.running]
        rested = now_ms >= self._line_broken_ms + 2 * self.progress.leak_ms
        if leader is not None and leader.client is not None and others and rested:
            self._line_broken_ms = now_ms
            other = self.rng.choice(others)
            self.log(f"the connection from {leader.name} to {other.name} breaks")
            self.network.break_line(leader.client, other.machine)

    def _start_if_down(self, host: BrokerHost) -> None:
        if host.life is None:
            self.start(host)

    def has_recovered(self, *, late: bool) -> bool:
        """Return whether all members follow one leader and have what it had then."""
        if late:
            Cluster.has_recovered(self, late=True)
        if any(host.running is None for host in self.hosts.values()):
            return False
        if self.plan.dledger:
            diverged = [host for host in self.hosts.values() if has_diverged(host)]
            for host in diverged:
                self._let_join(host)
            if diverged or not self._have_caught_up():
                return False
        self._recovery = -1
        self.checker.recovered()
        return True

    def _let_join(self, host: BrokerHost) -> None:
        """Let an operator stop a member that has diverged, and let it join again."""

        def stopped() -> None:
            self.checker.ended(host.name, power_lost=False, working=False)
            leader = self.leader()
            if leader is not None:
                self.log(f"{host.name} joins again with the data of {leader.name}")
                let_join(host, leader)
                self.checker.joined(host.name)
            self.start(host)

        if not host.stopping:
            self.log(f"{host.name} stops, because it has diverged")
            host.stop(stopped)

    def _have_caught_up(self) -> bool:
        leader = self.leader()
        if leader is None or leader.node is None or leader.node.refusal() is not None:
            return False
        if any(host.node and host.node.leader_id != leader.name for host in self.hosts.values()):
            return False
        if self._recovery < 0:
            self._recovery = max(0, leader.node.committed_index)
        # One that knows more than the leader has not compared its log with the leader's yet.
        known = range(self._recovery, leader.node.committed_index + 1)
        nodes = [host.node for host in self.hosts.values()]
        return all(node is not None and node.committed_index in known for node in nodes)

    def expire_files(self) -> None:
        """Let hours pass on all machines: what was written before may expire."""
        self.log("hours pass")
        for host in self.hosts.values():
            host.skew_ms += HOURS_MS
            host.disk.written_back()
            if host.life is not None:
                host.life.skew_ms = host.skew_ms

    def forge_request(self) -> None:
        self.stranger.send()

    def restart_name_server(self) -> None:
        server = self.rng.choice(self.name_servers)
        server.kill()
        server.start()
        self.log(f"{server.name} is restarted")

    # Inside

    def _on_write(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        Cluster._on_write(self, machine, port, to, piece)
        if self.tables is not None:
            self.tables.on_write(machine.name, port, to, piece)

    def _producer(self) -> WorkloadProducer:
        life, client = self._client("producer", "10.0.1.1")
        servers = name_server_addresses(self.plan.name_servers)
        routes = Routes(TOPIC, life, client, servers, self.rng)
        return WorkloadProducer(
            self.plan,
            life,
            client,
            self._addresses,
            self.rng,
            self.checker,
            routes,
            is_paused=lambda: self.plan.quiet and bool(self.progress.calm),
        )

    def _reader(self) -> WorkloadReader:
        life, client = self._client("reader", "10.0.1.2")
        return WorkloadReader(self.plan, life, client, self._addresses, self.rng, self.checker)

    def _leader_name(self) -> str | None:
        leader = self.leader()
        return leader.name if leader is not None else None

    @property
    def _addresses(self) -> dict[str, str]:
        return {host.name: host.address for host in self.hosts.values()}

    def make_old_log(self) -> None:
        """Fill a classic log with a broker, stop it, and copy its files to all hosts."""
        old = BrokerCluster(
            evolve(
                self.plan,
                members=1,
                dledger=False,
                power=False,
                old_messages=0,
                name_servers=0,
                table_interval_ms=0,
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
        if self.plan.twice:
            _number_last_message_twice(host)
        for path, node in host.disk.nodes.items():
            for other in self.hosts.values():
                other.disk.now_ms = host.disk.now_ms
                other.disk.put(path, bytes(node.data))
        self.checker.start_from(classic_records(host))

    def _has_leader(self) -> bool:
        return not self.plan.dledger or Cluster._has_leader(self)

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

    def is_undamaged(self) -> bool:
        return self.checker.is_undamaged

    def _preferred_leads(self) -> bool:
        return self.leader() is self.hosts[f"n{self.plan.preferred}"]

    def _is_routed(self) -> bool:
        """Return whether all name servers know all brokers, and the leader as the master."""
        leader = self.leader() if self.plan.dledger else next(iter(self.hosts.values()))
        expected = {
            MASTER_ID if host is leader else host.slave_id: host.address
            for host in self.hosts.values()
        }
        for machine in self.name_servers:
            assert machine.server is not None
            brokers = machine.server.routes.cluster_info().broker_addr_table.values()
            if [broker.broker_addrs for broker in brokers] != [expected]:
                return False
        return True

    def _min_offset(self, name: str, queue_id: int) -> int:
        running = self.hosts[name].running
        assert running is not None
        return running.store.reader.min_queue_offset(TOPIC, queue_id)

    def _state_of(self, host: BrokerHost) -> str:
        running = host.running
        if running is None or running.store.opened.entries is None:
            return Cluster._state_of(self, host)
        store = running.store
        return (
            f"{Cluster._state_of(self, host)} end {running.store.opened.entries.end.index}"
            f" {store.dispatcher.behind_bytes} bytes to dispatch, failure {store.health.failure}"
        )


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


def _number_last_message_twice(host: BrokerHost) -> None:
    """Give the last message of a stopped broker the queue offset of the one before it in its queue,
    if there is one, and remove the consume queues, which the next start builds again.
    """
    last = classic_records(host)[-1]
    if not last.queue_offset:
        return
    start = last.physical_offset % host.plan.file_size
    path = f"{ROOT}/commitlog/{last.physical_offset - start:020d}"
    at = start + QUEUE_OFFSET_AT
    host.disk.nodes[path].data[at : at + 8] = (last.queue_offset - 1).to_bytes(8)
    for each in [each for each in host.disk.nodes if each.startswith(f"{ROOT}/consumequeue/")]:
        del host.disk.nodes[each]
