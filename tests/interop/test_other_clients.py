"""The Go client and the C++ client against a Java and an rmqpy broker, in classic mode and on
DLedger: both brokers acknowledge, deliver, and store the same.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from foreign_clients import CLIENTS, cpp_body
from harness.interop import ClusterPair, InteropCluster, on_both

from rmqpy.testing.java import Event, Probe, probe_body

pytestmark = pytest.mark.interop

SETTINGS = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "enablePropertyFilter": "true",
}
OF_A_RUN = ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "__CLIENT_HOST", "CONSUME_START_TIME")
"""The properties whose values differ from run to run and from client to client."""
RETRY_IDLE_MS = 8_000

NamedClient = tuple[str, Probe]


@pytest.fixture(scope="module", params=["classic", "dledger"])
def pair(
    request: pytest.FixtureRequest, pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair]
) -> Iterator[ClusterPair]:
    clusters = pair_of("elsewhere", request.param, SETTINGS)
    yield clusters
    for cluster in clusters.values():
        cluster.stop()


@pytest.fixture(scope="module", params=["go", "cpp"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NamedClient]:
    """The name of a client and its probe, which has no name server yet."""
    client = CLIENTS[{"go": "go-2.1.2", "cpp": "cpp-0.4.4"}[request.param]]
    reason = client.missing()
    if reason is not None:
        pytest.skip(reason)
    probe = client.probe(tmp_path_factory.mktemp(request.param), "")
    yield request.param, probe
    probe.close()


def crc(name: str, index: int, size: int = 100) -> int:
    """Return the CRC of the body that a client sends in its message number ``index``."""
    body = cpp_body(index, size) if name == "cpp" else probe_body(index, size)
    return zlib.crc32(body)


def stored(message: Event) -> dict[str, Any]:
    """Return the part of a message that must be the same on both brokers."""
    names = ("queueId", "queueOffset", "flag", "sysFlag", "reconsumeTimes", "bodyLength")
    properties = {
        name: "present" if name in OF_A_RUN else value
        for name, value in message["properties"].items()
        if name not in ("MIN_OFFSET", "MAX_OFFSET")
    }
    return {
        "crc": message["crc"] & 0x7FFFFFFF,
        **{name: message[name] for name in names},
        "properties": properties,
    }


def without_places(messages: Iterable[Event]) -> list[str]:
    """Return messages without their queue offsets, in an order that does not depend on which of a
    consumer's threads was first.
    """
    found = [stored(message) for message in messages]
    return sorted(str({**each, "queueOffset": "any"}) for each in found)


def received(events: Iterable[Event], *names: str) -> list[tuple[Any, ...]]:
    """Return the named fields of every received message."""
    names = names or ("queueId", "queueOffset", "reconsumeTimes", "crc")
    messages = [event for event in events if event["event"] == "received"]
    return [tuple(event[name] for name in names) for event in messages]


def sent(
    cluster: InteropCluster, probe: Probe, topic: str, count: int = 1, **options: object
) -> list[tuple[int, int, int]]:
    """Send messages once the broker accepts them, and return index, status, and queue offset of
    each.
    """
    cluster.send(topic, queue=0)  # This is repeated until an election is over.
    events = probe.at(cluster.namesrv.address).run(
        "send", topic=topic, count=count, timeout_s=60.0, events=None, **options
    )
    assert not [event for event in events if event["event"] == "failed"], events
    return [(event["index"], event["status"], event["queueOffset"]) for event in events]


def test_sends(pair: ClusterPair, client: NamedClient) -> None:
    name, probe = client

    def scenario(
        cluster: InteropCluster,
    ) -> tuple[list[tuple[int, int, int]], list[dict[str, Any]], list[str]]:
        topic = cluster.topic(queues=1)
        given = sent(cluster, probe, topic, count=9, sizes="10,300,6000", keys="key", tags="a,b",
                     property="city:Ulm")  # fmt: skip
        # A batch of this C++ client is stored as one message, by Java and by us.
        mode = "batch" if name == "go" else "sync"
        given += sent(cluster, probe, topic, first=9, count=6, mode=mode, keys="batch")
        found = [stored(message) for message in cluster.dump(topic)]
        # Java leaves this property out of a batch on DLedger (docs/reference/conformance.md).
        for message in found:
            if message["properties"].get("KEYS", "").startswith("batch"):
                message["properties"].pop("CLUSTER", None)
        # Java's broker processes one-way requests in several threads.
        sent(cluster, probe, topic, first=15, count=3, mode="oneway")
        later = [m for m in cluster.dump(topic) if m["queueOffset"] >= len(found)]
        return given, found, without_places(later)

    given, found, later = on_both(pair, scenario)
    assert len(later) == 4, "three messages, and one that the Java client sent before them"
    assert {status for _, status, _ in given} == {0} and len(given) in (10, 15)
    sizes = [10, 300, 6000] * 3 + [100] * 6
    crcs = [crc(name, index, size) & 0x7FFFFFFF for index, size in enumerate(sizes)]
    assert Counter(crcs) <= Counter(message["crc"] for message in found)
    keys = [message["properties"].get("KEYS") for message in found]
    assert keys[1:10] == [f"key{n}" for n in range(9)]
    assert keys[11:17] == [f"batch{n}" for n in range(9, 15)]


def test_ordered_sends_and_consumption(pair: ClusterPair, client: NamedClient) -> None:
    """Each of three keys stays in one queue, and each queue is consumed in order."""
    _, probe = client

    def scenario(
        cluster: InteropCluster,
    ) -> tuple[list[tuple[int, list[tuple[int, int, int]]]], list[dict[str, Any]]]:
        topic = cluster.topic(queues=4)
        sent(cluster, probe, topic, count=30, shards=3, keys="order")
        own = probe.at(cluster.namesrv.address)
        events = own.run("consume", topic=topic, group=f"{topic}-g", mode="orderly", max=31)
        by_queue: dict[int, list[tuple[int, int, int]]] = {}
        for queue_id, offset, times, checksum in received(events):
            by_queue.setdefault(queue_id, []).append((offset, times, checksum))
        return sorted(by_queue.items()), [stored(message) for message in cluster.dump(topic)]

    queues, found = on_both(pair, scenario)
    assert sum(len(messages) for _, messages in queues) == 31
    for _, messages in queues:
        assert [offset for offset, _, _ in messages] == list(range(len(messages)))
    place = {m["properties"]["KEYS"]: m["queueId"] for m in found if "KEYS" in m["properties"]}
    for shard in range(3):
        assert len({place[f"order{n}"] for n in range(shard, 30, 3)}) == 1


def test_delayed_sends(pair: ClusterPair, client: NamedClient) -> None:
    name, probe = client

    def scenario(cluster: InteropCluster) -> tuple[list[bool], list[dict[str, Any]]]:
        topic = cluster.topic(queues=1)
        sent(cluster, probe, topic, first=1, count=4, delay=2, keys="late")
        own = probe.at(cluster.namesrv.address)
        events = own.run("consume", topic=topic, group=f"{topic}-g", max=5, idleMs=5_000)
        late = [
            event["storeTimestamp"] - event["bornTimestamp"]
            for event in events
            if event["event"] == "received" and event["crc"] in crcs
        ]
        on_time = [2_000 <= ms < 5_000 for ms in late]
        return sorted(on_time), [stored(message) for message in cluster.dump(topic)]

    crcs = {crc(name, index) for index in range(1, 5)}
    on_time, found = on_both(pair, scenario)
    assert on_time == [True] * 4
    assert [m["properties"].get("KEYS") for m in found[1:]] == [f"late{n}" for n in range(1, 5)]


def test_push_consumption_with_retry(pair: ClusterPair, client: NamedClient) -> None:
    """The first delivery of each message fails, and the group's retry topic delivers it again."""
    name, probe = client

    def scenario(cluster: InteropCluster) -> tuple[list[tuple[Any, ...]], list[str]]:
        topic = cluster.topic(queues=1)
        group = f"{topic}-g"
        own = probe.at(cluster.namesrv.address)
        # A consumer that starts before the name server knows its retry topic finds it much later.
        own.run("consume", topic=topic, group=group, max=1, firstMs=2_000)
        time.sleep(0.5)
        sent(cluster, probe, topic, count=5, keys="again")
        events = own.run(
            "consume", topic=topic, group=group, refuse=1, max=12, idleMs=RETRY_IDLE_MS
        )
        retries = cluster.dump(f"%RETRY%{group}")
        got = received(events, "topic", "reconsumeTimes", "crc")
        if name == "cpp":  # It sends back untried messages that follow a failed one in a batch.
            got = [each for each in got if each[1] > 0]
        return sorted(got), without_places(retries)

    got, retries = on_both(pair, scenario)
    times = Counter(reconsumed for _, reconsumed, _ in got)
    assert times == ({0: 6, 1: 6} if name == "go" else {1: 6})
    assert len(retries) == 6


