"""Name servers and brokers of Java and of rmqpy, and the Java clients that use them.

Every interop test needs Java; without it, all are skipped with the reason. The pair of a Java name
server and a Java broker runs too: a failure there is an error of the test.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TypeVar

import pytest
from attrs import define, field

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import WipeWritePermOfBrokerRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import (
    ClientError,
    Event,
    JavaHome,
    JavaSite,
    MqAdmin,
    Probe,
    side_by_side,
)
from rmqpy.testing.java.site import BUSY_MACHINE
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
    group_settings,
)

T = TypeVar("T")

DISPATCH_WAIT_S = 10.0
ROUTE_WAIT_MS = 20_000

CLUSTERS = (
    ("java", "java", "classic"),
    ("java", "java", "dledger"),
    ("rmqpy", "rmqpy", "classic"),
    ("rmqpy", "rmqpy", "dledger"),
    ("java", "rmqpy", "classic"),
    ("java", "rmqpy", "dledger"),
    ("rmqpy", "java", "classic"),
    ("rmqpy", "java", "dledger"),
)
"""The kind of the name server, the kind of the broker, and the mode."""


@define
class InteropServers:
    """The sites that start servers, their ports, and the two client JVMs of the session."""

    java: JavaSite
    rmqpy: RmqpySite
    probe: Probe
    admin: MqAdmin
    ports: list[PortBlock] = field(factory=list)
    _made: list[ServerProcess] = field(factory=list)

    def site(self, kind: str) -> Site:
        return self.java if kind == "java" else self.rmqpy

    def block(self, count: int) -> PortBlock:
        self.ports.append(free_port_block(count))
        return self.ports[-1]

    def namesrv(self, kind: str, name: str) -> ServerProcess:
        return self.take(self.site(kind).namesrv(name, self.block(1).first).start())

    def take(self, server: ServerProcess) -> ServerProcess:
        """Register a server, which `close` kills, and return it."""
        self._made.append(server)
        return server

    def close(self) -> None:
        for server in reversed(self._made):
            server.kill()
        self._made.clear()


QueuePlace = tuple[int, int]
"""Queue id and queue offset."""


@define
class InteropCluster:
    """One name server and one broker of some kind and mode, with the clients that use them."""

    namesrv: ServerProcess
    broker: ServerProcess
    broker_name: str
    probe: Probe
    admin: MqAdmin
    others: tuple[ServerProcess, ...] = ()
    """Members of the group that follow ``broker``."""
    _topics: int = 0
    _acknowledged: dict[str, set[QueuePlace]] = field(factory=dict)
    """Where the messages of a topic are that were sent one by one, without a delay."""

    def stop(self) -> None:
        for server in (*self.others, self.broker, self.namesrv):
            server.stop()

    def topic(self, queues: int = 4) -> str:
        """Create a topic, wait until the name server knows it, and return its name."""
        self._topics += 1
        topic = f"topic-{self._topics}"
        self.probe.run(
            "createTopic",
            topic=topic,
            broker=self.broker.address,
            readQueues=queues,
            writeQueues=queues,
        )
        return topic

    def send(
        self,
        topic: str,
        *,
        timeout_s: float = 60.0,
        heard: list[Event] | None = None,
        **options: object,
    ) -> list[Event]:
        """Send messages and return the acknowledgements; a message never sent fails the test."""
        events = self.probe.run(
            "send", timeout_s=timeout_s, events=heard, topic=topic, retryMs=ROUTE_WAIT_MS, **options
        )
        failed = events_of(events, "failed")
        # A broker refuses until the election of its group is over; the probe tries again.
        sent = {event["index"] for event in events_of(events, "sent")}
        assert {event["index"] for event in failed} <= sent, failed
        if not {"mode", "delay"} & options.keys():
            places = map(place_of, events_of(events, "sent"))
            self._acknowledged.setdefault(topic, set()).update(places)
        return [event for event in events if event["event"] != "failed"]

    def dump(
        self,
        topic: str,
        *,
        timeout_s: float = 60.0,
        heard: list[Event] | None = None,
        **options: object,
    ) -> list[Event]:
        """Return every message of the topic, in the order of the commit log.

        Java fills consume queues after it has acknowledged, and the queues are read one after
        another: without options, they are read again until every acknowledged message is there.
        """
        complete = not options and heard is None
        expected = self._acknowledged.get(topic, set()) if complete else set()
        deadline = time.monotonic() + DISPATCH_WAIT_S
        while True:
            events = events_of(
                self.probe.run("dump", timeout_s=timeout_s, events=heard, topic=topic, **options),
                "message",
            )
            if expected <= set(map(place_of, events)) or time.monotonic() > deadline:
                break
        return sorted(events, key=lambda event: event["commitLogOffset"])


def place_of(event: Event) -> QueuePlace:
    return event["queueId"], event["queueOffset"]


def events_of(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


ClusterPair = dict[str, InteropCluster]
"""A Java and an rmqpy cluster with the same settings, by kind."""


def start_cluster(
    ground: InteropServers, kind: str, name: str, mode: str, settings: Mapping[str, str]
) -> InteropCluster:
    namesrv = ground.namesrv(kind, f"{name}-namesrv")
    if mode == "group":
        return _group(ground, kind, namesrv, name, settings)
    own = dict(settings)
    if mode == "dledger":
        own |= dledger_settings("broker-a", ground.block(1).first)
    port = ground.block(BROKER_PORT_COUNT).broker_port
    spec = BrokerSpec(port=port, namesrv=namesrv.address, settings=own)
    broker = ground.take(ground.site(kind).broker(f"{name}-broker", spec).start())
    probe, admin = ground.probe.at(namesrv.address), ground.admin.at(namesrv.address)
    return InteropCluster(namesrv, broker, spec.broker_name, probe, admin)


def _group(
    ground: InteropServers,
    kind: str,
    namesrv: ServerProcess,
    name: str,
    settings: Mapping[str, str],
) -> InteropCluster:
    """Start three members; ``broker`` is the one that they elect leader."""
    ports = list(ground.block(len(MEMBERS)))
    members = {}
    for number, member in enumerate(MEMBERS):
        spec = BrokerSpec(
            port=ground.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings={**settings, **ELECTION, **group_settings("broker-a", ports, number)},
        )
        members[member] = ground.take(ground.site(kind).broker(f"{name}-{member}", spec).start())
    leader = Brokers(ground.site(kind).root, namesrv, members, spec.broker_name).leader()
    broker = members.pop(leader)
    probe, admin = ground.probe.at(namesrv.address), ground.admin.at(namesrv.address)
    followers = tuple(members.values())
    return InteropCluster(namesrv, broker, spec.broker_name, probe, admin, followers)


def clean_exit_codes(kind: str) -> tuple[int, ...]:
    """Return the exit codes of a clean stop; a JVM ends with 143 after its shutdown hooks."""
    return (0,) if kind == "rmqpy" else (0, 143)


Commands = Callable[[str], list[tuple[str, int]]]

PEER_PORTS = ("20911", "20912", "20913")
"""The ports of the peers in docs/how-to/upgrade-a-group.md."""

MEMBERS = ("n0", "n1", "n2")

ROLES = {
    "n0": {"brokerRole": "ASYNC_MASTER", "brokerId": "0"},
    "n1": {"brokerRole": "SLAVE", "brokerId": "1"},
    "n2": {"brokerRole": "SLAVE", "brokerId": "2"},
}

ELECTION = {**FAST_ELECTION, "maxHeartBeatLeak": "8"}
"""The election settings of rmqpy's members; a busy machine must not cause elections."""

