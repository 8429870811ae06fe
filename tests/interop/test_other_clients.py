"""The Go client and the C++ client: what they send, what they are given, and what is stored then,
on a Java and an rmqpy broker side by side, in classic mode and on DLedger.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import foreign_clients
import pytest
from harness.interop import ClusterPair

from rmqpy.testing.java import probe_body, side_by_side

pytestmark = pytest.mark.interop

SETTINGS = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "enablePropertyFilter": "true",
}
OF_A_RUN = ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "__CLIENT_HOST", "CONSUME_START_TIME")
"""Values that differ from run to run, and from client to client."""
RETRY_IDLE_MS = 8_000


@pytest.fixture(scope="module", params=["classic", "dledger"])
def pair(
    request: pytest.FixtureRequest, pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair]
):
    clusters = pair_of("elsewhere", request.param, SETTINGS)
    yield clusters
    for cluster in clusters.values():
        cluster.stop()


@pytest.fixture(scope="module", params=["go", "cpp"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Its name, and the probe of a name server."""
    reason = foreign_clients.missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    made = foreign_clients.probe(request.param, tmp_path_factory.mktemp(request.param), "")
    yield request.param, made
    made.close()


def crc(name: str, index: int, size: int = 100) -> int:
    body = foreign_clients.cpp_body(index, size) if name == "cpp" else probe_body(index, size)
    return zlib.crc32(body)


def both(pair, scenario) -> Any:
    """The same names of topics on both sides, whatever failed before."""
    made = max(cluster._topics for cluster in pair.values())
    for cluster in pair.values():
        cluster._topics = made
    return side_by_side.both(pair, scenario)


def stored(message: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on both brokers."""
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


def without_places(messages) -> list[str]:
    """In an order that does not hang on which of a consumer's threads was first."""
    found = [stored(message) for message in messages]
    return sorted(str({**each, "queueOffset": "any"}) for each in found)


def received(events, *names: str) -> list[tuple[Any, ...]]:
    names = names or ("queueId", "queueOffset", "reconsumeTimes", "crc")
    given = [event for event in events if event["event"] == "received"]
    return [tuple(event[name] for name in names) for event in given]


def sent(cluster, probe, topic: str, **options: object) -> list[tuple[Any, ...]]:
    """The acknowledgements; what is refused before an election is over is sent again."""
    options.setdefault("count", 1)
    cluster.send(topic, queue=0)
    events = probe.at(cluster.namesrv.address).run("send", topic=topic, **options)
    assert not [event for event in events if event["event"] == "failed"], events
    return [(event["index"], event["status"], event["queueOffset"]) for event in events]


def test_sends(pair, client) -> None:
    name, probe = client

    def scenario(cluster):
        topic = cluster.topic(queues=1)
        given = sent(cluster, probe, topic, count=9, sizes="10,300,6000", keys="key", tags="a,b",
                     property="city:Ulm")  # fmt: skip
        # A batch of this C++ client is stored as one message, by Java and by us.
        mode = "batch" if name == "go" else "sync"
        given += sent(cluster, probe, topic, first=9, count=6, mode=mode, keys="batch")
        found = [stored(message) for message in cluster.dump(topic)]
        # What Java leaves out of a batch on DLedger (docs/reference/conformance.md).
        for message in found:
            if message["properties"].get("KEYS", "").startswith("batch"):
                message["properties"].pop("CLUSTER", None)
        # Java's broker has several threads for what nobody waits for.
        sent(cluster, probe, topic, first=15, count=3, mode="oneway")
        later = [m for m in cluster.dump(topic) if m["queueOffset"] >= len(found)]
        return given, found, without_places(later)

    given, found, later = both(pair, scenario)
    assert len(later) == 4, "one message of the Java client is sent before"
    assert {status for _, status, _ in given} == {0} and len(given) in (10, 15)
    sizes = [10, 300, 6000] * 3 + [100] * 6
    crcs = [crc(name, index, size) & 0x7FFFFFFF for index, size in enumerate(sizes)]
    assert Counter(crcs) <= Counter(message["crc"] for message in found)
    keys = [message["properties"].get("KEYS") for message in found]
    assert keys[1:10] == [f"key{n}" for n in range(9)]
    assert keys[11:17] == [f"batch{n}" for n in range(9, 15)]


def test_ordered_sends_and_consumption(pair, client) -> None:
    """Each of three keys stays in one queue; a consumer that fails once tries again in place."""
    _, probe = client

    def scenario(cluster):
        topic = cluster.topic(queues=4)
        sent(cluster, probe, topic, count=30, shards=3, keys="order")
        own = probe.at(cluster.namesrv.address)
        events = own.run("consume", topic=topic, group=f"{topic}-g", mode="orderly", max=31)
        by_queue: dict[int, list[Any]] = {}
        for queue_id, offset, times, checksum in received(events):
            by_queue.setdefault(queue_id, []).append((offset, times, checksum))
        return sorted(by_queue.items()), [stored(message) for message in cluster.dump(topic)]

    queues, found = both(pair, scenario)
    assert sum(len(messages) for _, messages in queues) == 31
    for _, messages in queues:
        assert [offset for offset, _, _ in messages] == list(range(len(messages)))
    place = {m["properties"]["KEYS"]: m["queueId"] for m in found if "KEYS" in m["properties"]}
    for shard in range(3):
        assert len({place[f"order{n}"] for n in range(shard, 30, 3)}) == 1


def test_delayed_sends(pair, client) -> None:
    name, probe = client

    def scenario(cluster):
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
    on_time, found = both(pair, scenario)
    assert on_time == [True] * 4
    assert [m["properties"].get("KEYS") for m in found[1:]] == [f"late{n}" for n in range(1, 5)]


def test_push_consumption_with_retry(pair, client) -> None:
    """The first delivery of each fails; it comes again by way of the group's retry topic."""
    name, probe = client

    def scenario(cluster):
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
        if name == "cpp":  # what stands behind a failed one in a batch is given back untried
            got = [each for each in got if each[1] > 0]
        return sorted(got), without_places(retries)

    got, retries = both(pair, scenario)
    times = Counter(reconsumed for _, reconsumed, _ in got)
    assert times == ({0: 6, 1: 6} if name == "go" else {1: 6})
    assert len(retries) == 6


def test_a_tag_and_an_sql_filter(pair, client) -> None:
    name, probe = client

    def scenario(cluster):
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

    for offsets in both(pair, scenario):
        assert len(offsets) in (3, 6)


def test_transactions_of_the_go_client(pair, client) -> None:
    name, probe = client
    if name != "go":
        pytest.skip("this wrapper of the C++ client has no transactions")

    def scenario(cluster):
        topic = cluster.topic(queues=1)
        cluster.send(topic, count=1)
        events = probe.at(cluster.namesrv.address).run(
            "transact", topic=topic, count=6, outcomes="cruuuu", checks="uuccrc", keys="k",
            group=f"{topic}-p", lingerMs=9_000,
        )  # fmt: skip
        asked = Counter((e["index"], e["answer"]) for e in events if e["event"] == "checked")
        finals = [m["properties"].get("KEYS", "") for m in cluster.dump(topic)]
        return sorted(asked.items()), sorted(finals)

    asked, finals = both(pair, scenario)
    assert dict(asked) == {(2, "c"): 1, (3, "c"): 1, (4, "r"): 1, (5, "c"): 1}
    assert [key for key in finals if key] == ["k0", "k2", "k3", "k5"]
