"""``rmqpy upgrade leave``, checked with Java: it opens the classic log, reads everything, appends;
then the log is switched to DLedger again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest
from harness.interop import InteropServers
from harness.upgrade import LeaveOptions, plan_leave

from rmqpy.config.loading import load_broker_configuration
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.java import Event, JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, dledger_settings
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan

pytestmark = pytest.mark.interop


class Messages(TypedDict):
    """The options with which the probe sends messages."""

    count: int
    sizes: str
    keys: str
    tags: str
    first: int


OLD = Messages(count=120, sizes="40,900,1500,9000,3", keys="old-", tags="a,b", first=0)
NEW = Messages(count=150, sizes="700,20,4000,1", keys="new-", tags="c", first=1000)
LATER = Messages(count=40, sizes="100", keys="later-", tags="d", first=5000)
LAST = Messages(count=40, sizes="100", keys="last-", tags="d", first=9000)
CHANGED = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "__RMQPY_ENTRY")
READERS = ["4.9.7", "5.3.3"]


class SharedStore:
    """A store and its ports, opened by one broker after another."""

    def __init__(self, servers: InteropServers, name: str, tmp_path: Path) -> None:
        self.servers, self.name, self.turn = servers, name, 0
        self.namesrv = servers.namesrv("java", f"{name}-namesrv")
        self.probe = servers.probe.at(self.namesrv.address)
        self.port = servers.block(BROKER_PORT_COUNT).broker_port
        self.member = dledger_settings("broker-a", servers.block(1).first)
        self.store = tmp_path / "store"
        self.site = tmp_path / "site"

    def open(self, kind: str, *, dledger: bool) -> ServerProcess:
        """Return a broker on the store; ``kind`` is java, rmqpy, or a version of Java."""
        self.turn += 1
        spec = BrokerSpec(
            port=self.port,
            namesrv=self.namesrv.address,
            store=self.store,
            settings=self.member if dledger else {},
        )
        site = self.servers.site(kind) if kind in ("java", "rmqpy") else None
        site = site or JavaSite(self.site, JavaHome(kind))
        server = site.broker(f"{self.name}-{self.turn}", spec)
        self.conf = next(Path(arg) for arg in server.argv if arg.endswith("broker.conf"))
        return self.servers.take(server)

    def send(self, messages: Messages) -> None:
        self.probe.run("send", topic="goods", retryMs=20_000, **messages)

    def dump(self) -> dict[tuple[int, int], Event]:
        """Return every message by its queue id and queue offset."""
        self.probe.run("send", topic="settled", retryMs=20_000, count=1)
        found: dict[tuple[int, int], Event] = {}
        for event in self.probe.run("dump", topic="goods"):
            if event["event"] == "message":
                for name in CHANGED:
                    event["properties"].pop(name, None)
                for name in ("storeSize", "msgId", "offsetMsgId"):
                    event.pop(name, None)
                offset = event["commitLogOffset"]
                event["commitLogOffset"] = offset - 48 if offset % 65536 == 48 else offset
                found[event["queueId"], event["queueOffset"]] = event
        return found

    def leave(self) -> int:
        """Turn the store into a classic one and return the end index of the ledger that it had."""
        settings = load_broker_configuration(str(self.conf)).configuration.store
        work = NodeContext(
            OsFileSystem(), upgrade_work(str(self.store)), settings, now_ms=lambda: 0
        )
        ledger = read_ledger(work.files, settings)
        options = LeaveOptions(replica="n0", cut_index=agreed_index([ledger], 1), reads_version=1)
        plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(work, options),))
        apply_plan(work, plan, "n0")
        return ledger.end_index


@pytest.mark.parametrize("version", READERS)
@pytest.mark.parametrize("writer", ["java", "rmqpy"])
def test_java_reads_the_classic_log_and_it_can_be_switched_again(
    servers: InteropServers,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    writer: str,
    version: str,
) -> None:
    if JavaHome(version).missing() is not None:
        pytest.skip(str(JavaHome(version).missing()))
    shared = SharedStore(servers, request.node.callspec.id, tmp_path)
    with shared.open(writer, dledger=False) as broker:
        for topic in ("goods", "settled"):
            shared.probe.run("createTopic", topic=topic, broker=broker.address)
        shared.send(OLD)
        shared.probe.run("consume", topic="goods", group="half", expression="a")
    with shared.open(writer, dledger=True):
        shared.send(NEW)
        before = shared.dump()
        offsets = shared.probe.run("offsets", topic="goods", group="half")
    assert len(before) == 270
    assert shared.leave() >= 150
    assert read_store(shared.store).problems == []

    with shared.open(version, dledger=False):
        assert shared.dump() == before
        assert shared.probe.run("offsets", topic="goods", group="half") == offsets
        for key in ("old-7", "new-1003", "new-1149"):
            assert shared.probe.run("query", topic="goods", key=key), key
        shared.send(LATER)
        grown = shared.dump()
    assert {place: grown[place] for place in before} == before
    assert len(grown) == 310
    assert read_store(shared.store).problems == []

    # The classic log is switched to DLedger again.
    with shared.open(writer, dledger=True):
        assert shared.dump() == grown
        shared.send(LAST)
        assert len(shared.dump()) == 350
    assert read_store(shared.store).problems == []
