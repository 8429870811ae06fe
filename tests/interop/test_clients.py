"""The Java producer and consumers against every pair of name server and broker."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from pathlib import Path

import pytest
from harness.interop import InteropCluster

from rmqpy.testing.blocking_connection import connect_when_ready, send_request
from rmqpy.testing.java import Event, JavaHome, JavaSite, probe_body

pytestmark = pytest.mark.interop

SIZES = (10, 300, 6000)
"""The client compresses the last one."""
SECONDS_UNTIL_THE_CONSUMER_WAITS = 2.0
DELIVERY_MS_MAX = 1500
"""A broker that only checks held requests from time to time needs up to five seconds."""


def size_of(index: int) -> int:
    return SIZES[index % len(SIZES)]


def own_properties(message: Event) -> dict[str, str]:
    """Return the properties without those that the client adds to a pulled message."""
    added = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "UNIQ_KEY")
    return {key: value for key, value in message["properties"].items() if key not in added}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_message_is_served_where_it_was_acknowledged(cluster: InteropCluster, mode: str) -> None:
    topic = cluster.topic()
    sent = cluster.send(
        topic,
        mode=mode,
        count=24,
        sizes=",".join(map(str, SIZES)),
        keys="order-",
        tags="red,green",
        property=["city:Zürich", "shape:round"],
        flag=7,
    )
    assert {message["index"] for message in sent} == set(range(24))
    assert {message["status"] for message in sent} == {"SEND_OK"}
    stored = {(m["queueId"], m["queueOffset"]): m for m in cluster.dump(topic)}
    assert len(stored) == 24
    for message in sent:
        index = message["index"]
        found = stored[message["queueId"], message["queueOffset"]]
        assert message["queueId"] == index % 4
        assert found["msgId"] == message["msgId"]
        assert found["offsetMsgId"] == message["offsetMsgId"]
        assert found["storeHost"] == f"/{cluster.broker.address}"
        assert found["bodyLength"] == size_of(index)
        assert found["crc"] == zlib.crc32(probe_body(index, size_of(index))) & 0x7FFFFFFF
        assert found["flag"] == 7
        assert own_properties(found) == {
            "KEYS": f"order-{index}",
            "TAGS": ("red", "green")[index % 2],
            "city": "Zürich",
            "shape": "round",
        }


def test_queue_offsets_of_a_queue_have_no_holes(cluster: InteropCluster) -> None:
    topic = cluster.topic(queues=2)
    cluster.send(topic, count=31)
    offsets = [(m["queueId"], m["queueOffset"]) for m in cluster.dump(topic)]
    assert sorted(offsets) == [(0, n) for n in range(16)] + [(1, n) for n in range(15)]
    ends = {q["queueId"]: (q["min"], q["max"]) for q in cluster.probe.run("offsets", topic=topic)}
    assert ends == {0: (0, 16), 1: (0, 15)}


def test_oneway_sends_arrive(cluster: InteropCluster) -> None:
    topic = cluster.topic()
    cluster.send(topic, count=4)  # This waits for the route and, with DLedger, for the leader.
    cluster.send(topic, mode="oneway", first=4, count=20)
    crcs = {message["crc"] for message in cluster.dump(topic)}
    assert crcs == {zlib.crc32(probe_body(i, 100)) & 0x7FFFFFFF for i in range(24)}


def test_a_batch_has_consecutive_offsets_in_one_queue(cluster: InteropCluster) -> None:
    topic = cluster.topic()
    cluster.send(topic, count=1)
    batches = cluster.send(topic, mode="batch", first=1, count=24, batch=8, keys="b")
    stored = {(m["queueId"], m["queueOffset"]): m for m in cluster.dump(topic)}
    assert len(stored) == 25
    for batch in batches:
        assert batch["status"] == "SEND_OK"
        ids = batch["offsetMsgId"].split(",")
        assert len(ids) == batch["count"] == 8
        for k, offset_id in enumerate(ids):
            found = stored[batch["queueId"], batch["queueOffset"] + k]
            assert found["offsetMsgId"] == offset_id
            assert found["properties"]["KEYS"] == f"b{batch['first'] + k}"


def test_the_first_send_creates_the_topic(cluster: InteropCluster) -> None:
    cluster.send(cluster.topic(), count=1)
    topic = f"created-by-a-send-{cluster.broker.port}"
    (sent,) = cluster.send(topic, auto="true")
    (found,) = cluster.dump(topic)
    assert (found["queueId"], found["queueOffset"]) == (sent["queueId"], sent["queueOffset"])


def test_a_push_consumer_receives_every_message_once(cluster: InteropCluster) -> None:
    topic = cluster.topic()
    cluster.send(topic, count=40)
    events = cluster.probe.run("consume", topic=topic, group="all-of-it", max=40)
    received = Counter(event["crc"] for event in events if event["event"] == "received")
    assert received == Counter(zlib.crc32(probe_body(i, 100)) & 0x7FFFFFFF for i in range(40))


def test_the_probe_is_also_one_of_5x(cluster: InteropCluster, tmp_path: Path) -> None:
    topic = cluster.topic()
    cluster.send(topic, count=1)  # With DLedger, this waits for the leader.
    with JavaSite(tmp_path, JavaHome("5.3.3")).probe(cluster.namesrv.address) as probe:
        sent = probe.run("send", topic=topic, first=1, count=7)
        assert {event["status"] for event in sent} == {"SEND_OK"}
        for _ in range(2):
            events = probe.run(
                "consume", topic=topic, group=f"{topic}-g", model="broadcasting", max=8,
                firstMs=60_000, idleMs=60_000, timeout_s=150.0,
            )  # fmt: skip
            received = Counter(event["crc"] for event in events if event["event"] == "received")
            assert received == Counter(
                zlib.crc32(probe_body(i, 100)) & 0x7FFFFFFF for i in range(8)
            )


def test_a_consumer_group_continues_where_it_stopped(cluster: InteropCluster) -> None:
    """With one queue only: when the first offsets of a new group arrive together, Java may lose
    one.
    """
    topic = cluster.topic(queues=1)
    for first in (0, 4):
        cluster.send(topic, first=first, count=4)
        events = cluster.probe.run("consume", topic=topic, group="continues", max=4)
        offsets = [event["queueOffset"] for event in events if event["event"] == "received"]
        assert sorted(offsets) == [first, first + 1, first + 2, first + 3]
        (queue,) = cluster.probe.run("offsets", topic=topic, group="continues")
        assert queue["consumed"] == first + 4


def test_a_tag_expression_selects(cluster: InteropCluster) -> None:
    topic = cluster.topic()
    cluster.send(topic, count=30, tags="red,green,blue")
    events = cluster.probe.run("consume", topic=topic, group="two-tags", expression="red || blue")
    tags = Counter(e["properties"]["TAGS"] for e in events if e["event"] == "received")
    assert tags == {"red": 10, "blue": 10}


def test_an_orderly_consumer_receives_each_queue_in_order(cluster: InteropCluster) -> None:
    topic = cluster.topic(queues=2)
    cluster.send(topic, count=20)
    events = cluster.probe.run("consume", topic=topic, group="in-order", mode="orderly", max=20)
    for queue_id in (0, 1):
        offsets = [
            event["queueOffset"]
            for event in events
            if event["event"] == "received" and event["queueId"] == queue_id
        ]
        assert offsets == list(range(10))


def test_a_held_pull_is_answered_when_a_message_arrives(cluster: InteropCluster) -> None:
    """Long polling: the broker holds the pull request and answers when a message arrives."""
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=1)

    def send_later() -> None:
        with connect_when_ready(cluster.broker.address) as connection:
            assert connection.call(send_request(topic, 0, [b"late"])).code == 0

    timer = threading.Timer(SECONDS_UNTIL_THE_CONSUMER_WAITS, send_later)
    timer.start()
    events = cluster.probe.run("consume", topic=topic, group="waits", max=2, idleMs=8000)
    timer.join()
    late = [event for event in events if event["event"] == "received"][-1]
    assert late["bodyLength"] == 4
    assert late["seenTimestamp"] - late["storeTimestamp"] < DELIVERY_MS_MAX


def test_messages_are_found_by_key_by_unique_key_and_by_offset_id(cluster: InteropCluster) -> None:
    topic = cluster.topic()
    sent = cluster.send(topic, count=10, keys="invoice-")
    expected = sent[3]
    (found,) = cluster.probe.run("query", topic=topic, key="invoice-3")
    assert (found["queueId"], found["queueOffset"]) == (
        expected["queueId"],
        expected["queueOffset"],
    )
    assert found["msgId"] == expected["msgId"]
    for identity in (expected["offsetMsgId"], expected["msgId"]):
        (found,) = cluster.probe.run("view", topic=topic, id=identity)
        assert found["properties"]["KEYS"] == "invoice-3"
        assert found["crc"] == expected["crc"]


def test_search_by_time_returns_the_message_of_that_time_or_the_nearest_one(
    cluster: InteropCluster,
) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=5)
    times = [message["storeTimestamp"] for message in cluster.dump(topic)]
    for time_ms, nearest in ((0, times[0]), (times[2], times[2]), (times[4] + 60_000, times[4])):
        (found,) = cluster.probe.run("search", topic=topic, time=time_ms)
        assert times[found["offset"]] == nearest