PATIENCE_SECONDS = 120

LEVEL_SECONDS = 3.0
"""How long the ends must be equal; clients learn within a second that a broker is read-only."""


@define
class Brokers:
    """The brokers n0, n1, and n2 of one kind, with stores and broker.conf in one folder."""

    folder: Path
    namesrv: ServerProcess
    servers: dict[str, ServerProcess]
    name: str

    def launch(self, *members: str) -> None:
        for member in members:
            self.servers[member].launch()

    def stop(self, *members: str) -> None:
        for member in members:
            assert self.servers[member].stop() in (0, 143)

    def stop_group(self, *, wiping: bool = False) -> None:
        """Wait until all members are level, then stop the followers, then the leader."""
        self.wait_until_level(wiping=wiping)
        leader = self.leader()
        self.stop(*(member for member in MEMBERS if member != leader), leader)

    def leader(self) -> str:
        """Wait until the name server knows the master of the group, and return its name."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with BlockingConnection(self.namesrv.address) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                known = ClusterInfo.decode(connection.call(request).body).broker_addr_table
            address = known[self.name].broker_addrs.get(MASTER_ID) if self.name in known else None
            for member, server in self.servers.items():
                if server.running and server.address == address:
                    return member
            assert time.monotonic() < deadline, known
            time.sleep(0.05)

    def wipe_write_permission(self) -> None:
        """Make the broker read-only on the name server, as ``mqadmin wipeWritePerm`` does."""
        header = WipeWritePermOfBrokerRequestHeader(broker_name=self.name)
        with BlockingConnection(self.namesrv.address) as connection:
            request = RemotingCommand.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            assert connection.call(request).code == 0

    def wait_until_level(self, *members: str, wiping: bool = False) -> None:
        """Wait until all logs have the same end, are dispatched, and no longer grow.

        With ``wiping``, wipe the write permission meanwhile: each registration of changed topics
        restores it.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        last, since = None, time.monotonic()
        while last is None or time.monotonic() - since < LEVEL_SECONDS:
            ends = {self._end(self.servers[member]) for member in members or MEMBERS}
            end = ends.pop() if len(ends) == 1 else None
            if end != last:
                last, since = end, time.monotonic()
            if wiping:
                self.wipe_write_permission()
            assert time.monotonic() < deadline, (ends, end)
            time.sleep(0.1)

    def _end(self, server: ServerProcess) -> str | None:
        try:
            with BlockingConnection(server.address, 2.0) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
                table = json.loads(connection.call(request).body)["table"]
        except (NetworkError, ValueError):
            return None
        undispatched = int(table.get("dispatchBehindBytes", "0"))
        return table["commitLogMaxOffset"] if undispatched == 0 else None


