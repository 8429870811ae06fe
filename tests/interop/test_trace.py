"""Message trace: mqadmin and ``rmqpy admin`` show the traces of Java's clients and ours alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from harness.interop import ClusterPair, InteropCluster

from rmqpy.cli import main
from rmqpy.client import (
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushSettings,
)

pytestmark = pytest.mark.interop

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
WAIT_S = 20


@pytest.fixture(scope="module")
def pair(
    pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair],
) -> Iterator[ClusterPair]:
    """Clusters whose brokers have the trace topic."""
    clusters = pair_of("trace", "classic", {"traceTopicEnable": "true"})
    yield clusters
    for each in clusters.values():
        each.broker.stop()
        each.namesrv.stop()


@pytest.fixture(params=["java", "rmqpy"])
def cluster(request: pytest.FixtureRequest, pair: ClusterPair) -> InteropCluster:
    return pair[request.param]


def shown_traces(
    cluster: InteropCluster, capsys: pytest.CaptureFixture[str], identity: str
) -> dict[str, list[list[str]]]:
    """Return the words of each line that mqadmin and rmqpy show once the trace is complete."""
    words = ["queryMsgTraceById", "-i", identity]
    deadline = time.monotonic() + WAIT_S
    while True:
        java = cluster.admin.run(*words)
        assert main(["admin", *words, "-n", cluster.namesrv.address]) == 0
        ours = capsys.readouterr().out
        shown = {"mqadmin": lines_of(java), "rmqpy": lines_of(ours)}
        complete = all("writers" in text and "readers" in text for text in (java, ours))
        if complete or time.monotonic() > deadline:
            return shown
        time.sleep(0.5)


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_our_clients_trace(cluster: InteropCluster, capsys: pytest.CaptureFixture[str]) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=1)

    async def scenario() -> str:
        received: asyncio.Queue[str] = asyncio.Queue()

        async def listen(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                await received.put(message.msg_id)

        settings = PushSettings(from_where="CONSUME_FROM_FIRST_OFFSET", trace_topic=TRACE_TOPIC)
        name_server = cluster.namesrv.address
        consumer = PushConsumer("readers", name_server, listener=listen, settings=settings)
        consumer.subscribe(topic)
        sending = ProducerSettings(trace_topic=TRACE_TOPIC)
        async with Producer("writers", name_server, settings=sending) as producer, consumer:
            sent = await producer.send(Message(topic=topic, body=b"traced", tags="a", keys="k7"))
            async with asyncio.timeout(WAIT_S):
                while await received.get() != sent.msg_id:
                    pass
        return sent.msg_id

    check(cluster, capsys, asyncio.run(scenario()))


def test_javas_clients_trace(cluster: InteropCluster, capsys: pytest.CaptureFixture[str]) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=1)
    (sent,) = cluster.send(
        topic, count=1, first=7, traced="true", group="writers", keys="k", tags="a", lingerMs=2_000
    )
    # A Java client may lose traces that it has not sent when it ends, so it runs a little longer.
    cluster.probe.run("consume", topic=topic, group="readers", traced="true", idleMs=3_000)
    check(cluster, capsys, sent["msgId"])


def check(cluster: InteropCluster, capsys: pytest.CaptureFixture[str], identity: str) -> None:
    shown = shown_traces(cluster, capsys, identity)
    assert shown["rmqpy"] == shown["mqadmin"]
    words = [word for line in shown["mqadmin"] for word in line]
    assert {"writers", "readers", "success"} <= set(words), shown
