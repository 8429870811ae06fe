"""Batches, delays, transactions, retries, dead letters, order, and broadcast: the Java clients
against a Java and an rmqpy cluster, compared message by message, in classic mode, with a single
DLedger member, and with a group of three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from harness.interop import ClusterPair, InteropCluster, on_both

from rmqpy.testing.java.side_by_side import in_order, received, seen, when_known

pytestmark = pytest.mark.interop

SETTINGS = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "transactionCheckMax": "2",
    "enablePropertyFilter": "true",
}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["classic", "dledger", "group"])
def pair(
    request: pytest.FixtureRequest, pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair]
) -> Iterator[ClusterPair]:
    """A Java and an rmqpy cluster with the same settings, by kind."""
    clusters = pair_of("services", request.param, SETTINGS)
    yield clusters
    for cluster in clusters.values():
        cluster.stop()


def test_batches(pair: ClusterPair) -> None:
    def scenario(
        cluster: InteropCluster,
    ) -> tuple[list[tuple[int, int, str]], Messages, Messages]:
        topic = cluster.topic(queues=2)
        sent = cluster.send(
            topic, mode="batch", count=24, batch=8, keys="b", tags="a,b", sizes="10,3000"
        )
        events = cluster.probe.run("consume", topic=topic, group=f"{topic}-g", max=24)
        acknowledged = [(event["first"], event["count"], event["status"]) for event in sent]
        given, dumped = received(events), [seen(m) for m in cluster.dump(topic)]
        for message in given + dumped:
            # Java leaves this property out of a batch on DLedger (docs/reference/conformance.md).
            message["properties"].pop("CLUSTER", None)
        return acknowledged, in_order(given), in_order(dumped)

    sent, given, dumped = on_both(pair, scenario)
    assert sent == [(first, 8, "SEND_OK") for first in (0, 8, 16)]
    assert len(given) == len(dumped) == 24 and not any(message["flag"] for message in given)


def test_delayed_messages(pair: ClusterPair) -> None:
    def scenario(
        cluster: InteropCluster,
    ) -> tuple[list[tuple[int, int, str]], Messages, Messages, Messages]:
        topic = cluster.topic(queues=2)
        sent = cluster.send(topic, count=6, delay=1, keys="k", tags="a,b", property="p:v", flag=3)
        cluster.send(topic, first=6, count=2, delay=2, sizes="6000")
        events = cluster.probe.run("consume", topic=topic, group=f"{topic}-g", max=8)
        waiting = cluster.probe.run("dump", topic="SCHEDULE_TOPIC_XXXX", via=topic, queues="0,1")
        return (
            [(s["queueId"], s["queueOffset"], s["status"]) for s in sent],
            in_order(received(events)),
            [seen(m, "queueOffset") for m in cluster.dump(topic)],
            [
                seen(m, "queueOffset")
                for m in waiting
                if m["event"] == "message" and m["properties"]["REAL_TOPIC"] == topic
            ],
        )

    _, got, dumped, waiting = on_both(pair, scenario)
    assert len(got) == len(dumped) == len(waiting) == 8


def test_delayed_messages_are_on_time(pair: ClusterPair) -> None:
    def scenario(cluster: InteropCluster) -> tuple[int, bool]:
        topic = cluster.topic(queues=1)
        cluster.send(topic, count=4, delay=2)
        cluster.probe.run("consume", topic=topic, group=f"{topic}-g", max=4)
        late = [m["storeTimestamp"] - m["bornTimestamp"] for m in cluster.dump(topic)]
        return len(late), all(2_000 <= ms < 4_000 for ms in late)

    assert on_both(pair, scenario) == (4, True)


def test_transactions(pair: ClusterPair) -> None:
    def scenario(
        cluster: InteropCluster,
    ) -> tuple[list[tuple[tuple[Any, ...], int]], Messages, list[str], Messages]:
        topic = cluster.topic(queues=1)
        events = cluster.send(
            topic,
            mode="transaction",
            count=6,
            outcomes="cruuuu",
            checks="uucruc",
            keys="k",
            flag=0,
            group=f"{topic}-producers",
            warmMs=1_500,
            lingerMs=9_000,
        )
        checks = Counter(
            (e["index"], e["answer"], e["topic"], e["queueId"], e["sysFlag"], e["flag"],
             e["properties"].get("TRANSACTION_CHECK_TIMES"), e["crc"])
            for e in events if e["event"] == "checked"
        )  # fmt: skip
        halves = cluster.probe.run("dump", topic=HALF, via=topic)
        given_up = cluster.probe.run("dump", topic="TRANS_CHECK_MAX_TIME_TOPIC", via=topic)
        return (
            sorted(checks.items(), key=str),
            in_order([seen(m) for m in cluster.dump(topic)]),
            sorted(
                str(seen(m))
                for m in halves
                if m["event"] == "message" and m["properties"]["REAL_TOPIC"] == topic
            ),
            [seen(m) for m in given_up
             if m["event"] == "message" and m["properties"]["REAL_TOPIC"] == topic],
        )  # fmt: skip

    _, finals, _, given_up = on_both(pair, scenario)
    assert len(finals) == 3 and len(given_up) == 1
    assert {message["sysFlag"] for message in finals} == {8}


def test_retries_and_dead_letters(pair: ClusterPair) -> None:
    def scenario(cluster: InteropCluster) -> tuple[Messages, Messages, Messages]:
        topic = cluster.topic(queues=1)
        group = f"{topic}-g"
        # A consumer that starts before the name server knows its retry topic finds it much later.
        cluster.probe.run("consume", topic=topic, group=group, max=1, firstMs=2_000)
        cluster.send(topic, count=3, keys="k", tags="a")
        events = cluster.probe.run(
            "consume", topic=topic, group=group, refuse=9, maxTimes=2, max=10, idleMs=8_000
        )
        retries = cluster.dump(f"%RETRY%{group}")
        dead = when_known(lambda: cluster.dump(f"%DLQ%{group}"))
        return (
            in_order(received(events)),
            in_order([seen(m) for m in retries]),
            in_order([seen(m) for m in dead]),
        )

    got, retries, dead = on_both(pair, scenario)
    assert Counter(message["reconsumeTimes"] for message in got) == {0: 3, 1: 3, 2: 3}
    assert len(retries) == 6 and len(dead) == 3


def test_an_orderly_consumer_tries_again_in_place(pair: ClusterPair) -> None:
    def scenario(cluster: InteropCluster) -> list[Messages]:
        topic = cluster.topic(queues=2)
        cluster.send(topic, count=10)
        events = cluster.probe.run(
            "consume", topic=topic, group=f"{topic}-g", mode="orderly", refuse=1, max=20
        )
        got = received(events, "queueOffset")
        return [[m for m in got if m["queueId"] == queue] for queue in (0, 1)]

    first, second = on_both(pair, scenario)
    assert [m["queueOffset"] for m in first] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(second) == 10


def test_broadcast(pair: ClusterPair) -> None:
    def scenario(cluster: InteropCluster) -> tuple[list[Messages], list[int]]:
        topic = cluster.topic(queues=2)
        cluster.send(topic, count=8)
        events = [
            received(
                cluster.probe.run(
                    "consume", topic=topic, group=f"{topic}-g", model="broadcasting", max=8
                )
            )
            for _ in range(2)
        ]
        offsets = cluster.probe.run("offsets", topic=topic, group=f"{topic}-g")
        return [in_order(each) for each in events], [q["max"] for q in offsets]

    on_both(pair, scenario)


@pytest.mark.parametrize(
    "expression",
    [
        "number > 3 AND colour = 'red' OR number IS NULL",
        "number NOT BETWEEN 2 AND 4 AND colour IN ('red', 'green')",
    ],
)
def test_sql_filters(pair: ClusterPair, expression: str) -> None:
    def scenario(cluster: InteropCluster) -> Messages:
        topic = cluster.topic(queues=1)
        for colour in ("red", "green", "blue"):
            for number in range(6):
                cluster.send(
                    topic, first=number, count=1, tags="a,b",
                    property=[f"colour:{colour}", f"number:{number}"],
                )  # fmt: skip
        cluster.send(topic, first=6, count=3)
        events = cluster.probe.run(
            "consume", topic=topic, group=f"{topic}-g", type="SQL92",
            expression=expression, idleMs=1_000,
        )  # fmt: skip
        return sorted(received(events, "queueOffset"), key=lambda m: m["queueOffset"])

    got = on_both(pair, scenario)
    assert 0 < len(got) < 21