@define
class Hosts:
    """The hosts n0, n1, and n2, on whose stores, ports, and broker.conf each kind can start."""

    ground: InteropServers
    folder: Path
    name: str
    namesrv: ServerProcess
    specs: dict[str, BrokerSpec]
    commands: Commands

    @classmethod
    def make(
        cls,
        ground: InteropServers,
        commands: Commands,
        folder: Path,
        namesrv_kind: str,
        name: str,
        broker: str,
    ) -> Hosts:
        namesrv = ground.namesrv(namesrv_kind, f"{name}-namesrv")
        specs = {}
        for member in MEMBERS:
            (folder / member).mkdir(exist_ok=True)
            specs[member] = BrokerSpec(
                port=ground.block(BROKER_PORT_COUNT).broker_port,
                namesrv=namesrv.address,
                broker_name=broker,
                store=folder / member,
                settings={**ROLES[member], **ELECTION, **BUSY_MACHINE},
            )
        (folder / "secret.key").write_text("secret")
        return cls(ground, folder, name, namesrv, specs, commands)

    def page(self, part: str, ports: list[int]) -> Callable[[str], None]:
        """Return a function that runs the next commands of a part of the page.

        It stops before the first command with the given prefix; "" runs all that are left.
        """
        left = self.commands(part)

        def run_until(stop: str) -> None:
            while left and not (stop and left[0][0].startswith(stop)):
                line, code = left.pop(0)
                for documented, port in zip(PEER_PORTS, ports, strict=True):
                    line = line.replace(documented, str(port))
                self.run(line, code)

        return run_until

    def run(self, line: str, code: int = 0) -> None:
        """Run a line of the page in this process, and check its exit code."""
        command, _, target = line.partition(" > ")
        printed = io.StringIO()
        with redirect_stdout(printed):
            found = main(shlex.split(command)[1:])
        assert found == code, (line, printed.getvalue()[-3000:])
        if target:
            Path(target.strip()).write_text(printed.getvalue(), encoding="utf-8")

    def brokers(self, kind: str) -> Brokers:
        """Return the brokers of a kind: java (4.9.7), java-5.3.3, or rmqpy."""
        servers = {}
        for member, spec in self.specs.items():
            site = version_of(self.ground, kind)
            server = self.ground.take(site.broker(f"{self.name}-{kind}-{member}", spec))
            generated = next(Path(word) for word in server.argv if word.endswith("broker.conf"))
            conf = self.folder / f"{member}.conf"
            if not conf.exists():
                shutil.copy(generated, conf)
            server.argv = [str(conf) if word == str(generated) else word for word in server.argv]
            servers[member] = server
        return Brokers(self.folder, self.namesrv, servers, self.specs["n0"].broker_name)


MakeHosts = Callable[[Path, str, str, str], Hosts]


def on_both(pair: ClusterPair, scenario: Callable[[InteropCluster], T]) -> T:
    """Run a scenario on both clusters, which use the same topic names whatever failed before, and
    return its result; the results must be equal.
    """
    topics = max(cluster._topics for cluster in pair.values())
    for cluster in pair.values():
        cluster._topics = topics
    result: T = side_by_side.both(pair, scenario)
    return result


def create_topic_when_ready(
    probe: Probe, topic: str, broker: ServerProcess, timeout_s: float = PATIENCE_SECONDS
) -> None:
    """Create a topic with four queues as soon as the broker is a master that accepts it."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            probe.run("createTopic", topic=topic, broker=broker.address)
            return
        except ClientError:
            assert time.monotonic() < deadline
            time.sleep(0.5)


def version_of(ground: InteropServers, kind: str) -> Site:
    """Return the site of ``java``, ``rmqpy``, or a version such as ``java-5.3.3``."""
    _, _, version = kind.partition("-")
    if not version:
        return ground.site(kind)
    home = JavaHome(version)
    if home.missing() is not None:
        pytest.skip(str(home.missing()))
    return JavaSite(ground.java.root / version, home)
