"""Messages that consumers send back: retries, dead letters, and the settings of groups."""

from __future__ import annotations

from typing import Any

import pytest
from harness.broker import flip_body, queue_messages

from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.headers import ConsumerSendMsgBackRequestHeader
from rmqpy.testing.harness import BrokerHarness, BuildBroker

RETRY, DLQ = "%RETRY%CG", "%DLQ%CG"


def send_back(
    harness: BrokerHarness, offset: int, level: int = 0, **fields: Any
) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(
        **{"offset": offset, "group": "CG", "delay_level": level, **fields}
    )
    answer: RemotingCommand = harness.call(36, header)
    return answer


def test_a_message_sent_back_waits_in_its_delay_level(harness: BrokerHarness) -> None:
    harness.send(b"once", properties="UNIQ_KEY\x01U\x02KEYS\x01k\x02TAGS\x01a", flag=9)
    harness.channel.peer = ("10.0.0.77", 4321)
    assert send_back(harness, 0).code == 0
    (waiting,) = queue_messages(harness.store, "SCHEDULE_TOPIC_XXXX", 2)
    assert waiting.properties == {
        "UNIQ_KEY": "U",
        "KEYS": "k",
        "TAGS": "a",
        "CLUSTER": "C",
        "RETRY_TOPIC": "T",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
        "ORIGIN_MESSAGE_ID": "0A00000200002A9F0000000000000000",
        "DELAY": "3",
        "WAIT": "false",
    }
    harness.scheduler.advance(10_200)
    (back,) = queue_messages(harness.store, RETRY)
    assert (back.reconsume_times, back.body, back.flag) == (1, b"once", 9)
    assert back.born_host == (bytes([10, 0, 0, 1]), 1234)
    topic = harness.broker.topics.topics[RETRY]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_a_damaged_message_is_not_copied(harness: BrokerHarness) -> None:
    """The copy would have a valid CRC."""
    harness.send(b"once", properties="UNIQ_KEY\x01U")
    flip_body(harness, 0)
    answer = send_back(harness, 0)
    assert answer.code == 1 and answer.remark == "look message by offset failed, 0"
    flip_body(harness, 0)
    assert send_back(harness, 0).code == 0


def test_each_round_waits_a_level_longer_and_remembers_the_first_id(harness: BrokerHarness) -> None:
    harness.send(b"once", properties="UNIQ_KEY\x01U")
    send_back(harness, 0)
    harness.scheduler.advance(10_200)
    (back,) = queue_messages(harness.store, RETRY)
    send_back(harness, back.physical_offset)
    (second,) = queue_messages(harness.store, "SCHEDULE_TOPIC_XXXX", 3)
    assert second.properties["DELAY"] == "4"
    assert second.properties["RETRY_TOPIC"] == "T"
    assert second.properties["ORIGIN_MESSAGE_ID"] == "0A00000200002A9F0000000000000000"
    assert second.reconsume_times == 2


