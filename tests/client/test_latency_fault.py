"""Java's latency table, the rotation over available brokers, and a producer that avoids a dead
broker.
"""

from __future__ import annotations

from collections import Counter

import pytest
from harness.client import A0, ClientWorld, Run

from rmqpy.client import Message, Producer, ProducerSettings
from rmqpy.client.core.latency_fault import (
    FAILURE_MS,
    LatencyFaultTolerance,
    not_available_duration_ms,
)
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in "abc" for number in range(2)]


@pytest.mark.parametrize(
    ("latency_ms", "seconds"),
    [
        *[(0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 30), (999, 30), (1000, 60)],
        *[(2000, 120), (2999, 120), (3000, 180), (14_999, 180), (15_000, 600), (FAILURE_MS, 600)],
    ],
)
def test_the_unavailable_time_is_that_of_javas_table(latency_ms: int, seconds: int) -> None:
    assert not_available_duration_ms(latency_ms) == seconds * 1000


def rotate(avoidance: LatencyFaultTolerance, count: int, now_ms: int) -> Counter[str]:
    chosen: Counter[str] = Counter()
    rotation = 0
    for _ in range(count):
        queue, rotation = avoidance.choose(QUEUES, rotation, now_ms)
        chosen[queue.broker_name] += 1
    return chosen


def test_slow_brokers_leave_the_rotation_until_their_time_is_over() -> None:
    avoidance = LatencyFaultTolerance()
    assert rotate(avoidance, 12, 0) == {"a": 4, "b": 4, "c": 4}
    avoidance.update_latency("b", FAILURE_MS, 0)
    avoidance.update_latency("c", 600, 0)
    assert rotate(avoidance, 6, 29_999) == {"a": 6}
    assert set(rotate(avoidance, 6, 30_000)) == {"a", "c"}
    assert set(rotate(avoidance, 6, 600_000)) == {"a", "b", "c"}
    avoidance.update_latency("b", 10, 600_000)
    assert avoidance.is_available("b", 600_000)


def test_if_no_broker_is_available_the_better_half_is_used_in_turn() -> None:
    avoidance = LatencyFaultTolerance()
    for broker, latency_ms in (("a", 600), ("b", 15_000), ("c", 2_000)):
        avoidance.update_latency(broker, latency_ms, 0)
    assert rotate(avoidance, 5, 1) == {"a": 5}
    avoidance.update_latency("unknown", 550, 0)
    assert rotate(avoidance, 5, 1) == {"a": 5}, "a broker that has no queue is not chosen"
    queues = [MessageQueue("T", broker, 0) for broker in "abcd"]
    avoidance.update_latency("d", 550, 0)
    chosen = {avoidance.choose(queues, 0, 1)[0].broker_name for _ in range(4)}
    assert chosen == {"a", "d"}


def test_a_producer_avoids_a_dead_broker(world: ClientWorld, run: Run) -> None:
    """Without ``avoid_faults``, Java's default, it is tried again with every rotation."""
    del world.answers[A0]

    async def main(avoid_faults: bool) -> int:
        before = world.addresses(RequestCode.SEND_MESSAGE_V2).count(A0)
        settings = ProducerSettings(avoid_faults=avoid_faults)
        async with Producer("P", settings=settings, instance=world.instance()) as producer:
            for _ in range(20):
                await producer.send(Message(topic="T", body=b"x"))
        return world.addresses(RequestCode.SEND_MESSAGE_V2).count(A0) - before

    assert run(main(True)) <= 1
    assert run(main(False)) >= 8
