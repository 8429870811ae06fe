"""The servers that are judged: one cluster of a kind and a mode, with one or more broker names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from attrs import define, field

from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import (
    ClusterInfo,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import GetRouteInfoRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic
from rmqpy.testing.java import JavaHome, JavaSite, JvmSettings
from rmqpy.testing.java.install import DEFAULT_VERSION
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

START_SECONDS_MAX: Final = 120.0
SIZES: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": "104857600",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "4000",
    "maxIndexNum": "1000",
    "diskMaxUsedSpaceRatio": "95",
    "enablePropertyFilter": "true",
}
"""The sizes of Apache's own integration tests, which also need the filter."""
ELECTION: Final = {**FAST_ELECTION, "maxHeartBeatLeak": "8"}
"""A busy machine must not cause elections."""


@define(frozen=True)
class Target:
    """A kind of servers: the members of each broker's group, and the kind of the name server."""

    title: str
    members: tuple[str, ...]
    dledger: bool = True

    @property
    def is_group(self) -> bool:
        """Whether the group goes on without its leader."""
        return len(self.members) > 1

    @property
    def namesrv(self) -> str:
        return "rmqpy" if "rmqpy" in self.members else "java"


TARGETS: Final[Mapping[str, Target]] = {
    "classic": Target("classic", ("rmqpy",), dledger=False),
    "dledger": Target("DLedger", ("rmqpy",)),
    "group": Target("DLedger, three members", ("rmqpy",) * 3),
    "mixed": Target("mixed: two members of rmqpy, one of Java", ("rmqpy", "rmqpy", "java")),
    "java-classic": Target("Java, classic", ("java",), dledger=False),
    "java-dledger": Target("Java, DLedger", ("java",)),
    "java-group": Target("Java, DLedger, three members", ("java",) * 3),
}


