"""The brokers of the demo: separate processes on free loopback ports.

Each broker has its own directory and its own broker.conf, which the switch changes in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.config.loading import load_store_settings
from rmqpy.demo.store_copy import NEVER_CLEANED
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import FenceRequestHeader
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    LOOPBACK,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    group_settings,
)
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions

MEMBERS = ("n0", "n1", "n2")
BROKER_NAME = "demo-broker"
TIMEOUT_SECONDS = 60.0
INDEX_SECONDS = 1800.0
INDEX_LAG_BYTES = 1 << 20
"""What a stop completes of a key index."""


@define(eq=False, repr=False)
class DemoCluster:
    """The brokers n0, n1, and n2; n0 starts as master, n1 as its slave, n2 is empty.

    ``settings`` has the lines that all of their broker.conf files contain. With ``dledger`` all
    three start as members of a DLedger group.
    """

    folder: Path
    settings: Mapping[str, str]
    broker_name: str = BROKER_NAME
    dledger: bool = False
    namesrv: ServerProcess = field(init=False)
    brokers: dict[str, ServerProcess] = field(init=False, factory=dict)
    _ports: list[PortBlock] = field(init=False, factory=list)
    peers: Mapping[str, str] = field(init=False)
    """The addresses at which the members of a DLedger group reach each other."""

    def __attrs_post_init__(self) -> None:
        site = RmqpySite(self.folder)
        self.namesrv = site.namesrv("namesrv", self._block(1).first)
        ports = [self._block(1).first for _ in MEMBERS]
        pairs = zip(MEMBERS, ports, strict=True)
        self.peers = {member: f"{LOOPBACK}:{port}" for member, port in pairs}
        for number, member in enumerate(MEMBERS):
            role = "SLAVE" if number else "ASYNC_MASTER"
            spec = BrokerSpec(
                port=self._block(BROKER_PORT_COUNT).broker_port,
                namesrv=self.namesrv.address,
                broker_name=self.broker_name,
                sizes={},
                settings={
                    **FAST_ELECTION,
                    "maxHeartBeatLeak": "8",
                    **self.settings,
                    **NEVER_CLEANED,
                    "brokerRole": role,
                    "brokerId": str(number),
                    "autoCreateTopicEnable": "true",
                    "haFetchFromBeginning": "true",
                    **(group_settings(self.broker_name, ports, number) if self.dledger else {}),
                },
            )
            self.brokers[member] = site.broker(member, spec)

    def store(self, member: str) -> Path:
        store = self.brokers[member].store
        assert store is not None
        return store

    def config(self, member: str) -> Path:
        """Return the broker.conf of a member."""
        return self.folder / member / "broker.conf"

    async def start_name_server(self) -> None:
        """Start the name server, if it does not run."""
        if not self.namesrv.running:
            await asyncio.to_thread(self.namesrv.start)

    async def start(self, *members: str) -> None:
        """Start members and return when all of them listen."""
        servers = [self.brokers[member] for member in members]
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))

    async def stop(self, *members: str) -> None:
        for member in members:
            await asyncio.to_thread(self.brokers[member].stop)

    async def master_is_known(self) -> str:
        """Wait until the master has registered with the name server, so that clients find it;
        return its address.
        """
        return await self._until("the master does not register", self._find_master)

    async def slave_has_all(self) -> None:
        await self._until("the slave does not catch up", self._same_end)

    async def leader(self) -> str:
        """Return the member that leads."""
        return await self._until("no member leads", self._find_leader)

    async def stop_group(self) -> None:
        """Stop the group at one committed end: fence all members, so that whichever leads writes
        nothing, and stop them when they have the same end. A member that was killed builds the last
        file of its key index again, which a stop leaves to the next start; so wait for it first.
        """
        await self.indexed()
        await asyncio.to_thread(self._fence)
        await self.level()
        await self.stop(*MEMBERS)

    async def indexed(self) -> None:
        """Wait until the key index of each member is complete but for what a stop completes."""
        await self._until("a key index is not complete", self._is_indexed, INDEX_SECONDS)

    async def level(self) -> None:
        """Wait until all members have the same committed end; only without senders it stays."""
        await self._until("the members do not reach the same end", self._is_level)

    def close(self) -> None:
        for server in (*self.brokers.values(), self.namesrv):
            server.kill()
        for block in self._ports:
            block.release()

    async def _until(
        self, otherwise: str, probe: Callable[[], str | None], seconds: float = TIMEOUT_SECONDS
    ) -> str:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            found = await asyncio.to_thread(probe)
            if found is not None:
                return found
            await asyncio.sleep(0.05)
        printed = "\n".join(server.printed()[-1000:] for server in self.brokers.values())
        raise RmqError(f"{otherwise} after {seconds:.0f} s:\n{printed}")

    def _fence(self) -> None:
        header = FenceRequestHeader(seconds=int(TIMEOUT_SECONDS))
        for member in MEMBERS:
            with BlockingConnection(self.brokers[member].address) as connection:
                response = connection.call(RemotingCommand.request(RequestCode.RMQPY_FENCE, header))
            if response.code != ResponseCode.SUCCESS:
                raise RmqError(f"{member} cannot be fenced: {response.remark}")

    def _find_master(self) -> str | None:
        with BlockingConnection(self.namesrv.address) as connection:
            request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            known = ClusterInfo.decode(connection.call(request).body)
        broker = known.broker_addr_table.get(self.broker_name)
        return broker.broker_addrs.get(MASTER_ID) if broker is not None else None

    def _same_end(self) -> str | None:
        ends = {self._runtime(member)["commitLogMaxOffset"] for member in ("n0", "n1")}
        return "same" if len(ends) == 1 else None

    def _is_indexed(self) -> str | None:
        try:
            lags = [int(self._runtime(member)["indexBehindBytes"]) for member in MEMBERS]
        except NetworkError:  # A member that was started a moment ago.
            return None
        return "indexed" if max(lags) <= INDEX_LAG_BYTES else None

    def _runtime(self, member: str) -> dict[str, str]:
        with BlockingConnection(self.brokers[member].address) as connection:
            request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            table: dict[str, str] = json.loads(connection.call(request).body)["table"]
        return table

    def _find_leader(self) -> str | None:
        for member in MEMBERS:
            status = self._status(member)
            if status is not None and status["role"] == "LEADER":
                return member
        return None

    def _is_level(self) -> str | None:
        statuses = [self._status(member) for member in MEMBERS]
        ends = {(each["end"], each["committed"]) if each else None for each in statuses}
        if len(ends) > 1 or None in ends:
            return None
        ((end, committed),) = filter(None, ends)
        return "level" if end == committed else None

    def _status(self, member: str) -> dict[str, Any] | None:
        try:
            with BlockingConnection(self.brokers[member].address, 2.0) as connection:
                reply = connection.call(RemotingCommand.request(RequestCode.RMQPY_DLEDGER_STATUS))
        except NetworkError:
            return None
        value: dict[str, Any] = json.loads(reply.body)
        return value

    # Inputs of ``rmqpy upgrade``

    def context(self, version_2: bool = False, controllers: str = "") -> PlanContext:
        """Return the current context; ``version_2`` allows records of 5.x on the way back.

        ``controllers`` are the addresses of the controller to which the group is switched.
        """
        replicas, settings = [], {}
        for member in MEMBERS:
            store = self.store(member)
            store.mkdir(parents=True, exist_ok=True)
            conf = os.fspath(self.config(member))
            settings[member] = load_store_settings(conf)
            plan = SurveyPlan(
                name=member,
                root=os.fspath(store),
                config_path=conf,
                settings=settings[member],
                now_ms=lambda: time.time_ns() // 1_000_000,
            )
            replicas.append(LocalReplica(OsFileSystem(), plan))
        options = SwitchOptions(
            peers=";".join(f"{member}-{peer}" for member, peer in self.peers.items()),
            self_ids={member: member for member in MEMBERS},
            roles={"n0": "ASYNC_MASTER", "n1": "SLAVE", "n2": "SLAVE"},
            reads_version=2 if version_2 else 1,
            controllers=controllers,
        )
        return PlanContext(
            group=Group(tuple(replicas)), files=OsFileSystem(), options=options, settings=settings
        )

    async def carry_out(
        self, context: PlanContext, planner: Callable[[PlanContext], Plan], phase: str
    ) -> int:
        """Plan a stage of the upgrade and apply it; return the number of operations."""
        plan = await asyncio.to_thread(planner, context)
        return await asyncio.to_thread(self.apply, context, plan, phase)

    def apply(self, context: PlanContext, plan: Plan, phase: str) -> int:
        """Apply every member's part and return the number of operations."""
        for part in plan.nodes:
            node_context = context.node_context(context.group.replica(part.replica))
            apply_plan(node_context, plan, part.replica, phase)
        return sum(len(part.ops) for part in plan.nodes)

    def certificate(self, before: Manifest) -> Certificate:
        """Certify all members and the earlier state; also write ``certificate.json``."""
        manifests = [survey.manifest for survey in self.context().group.surveys]
        stores = {
            member: QueueMessages(
                OsFileSystem(), read_directory(OsFileSystem(), os.fspath(self.store(member)))
            )
            for member in MEMBERS
        }
        result = certify([before, *manifests], time.time_ns() // 1_000_000, stores, earlier=1)
        (self.folder / "certificate.json").write_bytes(result.encode())
        return result

    def _block(self, count: int) -> PortBlock:
        self._ports.append(free_port_block(count))
        return self._ports[-1]
