"""Requests that read: codes 12, 29 to 33, 26, 28, 202, 203, 204, 208, 300, 328."""

from __future__ import annotations

import pytest
from harness.broker import response_bodies

from rmqpy.broker.state.statistics import Statistics
from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    KVTable,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    ProducerTableInfo,
    SubscriptionData,
    TopicOffset,
    TopicStatsTable,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness

START_MS = 1_700_000_000_000


def send_three(harness: BrokerHarness) -> None:
    for number in range(3):
        harness.send(b"m%d" % number, properties=f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number} all")
        harness.scheduler.advance(1000)


def test_offsets_of_a_queue(harness: BrokerHarness) -> None:
    send_three(harness)
    maximum = harness.call(30, GetMaxOffsetRequestHeader(topic="T", queue_id=0))
    minimum = harness.call(31, GetMinOffsetRequestHeader(topic="T", queue_id=0))
    assert (maximum.ext_fields, minimum.ext_fields) == ({"offset": "3"}, {"offset": "0"})
    unknown = harness.call(30, GetMaxOffsetRequestHeader(topic="U", queue_id=7))
    assert (unknown.code, unknown.ext_fields) == (0, {"offset": "0"})
    assert harness.call(31, GetMinOffsetRequestHeader(topic="../x", queue_id=0)).code == 1


@pytest.mark.parametrize(
    ("after_ms", "offset"), [(-5000, "0"), (0, "0"), (999, "1"), (1000, "1"), (9999, "2")]
)
def test_offset_by_time(harness: BrokerHarness, after_ms: int, offset: str) -> None:
    send_three(harness)
    header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=START_MS + after_ms)
    assert harness.call(29, header).ext_fields == {"offset": offset}


def test_earliest_store_time(harness: BrokerHarness) -> None:
    header = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0)
    assert harness.call(32, header).ext_fields == {"timestamp": "-1"}
    send_three(harness)
    assert harness.call(32, header).ext_fields == {"timestamp": str(START_MS)}


def test_the_earliest_store_time_is_that_of_the_queue(harness: BrokerHarness) -> None:
    send_three(harness)
    header = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=1)
    assert harness.call(32, header).ext_fields == {"timestamp": "-1"}


def query(
    harness: BrokerHarness, key: str, max_num: int = 32, unique: bool | None = None
) -> RemotingCommand:
    header = QueryMessageRequestHeader(
        topic="T",
        key=key,
        max_num=max_num,
        begin_timestamp=0,
        end_timestamp=1 << 62,
        unique_key_query=unique,
    )
    return harness.call(12, header)


def test_query_by_key(harness: BrokerHarness) -> None:
    send_three(harness)
    answer = query(harness, "k1")
    assert answer.code == 0 and response_bodies(answer) == [b"m1"]
    assert answer.ext_fields["indexLastUpdateTimestamp"] == str(START_MS + 2000)
    assert sorted(response_bodies(query(harness, "all"))) == [b"m0", b"m1", b"m2"]
    assert len(response_bodies(query(harness, "all", max_num=2))) == 2
    assert response_bodies(query(harness, "U2", max_num=0, unique=True)) == [b"m2"]
    assert query(harness, "nowhere").code == 22


def test_view_by_offset(harness: BrokerHarness) -> None:
    send_three(harness)
    second = harness.store.reader.get_message("T", 0, 1, 1, None).messages[0]
    offset = decode_message(second).physical_offset
    answer = harness.call(33, ViewMessageRequestHeader(offset=offset))
    assert decode_message(answer.body).body == b"m1"
    for wrong in (-1, 1, offset + 4, 1 << 40):
        assert harness.call(33, ViewMessageRequestHeader(offset=wrong)).code == 1


# ------------------------------------------------------------------------------------- positions


def test_topic_stats(harness: BrokerHarness) -> None:
    send_three(harness)
    answer = harness.call(202, GetTopicStatsInfoRequestHeader(topic="T"))
    table = TopicStatsTable.decode(answer.body).offset_table
    assert table[MessageQueue("T", "broker-a", 0)] == TopicOffset(0, 3, START_MS + 2000)
    assert table[MessageQueue("T", "broker-a", 3)] == TopicOffset(0, 0, 0)
    assert len(table) == 4
    assert harness.call(202, GetTopicStatsInfoRequestHeader(topic="U")).code == 17


def test_consume_stats(harness: BrokerHarness) -> None:
    send_three(harness)
    harness.broker.offsets.commit("CG", "T", 0, 2)
    answer = harness.call(208, GetConsumeStatsRequestHeader(consumer_group="CG"))
    stats = ConsumeStats.decode(answer.body)
    assert stats.offset_table[MessageQueue("T", "broker-a", 0)] == OffsetWrapper(
        3, 2, START_MS + 1000
    )
    harness.heartbeat(subscriptions=(SubscriptionData("Other", "*"),))
    answer = harness.call(208, GetConsumeStatsRequestHeader(consumer_group="CG"))
    assert ConsumeStats.decode(answer.body).offset_table == {}, "it no longer subscribes"


