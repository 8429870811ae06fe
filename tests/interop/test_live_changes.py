"""What a Java producer and a Java consumer observe while a group of rmqpy switches to DLedger, and
leaves it: no send fails, and every message arrives, before a pull at a former member has timed out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.interop import InteropServers, create_topic_when_ready, events_of

from rmqpy.cli import main
from rmqpy.testing.java import Event, JavaHome, JavaSite, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import FAST_ELECTION, BrokerSpec, ServerProcess

pytestmark = pytest.mark.interop

GROUP = "broker-a"
LOAD_MAX = 200_000
BEYOND = 500
"""The number of sends after the last change."""
ATTEMPTS = 20
"""A busy machine misses deadlines: the change is aborted, and repeated."""
SLAVE = 3
IDLE_MS_MAX = 45_000
"""Longer than the 30 s after which a Java client asks for its route again."""
LATE_MS_MAX = 12_000
"""Less than the 15 s for which a pull of a Java consumer waits at a broker: what is stored
elsewhere reaches the consumer earlier only if the pull goes there, too.
"""


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[Probe]:
    """A second JVM, because each runs one command at a time."""
    with JavaSite(tmp_path, JavaHome()).probe("") as probe:
        yield probe


def change(names: ServerProcess, *words: str) -> None:
    name, *rest = words
    for _ in range(ATTEMPTS):
        code = main(["admin", name, "-n", names.address, "-m", GROUP, *rest, "--apply"])
        if code == 0:
            return
        threading.Event().wait(1)
    raise AssertionError(f"{name} was not decided")


def test_java_clients_notice_no_change_of_the_log(
    servers: InteropServers, consumer: Probe, tmp_path: Path
) -> None:
    names = servers.namesrv("rmqpy", "live-namesrv")
    probe, reader = servers.probe.at(names.address), consumer.at(names.address)
    ports = servers.block(3)

    def broker(number: int, role: str, broker_id: int) -> ServerProcess:
        own = {"brokerRole": role, "brokerId": str(broker_id), **FAST_ELECTION}
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=names.address,
            settings={**own, "haFetchFromBeginning": "true", "haServeEntries": "true"},
        )
        return servers.take(servers.site("rmqpy").broker(f"live-{number}", spec).start())

    master = broker(0, "ASYNC_MASTER", 0)
    broker(1, "SLAVE", 1)
    broker(2, "SLAVE", 2)
    create_topic_when_ready(probe, "T", master)
    sent: list[Event] = []
    received: list[Event] = []
    over = tmp_path / "over"

    def send() -> None:
        probe.run(
            "send",
            timeout_s=300,
            events=sent,
            topic="T",
            count=LOAD_MAX,
            paceMs=1,
            until=over,
        )

    def consume() -> None:
        reader.run(
            "consume",
            timeout_s=300,
            events=received,
            topic="T",
            group="readers",
            until=over,
            idleMs=IDLE_MS_MAX,
        )

    threads = [threading.Thread(target=each) for each in (send, consume)]
    for thread in threads:
        thread.start()
    wait = threading.Event()
    while len(received) < 100:
        wait.wait(0.05)
    peers = ";".join(f"n{each}-127.0.0.1:{ports[each]}" for each in range(3))
    change(names, "switch", "--peers", peers)
    slave = broker(SLAVE, "SLAVE", 9)
    change(names, "leave", "-t", slave.address)
    decided = len(events_of(sent, "sent"))
    while len(events_of(sent, "sent")) < decided + BEYOND:
        assert all(thread.is_alive() for thread in threads)
        wait.wait(0.05)
    over.touch()
    for thread in threads:
        thread.join(300)
    assert events_of(sent, "failed") == []
    count = len(events_of(sent, "sent"))
    assert {event["index"] for event in events_of(sent, "sent")} == set(range(count))
    seen = events_of(received, "received")
    bodies = {event["msgId"] for event in seen}
    late_ms = max(event["seenTimestamp"] - event["storeTimestamp"] for event in seen)
    print(f"{count} sends, 0 failed; {len(seen)} deliveries of {len(bodies)} messages")
    print(f"the slowest delivery took {late_ms} ms")
    assert len(bodies) == count
    assert late_ms < LATE_MS_MAX
