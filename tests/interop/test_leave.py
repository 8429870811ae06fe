"""The way back, judged by Java: it opens what was left, reads all, appends; then forth again."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.interop import InteropServers

from rmqpy.config.loading import load_broker_configuration
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, dledger_settings
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.steps.states import load_step

pytestmark = pytest.mark.interop

LEAVE = load_step("m0006_leave")
OLD = {"count": 120, "sizes": "40,900,1500,9000,3", "keys": "old-", "tags": "a,b"}
NEW = {"count": 150, "sizes": "700,20,4000,1", "keys": "new-", "tags": "c", "first": 1000}
LATER = {"count": 40, "sizes": "100", "keys": "later-", "tags": "d", "first": 5000}
CHANGED = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "__RMQPY_ENTRY")
READERS = ["4.9.7", "5.3.3"]


class Journey:
    """One store, its ports, and who opens it."""

    def __init__(self, ground, name, tmp_path):
        self.ground, self.name, self.turn = ground, name, 0
        self.namesrv = ground.namesrv("java", f"{name}-namesrv")
        self.probe = ground.probe.at(self.namesrv.address)
        self.port = ground.block(BROKER_PORT_COUNT).broker_port
        self.member = dledger_settings("broker-a", ground.block(1).first)
        self.store = tmp_path / "store"
        self.site = tmp_path / "site"

    def open(self, kind, dledger):
        self.turn += 1
        spec = BrokerSpec(
            port=self.port,
            namesrv=self.namesrv.address,
            store=self.store,
            settings=self.member if dledger else {},
        )
        site = self.ground.site(kind) if kind in ("java", "rmqpy") else None
        site = site or JavaSite(self.site, JavaHome(kind))
        server = site.broker(f"{self.name}-{self.turn}", spec)
        self.conf = next(Path(arg) for arg in server.argv if arg.endswith("broker.conf"))
        return self.ground.take(server)

    def send(self, **options):
        self.probe.run("send", topic="goods", retryMs=20_000, **options)

    def dump(self):
        """Every message by its place in its queue."""
        self.probe.run("send", topic="settled", retryMs=20_000, count=1)
        found = {}
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

    def leave(self):
        settings = load_broker_configuration(str(self.conf)).configuration.store
        work = NodeContext(
            OsFileSystem(), upgrade_work(str(self.store)), settings, now_ms=lambda: 0
        )
        ledger = read_ledger(work.files, settings)
        options = LEAVE.LeaveOptions(
            replica="n0", cut_index=agreed_index([ledger], 1), reads_version=1
        )
        plan = Plan(steps=("m0006_leave",), nodes=(LEAVE.plan_leave(work, options),))
        apply_plan(work, plan, "n0")
        return ledger.end_index


@pytest.mark.parametrize("version", READERS)
@pytest.mark.parametrize("writer", ["java", "rmqpy"])
def test_java_reads_what_was_left(
    ground: InteropServers, request: pytest.FixtureRequest, tmp_path: Path, writer, version
) -> None:
    if JavaHome(version).missing() is not None:
        pytest.skip(str(JavaHome(version).missing()))
    there = Journey(ground, request.node.callspec.id, tmp_path)
    with there.open(writer, dledger=False) as broker:
        for topic in ("goods", "settled"):
            there.probe.run("createTopic", topic=topic, broker=broker.address)
        there.send(**OLD)
        there.probe.run("consume", topic="goods", group="half", expression="a")
    with there.open(writer, dledger=True):
        there.send(**NEW)
        before = there.dump()
        offsets = there.probe.run("offsets", topic="goods", group="half")
    assert len(before) == 270
    assert there.leave() >= 150
    assert read_store(there.store).problems == []

    with there.open(version, dledger=False):
        assert there.dump() == before
        assert there.probe.run("offsets", topic="goods", group="half") == offsets
        for key in ("old-7", "new-1003", "new-1149"):
            assert there.probe.run("query", topic="goods", key=key), key
        there.send(**LATER)
        grown = there.dump()
    assert {place: grown[place] for place in before} == before
    assert len(grown) == 310
    assert read_store(there.store).problems == []

    # And forth again: the switch on the log that was left.
    with there.open(writer, dledger=True):
        assert there.dump() == grown
        there.send(**{**LATER, "keys": "last-", "first": 9000})
        assert len(there.dump()) == 350
    assert read_store(there.store).problems == []
