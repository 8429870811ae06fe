"""Run brokers and groups as processes on random ports, and upgrade a store and take it back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from attrs import define, field

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import Manifest, Md5
from rmqpy.audit.scan.directory import read_directory
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic, send_request
from rmqpy.testing.broker import Broker
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    LOOPBACK,
    SMALL_STORE,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    group_settings,
    wait_until_accepting,
)
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.copying import copy_tree
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions, shown_settings
from rmqpy.upgrade.steps.planning import plan_alignment, plan_switch

MEMBERS = ("n0", "n1", "n2")
BROKER_NAME = "broker-a"
ELECTION_SECONDS_MAX = 60.0
PROBE_TOPIC = "rmqpy-testing-probe"


@define
class RunningBroker:
    """A running broker with the address ``address``; clients use ``namesrv_address``."""

    server: ServerProcess
    namesrv: ServerProcess

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def namesrv_address(self) -> str:
        return self.namesrv.address

    @property
    def store(self) -> Path:
        assert self.server.store is not None
        return self.server.store


@define
class RunningGroup:
    """A running DLedger group: its members by id, and its name server."""

    servers: dict[str, ServerProcess]
    namesrv: ServerProcess

    @property
    def namesrv_address(self) -> str:
        return self.namesrv.address

    def leader(self) -> ServerProcess:
        """Return the first member that acknowledges a send; raise RmqError after a minute."""
        deadline = time.monotonic() + ELECTION_SECONDS_MAX
        while time.monotonic() < deadline:
            for server in self.servers.values():
                if server.running and _acknowledges(server):
                    return server
            time.sleep(0.05)
        raise RmqError("no member leads: " + "\n".join(s.printed() for s in self.servers.values()))

    def stop(self) -> None:
        """Stop the group once all members have the same committed end.

        The leader is stopped last, so that no other member is elected.
        """
        leader = self.leader()
        deadline = time.monotonic() + ELECTION_SECONDS_MAX
        while len({_committed_end(server) for server in self.servers.values()}) > 1:
            if time.monotonic() > deadline:
                raise RmqError("the members do not reach the same committed end")
            time.sleep(0.05)
        for server in self.servers.values():
            if server is not leader:
                server.stop()
        leader.stop()


@define
class UpgradeFixture:
    """A factory of servers below ``root``; ``close`` kills them."""

    root: Path
    _servers: list[ServerProcess] = field(factory=list)
    _ports: list[PortBlock] = field(factory=list)

    def namesrv(self) -> ServerProcess:
        return self._take(self._site.namesrv(f"namesrv-{len(self._servers)}", self._port()).start())

    def broker(self, store: Path | None = None) -> RunningBroker:
        namesrv = self.namesrv()
        server = self._site.broker(f"broker-{len(self._servers)}", self.spec(namesrv, store))
        return RunningBroker(self._take(server.start()), namesrv)

    def spec(self, namesrv: ServerProcess, store: Path | None = None) -> BrokerSpec:
        """Return the specification of a classic broker; an existing store keeps its file sizes."""
        block = free_port_block(BROKER_PORT_COUNT)
        self._ports.append(block)
        sizes = SMALL_STORE if store is None else shown_sizes(store)
        return BrokerSpec(port=block.broker_port, namesrv=namesrv.address, store=store, sizes=sizes)

    def group(self, stores: dict[str, Path] | None = None) -> RunningGroup:
        namesrv = self.namesrv()
        ports = [self._port() for _ in MEMBERS]
        servers = {}
        for number, member in enumerate(MEMBERS):
            store = stores[member] if stores else None
            spec = self.spec(namesrv, store)
            settings = {**FAST_ELECTION, **group_settings(BROKER_NAME, ports, number)}
            spec = BrokerSpec(
                port=spec.port,
                namesrv=namesrv.address,
                store=store,
                sizes=spec.sizes,
                settings=settings,
            )
            name = f"{member}-{len(self._servers)}"
            servers[member] = self._take(self._site.broker(name, spec).launch())
        for server in servers.values():
            wait_until_accepting(server.port)
        group = RunningGroup(servers, namesrv)
        group.leader()
        return group

    def close(self) -> None:
        for server in reversed(self._servers):
            server.kill()
        self._servers.clear()

    @property
    def _site(self) -> RmqpySite:
        return RmqpySite(self.root)

    def _port(self) -> int:
        self._ports.append(free_port_block(1))
        return self._ports[-1].first

    def _take(self, server: ServerProcess) -> ServerProcess:
        self._servers.append(server)
        return server


@define
class UpgradeRun:
    """Three replicas of one store below ``root``: two copies and an empty one."""

    root: Path
    manifests: dict[str, Manifest] = field(factory=dict)

    @property
    def stores(self) -> dict[str, Path]:
        return {member: self.root / member for member in MEMBERS}

    def begin(self, source: Path) -> None:
        if not (source / "commitlog").is_dir():
            raise RmqError(f"{source}: no commitlog directory; give a broker's storePathRootDir")
        for member in MEMBERS[:2]:
            target = os.fspath(self.root / member)
            copy_tree(OsFileSystem(), os.fspath(source), target, frozenset(("rmqpy", "lock")))
        self.stores[MEMBERS[2]].mkdir(parents=True)
        for member in MEMBERS:
            conf = self.root / f"{member}.conf"
            sizes = "".join(f"{key}={value}\n" for key, value in shown_sizes(source).items())
            conf.write_text(
                f"brokerName={BROKER_NAME}\nstorePathRootDir={self.root / member}\n{sizes}"
            )

    def situation(self, cut_index: int | None = None) -> PlanContext:
        """Return a planning context of all replicas as they are now."""
        peers = ";".join(f"{member}-{LOOPBACK}:{20911 + n}" for n, member in enumerate(MEMBERS))
        replicas = [
            LocalReplica(
                OsFileSystem(),
                SurveyPlan(
                    name=member,
                    root=os.fspath(store),
                    config_path=os.fspath(self.root / f"{member}.conf"),
                    now_ms=lambda: time.time_ns() // 1_000_000,
                ),
            )
            for member, store in self.stores.items()
        ]
        options = SwitchOptions(
            peers=peers, self_ids={member: member for member in MEMBERS}, cut_index=cut_index
        )
        return PlanContext(group=Group(tuple(replicas)), files=OsFileSystem(), options=options)

    def apply(self, plan: Plan) -> None:
        """Apply each member's part of the plan."""
        context = self.situation()
        for part in plan.nodes:
            node_context = context.node_context(context.group.replica(part.replica))
            apply_plan(node_context, plan, part.replica)

    def certificate(self, before: Manifest | None = None) -> Certificate:
        """Return the certificate of all members, compared with ``before`` if it is given."""
        manifests = [survey.manifest for survey in self.situation().group.surveys]
        available = {
            member: QueueMessages(OsFileSystem(), read_directory(OsFileSystem(), os.fspath(store)))
            for member, store in self.stores.items()
        }
        first = [before] if before is not None else []
        return certify([*first, *manifests], 0, available, earlier=len(first))


