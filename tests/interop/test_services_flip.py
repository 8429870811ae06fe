"""Work that was unfinished when a classic broker became a DLedger member: delays, half messages,
retries, ordered consumption, filters. Java's switch and ours are compared message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from harness.interop import InteropServers

from rmqpy.testing.java import Event, Probe
from rmqpy.testing.java.side_by_side import KINDS, both, in_order, received, seen, when_known
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, dledger_settings

pytestmark = pytest.mark.interop

LONG_DELAY_MS = 15_000
SETTINGS = {
    "messageDelayLevel": "1s 2s 1s 1s 15s 1s",
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "transactionCheckMax": "100",
    "enablePropertyFilter": "true",
}
TOPICS = ("late", "paid", "again", "steps", "chosen", "packed", "settled")
EXPRESSION = "number > 3 AND colour = 'red'"


@define
class SwitchedStore:
    """One store, opened first by a classic broker, then by a DLedger member."""

    open: Callable[[bool], ServerProcess]
    """Return a broker on the store; the argument is whether it is a DLedger member."""
    probe: Probe

    def send(self, topic: str, **options: object) -> list[Event]:
        """Send messages; the probe repeats those that the broker refuses before an election is
        over.
        """
        events = self.probe.run(
            "send", topic=topic, retryMs=20_000, timeout_s=60.0, events=None, **options
        )
        return [event for event in events if event["event"] != "failed"]

    def consume(self, topic: str, **options: object) -> list[Event]:
        return self.probe.run(
            "consume", topic=topic, group=f"{topic}-g", timeout_s=60.0, events=None, **options
        )

    def dump(self, topic: str) -> list[Event]:
        """Return every message of the topic, in the order of the log."""
        events = self.probe.run("dump", topic=topic)
        messages = [event for event in events if event["event"] == "message"]
        return sorted(messages, key=lambda event: event["commitLogOffset"])


@pytest.fixture
def sides(servers: InteropServers, tmp_path: Path) -> Iterator[dict[str, SwitchedStore]]:
    """A store of Java and one of rmqpy, by kind."""
    namesrvs: list[ServerProcess] = []

    def switched(kind: str) -> SwitchedStore:
        namesrv = servers.namesrv("java", f"flip-{kind}-namesrv")
        namesrvs.append(namesrv)
        port = servers.block(BROKER_PORT_COUNT).broker_port
        member = dledger_settings("broker-a", servers.block(1).first)
        store = tmp_path / kind

        def opened(dledger: bool) -> ServerProcess:
            own = SETTINGS | member if dledger else SETTINGS
            spec = BrokerSpec(port=port, namesrv=namesrv.address, store=store, settings=own)
            name = f"flip-{kind}-{'member' if dledger else 'classic'}"
            return servers.take(servers.site(kind).broker(name, spec))

        return SwitchedStore(opened, servers.probe.at(namesrv.address))

    yield {kind: switched(kind) for kind in KINDS}
    for namesrv in namesrvs:
        namesrv.stop()


def start_work(side: SwitchedStore) -> None:
    """Start work of every kind, and finish none of it."""
    side.send("packed", mode="batch", count=12, batch=6, keys="p")
    for number in range(8):
        side.send(
            "chosen", first=number, count=1, property=[f"number:{number}", "colour:red"], tags="a"
        )
    side.send("steps", count=12, keys="s")
    side.consume("steps", mode="orderly", max=5)
    side.send("steps", first=12, count=6, keys="s")
    # A consumer that starts before the name server knows its retry topic finds it much later.
    side.consume("again", max=1, firstMs=2_000)
    side.send("again", count=3, keys="r")
    side.consume("again", refuse=9, maxTimes=2, max=3)
    side.send(
        "paid", mode="transaction", count=6, outcomes="cruuuu", checks="uuuuuu", keys="t",
        group="payers",
    )  # fmt: skip
    side.send("late", count=4, delay=5, keys="l")


def finish_work(side: SwitchedStore) -> dict[str, Any]:
    """Let the work finish, and return its results by name."""
    side.send("settled", count=1)
    events = side.send(
        "paid", mode="transaction", count=1, first=100, outcomes="c", checks="uucruc", keys="t",
        group="payers", warmMs=1_500, lingerMs=9_000,
    )  # fmt: skip
    checks = {(e["index"], e["answer"], e["crc"]) for e in events if e["event"] == "checked"}
    late = side.consume("late", max=4, firstMs=30_000)
    waits = [
        event["storeTimestamp"] - event["bornTimestamp"]
        for event in late
        if event["event"] == "received"
    ]
    side.consume("again", refuse=9, maxTimes=2, max=9, idleMs=8_000)
    steps = received(side.consume("steps", mode="orderly", max=18), "queueOffset")
    return {
        "checks": sorted(checks),
        "paid": in_order(without_checks(seen(m)) for m in side.dump("paid")),
        "late": in_order(received(late)),
        "not early": [ms >= LONG_DELAY_MS for ms in waits],
        "retries": in_order(seen(m) for m in side.dump("%RETRY%again-g")),
        "dead": in_order(seen(m) for m in when_known(lambda: side.dump("%DLQ%again-g"))),
        "last steps": {m["queueId"]: m["queueOffset"] for m in steps},
        "steps": [seen(m, "queueOffset") for m in side.dump("steps")],
        "packed": [seen(m, "queueOffset") for m in side.dump("packed")],
        "chosen": in_order(
            received(side.consume("chosen", type="SQL92", expression=EXPRESSION, max=4))
        ),
        "all": in_order(received(side.consume("packed", model="broadcasting", max=12))),
    }


def without_checks(message: dict[str, Any]) -> dict[str, Any]:
    """Remove the number of checks, which depends on how long the switch took."""
    message["properties"].pop("TRANSACTION_CHECK_TIMES", None)
    return message


def test_unfinished_work_continues_after_the_switch(sides: dict[str, SwitchedStore]) -> None:
    def scenario(side: SwitchedStore) -> dict[str, Any]:
        with side.open(False) as broker:
            for topic in TOPICS:
                count = 1 if topic == "paid" else 2  # The transaction producer chooses the queue.
                side.probe.run(
                    "createTopic", topic=topic, broker=broker.address,
                    readQueues=count, writeQueues=count,
                )  # fmt: skip
            start_work(side)
        with side.open(True):
            return finish_work(side)

    found = both(sides, scenario)
    assert len(found["late"]) == 4 and found["not early"] == [True] * 4
    assert len(found["retries"]) == 6 and len(found["dead"]) == 3
    assert [m["properties"]["KEYS"] for m in found["paid"]] and len(found["paid"]) >= 4
    assert found["last steps"] == {0: 8, 1: 8} and len(found["steps"]) == 18
    assert len(found["chosen"]) == 4 and len(found["all"]) == len(found["packed"]) == 12