@define
class JudgedCluster:
    """Running servers. Use it as a context manager, or call :meth:`start` and :meth:`close`."""

    target: Target
    folder: Path
    settings: Mapping[str, str] = field(factory=dict)
    """Further keys of each broker.conf."""

    names: tuple[str, ...] = ("broker-a",)
    tls_file: Path | None = None
    """A tls.properties file, if clients may use TLS."""

    java_namesrv: str = DEFAULT_VERSION
    """The version of the name server, if it is Java's."""

    namesrv: ServerProcess = field(init=False)
    brokers: dict[str, list[ServerProcess]] = field(factory=dict, init=False)
    """The members of each group, by the name of the broker, in the order of the target."""

    _ports: list[PortBlock] = field(factory=list, init=False)

    def start(self) -> Self:
        site = self.site(self.target.namesrv, self.java_namesrv)
        self.namesrv = site.namesrv("namesrv", self._block(1).first)
        if self.target.namesrv == "rmqpy":
            for key, value in self._tls_settings().items():
                self.namesrv.argv += ["--set", f"{key}={value}"]
        try:
            self.namesrv.start()
            for name in self.names:
                self._start_group(name)
            for name in self.names:
                self.master(name)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all servers as a crash does; nobody uses their files afterwards."""
        for members in self.brokers.values():
            for member in members:
                member.kill()
        self.namesrv.kill()

    def site(self, kind: str, version: str = DEFAULT_VERSION) -> Site:
        if kind == "rmqpy":
            home = {"ROCKETMQ_HOME": str(self.folder / "rmqpy")}
            return RmqpySite(self.folder / "rmqpy", environment=home)
        options = tuple(f"-D{key}={value}" for key, value in self._tls_settings().items())
        jvm = JvmSettings(options=JvmSettings().options + options)
        return JavaSite(self.folder / "java", JavaHome(version), jvm)

    def master(self, name: str) -> ServerProcess:
        """Wait until the name server knows the master of a broker name, and return it."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            address = self._known(name).get(MASTER_ID)
            for member in self.brokers[name]:
                if member.address == address:
                    return member
            assert time.monotonic() < deadline, f"{name} has no master after {START_SECONDS_MAX} s"
            time.sleep(0.05)

    def leaders(self) -> list[str]:
        """Return the kind of the master of each broker name, if there was an election."""
        if not self.target.is_group:
            return []
        places = (self.brokers[name].index(self.master(name)) for name in self.names)
        return [self.target.members[place] for place in places]

    def create_topic(self, topic: str, queues: int = 4) -> str:
        """Create a topic on each master, wait until it has a route, and return its name."""
        for name in self.names:
            with BlockingConnection(self.master(name).address, 10.0) as connection:
                create_topic(connection, topic, queues)
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(self._route(topic)) < len(self.names):
            assert time.monotonic() < deadline, f"{topic} has no route"
            time.sleep(0.05)
        return topic

    def spread_topic(self, topic: str) -> None:
        """Wait until every member knows a topic. Slaves fetch topics from time to time; an election
        before that loses those of a Java master, so the topic is created at each new one.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        members = [each for members in self.brokers.values() for each in members]
        masters: list[str] = []
        while not all(topic in _tables(member.address, request) for member in members):
            assert time.monotonic() < deadline, f"not every member knows {topic}"
            if (now := [self.master(name).address for name in self.names]) != masters:
                self.create_topic(topic)
                masters = now
            time.sleep(0.2)

    @contextmanager
    def lost_leader(self) -> Iterator[None]:
        """Kill the leader of the first group, and start it again in the end."""
        leader = self.master(self.names[0])
        leader.kill()
        try:
            yield
        finally:
            leader.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_group(self, name: str) -> None:
        kinds = self.target.members
        ports = list(self._block(len(kinds)))
        self.brokers[name] = []
        for number, kind in enumerate(kinds):
            settings = {**BUSY_MACHINE, **self.settings, **self._tls_settings()}
            if self.target.is_group:
                settings |= {**ELECTION, **group_settings(name, ports, number)}
            elif self.target.dledger:
                settings |= dledger_settings(name, ports[0])
            spec = BrokerSpec(
                port=self._block(BROKER_PORT_COUNT).broker_port,
                namesrv=self.namesrv.address,
                broker_name=name,
                sizes=SIZES,
                settings=settings,
            )
            member = self.site(kind).broker(f"{name}-n{number}", spec)
            member.ready_timeout_s = START_SECONDS_MAX
            self.brokers[name].append(member.start())

    def _tls_settings(self) -> dict[str, str]:
        if self.tls_file is None:
            return {}
        return {"tls.test.mode.enable": "false", "tls.config.file": str(self.tls_file)}

    def _block(self, count: int) -> PortBlock:
        self._ports.append(free_port_block(count))
        return self._ports[-1]

    def _known(self, name: str) -> Mapping[int, str]:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        known = ClusterInfo.decode(self._ask_namesrv(request).body).broker_addr_table
        return known[name].broker_addrs if name in known else {}

    def _route(self, topic: str) -> list[object]:
        header = GetRouteInfoRequestHeader(topic=topic)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        try:
            return list(TopicRouteData.decode(self._ask_namesrv(request).body).queue_datas)
        except RequestRejectedError:
            return []

    def _ask_namesrv(self, request: RemotingCommand) -> RemotingCommand:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with BlockingConnection(self.namesrv.address, 10.0) as connection:
                    response = connection.call(request)
            except NetworkError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
                continue
            if response.code != 0:
                raise RequestRejectedError(response.code, response.remark or "")
            return response


def _tables(address: str, request: RemotingCommand) -> Mapping[str, object]:
    """Return the topics of a broker, none while it cannot answer."""
    try:
        with BlockingConnection(address, 10.0) as connection:
            response = connection.call(request)
    except NetworkError:
        return {}
    if response.code != 0:
        return {}
    return TopicConfigSerializeWrapper.decode(response.body).topic_config_table
