"""One store directory, opened in turn by Java and by us: nothing may be lost or look different.

The name server is Java's throughout: it is not what is tested here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.interop import InteropServers

from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, dledger_settings
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
FIRST = {"count": 150, "sizes": "40,900,1500,9000,3", "keys": "first-", "tags": "a,b,c"}
SECOND = {"count": 60, "sizes": "700,20", "keys": "second-", "tags": "d", "first": 1000}
ADDED_BY_THE_CLIENT = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER")


class Exchange:
    """A store and the two ports that belong to it; hosts stand in every message, so they stay."""

    def __init__(self, ground, name, tmp_path):
        self.ground, self.name = ground, name
        self.namesrv = ground.namesrv("java", f"{name}-namesrv")
        self.probe = ground.probe.at(self.namesrv.address)
        self.port = ground.block(BROKER_PORT_COUNT).broker_port
        self.member_port = ground.block(1).first
        self.store = tmp_path / "store"
        self.turns = 0

    def open(self, kind, mode):
        self.turns += 1
        member = dledger_settings("broker-a", self.member_port)
        spec = BrokerSpec(
            port=self.port,
            namesrv=self.namesrv.address,
            store=self.store,
            settings=member if mode == "dledger" else {},
        )
        name = f"{self.name}-{self.turns}-{kind}-{mode}"
        return self.ground.take(self.ground.site(kind).broker(name, spec))

    def send(self, topic, **options):
        events = self.probe.run("send", topic=topic, retryMs=20_000, **options)
        sent = [event for event in events if event["event"] == "sent"]
        assert len(sent) == options["count"]
        return sent

    def dump(self, topic):
        """Every field of every message, by place in the log."""
        self.wait_for_route(topic)
        messages = {}
        for event in self.probe.run("dump", topic=topic):
            if event["event"] == "message":
                for name in ADDED_BY_THE_CLIENT:
                    event["properties"].pop(name, None)
                messages[event["commitLogOffset"]] = event
        return messages

    def wait_for_route(self, topic):
        """A send to a topic of its own waits until the broker is master and known."""
        self.send("settled", count=1)
        assert self.probe.run("offsets", topic=topic)

    def offsets(self, topic):
        return self.probe.run("offsets", topic=topic, group="reads-half")

    def consume_some(self, topic):
        self.probe.run("consume", topic=topic, group="reads-half", expression="a")


@pytest.mark.parametrize(("writer_mode", "reader_mode"), MODES)
@pytest.mark.parametrize(("writer", "reader"), WRITERS)
def test_each_opens_what_the_other_wrote(
    ground: InteropServers,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    writer,
    reader,
    writer_mode,
    reader_mode,
) -> None:
    exchange = Exchange(ground, request.node.callspec.id, tmp_path)
    with exchange.open(writer, writer_mode) as broker:
        for topic in ("goods", "settled"):
            exchange.probe.run("createTopic", topic=topic, broker=broker.address)
        sent = exchange.send("goods", **FIRST)
        exchange.consume_some("goods")
        written = exchange.dump("goods")
        offsets = exchange.offsets("goods")
    assert len(written) == len(sent) == 150
    assert read_store(exchange.store).problems == []

    with exchange.open(reader, reader_mode):
        assert exchange.dump("goods") == written
        assert exchange.offsets("goods") == offsets
        (found,) = exchange.probe.run("query", topic="goods", key="first-77")
        assert found["commitLogOffset"] == place_of(sent, 77, written)
        more = exchange.send("goods", **SECOND)
        grown = exchange.dump("goods")
    assert {place: grown[place] for place in written} == written
    assert len(grown) == len(written) + len(more)
    assert read_store(exchange.store).problems == []

    with exchange.open(writer, reader_mode):
        assert exchange.dump("goods") == grown
        for key, events in (("first-5", sent), ("second-1033", more)):
            (found,) = exchange.probe.run("query", topic="goods", key=key)
            assert found["commitLogOffset"] == place_of(events, int(key.split("-")[1]), grown)
    assert read_store(exchange.store).problems == []


def place_of(sent, index, messages):
    """Where the message with that index stands, by the queue offset that the broker answered."""
    (event,) = (event for event in sent if event["index"] == index)
    (place,) = (
        place
        for place, message in messages.items()
        if (message["queueId"], message["queueOffset"]) == (event["queueId"], event["queueOffset"])
    )
    return place
