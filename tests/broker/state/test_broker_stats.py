"""Statistics by topic, queue, and group, as tools read them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from rmqpy.broker.base.scheduling import SLICE_PAUSE_MS
from rmqpy.remoting.bodies import BrokerStatsData, BrokerStatsItem, KVTable
from rmqpy.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmqpy.store.reader import QueueMessageReader
from rmqpy.testing.harness import BrokerHarness, BuildBroker


def view(harness: BrokerHarness, name: str, key: str) -> BrokerStatsData | None:
    """Return a statistic, or None if the broker does not have it."""
    answer = harness.call(315, ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key))
    if answer.code:
        assert answer.code == 1
        assert answer.remark == f"The stats <{name}> <{key}> not exist"
        return None
    return BrokerStatsData.decode(answer.body)


def stats(harness: BrokerHarness, name: str, key: str, period: str = "minute") -> BrokerStatsItem:
    """Return one period of a statistic, which must exist."""
    found = view(harness, name, key)
    assert found is not None
    periods = {"minute": found.stats_minute, "hour": found.stats_hour, "day": found.stats_day}
    item = periods[period]
    assert item is not None
    return item


@pytest.mark.slow
def test_puts_by_topic_and_queue(harness: BrokerHarness) -> None:
    assert view(harness, "TOPIC_PUT_NUMS", "T") is None
    for number in range(30):
        harness.send(b"x" * number, queue_id=number % 2)
    size = harness.store.log.max_offset
    harness.scheduler.advance(10_500)
    found = stats(harness, "TOPIC_PUT_NUMS", "T")
    assert (found.sum, found.tps, found.avgpt) == (30, 3.0, 1.0)
    assert stats(harness, "TOPIC_PUT_SIZE", "T").sum == size
    assert stats(harness, "QUEUE_PUT_NUMS", "T@1").sum == 15
    assert stats(harness, "BROKER_PUT_NUMS", "C").sum == 30
    assert stats(harness, "TOPIC_PUT_NUMS", "T", "hour").sum == 0
    harness.scheduler.advance(600_000)
    assert stats(harness, "TOPIC_PUT_NUMS", "T").sum == 0
    assert stats(harness, "TOPIC_PUT_NUMS", "T", "hour").sum == 30
    harness.scheduler.advance(4_200_000)
    assert stats(harness, "TOPIC_PUT_NUMS", "T", "hour").sum == 0
    assert stats(harness, "TOPIC_PUT_NUMS", "T", "day").sum == 30


def test_a_slice_examines_few_queues(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        harness.send(topic=f"T{number}")
    examined: list[str] = []
    end = QueueMessageReader.max_queue_offset

    def recorded(reader: QueueMessageReader, topic: str, queue_id: int) -> int:
        examined.append(topic)
        harness.scheduler.advance(1)
        return end(reader, topic, queue_id)

    monkeypatch.setattr(QueueMessageReader, "max_queue_offset", recorded)
    statistics = harness.broker.item_statistics
    statistics.stop()
    statistics._run()
    slices = [len(examined)]
    while view(harness, "BROKER_PUT_NUMS", "C") is None:
        harness.scheduler.advance(SLICE_PAUSE_MS)
        slices.append(len(examined))
    assert slices[-1] == 10
    assert all(after - before <= 2 for before, after in pairwise([0, *slices]))
    assert all(stats(harness, "TOPIC_PUT_NUMS", f"T{number}").sum == 1 for number in range(10))


def test_reads_by_group(harness: BrokerHarness) -> None:
    for _ in range(10):
        harness.send(b"x" * 100)
    harness.scheduler.advance(10_500)
    harness.pull(max_msg_nums=4)
    harness.pull(queue_offset=4)
    harness.pull(queue_offset=10)
    harness.scheduler.advance(10_000)
    found = stats(harness, "GROUP_GET_NUMS", "T@CG")
    assert (found.sum, found.avgpt) == (10, 5.0)
    assert stats(harness, "GROUP_GET_SIZE", "T@CG").sum == harness.store.log.max_offset
    assert stats(harness, "BROKER_GET_NUMS", "C").sum == 10


def test_the_latency_of_reads_is_counted(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        harness.send(b"x", queue_id=1)
    read = harness.store.reader.get_message

    def slow(*arguments: Any) -> Any:
        harness.scheduler.advance(30)
        return read(*arguments)

    harness.pull(queue_id=1)
    monkeypatch.setattr(
        type(harness.store.reader), "get_message", lambda _, *arguments: slow(*arguments)
    )
    harness.pull(queue_id=1)
    harness.pull(queue_id=1, queue_offset=4)
    harness.scheduler.advance(10_500)
    found = stats(harness, "GROUP_GET_LATENCY", "1@T@CG")
    assert (found.sum, found.avgpt) == (30, 15.0)
    harness.broker.statistics.forget_group("CG")
    assert not harness.broker.statistics.read_latency


def test_messages_sent_back(harness: BrokerHarness) -> None:
    harness.send(b"x")
    harness.call(36, ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1))
    harness.scheduler.advance(10_500)
    assert stats(harness, "SNDBCK_PUT_NUMS", "T@CG").sum == 1


def test_messages_from_before_the_start_do_not_count(
    harness: BrokerHarness, build: BuildBroker
) -> None:
    harness.send(b"x")
    harness.store.shutdown()
    again = build(files=harness.files, scheduler=harness.scheduler)
    again.scheduler.advance(10_500)
    assert view(again, "TOPIC_PUT_NUMS", "T") is None
    again.send(b"y")
    again.scheduler.advance(10_500)
    assert stats(again, "TOPIC_PUT_NUMS", "T").sum == 1


def test_many_units_are_counted_in_steps(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.broker.state.broker_stats.STEP_UNITS", 7)
    for _ in range(50):
        harness.send(b"x")
    harness.scheduler.advance(10_005)
    assert view(harness, "TOPIC_PUT_NUMS", "T") is not None
    harness.scheduler.advance(500)
    assert stats(harness, "TOPIC_PUT_NUMS", "T").sum == 50


def test_the_runtime_information_has_the_delay_levels(harness: BrokerHarness) -> None:
    for _ in range(2):
        harness.send(properties="DELAY\x011")
        harness.scheduler.advance(1_200)
    harness.send(properties="DELAY\x015")
    table = KVTable.decode(harness.call(28).body).table
    assert table["scheduleMessageOffset_1"] == "2,2"
    assert table["scheduleMessageOffset_5"] == "0,1"
    assert "scheduleMessageOffset_2" not in table