def test_groups_of_a_topic(harness: BrokerHarness) -> None:
    harness.heartbeat(group="G1", subscriptions=(SubscriptionData("T", "*"),))
    harness.broker.offsets.commit("G2", "T", 0, 2)
    harness.broker.offsets.commit("G3", "U", 0, 2)
    answer = harness.call(300, QueryTopicConsumeByWhoRequestHeader(topic="T"))
    assert GroupList.decode(answer.body).group_list == ["G1", "G2"]


def test_connections(harness: BrokerHarness) -> None:
    header = GetConsumerConnectionListRequestHeader(consumer_group="CG")
    answer = harness.call(203, header)
    assert (answer.code, answer.remark) == (206, "the consumer group[CG] not online")
    producers = GetProducerConnectionListRequestHeader(producer_group="PG")
    answer = harness.call(204, producers)
    assert (answer.code, answer.remark) == (1, "the producer group[PG] not exist")
    harness.heartbeat(producer="PG", subscriptions=(SubscriptionData("T", "*"),))
    body = ConsumerConnection.decode(harness.call(203, header).body)
    (connection,) = body.connection_set
    assert (connection.client_id, connection.client_addr) == ("c1", "10.0.0.1:1234")
    assert (connection.language, connection.version) == ("JAVA", 407)
    assert list(body.subscription_table) == ["T"]
    assert (body.consume_type, body.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    (connection,) = ProducerConnection.decode(harness.call(204, producers).body).connection_set
    assert connection.client_id == "c1"
    (info,) = ProducerTableInfo.decode(harness.call(328).body).data["PG"]
    assert (info.client_id, info.remote_ip) == ("c1", "/10.0.0.1:1234")
    assert info.last_update_timestamp == harness.scheduler.now_ms()


# ---------------------------------------------------------------------------------- about itself

RUNTIME_KEYS = [
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferedTps",
    "putLatency99",
    "putLatency999",
    "commitLogDiskRatio",
    "commitLogDiskRatio_/store/commitlog",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "brokerVersionDesc",
    "brokerVersion",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueCapacity",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush",
    "commitLogDirCapacity",
]


def test_runtime_information(harness: BrokerHarness) -> None:
    send_three(harness)
    harness.pull()
    harness.scheduler.advance(12_000)
    table = KVTable.decode(harness.call(28).body).table
    assert set(RUNTIME_KEYS) <= set(table)
    assert table["brokerVersionDesc"] == "V4_9_7" and table["brokerVersion"] == "407"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 15 seconds ]"
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "3"
    assert table["msgGetTotalTodayNow"] == "3"
    assert table["commitLogMaxOffset"] == str(harness.store.log.max_offset)
    assert len(table["putTps"].split(" ")) == 3
    assert table["getFoundTps"].split(" ")[0] == "0.0"
    assert table["commitLogDirCapacity"] == "Total : 1024.0 GiB, Free : 512.0 GiB."


def test_the_settings_are_returned(harness: BrokerHarness) -> None:
    answer = harness.call(26)
    lines = answer.body.decode().splitlines()
    assert "brokerName=broker-a" in lines and "listenPort=10911" in lines
    assert answer.ext_fields["version"].startswith('{"counter":0,"timestamp":')


def test_rates_and_days() -> None:
    statistics = Statistics()
    day_ms = 86_400_000
    now_ms = 10 * day_ms - 5_000
    for second in range(11):
        statistics.messages_put(10, 1000, 3)
        statistics.messages_got(("G", "T"), 4 if second % 2 else 0, 1, 0)
        statistics.sample(second * 1000, now_ms + second * 1000)
    rates = statistics.rates()
    assert rates["putTps"] == "10.0 0.0 0.0"
    assert rates["getFoundTps"] == "0.5 0.0 0.0"
    assert rates["getMissTps"] == "0.5 0.0 0.0"
    assert rates["getTotalTps"] == "1.0 0.0 0.0"
    assert rates["getTransferedTps"] == "2.0 0.0 0.0"
    assert statistics.put_day.today_morning == 60, "midnight was at the sixth sample"
    assert statistics.put_day.yesterday_morning == 0
    assert statistics.counters.put_entire_time_max_ms == 3
    assert "[0~10ms]:110" in statistics.put_time_distribution()
    assert statistics.group_rate("G", "T") == 2.0
    assert statistics.group_rate("G", "U") == 0.0
    statistics.forget_group("G")
    assert ("G", "T") not in statistics._group_counts
