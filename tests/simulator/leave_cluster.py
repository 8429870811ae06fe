"""A DLedger group that a classic slave follows, and takes over from, under kills, power failures,
pauses, and partitions.

Brokers, DLedger, stores, and both sides of the leave are those of production; only the transfer of
the log to the slave is simulated: it copies what a leader serves (``ClassicView``). After every
event, at most one log accepts messages, and once the slave has been master no member takes part in
the group. After all faults are healed, either the slave has everything that was acknowledged, or
the group goes on, without a trace of the leave.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from attrs import define, evolve

from rmqpy.broker.assembly.leave.member import LeavingMember, LeavingParts
from rmqpy.broker.assembly.leave.record import checked_configuration, leave_journal
from rmqpy.broker.assembly.leave.slave import LeavingSlave, TakingParts
from rmqpy.broker.assembly.switch.exchange import log_is_quiet
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.leave_protocol import SLAVE
from rmqpy.broker.replication.master_discovery import MasterAddress
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.replication.switch_protocol import SwitchPlan
from rmqpy.codec.message import decode_message
from rmqpy.config.keys import BrokerRole
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.message import marker
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.store.commitlog.classic_view import ClassicView
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import read_span
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.blocking_connection import send_request
from simulator.broker_host import ROOT, BrokerHost, Running
from simulator.disks import SimulatedDisk
from simulator.host import ledger_address
from simulator.invariants import InvariantViolationError
from simulator.network import Machine, NetworkClient, NetworkFaults, SimulatedNetwork
from simulator.plan import SimulationPlan
from simulator.virtual_time import MachineCrashError, ProcessLifetime, Timeline

MEMBERS = 3
SLAVE_ID = 9
COPY_MS = 40
SEND_MS = 15
LEAVE_MS = 1200
TIMEOUT_MS = 3000
FAULTY_MS = 7000
HEALED_MS = 12_000
TOPIC = "T"


@define(slots=True, eq=False)
class ServedEntries:
    """What a member serves to slaves (``SlaveStream``)."""

    running: Running
    view: ClassicView
    marked_end: int = 0

    @property
    def end(self) -> int:
        return self.view.confirm_offset

    @property
    def is_complete(self) -> bool:
        log = self.running.store.log
        return log.max_offset == self.marked_end == log.confirm_offset

    def complete(self) -> None:
        store, driver = self.running.store, self.running.driver
        assert driver is not None
        if driver.carrier.leads and store.appender.is_ready() and not self.is_complete:
            identity, life = self.running.broker.identity, self.running.life
            store.appender.put([marker("for slaves", identity.store_host, life.now_ms())])
            self.marked_end = store.log.max_offset


@define(slots=True, eq=False, repr=False)
class MemberHost(BrokerHost):
    """A member of the group."""

    leaving: LeavingMember | None = None
    stream: ServedEntries | None = None
    has_left: bool = False

    @property
    def journal(self) -> SwitchJournal:
        return leave_journal(self.disk, ROOT)

    def start(self, *, force: bool = False) -> None:
        try:
            checked_configuration(self.journal, self.configuration(True))
        except StoreError:
            self.has_left = True
            return
        BrokerHost.start(self, force=force)

    def assembled(self, running: Running) -> None:
        log = running.store.log
        assert isinstance(log, JoinedCommitLog | DLedgerCommitLog)
        assert running.driver is not None and self.client is not None
        self.stream = ServedEntries(running, ClassicView(log))
        running.broker.fence.serve(self.stream)
        self.leaving = LeavingMember(
            LeavingParts(
                broker=running.broker,
                store=running.store,
                driver=running.driver,
                stream=self.stream,
                scheduler=running.life,
                network=self.client,
                journal=self.journal,
                left=lambda: None,
            )
        )
        running.broker.server.register_handlers(self.leaving.handlers())
        self.leaving.resume()

    @property
    def takes_part(self) -> bool:
        """True if this member can vote, lead, or accept entries, now or when it is started."""
        if self.running is None:
            return not self.has_left and self.journal.read() is None
        driver = self.running.driver
        assert driver is not None
        return not driver.is_paused and not driver.carrier.stopped

    @property
    def is_writable(self) -> bool:
        if self.running is None or not self.takes_part:
            return False
        driver = self.running.driver
        assert driver is not None
        return driver.carrier.leads and self.running.store.appender.is_ready()


@define(slots=True, eq=False, repr=False)
class LogCopier:
    """The follower of the slave (``MasterFollower``), which copies the view of a leader."""

    host: SlaveHost
    running: Running
    _token: object = None

    def start(self) -> None:
        token = self._token = object()
        self._later(token)

    def stop(self) -> None:
        self._token = None

    def _later(self, token: object) -> None:
        self.running.life.call_later(COPY_MS, lambda: self._copy(token))

    def _copy(self, token: object) -> None:
        if token is not self._token:
            return
        self._later(token)
        leader = self.host.reachable_leader()
        if leader is None or leader.stream is None:
            return
        ha_address = f"{leader.machine.host}:10912"
        self.running.broker.masters.follow(MasterAddress(leader.address, ha_address))
        store, view = self.running.store, leader.stream.view
        start, end = store.log.max_offset, view.confirm_offset
        if end > start:
            size = self.host.plan.file_size
            count = min(end - start, size - start % size)  # a transfer stays in its file
            store.append_raw(PhysicalOffset(start), read_span(view, start, count))
            self.running.broker.server.turn_ended()


@define(slots=True, eq=False, repr=False)
class SlaveHost(BrokerHost):
    """The classic slave."""

    members: Sequence[MemberHost] = ()
    leaving: LeavingSlave | None = None

    @property
    def journal(self) -> SwitchJournal:
        return leave_journal(self.disk, ROOT)

    def configuration(self, dledger: bool) -> BrokerConfiguration:
        base = BrokerHost.configuration(self, False)
        slave = evolve(
            base,
            broker=evolve(base.broker, broker_id=SLAVE_ID),
            store=evolve(base.store, broker_role=BrokerRole.SLAVE),
        )
        conf = f"{ROOT}/broker.conf"
        if self.disk.exists(conf) and b"brokerRole=ASYNC_MASTER" in self.disk.read_bytes(conf):
            return base
        return checked_configuration(self.journal, slave)

    def assembled(self, running: Running) -> None:
        broker, store = running.broker, running.store
        assert self.client is not None
        if broker.identity.is_slave:
            store.set_role(slave=True)
        change = RoleChange(
            broker.identity,
            store,
            broker.registration,
            broker.services,
            broker.server.leadership_lost,
        )
        role = ClassicRole(
            identity=broker.identity,
            change=change,
            masters=broker.masters,
            tables=broker.metadata_sync,
            fence=broker.fence,
            log_end=lambda: store.log.max_offset,
            configure=broker.settings.apply,
            make_follower=lambda: LogCopier(self, running),
            disconnect=lambda _reason: None,
        )
        writer = DeferredFileWriter(f"{ROOT}/broker.conf", self.disk, running.life)
        broker.settings.file = SettingsFile(writer, {})
        self.leaving = LeavingSlave(
            TakingParts(
                broker=broker,
                store=store,
                role=role,
                is_quiet=partial(log_is_quiet, broker, store),
                scheduler=running.life,
                network=self.client,
                journal=self.journal,
            )
        )
        broker.server.register_handlers(self.leaving.handlers())
        self.leaving.resume()
        role.start()

    def reachable_leader(self) -> MemberHost | None:
        """Return the leader that the slave is connected to."""
        for member in self.members:
            running = member.running
            way = (member.name, self.name)
            if (
                running is not None
                and running.driver is not None
                and running.driver.carrier.leads
                and running.life.paused_until_ms <= self.timeline.now_ms
                and way not in self.network.blocked
            ):
                return member
        return None

    @property
    def is_writable(self) -> bool:
        return self.running is not None and not self.running.store.health.is_slave


class LeaveCluster:
    """One seed: the group, the slave, a producer, an operator, and faults."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.rng = random.Random(f"leave {seed}")
        self.timeline = Timeline()
        plan = SimulationPlan(seed=seed, heartbeat_ms=600, duration_ms=FAULTY_MS, sync_flush=True)
        self.network = SimulatedNetwork(
            self.timeline, self.rng, NetworkFaults(delay_ms=2, slow=0.01 if faults else 0.0)
        )
        own = self.timeline, self.network, self.rng
        self.members = [
            MemberHost(plan, each, *own, self._checked, self._crashed) for each in range(MEMBERS)
        ]
        self.slave = SlaveHost(plan, MEMBERS, *own, self._checked, self._crashed)
        self.slave.members = self.members
        self.hosts: list[MemberHost | SlaveHost] = [*self.members, self.slave]
        self.acknowledged: set[bytes] = set()
        self.was_master = False
        self.leaves = 0
        self._sent = 0
        self._faulty = faults
        self._clients = [self._client("producer", "10.0.1.1"), self._client("admin", "10.0.1.2")]

    def run(self) -> bool:
        """Run, and return whether the slave has taken over."""
        for host in self.hosts:
            self._start(host)
        self._sending()
        self.timeline.at(LEAVE_MS, self._leave)
        if self._faulty:
            self.timeline.at(LEAVE_MS, self._fault)
        self.timeline.run_until(FAULTY_MS)
        self._faulty = False
        self.network.blocked.clear()
        self.network.faults = NetworkFaults(delay_ms=2)
        self.timeline.run_until(FAULTY_MS + HEALED_MS)
        self._check_end()
        return self.was_master

    # Clients

    def _client(self, name: str, host: str) -> NetworkClient:
        machine = Machine(name, host)
        life = machine.life = ProcessLifetime(
            self.timeline, lambda: None, lambda: None, lambda: 1, SimulatedDisk()
        )
        return NetworkClient(self.network, machine, life)

    def _sending(self) -> None:
        """Send a message to a random broker: those that are no masters refuse it, or pass it on."""
        if self.timeline.now_ms >= FAULTY_MS + HEALED_MS // 2:
            return
        self.timeline.at(SEND_MS if self._faulty else 20 * SEND_MS, self._sending)
        self._sent += 1
        body = b"%d" % self._sent

        def answered(response: RemotingCommand | None, _fault: RmqError | None) -> None:
            if response is not None and response.code == 0:
                self.acknowledged.add(body)

        host = self.rng.choice(self.hosts)
        request = send_request(TOPIC, 0, [body], "")
        self._clients[0].request(host.address, request, TIMEOUT_MS, answered)

    def _leave(self) -> None:
        """Ask the slave to take over, again after an abort."""
        if self.timeline.now_ms >= FAULTY_MS - LEAVE_MS or self.was_master:
            return
        self.timeline.at(LEAVE_MS, self._leave)
        self.leaves += 1
        brokers = {each.name: each.address for each in self.members}
        plan = SwitchPlan(
            switch=f"l{self.leaves}",
            group="broker-a",
            coordinator=SLAVE,
            peers=";".join(f"n{each}-{ledger_address(each)}" for each in range(MEMBERS)),
            brokers={**brokers, SLAVE: self.slave.address},
        )
        body = dumps({"step": "start", "plan": plan.encode(), "member": SLAVE})
        request = RemotingCommand.request(RequestCode.RMQPY_LEAVE, body=body)
        self._clients[1].request(self.slave.address, request, TIMEOUT_MS, lambda *_answer: None)

    # Faults

    def _fault(self) -> None:
        if not self._faulty:
            return
        rng = self.rng
        self.timeline.at(1 + rng.randrange(1600), self._fault)
        host = rng.choice(self.hosts)
        kind = rng.choice(("kill", "power", "tear", "pause", "cut", "cut"))
        if host.life is None:
            return
        if kind == "kill" or kind == "power":
            self._end(host, power=kind == "power")
        elif kind == "tear":
            host.disk.crash_after = rng.randrange(6)
        elif kind == "pause":
            host.life.paused_until_ms = self.timeline.now_ms + 1 + rng.randrange(1500)
        else:
            names = [each.name for each in self.hosts if each is not host]
            self.network.isolate(host.name, rng.sample(names, 1 + rng.randrange(3)))
            self.timeline.at(1 + rng.randrange(2000), self.network.blocked.clear)

    def _crashed(self, name: str) -> None:
        (host,) = (each for each in self.hosts if each.name == name)
        self._end(host, power=self.rng.random() < 0.5)

    def _end(self, host: MemberHost | SlaveHost, *, power: bool) -> None:
        if host.life is not None:
            if power:
                host.lose_power()
            else:
                host.kill()
        host.disk.crash_after = -1
        self.timeline.at(100 + self.rng.randrange(1500), lambda: self._start(host))

    def _start(self, host: MemberHost | SlaveHost) -> None:
        if host.life is not None:
            return
        try:
            host.start()
        except (MachineCrashError, OSError):
            self._end(host, power=False)

    # Invariants

    def _checked(self, _name: str) -> None:
        takes_over = self.slave.is_writable
        self.was_master |= takes_over
        if takes_over and any(each.is_writable for each in self.members):
            raise InvariantViolationError("two logs accept messages")
        if self.was_master:
            back = [each.name for each in self.members if each.takes_part]
            if back:
                raise InvariantViolationError(
                    f"{', '.join(back)} can take part in the group, and the slave was its master"
                )

    def _check_end(self) -> None:
        stores = [each.running.store for each in self.members if each.running is not None]
        if self.was_master:
            if not self.slave.is_writable or self.slave.running is None:
                raise InvariantViolationError("the slave that took over is no master")
            stores = [self.slave.running.store]
            if any(each.journal.outcome(f"l{self.leaves}") is None for each in self.members):
                raise InvariantViolationError("a member does not know the decision")
        else:
            recorded = [each.name for each in self.hosts if each.journal.read() is not None]
            if recorded or len(stores) < MEMBERS or not any(e.is_writable for e in self.members):
                raise InvariantViolationError(
                    f"no leave was decided, and the group does not continue: records of {recorded}"
                )
        for store in stores:
            lost = self.acknowledged - _bodies(store)
            if lost:
                raise InvariantViolationError(f"{len(lost)} acknowledged messages are lost: {lost}")


def _bodies(store: MessageStore) -> set[bytes]:
    found: list[bytes] = []
    while True:
        page = store.reader.get_message(TOPIC, 0, len(found), 32, None)
        if not page.messages:
            return set(found)
        found += [decode_message(message).body for message in page.messages]
