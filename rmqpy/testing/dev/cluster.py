"""A test cluster: one name server, and a broker or a DLedger group, in threads of this process.

:meth:`DevCluster.start` returns when clients can find and use it: the brokers are registered, a
group has a leader that has acknowledged a message of a majority, and all topics of the plan have a
route. A group of a busy machine may elect another leader at any time, so each member has all
topics.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.model.names import BENCHMARK_TOPIC, check_topic
from rmqpy.store.files.locked_folder import LockedFolder
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic, send_request
from rmqpy.testing.dev.nodes import (
    BrokerNode,
    DevError,
    DevNode,
    NamesrvNode,
    NodeState,
    broker_block,
)
from rmqpy.testing.ports import PortBlock
from rmqpy.testing.processes import FAST_ELECTION, group_settings

BROKER = "broker"
"""The name of the only broker of a cluster without a group."""
QUEUES = 4
READY_SECONDS = 60.0
SPREAD_SECONDS = 5.0
POLL_SECONDS = 0.002
MEMBERS_MAX = 9
FOLDER_PREFIX = "rmqpy-testing-"
"""Begins the name of each temporary folder, which the next cluster removes after kill -9."""
PATIENT_ELECTION = {"maxHeartBeatLeak": "8", "maxVoteIntervalMs": "600"}
"""After eight heartbeats, 1.6 s, a group elects another leader. With fewer, eight test runs at once
on two cores deposed leaders that only had to wait for the processor. Candidates that wait for up to
600 ms, not 200 ms, seldom split the votes there.
"""

DEV_SETTINGS: Mapping[str, str] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "120000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "enablePropertyFilter": "true",
    "diskMaxUsedSpaceRatio": "95",
}
"""The settings of a broker for tests where they differ from the defaults; a file and ``settings``
override them.
"""


@define(frozen=True, kw_only=True)
class DevPlan:
    """What to start.

    * ``members``: the number of brokers; more than one is a DLedger group, 0 only a name server.
    * ``dledger``: whether a single broker has a DLedger log.
    * ``topics``: topics to create, as ``name`` or ``name:queues``; others are created on demand.
    * ``settings``, ``config``: keys of broker.conf, and a file with such keys; the ports, the
      store, and the group are always those of the cluster.
    * ``name_server``: the address of a name server to use instead of starting one.
    * ``stores``: existing store directories by the name of the broker; others are new.
    * ``root``: the folder for all files, which remains; otherwise a temporary one is used.
    """

    members: int = 1
    dledger: bool = False
    topics: Sequence[str] = ()
    settings: Mapping[str, str] = field(factory=dict)
    config: Path | None = None
    name_server: str | None = None
    stores: Mapping[str, Path] = field(factory=dict)
    root: Path | None = None

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.members <= MEMBERS_MAX:
            raise DevError(f"members: found {self.members}, expected 0 to {MEMBERS_MAX}")
        for topic in self.topics:
            topic_of(topic)
        for name in self.stores.keys() - set(self.names):
            raise DevError(f"stores: found {name!r}, expected {', '.join(self.names)}")

    @property
    def names(self) -> list[str]:
        """The names of the brokers."""
        if self.members == 1:
            return [BROKER]
        return [f"n{number}" for number in range(self.members)]


def topic_of(text: str) -> tuple[str, int]:
    """Return the name and the number of queues of ``name`` or ``name:queues``."""
    name, colon, queues = text.partition(":")
    if not name or (colon and not (queues.isdecimal() and int(queues) > 0)):
        raise DevError(f"topic {text!r}: expected NAME or NAME:QUEUES, such as orders:8")
    try:
        check_topic(name)
    except RequestRejectedError as error:
        raise DevError(f"topic {name!r}: {error.remark}") from error
    return name, int(queues) if colon else QUEUES


class DevCluster:
    """A running cluster; see the module. All methods may block, and belong to one thread."""

    def __init__(self, plan: DevPlan) -> None:
        self._plan = plan
        self._temporary: LockedFolder | None = None
        if plan.root is None:
            self._temporary = LockedFolder.create(tempfile.gettempdir(), FOLDER_PREFIX)
            self.root = Path(self._temporary.path)
        else:
            self.root = plan.root
        self.brokers: dict[str, BrokerNode] = {}
        self.namesrv: NamesrvNode | None = None
        self._cut: frozenset[str] = frozenset()
        self._interrupted = threading.Event()

    @property
    def name_server(self) -> str:
        """The address of the name server."""
        if self._plan.name_server is not None:
            return self._plan.name_server
        assert self.namesrv is not None
        return self.namesrv.address

    @property
    def nodes(self) -> dict[str, DevNode]:
        """All servers by name."""
        found: dict[str, DevNode] = dict(self.brokers)
        if self.namesrv is not None:
            found[self.namesrv.name] = self.namesrv
        return found

    def start(self) -> None:
        """Start everything and return when it can be used. Nothing runs after an error."""
        try:
            self._build()
            for node in self.nodes.values():
                if node is self.namesrv:
                    node.start()
            for broker in self.brokers.values():
                broker.start()
            if self.brokers:
                self.wait_for_leader()
            for topic in self._plan.topics:
                self.create_topic(*topic_of(topic))
            if len(self.brokers) > 1:
                self._with_leader(_send_one)
        except BaseException:
            self.close()
            raise

    def addresses(self) -> dict[str, Any]:
        """Return what a client of this cluster needs, as ``rmqpy dev`` prints it."""
        return {
            "name_server": self.name_server,
            "brokers": {name: broker.address for name, broker in self.brokers.items()},
            "stores": {name: str(broker.store) for name, broker in self.brokers.items()},
        }

    def interrupt(self) -> None:
        """Let a call of another thread that waits for a leader fail. Nothing waits afterwards."""
        self._interrupted.set()

    def close(self) -> None:
        """End everything at once, and remove a temporary folder. Idempotent."""
        for node in self.nodes.values():
            node.thread.cut(frozenset())
        if self.namesrv is not None:  # First, so that it does not warn of brokers that leave.
            self.namesrv.close()
        for broker in self.brokers.values():
            broker.close()
        self.brokers, self.namesrv = {}, None
        folder, self._temporary = self._temporary, None
        if folder is not None:
            folder.remove()

    def node(self, name: str | None) -> DevNode:
        """Return a server by name; None is the only broker."""
        if name is None:
            return self.broker(None)
        found = self.nodes.get(name)
        if found is None:
            raise DevError(f"node {name!r}: expected one of {', '.join(self.nodes)}")
        return found

    def broker(self, name: str | None) -> BrokerNode:
        """Return a broker by name; None is the only one."""
        if name is None and len(self.brokers) == 1:
            (only,) = self.brokers.values()
            return only
        found = self.brokers.get(name or "")
        if found is None:
            given = "no node" if name is None else f"node {name!r}"
            raise DevError(f"{given}: expected one of {', '.join(self.brokers) or 'no broker'}")
        return found

    def wait_for_leader(self) -> BrokerNode:
        """Return the broker that is master or leader, once a name server knows it."""

        deadline = time.monotonic() + READY_SECONDS
        while True:
            for broker in self.brokers.values():
                if broker.leads:
                    return broker
            if time.monotonic() > deadline or self._interrupted.wait(POLL_SECONDS):
                names = ", ".join(
                    f"{each.name} ({each.state.value})" for each in self.nodes.values()
                )
                raise DevError(f"no master is registered after {READY_SECONDS:.0f} s: {names}")

    def create_topic(self, name: str, queues: int = QUEUES) -> None:
        """Create a topic, which has a route when this returns. All members that can be reached
        know it then, so that the next leader has it, too.
        """

        def create(leader: BrokerNode) -> None:
            with BlockingConnection(leader.address) as connection:
                create_topic(connection, name, queues)

        try:
            leader = self._with_leader(create)
        except (NetworkError, RequestRejectedError) as error:
            raise DevError(f"topic {name!r} was not created: {error}") from error
        deadline = time.monotonic() + SPREAD_SECONDS
        for broker in self.brokers.values():
            same_side = (broker.name in self._cut) == (leader.name in self._cut)
            while same_side and broker.state is NodeState.RUNNING and not broker.has_topic(name):
                if time.monotonic() > deadline or self._interrupted.wait(POLL_SECONDS):
                    return

    def _with_leader(self, work: Callable[[BrokerNode], None]) -> BrokerNode:
        """Do ``work`` with the leader, again with the next one if it ceases to lead meanwhile."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            leader = self.wait_for_leader()
            try:
                work(leader)
            except (NetworkError, RequestRejectedError) as error:
                code = getattr(error, "code", ResponseCode.SERVICE_NOT_AVAILABLE)
                if code != ResponseCode.SERVICE_NOT_AVAILABLE or time.monotonic() > deadline:
                    raise
                self._interrupted.wait(POLL_SECONDS)
            else:
                if leader.leads:
                    return leader

    def partition(self, names: Sequence[str]) -> None:
        """Separate these servers from the others, and no others. Clients reach all of them."""
        for name in names:
            self.node(name)
        self._cut = frozenset(names)
        nodes = self.nodes
        for name, node in nodes.items():
            beyond = [each for other, each in nodes.items() if (name in names) != (other in names)]
            node.thread.cut(frozenset().union(*(each.ports for each in beyond)))

    @property
    def partitioned(self) -> list[str]:
        """The servers that a partition separates from the others."""
        return sorted(self._cut)

    def advance(self, delay_ms: int) -> None:
        """Skip ``delay_ms`` on the clocks of all brokers."""
        for broker in self.brokers.values():
            if broker.state is NodeState.PAUSED:
                raise DevError(f"{broker.name} is paused: resume it before the clock is advanced")
        for broker in self.brokers.values():
            broker.advance(delay_ms)

    def _build(self) -> None:
        plan = self._plan
        if plan.name_server is None:
            folder = self.root / "namesrv"
            folder.mkdir(parents=True, exist_ok=True)
            self.namesrv = NamesrvNode(folder, {})
        blocks = [broker_block() for _ in plan.names]
        for number, (name, block) in enumerate(zip(plan.names, blocks, strict=True)):
            settings = {**self._settings(), **self._group(blocks, number)}
            store = plan.stores.get(name, self.root / name / "store")
            settings["storePathRootDir"] = str(store)
            settings["storePathCommitLog"] = str(store / "commitlog")
            settings["namesrvAddr"] = self.name_server
            self.brokers[name] = BrokerNode(name, block, plan.config, settings)

    def _settings(self) -> dict[str, str]:
        """Return the settings that override those of the file."""
        defaults = dict(DEV_SETTINGS)
        if self._plan.config is not None:
            given = self._plan.config.read_text(encoding="utf-8", errors="replace")
            keys = {line.partition("=")[0].strip() for line in given.splitlines()}
            defaults = {key: value for key, value in defaults.items() if key not in keys}
        return {**defaults, **self._plan.settings}

    def _group(self, blocks: Sequence[PortBlock], number: int) -> dict[str, str]:
        if len(blocks) == 1 and not self._plan.dledger:
            return {}
        ports = [block[block.count - 1] for block in blocks]
        name = self._settings().get("brokerName", "broker-a")
        election = {**FAST_ELECTION, **PATIENT_ELECTION}
        return {**election, **group_settings(name, ports, number), **self._plan.settings}


def _send_one(leader: BrokerNode) -> None:
    """Let a group store one message in a topic that every broker has."""
    with BlockingConnection(leader.address) as connection:
        response = connection.call(send_request(BENCHMARK_TOPIC, 0, [b"ready"]))
    if response.code == ResponseCode.MESSAGE_ILLEGAL:  # A setting forbids it to every leader.
        raise RequestRejectedError(response.code, response.remark or "")
    if response.code != ResponseCode.SUCCESS:
        raise RequestRejectedError(ResponseCode.SERVICE_NOT_AVAILABLE, response.remark or "")