def test_a_tag_and_an_sql_filter(pair: ClusterPair, client: NamedClient) -> None:
    name, probe = client

    def scenario(cluster: InteropCluster) -> list[list[tuple[Any, ...]]]:
        topic = cluster.topic(queues=1)
        sent(cluster, probe, topic, count=9, tags="red,green,blue", property="number:4")
        own = probe.at(cluster.namesrv.address)
        tagged = own.run("consume", topic=topic, group=f"{topic}-t", expression="red || blue")
        found = [sorted(received(tagged, "queueOffset"))]
        if name == "go":
            filtered = own.run("consume", topic=topic, group=f"{topic}-s", type="SQL92",
                               expression="number > 3 AND TAGS = 'green'")  # fmt: skip
            found.append(sorted(received(filtered, "queueOffset")))
        return found

    for offsets in on_both(pair, scenario):
        assert len(offsets) in (3, 6)


def test_transactions_of_the_go_client(pair: ClusterPair, client: NamedClient) -> None:
    name, probe = client
    if name != "go":
        pytest.skip("this wrapper of the C++ client has no transactions")

    def scenario(cluster: InteropCluster) -> tuple[list[tuple[tuple[int, str], int]], list[str]]:
        topic = cluster.topic(queues=1)
        cluster.send(topic, count=1)
        events = probe.at(cluster.namesrv.address).run(
            "transact", topic=topic, count=6, outcomes="cruuuu", checks="uuccrc", keys="k",
            group=f"{topic}-p", lingerMs=9_000,
        )  # fmt: skip
        checks = Counter((e["index"], e["answer"]) for e in events if e["event"] == "checked")
        finals = [m["properties"].get("KEYS", "") for m in cluster.dump(topic)]
        return sorted(checks.items()), sorted(finals)

    checks, finals = on_both(pair, scenario)
    assert dict(checks) == {(2, "c"): 1, (3, "c"): 1, (4, "r"): 1, (5, "c"): 1}
    assert [key for key in finals if key] == ["k0", "k2", "k3", "k5"]