@pytest.mark.parametrize(
    ("fields", "topic"),
    [
        ({"level": -1}, DLQ),
        ({"max_reconsume_times": 0}, DLQ),
        ({"max_reconsume_times": 1}, "SCHEDULE_TOPIC_XXXX"),
        ({"level": 1}, "SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_a_message_sent_back_too_often_becomes_a_dead_letter(
    harness: BrokerHarness, fields: dict[str, Any], topic: str
) -> None:
    harness.send(b"once")
    assert send_back(harness, 0, **fields).code == 0
    level = fields.get("level", 3)
    (found,) = queue_messages(harness.store, topic, 0 if topic == DLQ else level - 1)
    assert found.properties["DELAY"] == ("0" if topic == DLQ else str(level))
    if topic == DLQ:
        config = harness.broker.topics.topics[DLQ]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


def test_the_group_sets_the_retries_and_the_retry_queues(harness: BrokerHarness) -> None:
    harness.broker.groups.put(
        SubscriptionGroupConfig(group_name="CG", retry_queue_nums=3, retry_max_times=0)
    )
    harness.send(b"once")
    send_back(harness, 0)
    assert len(queue_messages(harness.store, DLQ)) == 1
    assert harness.broker.topics.topics[RETRY].read_queue_nums == 3


def test_the_retry_limit_of_an_old_client_is_ignored(harness: BrokerHarness) -> None:
    harness.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(
        offset=0, group="CG", delay_level=1, max_reconsume_times=0
    )
    request = RemotingCommand.request(36, header)
    request.version = 120
    harness.deliver(request)
    assert harness.channel.take_one().code == 0
    assert queue_messages(harness.store, DLQ) == []


def test_a_group_without_retry_queues_drops_messages(harness: BrokerHarness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=0))
    harness.send(b"once")
    end = harness.store.log.max_offset
    assert send_back(harness, 0).code == 0
    assert harness.store.log.max_offset == end


@pytest.mark.parametrize(
    ("settings", "offset", "code"),
    [
        ({}, 77, 1),
        ({"auto_create_subscription_group": False}, 0, 26),
        ({"broker_permission": 4}, 0, 16),
    ],
)
def test_invalid_requests_are_refused(
    build: BuildBroker, settings: dict[str, Any], offset: int, code: int
) -> None:
    harness = build(**settings)
    harness.send(b"once")
    answer = send_back(harness, offset)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_the_answer_waits_until_the_message_is_stored(harness: BrokerHarness) -> None:
    harness.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    harness.broker.server.handle(harness.channel, [RemotingCommand.request(36, header)])
    assert harness.channel.take() == []
    harness.broker.server.turn_ended()
    assert harness.channel.take_one().code == 0


def test_a_oneway_request_is_not_answered(harness: BrokerHarness) -> None:
    harness.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    request = RemotingCommand.request(36, header)
    request.flag |= FLAG_ONEWAY
    harness.deliver(request)
    assert harness.channel.take() == []
    assert len(queue_messages(harness.store, "SCHEDULE_TOPIC_XXXX")) == 1


def test_a_store_that_refuses_messages_is_answered_by_its_status(harness: BrokerHarness) -> None:
    harness.send(b"once")
    harness.store.set_role(slave=True)
    answer = send_back(harness, 0)
    assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE")


def test_waiting_requests_are_answered_when_leadership_is_lost(harness: BrokerHarness) -> None:
    harness.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    harness.broker.server.handle(harness.channel, [RemotingCommand.request(36, header)])
    harness.broker.services.stop()
    assert harness.channel.take_one().code == 1
    harness.broker.server.turn_ended()
    assert harness.channel.take() == []


# Messages that consumers send to the retry topic themselves, when sending back fails


def test_a_consumer_may_send_to_its_retry_topic(harness: BrokerHarness) -> None:
    answer = harness.send(
        b"again",
        topic=RETRY,
        properties="RETRY_TOPIC\x01T\x02DELAY\x013",
        reconsume_times=1,
        max_reconsume_times=16,
    )
    assert answer.code == 0
    harness.scheduler.advance(10_200)
    (back,) = queue_messages(harness.store, RETRY)
    assert (back.reconsume_times, back.body) == (1, b"again")


def test_a_message_sent_to_the_retry_topic_too_often_becomes_a_dead_letter(
    harness: BrokerHarness,
) -> None:
    answer = harness.send(b"again", topic=RETRY, reconsume_times=2, max_reconsume_times=2)
    assert answer.code == 0
    assert [m.body for m in queue_messages(harness.store, DLQ)] == [b"again"]
    assert queue_messages(harness.store, RETRY) == []
    harness.send(b"again", topic=RETRY, reconsume_times=16)
    assert len(queue_messages(harness.store, DLQ)) == 2


def test_the_group_of_a_retry_topic_must_be_known(build: BuildBroker) -> None:
    harness = build(auto_create_subscription_group=False)
    assert harness.send(topic=RETRY).code == 26
