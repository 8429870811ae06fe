"""Message trace: Java's mqadmin tells what our client wrote, and ours what Java's did, alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import pytest
from harness.interop import ClusterPair, InteropCluster

from rmqpy.cli import main
from rmqpy.client import Message, Producer, ProducerSettings, PushConsumer, PushSettings

pytestmark = pytest.mark.interop

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
WAIT_S = 20


@pytest.fixture(scope="module")
def pair(pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair]):
    """Their brokers offer the trace topic."""
    clusters = pair_of("trace", "classic", {"traceTopicEnable": "true"})
    yield clusters
    for made in clusters.values():
        made.broker.stop()
        made.namesrv.stop()


@pytest.fixture(params=["java", "rmqpy"])
def cluster(request: pytest.FixtureRequest, pair):
    return pair[request.param]


def told(cluster, capsys, identity: str) -> dict[str, list[list[str]]]:
    """Who tells → the words of each line, when all that is to be told is there."""
    words = ["queryMsgTraceById", "-i", identity]
    deadline = time.monotonic() + WAIT_S
    while True:
        java = cluster.admin.run(*words)
        assert main(["admin", *words, "-n", cluster.namesrv.address]) == 0
        ours = capsys.readouterr().out
        shown = {"mqadmin": lines_of(java), "rmqpy": lines_of(ours)}
        whole = all("writers" in text and "readers" in text for text in (java, ours))
        if whole or time.monotonic() > deadline:
            return shown
        time.sleep(0.5)


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_our_clients_trace(cluster: InteropCluster, capsys: pytest.CaptureFixture[str]) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=1)

    async def story() -> str:
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def listen(messages):
            for message in messages:
                await heard.put(message.msg_id)

        settings = PushSettings(from_where="CONSUME_FROM_FIRST_OFFSET", trace_topic=TRACE_TOPIC)
        deps = cluster.namesrv.address
        consumer = PushConsumer("readers", deps, listener=listen, settings=settings)
        consumer.subscribe(topic)
        sending = ProducerSettings(trace_topic=TRACE_TOPIC)
        async with Producer("writers", deps, settings=sending) as producer, consumer:
            sent = await producer.send(Message(topic=topic, body=b"traced", tags="a", keys="k7"))
            async with asyncio.timeout(WAIT_S):
                while await heard.get() != sent.msg_id:
                    pass
        return sent.msg_id

    check(cluster, capsys, asyncio.run(story()))


def test_javas_clients_trace(cluster: InteropCluster, capsys: pytest.CaptureFixture[str]) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=1)
    (sent,) = cluster.send(
        topic, count=1, first=7, traced="true", group="writers", keys="k", tags="a", lingerMs=2_000
    )
    # What a client of Java's has not traced when it ends may be lost: it stays for a while.
    cluster.probe.run("consume", topic=topic, group="readers", traced="true", idleMs=3_000)
    check(cluster, capsys, sent["msgId"])


def check(cluster, capsys, identity: str) -> None:
    shown = told(cluster, capsys, identity)
    assert shown["rmqpy"] == shown["mqadmin"]
    words = [word for line in shown["mqadmin"] for word in line]
    assert {"writers", "readers", "success"} <= set(words), shown
