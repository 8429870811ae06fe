"""A master and its slaves that become a DLedger group together, under kills, power failures, stops,
pauses, slow and failing disks, partitions, and an operator who aborts.

After every event, at most one kind of log accepts messages, and once a member has a DLedger log no
broker can be classic again, not even one that is down. After all faults are healed, all brokers are
members with the same log, in which everything that was acknowledged is once, or all are classic,
without a trace of the switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, evolve, field

from rmqpy.broker.assembly.dledger_group import DLedgerDependencies, start_dledger_member
from rmqpy.broker.assembly.group_member import PeerPort
from rmqpy.broker.assembly.switch.exchange import SwitchingBroker
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.live import LiveSwitch
from rmqpy.broker.assembly.switch.local import SwitchDependencies
from rmqpy.broker.assembly.switch.requests import JoinedMember, complete_switch
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.replication.switch_protocol import Coordinator, SwitchPlan, SwitchStage
from rmqpy.config.keys import BrokerRole
from rmqpy.config.loading import (
    BrokerConfiguration,
    configuration_text,
    parse_broker_configuration,
)
from rmqpy.model.codes import RequestCode
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.store.commitlog.interface import read_span
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.message_store import MessageStore
from simulator.broker_host import ROOT, BrokerHost, Running
from simulator.host import LEDGER_PORT, member_host
from simulator.invariants import InvariantViolationError
from simulator.live_cluster import (
    MEMBERS,
    LiveCluster,
    LiveHost,
    LogCopier,
    LogSource,
    check_messages,
    group_peers,
)

MASTER = MEMBERS - 1
"""The number of the master: a slave becomes the member whose number is its brokerId minus 1."""
CONF = f"{ROOT}/broker.conf"
CANCEL_MS = 1500
UNSYNCED = 0.3
"""The probability of a seed whose slaves copy what the master has not synced. After a power failure
the master may have other bytes there than a slave.
"""


@define(slots=True, frozen=True, eq=False, repr=False)
class SimulatedGroup:
    """The classic side of a broker (``ClassicSide``)."""

    role: ClassicRole

    def retire(self, reason: str) -> None:
        self.role.lock(reason)


@define(slots=True, eq=False, repr=False)
class SimulatedStandby:
    """The DLedger side of a broker (``StandbyMember``)."""

    host: SwitchHost
    running: Running
    port: PeerPort = field(factory=PeerPort, init=False)
    _driver: DLedgerDriver | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def driver(self) -> DLedgerDriver:
        assert self._driver is not None
        return self._driver

    def open(self, opened: Callable[[str], None]) -> None:
        def listening() -> None:
            if not self._closed:
                self.host.network.listen(self.host.machine, LEDGER_PORT, self.port)
                opened("")

        self.running.life.call_later(1, listening)

    def join(self, broker: Broker, store: MessageStore) -> None:
        self._driver = self.port.driver = self.host.start_member(self.running, broker, store)

    def joined(self) -> None:
        self.running.driver = self.driver

    def close(self) -> None:
        self._closed = True
        self.host.network.ports.pop(f"{self.host.machine.host}:{LEDGER_PORT}", None)


@define(slots=True, eq=False, repr=False)
class SwitchHost(LiveHost):
    """A broker of the group."""

    hosts: Sequence[SwitchHost] = ()
    serves_unsynced: bool = False
    switch: LiveSwitch | None = None
    role: ClassicRole | None = None

    @property
    def journal(self) -> SwitchJournal:
        return SwitchJournal(self.disk, ROOT)

    @property
    def is_master(self) -> bool:
        """Whether this broker was the master of the classic group."""
        return self.number == MASTER

    def install(self) -> None:
        """Write broker.conf."""
        base = BrokerHost.configuration(self, False)
        changed = evolve(
            base,
            broker=evolve(base.broker, broker_id=0 if self.is_master else self.number + 1),
            remoting=evolve(base.remoting, bind_address="0.0.0.0"),
            store=base.store
            if self.is_master
            else evolve(base.store, broker_role=BrokerRole.SLAVE),
        )
        self.disk.put(CONF, configuration_text(changed).encode())

    def configuration(self, dledger: bool) -> BrokerConfiguration:
        text = self.disk.read_bytes(CONF).decode()
        found = parse_broker_configuration(text, CONF).configuration
        return self.journal.configuration(found)

    def start(self, *, force: bool = False) -> None:
        BrokerHost.start(self, force=force)
        assert self.running is not None
        if self.switch is not None and self.role is not None:
            self.switch.resume(self.journal.read())
            self.role.start()

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        if self.switch is not None:
            self.switch.stop()
        if self.role is not None:
            self.role.stop()
        BrokerHost.stop(self, then)

    def end_life(self) -> None:
        self.switch = self.role = None
        BrokerHost.end_life(self)

    def assembled(self, running: Running) -> None:
        broker, store = running.broker, running.store
        writer = DeferredFileWriter(CONF, self.disk, running.life)
        broker.settings.file = SettingsFile(writer, {})
        if store.opened.dledger is not None:
            broker.server.register_handlers(JoinedMember(self.journal).handlers())
            complete_switch(broker, self.journal)
            return
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
        self.role = ClassicRole(
            identity=broker.identity,
            change=change,
            masters=broker.masters,
            tables=broker.metadata_sync,
            fence=broker.fence,
            log_end=lambda: store.log.max_offset,
            configure=broker.settings.apply,
            make_follower=lambda: LogCopier(running, self.plan.file_size, self._source),
            disconnect=lambda _reason: None,
        )
        self.switch = LiveSwitch(
            SwitchDependencies(
                running=SwitchingBroker(broker, store, SimulatedGroup(self.role)),
                scheduler=running.life,
                network=self.client,
                journal=self.journal,
                make_member=lambda _configuration: SimulatedStandby(self, running),
                load_modules=lambda _before: None,
            )
        )
        broker.server.register_handlers(self.switch.handlers())

    def start_member(self, running: Running, broker: Broker, store: MessageStore) -> DLedgerDriver:
        """Return the driver of the member that this broker has become, which is not started."""
        assert self.client is not None
        driver = start_dledger_member(
            broker,
            store,
            DLedgerDependencies(
                scheduler=running.life,
                network=self.client,
                rng=self.rng.randrange,
                admission=PeerAdmission(set(map(member_host, range(MEMBERS))).__contains__),
                tick_ms=self.plan.tick_ms,
            ),
        )
        assert driver is not None
        return driver

    def _source(self) -> LogSource | None:
        """Return the log of the master, if this slave is connected to it."""
        master = self.hosts[MASTER]
        running = master.running
        if (
            running is None
            or running.store.opened.dledger is not None
            or running.life.paused_until_ms > self.timeline.now_ms
            or (master.name, self.name) in self.network.blocked
        ):
            return None
        log = running.store.opened.classic
        assert log is not None
        end = log.confirm_offset
        return LogSource(master, log, end if self.serves_unsynced else min(end, log.flushed_offset))

    @property
    def is_classic(self) -> bool:
        return self.running is not None and self.running.store.opened.dledger is None

    @property
    def is_writable(self) -> bool:
        if self.running is None or not self.running.store.health.writeable:
            return False
        driver = self.running.driver
        return self.is_classic or (
            driver is not None and driver.carrier.leads and self.running.store.appender.is_ready()
        )

    @property
    def phase(self) -> str:
        if self.running is None:
            return "down"
        role = self.switch._role if self.switch is not None else None
        return role.phase.value if isinstance(role, Coordinator) else ""

    @property
    def stage(self) -> SwitchStage | None:
        """The stage that the disk contains."""
        record = self.journal.read()
        return None if record is None else record.stage

    @property
    def can_be_classic(self) -> bool:
        """Whether this broker accepts or stores messages in its classic log, or would do so if it
        was started now.
        """
        if self.running is not None and not self.is_classic:
            return False
        # broker.conf is written before the record says so.
        return self.stage is None


class SwitchCluster(LiveCluster[SwitchHost]):
    """The group."""

    code = RequestCode.RMQPY_SWITCH
    kinds = (*LiveCluster.kinds, "slow", "stop", "fail", "cancel")

    def build(self) -> None:
        own = self.timeline, self.network, self.rng
        self.hosts = [
            SwitchHost(self.plan, each, *own, self.checked, self.crashed) for each in range(MEMBERS)
        ]
        self.switched = False
        unsynced = self._faulty and self.rng.random() < UNSYNCED
        for host in self.hosts:
            host.hosts, host.serves_unsynced = self.hosts, unsynced
            host.install()
        self.conf = [host.disk.read_bytes(CONF) for host in self.hosts]

    @property
    def is_decided(self) -> bool:
        return self.switched

    @property
    def coordinator(self) -> SwitchHost:
        return self.hosts[MASTER]

    def start_body(self, attempt: int) -> dict[str, Any]:
        master = self.coordinator
        plan = SwitchPlan(
            switch=f"s{attempt}",
            group="broker-a",
            coordinator=master.name,
            peers=group_peers(),
            brokers={each.name: each.address for each in self.hosts},
        )
        return {"plan": plan.encode(), "member": master.name}

    def check(self) -> None:
        members = [each for each in self.hosts if each.running is not None and not each.is_classic]
        self.switched |= bool(members)
        writable = [each for each in self.hosts if each.is_writable]
        classic = [each.name for each in writable if each.is_classic]
        if len(classic) > 1 or (classic and len(classic) < len(writable)):
            names = ", ".join(each.name for each in writable)
            raise InvariantViolationError(f"two logs accept messages: {names}")
        if self.switched:
            back = [each.name for each in self.hosts if each.can_be_classic]
            if back:
                raise InvariantViolationError(
                    f"half a group: {', '.join(back)} can be classic, and the group has switched"
                )

    def heal(self) -> None:
        super().heal()
        # A switch whose preparation got no answer waits for two minutes otherwise.
        self.timeline.at(CANCEL_MS, lambda: self.ask("cancel"))
        for host in self.hosts:
            host.disk.heal()

    def check_end(self) -> None:
        running = [each.running for each in self.hosts]
        if any(each is None or each.store.health.failure is not None for each in running):
            raise InvariantViolationError("a broker does not run")
        stores = [each.store for each in running if each is not None]
        if not any(each.is_writable for each in self.hosts):
            raise InvariantViolationError("no broker accepts messages")
        if self.switched:
            self._check_members(stores)
        else:
            self._check_classic(stores)

    def _check_members(self, stores: Sequence[MessageStore]) -> None:
        stages = {each.stage for each in self.hosts}
        if stages != {SwitchStage.COMPLETE}:
            raise InvariantViolationError(f"not all members know the decision: {stages}")
        if any(
            b"enableDLegerCommitLog=true" not in host.disk.read_bytes(CONF) for host in self.hosts
        ):
            raise InvariantViolationError("a broker.conf is that of a classic broker")
        if len({each.opened.divided_offset for each in stores}) != 1:
            raise InvariantViolationError("the members' DLedger logs begin at different offsets")
        old = set()
        for store in stores:
            log, divide = store.opened.classic, store.opened.divided_offset
            assert log is not None and divide is not None
            old.add(read_span(log, 0, divide))
        if len(old) != 1:
            raise InvariantViolationError("the members have different old logs")
        for host, store in zip(self.hosts, stores, strict=True):
            check_messages(host.name, store, self.acknowledged)

    def _check_classic(self, stores: Sequence[MessageStore]) -> None:
        for host, conf in zip(self.hosts, self.conf, strict=True):
            left = [
                path for path in host.disk.nodes if "/dledger-" in path or "switch.json" in path
            ]
            if left or host.disk.read_bytes(CONF) != conf:
                raise InvariantViolationError(
                    f"{host.name}: a switch that was not decided has left {left or CONF}"
                )
        check_messages("the master", stores[MASTER], self.acknowledged)
        ends = {each.log.max_offset for each in stores}
        if len(ends) != 1 and not self.hosts[0].serves_unsynced:
            raise InvariantViolationError(f"the slaves do not follow: the logs end at {ends}")