def switched_run(root: Path, source: Path | None) -> UpgradeRun:
    """Return three switched replicas below ``root`` of a store, or of a small classic one."""
    run = UpgradeRun(root)
    run.begin(source or _small_store(root / "source"))
    run.apply(plan_alignment(run.situation()))
    run.apply(plan_switch(run.situation()))
    return run


def _small_store(root: Path) -> Path:
    with Broker(root=root, topics=["before:4"], settings=SMALL_STORE) as broker:
        with BlockingConnection(broker.address) as connection:
            for number in range(200):
                request = send_request("before", number % 4, [b"before %d" % number])
                if connection.call(request).code:
                    raise RmqError("a message of the small store was refused")
        broker.stop()
        return broker.store


def shown_sizes(store: Path) -> dict[str, str]:
    """Return the broker.conf keys with the file sizes of an existing store."""
    plan = SurveyPlan(name="sizes", root=os.fspath(store), now_ms=lambda: 0, md5=Md5.NONE)
    settings = shown_settings(LocalReplica(OsFileSystem(), plan).survey())
    return {
        "mappedFileSizeCommitLog": str(settings.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(settings.mapped_file_size_consume_queue),
        "maxHashSlotNum": str(settings.max_hash_slot_num),
        "maxIndexNum": str(settings.max_index_num),
    }


def _committed_end(server: ServerProcess) -> str:
    with BlockingConnection(server.address) as connection:
        reply = connection.call(RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = json.loads(reply.body)["table"]
    undispatched_bytes = int(table.get("dispatchBehindBytes", "0"))
    return f"{table['commitLogMaxOffset']} {undispatched_bytes}"


def _acknowledges(server: ServerProcess) -> bool:
    try:
        with BlockingConnection(server.address, 1.0) as connection:
            create_topic(connection, PROBE_TOPIC, 1)
            return connection.call(send_request(PROBE_TOPIC, 0, [b"probe"])).code == 0
    except (NetworkError, RequestRejectedError):
        return False
