"""One store directory, opened in turn by Java and by rmqpy: nothing is lost or looks different.

The name server is always Java's; it is not tested here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest
from harness.interop import InteropServers

from rmqpy.testing.java import Event
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, dledger_settings
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

WRITERS = [
    pytest.param("java", "java", id="java-then-java"),
    pytest.param("rmqpy", "java", id="rmqpy-then-java"),
    pytest.param("java", "rmqpy", id="java-then-rmqpy"),
    pytest.param("rmqpy", "rmqpy", id="rmqpy-then-rmqpy"),
]
MODES = [
    pytest.param("classic", "classic", id="classic"),
    pytest.param("classic", "dledger", id="flipped"),
    pytest.param("dledger", "dledger", id="dledger"),
]


class Messages(TypedDict):
    """The options with which the probe sends messages."""

    count: int
    sizes: str
    keys: str
    tags: str
    first: int


FIRST = Messages(count=150, sizes="40,900,1500,9000,3", keys="first-", tags="a,b,c", first=0)
SECOND = Messages(count=60, sizes="700,20", keys="second-", tags="d", first=1000)
ADDED_BY_THE_CLIENT = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER")


class SharedStore:
    """A store and its two ports, which do not change because every message has the host and port
    of its broker.
    """

    def __init__(self, servers: InteropServers, name: str, tmp_path: Path) -> None:
        self.servers, self.name = servers, name
        self.namesrv = servers.namesrv("java", f"{name}-namesrv")
        self.probe = servers.probe.at(self.namesrv.address)
        self.port = servers.block(BROKER_PORT_COUNT).broker_port
        self.member_port = servers.block(1).first
        self.store = tmp_path / "store"
        self.turns = 0

    def open(self, kind: str, mode: str) -> ServerProcess:
        """Return a broker on the store, not started."""
        self.turns += 1
        member = dledger_settings("broker-a", self.member_port)
        spec = BrokerSpec(
            port=self.port,
            namesrv=self.namesrv.address,
            store=self.store,
            settings=member if mode == "dledger" else {},
        )
        name = f"{self.name}-{self.turns}-{kind}-{mode}"
        return self.servers.take(self.servers.site(kind).broker(name, spec))

    def send(self, messages: Messages) -> list[Event]:
        """Send messages to the topic ``goods`` and return their acknowledgements."""
        events = self.probe.run("send", topic="goods", retryMs=20_000, **messages)
        sent = [event for event in events if event["event"] == "sent"]
        assert len(sent) == messages["count"]
        return sent

    def dump(self, topic: str) -> dict[int, Event]:
        """Return every field of every message, by offset in the log."""
        self.wait_for_route(topic)
        messages: dict[int, Event] = {}
        for event in self.probe.run("dump", topic=topic):
            if event["event"] == "message":
                for name in ADDED_BY_THE_CLIENT:
                    event["properties"].pop(name, None)
                messages[event["commitLogOffset"]] = event
        return messages

    def wait_for_route(self, topic: str) -> None:
        """Wait until a send to another topic succeeds: the broker is a master, and registered."""
        events = self.probe.run("send", topic="settled", retryMs=20_000, count=1)
        assert [event["event"] for event in events if event["event"] == "sent"] == ["sent"]
        assert self.probe.run("offsets", topic=topic)

    def offsets(self, topic: str) -> list[Event]:
        return self.probe.run("offsets", topic=topic, group="reads-half")

    def consume_some(self, topic: str) -> None:
        self.probe.run("consume", topic=topic, group="reads-half", expression="a")


@pytest.mark.parametrize(("writer_mode", "reader_mode"), MODES)
@pytest.mark.parametrize(("writer", "reader"), WRITERS)
def test_each_opens_what_the_other_wrote(
    servers: InteropServers,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    writer: str,
    reader: str,
    writer_mode: str,
    reader_mode: str,
) -> None:
    shared = SharedStore(servers, request.node.callspec.id, tmp_path)
    with shared.open(writer, writer_mode) as broker:
        for topic in ("goods", "settled"):
            shared.probe.run("createTopic", topic=topic, broker=broker.address)
        sent = shared.send(FIRST)
        shared.consume_some("goods")
        written = shared.dump("goods")
        offsets = shared.offsets("goods")
    assert len(written) == len(sent) == 150
    assert read_store(shared.store).problems == []

    with shared.open(reader, reader_mode):
        assert shared.dump("goods") == written
        assert shared.offsets("goods") == offsets
        (found,) = shared.probe.run("query", topic="goods", key="first-77")
        assert found["commitLogOffset"] == offset_of(sent, 77, written)
        more = shared.send(SECOND)
        grown = shared.dump("goods")
    assert {offset: grown[offset] for offset in written} == written
    assert len(grown) == len(written) + len(more)
    assert read_store(shared.store).problems == []

    with shared.open(writer, reader_mode):
        assert shared.dump("goods") == grown
        for key, events in (("first-5", sent), ("second-1033", more)):
            (found,) = shared.probe.run("query", topic="goods", key=key)
            assert found["commitLogOffset"] == offset_of(events, int(key.split("-")[1]), grown)
    assert read_store(shared.store).problems == []


def offset_of(sent: list[Event], index: int, messages: dict[int, Event]) -> int:
    """Return the offset in the log of the message with that index, found by the queue offset that
    was acknowledged.
    """
    (event,) = (event for event in sent if event["index"] == index)
    (offset,) = (
        offset
        for offset, message in messages.items()
        if (message["queueId"], message["queueOffset"]) == (event["queueId"], event["queueOffset"])
    )
    return offset
