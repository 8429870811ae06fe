"""A master and its slave become three members and go back by the commands of docs/upgrade.md while
clients of Java run through it: every acknowledged message is read once at its queue offset, every
one reached the consumers, and each step says for how long nothing was acknowledged (``-rP``).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define, field

from rmqpy.testing.java import Event, Probe
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

MEMBERS = ("n0", "n1", "n2")
BROKER = "broker-a"
TOPICS = ("goods", "orders")
PACE_MS = 10
STEADY = 150
"""Acknowledgements of each producer between two steps."""

WAIT_SECONDS_MAX = 120
JOURNEY_SECONDS_MAX = 900.0


@define
class Client:
    """A JVM that works until the file ``over`` exists; ``heard`` is what it has printed so far."""

    probe: Probe
    command: str
    options: dict[str, object]
    heard: list[Event] = field(factory=list)
    fault: list[BaseException] = field(factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> Client:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.probe.run(
                self.command, timeout_s=JOURNEY_SECONDS_MAX, heard=self.heard, **self.options
            )
        except BaseException as fault:  # noqa: BLE001 - told by the test
            self.fault.append(fault)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self.probe.close()
        assert not self.fault, self.fault

    def times_ms(self) -> list[int]:
        """When messages were acknowledged, or seen."""
        name = "at" if self.command == "send" else "seenTimestamp"
        return [event[name] for event in list(self.heard) if name in event]

    def sent(self) -> list[Event]:
        return [event for event in list(self.heard) if event["event"] == "sent"]


@define
class Watch:
    """For how long clients stood still in each step."""

    producers: list[Client]
    consumers: list[Client]
    rows: list[tuple[str, float, float, float]] = field(factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Returns when every producer is steady again."""
        begin = time.time()
        yield
        took_s = time.time() - begin
        self.steady()
        gaps = [self._gap_s(clients, begin) for clients in (self.producers, self.consumers)]
        self.rows.append((name, took_s, *gaps))

    def steady(self) -> None:
        """Every producer has so many more acknowledged."""
        wanted = [(each, len(each.sent()) + STEADY) for each in self.producers]
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        for producer, count in wanted:
            while len(producer.sent()) < count:
                assert not producer.fault, producer.fault
                assert time.monotonic() < deadline, producer.heard[-3:]
                time.sleep(0.05)

    def _gap_s(self, clients: list[Client], begin_s: float) -> float:
        """The longest pause of the one that suffered most."""
        longest = 0
        for client in clients:
            times = sorted(client.times_ms())
            before = [each for each in times if each <= begin_s * 1000][-1:]
            row = [*before, *(each for each in times if each > begin_s * 1000)]
            longest = max([longest, *(two - one for one, two in itertools.pairwise(row))])
        return longest / 1000

    def table(self) -> Iterator[str]:
        yield "| step | it took | no send was acknowledged for | nothing was consumed for |"
        yield "|---|---|---|---|"
        for name, took_s, sends_s, reads_s in self.rows:
            yield f"| {name} | {took_s:.1f} s | {sends_s:.1f} s | {reads_s:.1f} s |"


def clients(ground, namesrv: ServerProcess, over: Path) -> tuple[list[Client], list[Client]]:
    """A producer and a consumer of each topic, each in a JVM of its own."""
    producers, consumers = [], []
    for number, topic in enumerate(TOPICS):
        told = {"topic": topic, "until": over}
        sending = ground.java.probe(namesrv.address, f"producer-{topic}-{namesrv.port}")
        options = {"auto": "true", "count": 1_000_000, "keys": f"{topic}-", "sizes": "40,300,9"}
        patience = {"paceMs": PACE_MS, "retryMs": WAIT_SECONDS_MAX * 1000}
        producers.append(Client(sending, "send", {**told, **options, **patience}))
        reading = ground.java.probe(namesrv.address, f"consumer-{topic}-{namesrv.port}")
        mode = ("concurrently", "orderly")[number % 2]
        drain = {"mode": mode, "idleMs": 6000, "pollMs": 1000}
        consumers.append(
            Client(reading, "consume", {**told, "group": f"readers-{topic}", **drain})
        )
    return producers, consumers


@pytest.mark.parametrize("kind", ["rmqpy", "java"])
def test_there_and_back_under_load(ground, hosts, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = hosts(tmp_path, kind, f"under-load-{kind}", BROKER)
    brokers = place.brokers(kind)
    over = tmp_path / "over"
    for member in ("n0", "n1"):
        brokers.servers[member].start()
    probe = ground.probe.at(brokers.namesrv.address)
    for topic in TOPICS:
        probe.run("createTopic", topic=topic, broker=brokers.servers["n0"].address)
    producers, consumers = clients(ground, brokers.namesrv, over)
    watch = Watch(producers, consumers)
    try:
        for client in (*producers, *consumers):
            client.start()
        watch.steady()
        journey(place, brokers, watch)
    finally:
        over.touch()
        for client in (*producers, *consumers):
            client.join()
        print("\n".join(watch.table()))
    check(probe, watch)
    brokers.stop("n0", "n1", "n2")
    for member in MEMBERS:
        assert read_store(tmp_path / member).problems == []


def journey(place, brokers, watch: Watch) -> None:
    ports = list(place.ground.block(3))
    there, back = place.page("There", ports), place.page("And back", ports)
    with watch.step("check, plan, apply, switch, start of three members"):
        brokers.stop("n0", "n1")
        there("rmqpy upgrade verify")
        brokers.launch(*MEMBERS)
    with watch.step("verify, finalize, while the group works"):
        there("")
    with watch.step("the leader is killed"):
        leader = brokers.leader()
        brokers.servers[leader].kill()
    brokers.launch(leader)
    watch.steady()
    with watch.step("leave, start of master and slaves"):
        place.ground.admin.at(brokers.namesrv.address).run("wipeWritePerm", "-b", BROKER)
        brokers.stop_group()
        back("")
        brokers.launch("n0")
        brokers.launch("n1", "n2")


def check(probe: Probe, watch: Watch) -> None:
    for topic, producer, consumer in zip(TOPICS, watch.producers, watch.consumers, strict=True):
        found: dict[tuple[int, int], Event] = {}
        for event in probe.run("dump", topic=topic):
            if event["event"] == "message":
                place = event["queueId"], event["queueOffset"]
                assert place not in found
                found[place] = event
        for queue in {queue for queue, _ in found}:
            offsets = sorted(offset for each, offset in found if each == queue)
            assert offsets == list(range(len(offsets))), f"{topic} queue {queue} has a hole"
        sent = producer.sent()
        assert len(sent) > 4 * STEADY
        for event in sent:
            stored = found[event["queueId"], event["queueOffset"]]
            assert (stored["msgId"], stored["crc"]) == (event["msgId"], event["crc"])
        received = {event["msgId"] for event in consumer.heard if event["event"] == "received"}
        assert {event["msgId"] for event in sent} <= received
        print(f"{topic}: {len(sent)} acknowledged, {len(found)} stored, all consumed")
