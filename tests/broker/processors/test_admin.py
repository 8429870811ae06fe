"""Requests of tools about groups and queues: codes 303, 317, and 321."""

from __future__ import annotations

from typing import Any

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import (
    ConsumeQueueData,
    ConsumeStatsList,
    MessageQueue,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    SubscriptionData,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    GetConsumeStatsInBrokerHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness


def test_the_progress_of_every_group_of_a_broker(harness: BrokerHarness) -> None:
    for _ in range(3):
        harness.send(topic="TBW102")
    harness.heartbeat(group="CG", subscriptions=(SubscriptionData("TBW102", "*"),))
    harness.broker.offsets.commit("CG", "TBW102", 0, 1)
    answer = harness.call(
        RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False)
    )
    body = ConsumeStatsList.decode(answer.body)
    assert body.broker_addr == "10.0.0.2:10911" and body.total_diff == 2
    (stats,) = next(groups["CG"] for groups in body.consume_stats_list if "CG" in groups)
    offset = stats.offset_table[MessageQueue("TBW102", "broker-a", 0)]
    assert (offset.broker_offset, offset.consumer_offset) == (3, 1)
    assert offset.last_timestamp == harness.scheduler.now_ms()
    ordered = harness.call(
        RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=True)
    )
    assert ConsumeStatsList.decode(ordered.body).total_diff == 0


def test_times_of_queues(harness: BrokerHarness) -> None:
    start_ms = harness.scheduler.now_ms()
    for _ in range(3):
        harness.send(topic="TBW102")
        harness.scheduler.advance(1_000)
    harness.broker.offsets.commit("CG", "TBW102", 0, 2)
    header = QueryConsumeTimeSpanRequestHeader(topic="TBW102", group="CG")
    answer = harness.call(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    spans = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
    span = next(each for each in spans if each.message_queue.queue_id == 0)
    assert span.min_time_stamp == start_ms
    assert span.max_time_stamp == start_ms + 2_000
    assert span.consume_time_stamp == start_ms + 1_000
    assert span.delay_time == 1_000
    header = QueryConsumeTimeSpanRequestHeader(topic="Nowhere", group="CG")
    assert harness.call(RequestCode.QUERY_CONSUME_TIME_SPAN, header).code == 17


def units(harness: BrokerHarness, **fields: Any) -> RemotingCommand:
    values = {"topic": "TBW102", "queue_id": 0, "index": 0, "count": 10, **fields}
    return harness.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader(**values))


def test_units_of_a_queue(harness: BrokerHarness) -> None:
    for _ in range(3):
        harness.send(topic="TBW102", properties="TAGS\x01TagA")
    body = QueryConsumeQueueResponseBody.decode(units(harness, index=1, count=1).body)
    assert (body.min_queue_index, body.max_queue_index) == (0, 3)
    (unit,) = body.queue_data or []
    size = unit.physic_size
    assert unit == ConsumeQueueData(physic_offset=size, physic_size=size, tags_code=2598919)
    assert len(QueryConsumeQueueResponseBody.decode(units(harness).body).queue_data or []) == 3
    absent = units(harness, queue_id=3)
    assert (absent.code, absent.remark) == (1, "3@TBW102 is not exist!")
    after_end = units(harness, index=3)
    assert (after_end.code, after_end.remark) == (0, "Index 3 of 0@TBW102 is not exist!")


def test_units_are_marked_with_the_filter_of_a_group(harness: BrokerHarness) -> None:
    harness.send(topic="TBW102")
    offline = QueryConsumeQueueResponseBody.decode(units(harness, consumer_group="CG").body)
    assert offline.filter_data == "CG@TBW102 is not online!"
    harness.heartbeat(group="CG", subscriptions=(SubscriptionData("TBW102", "TagA"),))
    online = QueryConsumeQueueResponseBody.decode(units(harness, consumer_group="CG").body)
    assert online.subscription_data is not None
    assert online.subscription_data.sub_string == "TagA"
