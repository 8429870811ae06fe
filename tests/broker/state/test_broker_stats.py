"""Statistics by topic, queue and group: what tools are told."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.remoting.bodies import BrokerStatsData, KVTable
from rmqpy.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker


def view(kit: BrokerHarness, name: str, key: str) -> BrokerStatsData | None:
    answer = kit.call(315, ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key))
    if answer.code:
        assert answer.code == 1
        assert answer.remark == f"The stats <{name}> <{key}> not exist"
        return None
    return BrokerStatsData.decode(answer.body)


@pytest.mark.slow
def test_puts_by_topic_and_queue(kit: BrokerHarness) -> None:
    assert view(kit, "TOPIC_PUT_NUMS", "T") is None
    for number in range(30):
        kit.send(b"x" * number, queue_id=number % 2)
    size = kit.store.log.max_offset
    kit.scheduler.advance(10_500)
    found = view(kit, "TOPIC_PUT_NUMS", "T")
    assert found is not None and found.stats_minute.sum == 30
    assert found.stats_minute.tps == 3.0 and found.stats_minute.avgpt == 1.0
    assert view(kit, "TOPIC_PUT_SIZE", "T").stats_minute.sum == size
    assert view(kit, "QUEUE_PUT_NUMS", "T@1").stats_minute.sum == 15
    assert view(kit, "BROKER_PUT_NUMS", "C").stats_minute.sum == 30
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_hour.sum == 0
    kit.scheduler.advance(600_000)
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 0
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_hour.sum == 30
    kit.scheduler.advance(4_200_000)
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_hour.sum == 0
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_day.sum == 30


def test_reads_by_group(kit: BrokerHarness) -> None:
    for _ in range(10):
        kit.send(b"x" * 100)
    kit.scheduler.advance(10_500)
    kit.pull(max_msg_nums=4)
    kit.pull(queue_offset=4)
    kit.pull(queue_offset=10)
    kit.scheduler.advance(10_000)
    found = view(kit, "GROUP_GET_NUMS", "T@CG")
    assert found is not None
    assert (found.stats_minute.sum, found.stats_minute.avgpt) == (10, 5.0)
    assert view(kit, "GROUP_GET_SIZE", "T@CG").stats_minute.sum == kit.store.log.max_offset
    assert view(kit, "BROKER_GET_NUMS", "C").stats_minute.sum == 10


def test_the_time_that_reads_take(kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        kit.send(b"x", queue_id=1)
    read = kit.store.reader.get_message

    def slow(*arguments: Any) -> Any:
        kit.scheduler.advance(30)
        return read(*arguments)

    kit.pull(queue_id=1)
    monkeypatch.setattr(
        type(kit.store.reader), "get_message", lambda _, *arguments: slow(*arguments)
    )
    kit.pull(queue_id=1)
    kit.pull(queue_id=1, queue_offset=4)
    kit.scheduler.advance(10_500)
    found = view(kit, "GROUP_GET_LATENCY", "1@T@CG")
    assert found is not None
    assert (found.stats_minute.sum, found.stats_minute.avgpt) == (30, 15.0)
    kit.broker.statistics.forget_group("CG")
    assert not kit.broker.statistics.read_latency


def test_messages_sent_back(kit: BrokerHarness) -> None:
    kit.send(b"x")
    kit.call(36, ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1))
    kit.scheduler.advance(10_500)
    assert view(kit, "SNDBCK_PUT_NUMS", "T@CG").stats_minute.sum == 1


def test_what_was_there_before_the_start_does_not_count(
    kit: BrokerHarness, build: BuildBroker
) -> None:
    kit.send(b"x")
    kit.store.shutdown()
    again = build(files=kit.files, scheduler=kit.scheduler)
    again.scheduler.advance(10_500)
    assert view(again, "TOPIC_PUT_NUMS", "T") is None
    again.send(b"y")
    again.scheduler.advance(10_500)
    assert view(again, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 1


def test_many_units_are_counted_in_steps(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.broker.state.broker_stats.STEP_UNITS", 7)
    for _ in range(50):
        kit.send(b"x")
    kit.scheduler.advance(10_005)
    assert view(kit, "TOPIC_PUT_NUMS", "T") is not None
    kit.scheduler.advance(500)
    assert view(kit, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 50


def test_the_runtime_information_tells_the_delay_levels(kit: BrokerHarness) -> None:
    for _ in range(2):
        kit.send(properties="DELAY\x011")
        kit.scheduler.advance(1_200)
    kit.send(properties="DELAY\x015")
    table = KVTable.decode(kit.call(28).body).table
    assert table["scheduleMessageOffset_1"] == "2,2"
    assert table["scheduleMessageOffset_5"] == "0,1"
    assert "scheduleMessageOffset_2" not in table
