"""What each client of another language must be able to do: one function for each case.

A case sends and receives with the client alone, and asserts what every RocketMQ broker must do. The
servers have delay levels of ``1s 2s 1s 1s 1s 1s`` (:data:`SETTINGS`).
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from attrs import define, field
from foreign_clients import ForeignClient

from compatibility.targets import JudgedCluster, Target
from rmqpy.testing.java import Event, Probe

SETTINGS: Final[Mapping[str, str]] = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
}
DELAY_MS: Final = 2_000
"""The time of delay level 2."""
SIZES: Final = (10, 300, 6000)
"""Most clients compress a body of 6,000 bytes."""
MANY: Final = 1_000
"""The messages that are being sent when a leader is killed."""
CHANGE_SECONDS_MAX: Final = 200.0
SENT: Final = ("SEND_OK", 0, "0")
WAIT_MS: Final = 60_000
"""Java's clients look for new routes and queues every 20 to 30 s. A consumer whose first heartbeat
is lost, as on a busy machine, has no queues until the next one, 30 s later, at Java's broker, too.
"""


@define
class Bench:
    """One client and one cluster, for one case; its topic and groups have names of their own."""

    client: ForeignClient
    probe: Probe
    cluster: JudgedCluster
    name: str
    topics: int = field(default=0)

    def topic(self, queues: int = 4) -> str:
        self.topics += 1
        return self.cluster.create_topic(f"{self.name}-{self.topics}", queues)

    def send(self, topic: str, count: int, **options: object) -> list[Event]:
        """Send messages, all of which must be acknowledged, and return the acknowledgements."""
        given: dict[str, Any] = {"keys": "key", "group": f"{self.name}-p", **options}
        events = self.probe.run("send", topic=topic, count=count, **given)
        failed = [event for event in events if event["event"] == "failed"]
        assert not failed, failed[0]["error"]
        sent = [event for event in events if event["event"] == "sent"]
        assert all(event.get("status") in SENT for event in sent), sent
        return sent

    def receive(self, topic: str, group: str, count: int, **options: object) -> list[Event]:
        """Consume until ``count`` messages have come, or none for a long time, and return them."""
        given: dict[str, Any] = {"firstMs": WAIT_MS, "idleMs": WAIT_MS, "max": count, **options}
        events = self.probe.run(
            "consume", topic=topic, group=f"{self.name}-{group}", timeout_s=150.0, **given
        )
        return [event for event in events if event["event"] == "received"]

    def consumer(self) -> Probe:
        """Return a second process of the client."""
        own = self.probe.client.directory
        return self.client.probe(own.with_name(f"{own.name}-consumer"), self.probe.namesrv)

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        while not until():
            assert time.monotonic() < deadline, f"not within {CHANGE_SECONDS_MAX} s"
            time.sleep(0.002)

    def crcs(self, indexes: Sequence[int], sizes: Sequence[int] = (100,)) -> Counter[int]:
        """Return the checksums of the bodies of messages with these numbers."""
        bodies = (self.client.body(index, sizes[index % len(sizes)]) for index in indexes)
        return Counter(zlib.crc32(body) & 0x7FFFFFFF for body in bodies)


Case = Callable[[Bench], None]


def same(found: object, expected: object) -> None:
    """Assert without pytest, whose texts are not available here."""
    assert found == expected, f"expected {expected}, found {found}"


def crcs_of(messages: Sequence[Event]) -> Counter[int]:
    return Counter(message["crc"] & 0x7FFFFFFF for message in messages)


def key_of(message: Event) -> int:
    """Return the number of a message, which is in its key."""
    properties: dict[str, Any] = message.get("properties") or {}
    return int(str(message.get("keys") or properties["KEYS"]).removeprefix("key"))


def sync(bench: Bench) -> None:
    topic = bench.topic()
    sent = bench.send(topic, 24, sizes=",".join(map(str, SIZES)))
    same([event["index"] for event in sent], [*range(24)])
    received = bench.receive(topic, "g", 24)
    same(crcs_of(received), bench.crcs(range(24), SIZES))
    same(sorted(map(key_of, received)), [*range(24)])


def in_mode(mode: str) -> Case:
    def case(bench: Bench) -> None:
        topic = bench.topic()
        bench.send(topic, 1)
        bench.send(topic, 12, first=1, mode=mode)
        same(crcs_of(bench.receive(topic, "g", 13)), bench.crcs(range(13)))

    return case


def ordered(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, 30, shards=3)
    received = bench.receive(topic, "g", 30, mode="orderly")
    same(crcs_of(received), bench.crcs(range(30)))
    for shard in range(3):
        mine = [message for message in received if key_of(message) % 3 == shard]
        same(len({message["queueId"] for message in mine}), 1)
        same([key_of(message) for message in mine], [*range(shard, 30, 3)])


def delayed(bench: Bench) -> None:
    topic = bench.topic(1)
    bench.send(topic, 4, delay=2)
    received = bench.receive(topic, "g", 4)
    same(crcs_of(received), bench.crcs(range(4)))
    waits = [message["storeTimestamp"] - message["bornTimestamp"] for message in received]
    assert all(wait >= DELAY_MS for wait in waits), waits


def tags(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, 9, tags="red,green,blue")
    received = bench.receive(topic, "g", 6, expression="red || blue")
    same(sorted(map(key_of, received)), [0, 2, 3, 5, 6, 8])


def sql(bench: Bench) -> None:
    topic = bench.topic()
    for first, number in ((0, 1), (6, 5)):
        bench.send(topic, 6, first=first, property=f"number:{number}", tags="red,green")
    expression = "number > 3 AND TAGS = 'green'"
    received = bench.receive(topic, "g", 3, expression=expression, type="SQL92")
    same(sorted(map(key_of, received)), [7, 9, 11])


def retry(bench: Bench) -> None:
    """The first delivery of each message fails."""
    topic = bench.topic(1)
    bench.send(topic, 1)
    bench.receive(topic, "g", 1)  # The group's retry topic now has a route.
    bench.send(topic, 5, first=1)
    received = bench.receive(topic, "g", 10, refuse=1)
    again = [message for message in received if message["reconsumeTimes"] == 1]
    same(crcs_of(again), bench.crcs(range(1, 6)))


def broadcast(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, 6)
    for _ in range(2):
        received = bench.receive(topic, "g", 6, model="broadcasting")
        same(crcs_of(received), bench.crcs(range(6)))


def offsets(bench: Bench) -> None:
    """A group continues where it stopped."""
    topic = bench.topic(1)
    for first in (0, 4):
        bench.send(topic, 4, first=first)
        received = bench.receive(topic, "g", 4)
        same(sorted(map(key_of, received)), [*range(first, first + 4)])


def transactions(bench: Bench) -> None:
    """Committed, rolled back, and four that are checked: committed, committed, rolled back, …"""
    topic = bench.topic(1)
    events = bench.probe.run(
        "transact", topic=topic, count=6, outcomes="cruuuu", checks="ccccrc", keys="key",
        group=f"{bench.name}-p", lingerMs=9_000,
    )  # fmt: skip
    checked = Counter(event["index"] for event in events if event["event"] == "checked")
    same(set(checked), {2, 3, 4, 5})
    received = bench.receive(topic, "g", 4)
    same(sorted(map(key_of, received)), [0, 2, 3, 5])


def failover(bench: Bench) -> None:
    """A producer and a consumer work while their leader is killed. What the producer is told to be
    stored is received, perhaps more than once.
    """
    topic, group = bench.topic(), f"{bench.name}-g"
    bench.cluster.spread_topic(topic)
    sent: list[Event] = []
    received: list[Event] = []
    given: dict[str, Any] = {"topic": topic, "timeout_s": CHANGE_SECONDS_MAX}
    to_receive = {**given, "group": group, "firstMs": WAIT_MS, "idleMs": WAIT_MS, "max": MANY}
    to_send = {**given, "group": f"{bench.name}-p", "keys": "key", "retryMs": WAIT_MS}
    to_send |= {"first": 1, "count": MANY - 1}
    bench.send(topic, 1, retryMs=WAIT_MS)  # The group may be electing its first leader.
    with bench.consumer() as consumer, ThreadPoolExecutor(2) as pool:
        consuming = pool.submit(consumer.run, "consume", events=received, **to_receive)
        bench.wait(lambda: bool(received) or consuming.done())
        sending = pool.submit(bench.probe.run, "send", events=sent, **to_send)
        bench.wait(lambda: len(sent) >= MANY // 10 or sending.done())
        assert not sending.done(), "all messages were sent before the leader was killed"
        with bench.cluster.lost_leader():
            sending.result()
            consuming.result()
    ended = [event for event in sent if event["event"] != "done"]
    same([event["index"] for event in ended if event["event"] == "sent"], [*range(1, MANY)])
    stored = {0, *(event["index"] for event in ended if event.get("status") in SENT)}
    assert len(stored) > MANY // 2, f"only {len(stored)} of {MANY} were acknowledged"
    missing = stored - {key_of(each) for each in received if each["event"] == "received"}
    if missing:  # The consumer stops after MANY messages, of which some came twice.
        more = bench.receive(topic, "g", len(missing))
        missing -= set(map(key_of, more))
    same(sorted(missing), [])


CASES: Final[Mapping[str, tuple[str, Case]]] = {
    "sync": ("sends, bodies of three sizes", sync),
    "async": ("asynchronous sends", in_mode("async")),
    "oneway": ("one-way sends", in_mode("oneway")),
    "batch": ("a batch", in_mode("batch")),
    "ordered": ("ordered sends and consumption", ordered),
    "delayed": ("a delay level", delayed),
    "tags": ("a tag filter", tags),
    "sql": ("an SQL filter", sql),
    "retry": ("messages that a listener refuses", retry),
    "broadcast": ("broadcasting", broadcast),
    "offsets": ("a group continues where it stopped", offsets),
    "transactions": ("transactions with check-back", transactions),
    "failover": ("a producer and a consumer whose leader is killed, in groups of three", failover),
}
"""Title and function of each case, in the order of the page."""


def cases_at(target: Target) -> list[str]:
    """Return the cases of a kind of servers: in groups, only the one that needs a group."""
    return [case for case, (_, run) in CASES.items() if (run is failover) == target.is_group]
