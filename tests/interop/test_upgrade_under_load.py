"""A master and its slave become three members and go back with the commands of
docs/how-to/upgrade-a-group.md while Java clients run: every acknowledged message is read once at
its queue offset and has reached the consumers. Each step prints for how long nothing was
acknowledged (``-rP``).
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
from harness.interop import MEMBERS, Brokers, Hosts, InteropServers, MakeHosts

from rmqpy.testing.java import ClientError, Event, Probe
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

BROKER = "broker-a"
TOPICS = ("goods", "orders")
PACE_MS = 20
STEADY = 80
"""The acknowledgements of each producer between two steps."""

STARTS_MAX = 5

WAIT_SECONDS_MAX = 120
JOURNEY_SECONDS_MAX = 900.0


@define
class Client:
    """A JVM that runs one command until the file of its option ``until`` exists; ``heard`` are its
    events so far.
    """

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
        for left in reversed(range(STARTS_MAX)):
            try:
                self.probe.run(
                    self.command, timeout_s=JOURNEY_SECONDS_MAX, events=self.heard, **self.options
                )
            except ClientError as fault:
                # A Java client waits only three seconds for its broker when it starts.
                if not left or self.times_ms():
                    self.fault.append(fault)
                    return
            else:
                return

    def join(self) -> None:
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        self.probe.close()
        assert not self.fault, self.fault

    def times_ms(self) -> list[int]:
        """Return the times at which messages were acknowledged or received."""
        name = "at" if self.command == "send" else "seenTimestamp"
        return [event[name] for event in list(self.heard) if name in event]

    def sent(self) -> list[Event]:
        return [event for event in list(self.heard) if event["event"] == "sent"]

    def received(self) -> set[str]:
        heard = list(self.heard)
        return {event["msgId"] for event in heard if event["event"] == "received"}


@define
class Watch:
    """The steps of the upgrade, and for how long clients paused in each."""

    producers: list[Client]
    consumers: list[Client]
    steps: list[tuple[str, float, float]] = field(factory=list)
    """The name, start, and end of each step of the operator."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record a step, and then wait until all clients are steady again."""
        start = time.time()
        yield
        self.steps.append((name, start, time.time()))
        self.wait_until_steady()

    def wait_until_steady(self) -> None:
        """Wait until every producer has STEADY more acknowledgements and their messages are
        consumed.
        """
        goals = [(each, len(each.sent()) + STEADY) for each in self.producers]
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        for producer, count in goals:
            while len(producer.sent()) < count:
                assert not producer.fault, producer.fault
                assert time.monotonic() < deadline, producer.heard[-3:]
                time.sleep(0.05)
        self.wait_until_consumed()

    def wait_until_consumed(self) -> None:
        """Wait until every consumer has received the messages acknowledged up to now."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        for producer, consumer in zip(self.producers, self.consumers, strict=True):
            acknowledged = {event["msgId"] for event in producer.sent()}
            while missing := acknowledged - consumer.received():
                assert not consumer.fault, consumer.fault
                assert time.monotonic() < deadline, (len(acknowledged), missing)
                time.sleep(0.2)

    def gap_s(self, clients: list[Client], number: int) -> float:
        """Return the longest pause of a client that overlapped a step."""
        _, start, _ = self.steps[number]
        end = self.steps[number + 1][1] if number + 1 < len(self.steps) else time.time()
        longest = 0
        for client in clients:
            for one, two in itertools.pairwise(sorted(client.times_ms())):
                if start * 1000 <= two and one < end * 1000 and two - one > longest:
                    longest = two - one
        return longest / 1000

    def table(self) -> Iterator[str]:
        yield "| step | it took | no send was acknowledged for | nothing was consumed for |"
        yield "|---|---|---|---|"
        for number, (name, start, end) in enumerate(self.steps):
            sends_s, reads_s = (
                self.gap_s(each, number) for each in (self.producers, self.consumers)
            )
            yield f"| {name} | {end - start:.1f} s | {sends_s:.1f} s | {reads_s:.1f} s |"


def clients(
    servers: InteropServers, namesrv: ServerProcess, folder: Path
) -> tuple[list[Client], list[Client]]:
    """Return a producer and a consumer of each topic, each in its own JVM."""
    producers, consumers = [], []
    for number, topic in enumerate(TOPICS):
        sending: dict[str, object] = {
            "topic": topic,
            "auto": "true",
            "keys": f"{topic}-",
            "sizes": "40,300,9",
            "paceMs": PACE_MS,
            "retryMs": WAIT_SECONDS_MAX * 1000,
            "count": 1_000_000,
            "until": folder / "sent",
        }
        probe = servers.java.probe(namesrv.address, f"producer-{topic}-{namesrv.port}")
        producers.append(Client(probe, "send", sending))
        reading: dict[str, object] = {
            "topic": topic,
            "group": f"readers-{topic}",
            "mode": ("concurrently", "orderly")[number % 2],
            "pollMs": 1000,
            "until": folder / "read",
        }
        probe = servers.java.probe(namesrv.address, f"consumer-{topic}-{namesrv.port}")
        consumers.append(Client(probe, "consume", reading))
    return producers, consumers


@pytest.mark.parametrize("kind", ["rmqpy", "java"])
def test_the_switch_and_the_way_back_under_load_lose_no_message(
    servers: InteropServers,
    hosts: MakeHosts,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    group = hosts(tmp_path, kind, f"under-load-{kind}", BROKER)
    brokers = group.brokers(kind)
    for member in ("n0", "n1"):
        brokers.servers[member].start()
    probe = servers.probe.at(brokers.namesrv.address)
    for topic in TOPICS:
        probe.run("createTopic", topic=topic, broker=brokers.servers["n0"].address)
    producers, consumers = clients(servers, brokers.namesrv, tmp_path)
    watch = Watch(producers, consumers)
    try:
        for client in (*producers, *consumers):
            client.start()
        watch.wait_until_steady()
        switch_and_leave(group, brokers, watch)
        (tmp_path / "sent").touch()
        for producer in producers:
            producer.join()
        watch.wait_until_consumed()
    finally:
        (tmp_path / "sent").touch()
        (tmp_path / "read").touch()
        for client in (*producers, *consumers):
            client.join()
        print("\n".join(watch.table()))
    check(probe, watch)
    brokers.stop("n0", "n1", "n2")
    for member in MEMBERS:
        assert read_store(tmp_path / member).problems == []


def switch_and_leave(group: Hosts, brokers: Brokers, watch: Watch) -> None:
    """Run both parts of the page, with the loss of a leader between them."""
    ports = list(group.ground.block(3))
    switch = group.page("Switch without a group file", ports)
    leave = group.page("Go back without a group file", ports)
    with watch.step("check, plan, apply, switch, start of three members"):
        brokers.stop("n0", "n1")
        switch("rmqpy upgrade verify")
        brokers.launch(*MEMBERS)
    with watch.step("verify, finalize, while the group works"):
        switch("")
    with watch.step("the leader is killed"):
        leader = brokers.leader()
        brokers.servers[leader].kill()
    brokers.launch(leader)
    watch.wait_until_steady()
    with watch.step("leave, start of master and slaves"):
        brokers.stop_group(wiping=True)
        leave("")
        brokers.launch("n0")
        brokers.launch("n1", "n2")


def check(probe: Probe, watch: Watch) -> None:
    """Assert that every queue is complete, and that every acknowledged message was consumed."""
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
        assert {event["msgId"] for event in sent} <= consumer.received()
        print(f"{topic}: {len(sent)} acknowledged, {len(found)} stored, all consumed")
