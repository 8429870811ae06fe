"""Typed bodies: configuration files of two Java versions, leniency, refusals, and compression."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from attrs import fields
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting import bodies
from rmqpy.remoting.bodies import (
    REQUEST_BODIES,
    RESPONSE_BODIES,
    BloomFilterData,
    Body,
    BrokerData,
    ConsumerConnection,
    ConsumerFilterData,
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatus,
    DataVersion,
    DelayOffsetSerializeWrapper,
    FilterDataMapByTopic,
    GetConsumerStatusBody,
    HeartbeatData,
    KVTable,
    MessageQueue,
    OffsetWrapper,
    ProcessQueueInfo,
    ProducerInfo,
    QueueData,
    QueueTimeSpan,
    RegisterBrokerBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    body_crc32,
)
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.lazy_attrs import wire_name

FILES: list[tuple[type[Body], str]] = [
    (TopicConfigSerializeWrapper, "topics.json"),
    (SubscriptionGroupWrapper, "subscriptionGroup.json"),
    (ConsumerOffsetSerializeWrapper, "consumerOffset.json"),
    (DelayOffsetSerializeWrapper, "delayOffset.json"),
    (ConsumerFilterWrapper, "consumerFilter.json"),
]
QUEUE = MessageQueue("T", "b", 1)

COMPRESSED = bytes.fromhex(
    "78da63606050af564ace2fcd2b492d52b232d6512ac9cc4d2d2e49cc2d50b232343340805a0606062620160fc92fc84c"
    "7654b0503051305308f6f473f7718d0f7174074a49aa06b9860445aaa66393e48b563234d00341432b43a55800fcfb1b"
    "ae"
)
"""The output of RegisterBrokerBody.encode(true) of 4.9.7: two topics 8/4/6, one filter server."""


@pytest.mark.parametrize(("body_type", "name"), FILES)
def test_config_files_of_497_are_encoded_to_the_byte(
    golden: Path, body_type: type[Body], name: str
) -> None:
    written = (golden / "config_v497" / name).read_bytes()
    assert body_type.decode(written).encode(pretty=True) == written


@pytest.mark.parametrize(("body_type", "name"), FILES)
def test_config_files_of_533_are_decoded(golden: Path, body_type: type[Body], name: str) -> None:
    body = body_type.decode((golden / "config_v533" / name).read_bytes())
    assert body_type.decode(body.encode(pretty=True)) == body


def test_config_files_have_the_recorded_values(golden: Path) -> None:
    def read(folder: str, name: str) -> bytes:
        return (golden / folder / name).read_bytes()

    topics = TopicConfigSerializeWrapper.decode(read("config_v497", "topics.json"))
    assert topics.data_version == DataVersion(1795241935769, 15)
    assert topics.topic_config_table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    offsets = ConsumerOffsetSerializeWrapper.decode(read("config_v533", "consumerOffset.json"))
    assert offsets.offset_table["Normal@CID_push"] == {0: 22, 1: 22, 2: 22, 3: 21}
    assert offsets.data_version == DataVersion(1795244002517, 0, 0)
    delays = DelayOffsetSerializeWrapper.decode(read("config_v533", "delayOffset.json"))
    assert delays.offset_table == {1: 7, 5: 2}


def test_a_change_increments_the_data_version() -> None:
    version = DataVersion(1000, 4)
    assert version.next(2000) == DataVersion(2000, 5)
    assert version == DataVersion(1000, 4)
    assert version.same_as(DataVersion(1000, 4, 9))
    assert not version.same_as(version.next(1000))
    assert version.encode() == b'{"counter":4,"timestamp":1000}'


def test_new_topics_and_groups_have_javas_defaults() -> None:
    assert TopicConfig("T").encode() == (
        b'{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":16}'
    )
    assert SubscriptionGroupConfig("CG").encode() == (
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"CG","notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


def test_a_compressed_registration_of_java_is_decoded() -> None:
    body = RegisterBrokerBody.decode_compressed(COMPRESSED)
    assert body == RegisterBrokerBody(
        TopicConfigSerializeWrapper(
            DataVersion(1600000000000, 3),
            {name: TopicConfig(name, 8, 4) for name in ("TopicA", "%RETRY%g")},
        ),
        ["10.0.0.1:1"],
    )
    assert zlib.decompress(body.encode_compressed()) == zlib.decompress(COMPRESSED)
    assert body_crc32(COMPRESSED) == 250562040
    assert body_crc32(body.encode()) == 1240199506


def test_a_topic_line_may_have_attributes_of_5x() -> None:
    topic = TopicConfig.decode_line(b'T 8 4 6 SINGLE_TAG {"a":"b"}')
    assert topic == TopicConfig("T", 8, 4)
    with pytest.raises(RequestRejectedError, match="topic line"):
        TopicConfig.decode_line(b"T 8 4 6")
    with pytest.raises(RequestRejectedError, match="topic line"):
        TopicConfig.decode_line(b"T 8 x 6 SINGLE_TAG")


@pytest.mark.parametrize("cut", [0, 1, 2, 50, len(COMPRESSED) - 1])
def test_a_truncated_compressed_registration_is_refused(cut: int) -> None:
    with pytest.raises(RequestRejectedError, match="not a compressed RegisterBrokerBody"):
        RegisterBrokerBody.decode_compressed(COMPRESSED[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0\2{",
        b"\xff\xff\xff\xff",
        b"\0\0\0\2{}\0\0\0\0\0\0\0\2[]",
        b'\0\0\0\x0f{"timestamp":1}\0\0\0\1',
        b'\0\0\0\x0f{"timestamp":1}\0\0\0\0\0\0\0\2{}',
        b'\0\0\0\x0f{"timestamp":1}\0\0\0\0\0\0\0\3[1]',
    ],
)
def test_invalid_content_of_a_compressed_registration_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestRejectedError):
        RegisterBrokerBody.decode_compressed(zlib.compress(raw))


def test_inflation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.topics, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(RequestRejectedError, match="inflates to more than 1000 bytes"):
        RegisterBrokerBody.decode_compressed(zlib.compress(bytes(5000)))


def test_a_route_is_encoded_for_old_and_new_clients() -> None:
    route = TopicRouteData(
        order_topic_conf="b:4;/\u4e2d",
        broker_datas=[BrokerData("c", "b", {0: "z", 2: "y", 10: "x"})],
        filter_server_table={"zz": ["1"], "aa": ["1"]},
    )
    assert route.encode().decode() == (
        '{"brokerDatas":[{"brokerAddrs":{0:"z",2:"y",10:"x"},"brokerName":"b","cluster":"c"}],'
        '"filterServerTable":{"zz":["1"],"aa":["1"]},"orderTopicConf":"b:4;/\u4e2d","queueDatas":[]}'
    )
    assert route.encode(strict=True).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"z","2":"y","10":"x"},"brokerName":"b","cluster":"c"}],'
        '"filterServerTable":{"aa":["1"],"zz":["1"]},"orderTopicConf":"b:4;\\/\\u4E2D","queueDatas":[]}'
    )
    assert TopicRouteData.decode(route.encode()) == route
    assert TopicRouteData.decode(route.encode(strict=True)) == route


def test_a_heartbeat_is_decoded() -> None:
    body = HeartbeatData.decode(
        """{"clientID":"10.0.0.1@123#456","producerDataSet":[{"groupName":"PG"}],
        "consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",
        "messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","unitMode":false,
        "subscriptionDataSet":[{"topic":"T","subString":"TagA || TagB","tagsSet":["TagA","TagB"],
        "codeSet":[2598919,2598920],"subVersion":1700000000000,"expressionType":"TAG",
        "classFilterMode":false}]}],"heartbeatFingerprint":0,"withoutSub":true,"new":[{}]}"""
    )
    assert body.client_id == "10.0.0.1@123#456"
    (consumer,) = body.consumer_data_set
    (subscription,) = consumer.subscription_data_set
    assert subscription == SubscriptionData(
        "T", "TagA || TagB", ["TagA", "TagB"], [2598919, 2598920], 1700000000000
    )


def test_object_keys_are_decoded_in_all_forms() -> None:
    body = ResetOffsetBody({QUEUE: 7})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7}}'
    assert ResetOffsetBody.decode(body.encode()) == body
    assert ResetOffsetBody.decode(body.encode(strict=True)) == body
    assert (
        ResetOffsetBody.decode("{offsetTable:{{topic:'T',brokerName:'b',queueId:'1'}:7}}") == body
    )
    listed = b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}'
    assert ResetOffsetBodyForC.decode(listed).encode() == listed


def test_bodies_without_a_recording_have_the_form_of_497() -> None:
    status = GetConsumerStatusBody({}, {"c": {QUEUE: 5}})
    assert status.encode() == (
        b'{"consumerTable":{"c":{{"brokerName":"b","queueId":1,"topic":"T"}:5}},'
        b'"messageQueueTable":{}}'
    )
    info = ConsumerRunningInfo({"k": "v"}, [], {QUEUE: ProcessQueueInfo()}, {"t": ConsumeStatus()})
    assert info.encode() == (
        b'{"mqTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"cachedMsgCount":0,'
        b'"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,'
        b'"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,"lastPullTimestamp":0,'
        b'"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        b'"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"k":"v"},'
        b'"statusTable":{"t":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,'
        b'"consumeRT":0.0,"pullRT":0.0,"pullTPS":0.0}},"subscriptionSet":[]}'
    )
    assert ProducerInfo("c", "r", "JAVA", 407, 5).encode() == (
        b'{"clientId":"c","language":"JAVA","lastUpdateTimestamp":5,"remoteIP":"r","version":407}'
    )
    assert ConsumerConnection().encode() == b'{"connectionSet":[],"subscriptionTable":{}}'
    assert ConsumeStats({QUEUE: OffsetWrapper()}).encode(pretty=True).decode() == (
        '{\n\t"consumeTps":0.0,\n\t"offsetTable":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,'
        '\n\t\t\t"topic":"T"\n\t\t}:{\n\t\t\t"brokerOffset":0,\n\t\t\t"consumerOffset":0,'
        '\n\t\t\t"lastTimestamp":0\n\t\t}\n\t}\n}'
    )


def test_the_text_of_a_time_is_kept() -> None:
    span = QueueTimeSpan.decode(
        b'{"consumeTimeStamp":3,"consumeTimeStampStr":"1970-01-01#00:00:00:003","delayTime":4,'
        b'"maxTimeStamp":2,"messageQueue":{"brokerName":"b","queueId":1,"topic":"T"},"minTimeStamp":1}'
    )
    text = "1970-01-01#00:00:00:003"
    assert span == QueueTimeSpan(QUEUE, 1, 2, 3, 4, consume_time_stamp_str=text)


def test_the_file_of_filters_is_encoded_and_decoded() -> None:
    data = ConsumerFilterData(
        "CG", "T", "a > 1", "SQL92", 5, 0, bloom_filter_data=BloomFilterData((0, 73, 34), 112)
    )
    wrapper = ConsumerFilterWrapper({"T": FilterDataMapByTopic("T", {"CG": data})})
    encoded = wrapper.encode(pretty=True)
    assert b'"bitPos":[0,73,34]' in encoded
    assert ConsumerFilterWrapper.decode(encoded) == wrapper


def test_values_are_coerced_as_by_fastjson() -> None:
    queue = QueueData.decode(
        '{"brokerName":7,"readQueueNums":"4","writeQueueNums":4.0,"perm":true,"topicSysFlag":null}'
    )
    assert queue == QueueData("7", 4, 4, 1, 0)
    assert TopicConfig.decode('{"topicName":"T","order":"true"}').order is True
    assert TopicConfig.decode('{"topicName":"T","order":1}').order is True
    assert KVTable.decode('{"table":{"a":1,"b":null,"c":true,"d":1.5}}').table == {
        "a": "1",
        "c": "true",
        "d": "1.5",
    }


@pytest.mark.parametrize(
    ("body_type", "text", "problem"),
    [
        (MessageQueue, "", "the text ends early at character 0"),
        (MessageQueue, "null", "expected an object, found None"),
        (MessageQueue, "[]", "expected an object, found list"),
        (MessageQueue, '{"topic":"T","queueId":1}', "the member brokerName is missing"),
        (
            MessageQueue,
            '{"topic":"T","brokerName":"b","queueId":"x"}',
            "queueId: expected an integer",
        ),
        (
            MessageQueue,
            '{"topic":"T","brokerName":"b","queueId":2147483648}',
            "queueId: expected an integer",
        ),
        (MessageQueue, '{"topic":{},"brokerName":"b","queueId":2}', "topic: expected a string"),
        (TopicConfig, '{"topicName":"T","order":"maybe"}', "order: expected true or false"),
        (ConsumeStats, '{"consumeTps":"fast"}', "consumeTps: expected a number"),
        (
            HeartbeatData,
            '{"clientID":"c","consumerDataSet":{}}',
            "consumerDataSet: expected an array",
        ),
        (KVTable, '{"table":[]}', "table: expected an object, found list"),
        (ResetOffsetBody, '{"offsetTable":{"T":1}}', "offsetTable: 'T': "),
        (
            ConsumerOffsetSerializeWrapper,
            '{"offsetTable":{"T@CG":{x:1}}}',
            "offsetTable: 'T@CG': 'x': expected an integer",
        ),
        (
            TopicConfigSerializeWrapper,
            '{"dataVersion":{"timestamp":1},"topicConfigTable":{"T":{"topicName":"T","perm":{}}}}',
            "topicConfigTable: 'T': perm: expected an integer",
        ),
    ],
)
def test_refusals_have_the_name_of_the_member(
    body_type: type[Body], text: str, problem: str
) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        body_type.decode(text)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert problem in refused.value.remark
    assert body_type.__name__ in refused.value.remark
    assert len(refused.value.remark) < 400


def test_queues_are_sorted_as_by_java() -> None:
    queues = [MessageQueue("T", "b", 10), MessageQueue("T", "b", 2), MessageQueue("T", "a", 9)]
    assert [queue.queue_id for queue in sorted(queues)] == [9, 2, 10]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


ALL: list[type[Body]] = [*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()]


@pytest.mark.slow
@pytest.mark.parametrize("body_type", sorted(set(ALL), key=str))
@settings(max_examples=20)
@given(data=st.data())
def test_wrong_types_are_refused_or_decoded(body_type: type[Body], data: st.DataObject) -> None:
    members = [wire_name(attribute) for attribute in fields(body_type)]
    value = data.draw(st.dictionaries(st.sampled_from(members), JUNK))
    try:
        body = body_type.decode(dumps(value))
    except RequestRejectedError:
        return
    assert body_type.decode(body.encode()) == body
