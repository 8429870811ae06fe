"""A DLedger group that a classic slave follows, and takes over from, under kills, power failures,
pauses, slow disks, and partitions.

After every event, at most one log accepts messages, and once the slave has been master no member of
the leave takes part in the group. (A member that was left out may think that it leads, like any
leader that is cut off, and acknowledges nothing.) After all faults are healed, either the slave has
everything that was acknowledged, or the group goes on, without a trace of the leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from attrs import define, evolve

from rmqpy.broker.assembly.ha_group import CopyRate
from rmqpy.broker.assembly.leave.member import LeavingMember, LeavingParts
from rmqpy.broker.assembly.leave.record import checked_configuration, leave_journal
from rmqpy.broker.assembly.leave.slave import LeavingSlave, TakingParts
from rmqpy.broker.assembly.switch.exchange import log_is_durable
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.leave_protocol import SLAVE
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.replication.switch_protocol import SwitchPlan, SwitchRecord, SwitchStage
from rmqpy.config.keys import BrokerRole
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import StoreError
from rmqpy.model.message import marker
from rmqpy.store.commitlog.classic_view import ClassicView
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.files.deferred_write import DeferredFileWriter
from simulator.broker_host import ROOT, BrokerHost, Running
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

SLAVE_ID = 9
WITHOUT = 0.3
"""The probability that an attempt leaves a member out."""


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
class MemberHost(LiveHost):
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
class SlaveHost(LiveHost):
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
            make_follower=lambda: LogCopier(running, self.plan.file_size, self._source),
            disconnect=lambda _reason: None,
        )
        writer = DeferredFileWriter(f"{ROOT}/broker.conf", self.disk, running.life)
        broker.settings.file = SettingsFile(writer, {})
        self.leaving = LeavingSlave(
            TakingParts(
                broker=broker,
                store=store,
                role=role,
                is_durable=partial(log_is_durable, broker, store),
                scheduler=running.life,
                network=self.client,
                journal=self.journal,
                rate=CopyRate(),
            )
        )
        broker.server.register_handlers(self.leaving.handlers())
        self.leaving.resume()
        role.start()

    def _source(self) -> LogSource | None:
        """Return what the leader serves that the slave is connected to."""
        for member in self.members:
            running = member.running
            way = (member.name, self.name)
            if (
                running is not None
                and running.driver is not None
                and running.driver.carrier.leads
                and running.life.paused_until_ms <= self.timeline.now_ms
                and way not in self.network.blocked
                and member.stream is not None
            ):
                view = member.stream.view
                return LogSource(member, view, view.confirm_offset)
        return None

    @property
    def phase(self) -> str:
        if self.running is None:
            return "down"
        last = self.leaving._coordinator if self.leaving is not None else None
        return last.phase.value if last is not None else ""

    @property
    def is_writable(self) -> bool:
        return self.running is not None and not self.running.store.health.is_slave


class LeaveCluster(LiveCluster[MemberHost | SlaveHost]):
    """The group, and the slave."""

    code = RequestCode.RMQPY_LEAVE
    kinds = (*LiveCluster.kinds, "slow")

    def build(self) -> None:
        own = self.timeline, self.network, self.rng
        self.members = [
            MemberHost(self.plan, each, *own, self.checked, self.crashed) for each in range(MEMBERS)
        ]
        self.slave = SlaveHost(self.plan, MEMBERS, *own, self.checked, self.crashed)
        self.slave.members = self.members
        self.hosts = [*self.members, self.slave]
        self.was_master = False

    @property
    def is_decided(self) -> bool:
        return self.was_master

    @property
    def coordinator(self) -> SlaveHost:
        return self.slave

    def start_body(self, attempt: int) -> dict[str, Any]:
        brokers = {each.name: each.address for each in self.members}
        # A majority can leave. The operator should name a member that is down, but may be wrong.
        down = [each.name for each in self.members if each.life is None] or list(brokers)
        if self.rng.random() < WITHOUT:
            del brokers[self.rng.choice(down)]
        plan = SwitchPlan(
            switch=f"l{attempt}",
            group="broker-a",
            coordinator=SLAVE,
            peers=group_peers(),
            brokers={**brokers, SLAVE: self.slave.address},
        )
        return {"plan": plan.encode(), "member": SLAVE}

    def check(self) -> None:
        takes_over = self.slave.is_writable
        self.was_master |= takes_over
        if takes_over and any(each.is_writable for each in self.leaving):
            raise InvariantViolationError("two logs accept messages")
        if self.was_master:
            back = [each.name for each in self.leaving if each.takes_part]
            if back:
                raise InvariantViolationError(
                    f"{', '.join(back)} can take part in the group, and the slave was its master"
                )

    @property
    def leaving(self) -> Sequence[MemberHost]:
        """The members of the leave that was decided."""
        journal = self.slave.journal
        if not journal.files.exists(journal.path):
            raise InvariantViolationError("the slave is master without a decision on its disk")
        brokers = _brokers_of(journal.path, journal.files.read_bytes(journal.path))
        return [each for each in self.members if each.name in brokers]

    def check_end(self) -> None:
        running = {each.name: each.running for each in self.members}
        if self.was_master:
            if not self.slave.is_writable or self.slave.running is None:
                raise InvariantViolationError("the slave that took over is no master")
            running = {SLAVE: self.slave.running}
            records = [each.journal.read() for each in self.leaving]
            if any(each is None or each.stage is not SwitchStage.COMMITTED for each in records):
                raise InvariantViolationError("a member does not know the decision")
        else:
            recorded = [each.name for each in self.hosts if each.journal.read() is not None]
            writable = any(each.is_writable for each in self.members)
            if recorded or None in running.values() or not writable:
                raise InvariantViolationError(
                    f"no leave was decided, and the group does not continue: records of {recorded}"
                )
        for name, each in running.items():
            assert each is not None
            check_messages(name, each.store, self.acknowledged)


@lru_cache(maxsize=4)
def _brokers_of(path: str, record: bytes) -> frozenset[str]:
    """Return the brokers of a recorded leave, which is asked for after every event."""
    return frozenset(SwitchRecord.decode(path, record).plan.brokers)
