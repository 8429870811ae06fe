"""Name servers and brokers, Java and ours, and the Java clients that judge them.

Every test here needs Java; without it all are skipped with the reason. The pair Java name server
and Java broker is run too: what fails there is a fault of the test, not of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from attrs import define, field

from rmqpy.testing.java import Event, JavaHome, JavaSite, MqAdmin, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
)

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
"""Who is the name server, who the broker, in which mode."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-pages", action="store_true", help="write docs/conformance.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = JavaHome().missing()
    if reason is not None:
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@define
class Ground:
    """Where servers are made: sites, ports, and the two client JVMs of the session."""

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
        """Stop it at the end whatever happens."""
        self._made.append(server)
        return server

    def close(self) -> None:
        for server in reversed(self._made):
            server.kill()
        self._made.clear()


@define
class Cluster:
    """One name server and one broker of some kind and mode, and the clients that look at them."""

    namesrv: ServerProcess
    broker: ServerProcess
    broker_name: str
    probe: Probe
    admin: MqAdmin
    _topics: int = 0

    def topic(self, queues: int = 4) -> str:
        """A new topic that the name server knows."""
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

    def send(self, topic: str, **options: object) -> list[Event]:
        """The acknowledgements; a failed send fails the test."""
        events = self.probe.run("send", topic=topic, retryMs=ROUTE_WAIT_MS, **options)
        failed = events_of(events, "failed")
        # Before the election of a DLedger member is over the broker refuses; the probe tries again.
        sent = {event["index"] for event in events_of(events, "sent")}
        assert {event["index"] for event in failed} <= sent, failed
        return [event for event in events if event["event"] != "failed"]

    def dump(self, topic: str, **options: object) -> list[Event]:
        """Every message of the topic, in the order of the commit log."""
        events = events_of(self.probe.run("dump", topic=topic, **options), "message")
        return sorted(events, key=lambda event: event["commitLogOffset"])


def events_of(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    root = tmp_path_factory.mktemp("interop")
    java = JavaSite(root / "java", JavaHome())
    home = {"ROCKETMQ_HOME": str(root / "rmqpy")}  # as the Java servers have one
    made = Ground(java, RmqpySite(root / "rmqpy", environment=home), java.probe(""), java.admin(""))
    yield made
    made.probe.close()
    made.admin.close()
    made.close()


@pytest.fixture(scope="session", params=CLUSTERS, ids="-".join)
def cluster(request: pytest.FixtureRequest, ground: Ground) -> Iterator[Cluster]:
    namesrv_kind, broker_kind, mode = request.param
    name = "-".join(request.param)
    namesrv = ground.namesrv(namesrv_kind, f"{name}-namesrv")
    spec = BrokerSpec(
        port=ground.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        settings=dledger_settings("broker-a", ground.block(1).first) if mode == "dledger" else {},
    )
    broker = ground.take(ground.site(broker_kind).broker(f"{name}-broker", spec).start())
    yield Cluster(
        namesrv,
        broker,
        spec.broker_name,
        ground.probe.at(namesrv.address),
        ground.admin.at(namesrv.address),
    )
    assert broker.stop() in clean_exit_codes(broker_kind)
    assert namesrv.stop() in clean_exit_codes(namesrv_kind)


Pair = dict[str, Cluster]
"""A Java and an rmqpy cluster of the same settings: kind to cluster."""


@pytest.fixture(scope="session")
def pair_of(ground: Ground) -> Callable[[str, str, Mapping[str, str]], Pair]:
    """Starts a pair under a name, in a mode, with settings; their owner stops it."""

    def start(name: str, mode: str, settings: Mapping[str, str]) -> Pair:
        return {kind: _cluster(ground, kind, f"{name}-{kind}-{mode}", mode, settings)
                for kind in ("java", "rmqpy")}  # fmt: skip

    return start


def _cluster(
    ground: Ground, kind: str, name: str, mode: str, settings: Mapping[str, str]
) -> Cluster:
    namesrv = ground.namesrv(kind, f"{name}-namesrv")
    own = dict(settings)
    if mode == "dledger":
        own |= dledger_settings("broker-a", ground.block(1).first)
    port = ground.block(BROKER_PORT_COUNT).broker_port
    spec = BrokerSpec(port=port, namesrv=namesrv.address, settings=own)
    broker = ground.take(ground.site(kind).broker(f"{name}-broker", spec).start())
    probe, admin = ground.probe.at(namesrv.address), ground.admin.at(namesrv.address)
    return Cluster(namesrv, broker, spec.broker_name, probe, admin)


def clean_exit_codes(kind: str) -> tuple[int, ...]:
    """A JVM that ran its shutdown hooks after SIGTERM ends with 143."""
    return (0,) if kind == "rmqpy" else (0, 143)
