"""Messages that consumers send back: retries, dead letters, settings of groups."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.codec.message import decode_message
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.headers import ConsumerSendMsgBackRequestHeader
from rmqpy.testing.harness import BrokerHarness, BuildBroker

RETRY, DLQ = "%RETRY%CG", "%DLQ%CG"


def messages(kit: BrokerHarness, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    end = kit.store.reader.max_queue_offset(topic, queue_id)
    units = kit.store.reader.queue_units(topic, queue_id, 0, end)
    return [decode_message(kit.store.reader.message_at(unit[0])) for unit in units]


def send_back(kit: BrokerHarness, offset: int, level: int = 0, **fields: Any) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(
        **{"offset": offset, "group": "CG", "delay_level": level, **fields}
    )
    answer: RemotingCommand = kit.call(36, header)
    return answer


def test_a_message_comes_back_through_its_delay_level(kit: BrokerHarness) -> None:
    kit.send(b"once", properties="UNIQ_KEY\x01U\x02KEYS\x01k\x02TAGS\x01a", flag=9)
    kit.channel.peer = ("10.0.0.77", 4321)
    assert send_back(kit, 0).code == 0
    (waiting,) = messages(kit, "SCHEDULE_TOPIC_XXXX", 2)
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
    kit.scheduler.advance(10_200)
    (back,) = messages(kit, RETRY)
    assert (back.reconsume_times, back.body, back.flag) == (1, b"once", 9)
    assert back.born_host == (bytes([10, 0, 0, 1]), 1234)
    topic = kit.broker.topics.get(RETRY)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_each_round_waits_a_level_longer_and_remembers_the_first_id(kit: BrokerHarness) -> None:
    kit.send(b"once", properties="UNIQ_KEY\x01U")
    send_back(kit, 0)
    kit.scheduler.advance(10_200)
    (back,) = messages(kit, RETRY)
    send_back(kit, back.physical_offset)
    (second,) = messages(kit, "SCHEDULE_TOPIC_XXXX", 3)
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
def test_what_came_back_too_often_is_a_dead_letter(
    kit: BrokerHarness, fields: dict[str, Any], topic: str
) -> None:
    kit.send(b"once")
    assert send_back(kit, 0, **fields).code == 0
    level = fields.get("level", 3)
    (found,) = messages(kit, topic, 0 if topic == DLQ else level - 1)
    assert found.properties["DELAY"] == ("0" if topic == DLQ else str(level))
    if topic == DLQ:
        config = kit.broker.topics.get(DLQ)
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


def test_the_group_says_how_often_and_into_how_many_queues(kit: BrokerHarness) -> None:
    kit.broker.groups.put(
        SubscriptionGroupConfig(group_name="CG", retry_queue_nums=3, retry_max_times=0)
    )
    kit.send(b"once")
    send_back(kit, 0)
    assert len(messages(kit, DLQ)) == 1
    assert kit.broker.topics.get(RETRY).read_queue_nums == 3


def test_a_consumer_that_is_too_old_has_no_say(kit: BrokerHarness) -> None:
    kit.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(
        offset=0, group="CG", delay_level=1, max_reconsume_times=0
    )
    request = RemotingCommand.request(36, header)
    request.version = 120
    kit.deliver(request)
    assert kit.channel.take_one().code == 0
    assert messages(kit, DLQ) == []


def test_a_group_without_retry_queues_drops_them(kit: BrokerHarness) -> None:
    kit.broker.groups.put(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=0))
    kit.send(b"once")
    end = kit.store.log.max_offset
    assert send_back(kit, 0).code == 0
    assert kit.store.log.max_offset == end


@pytest.mark.parametrize(
    ("settings", "offset", "code"),
    [
        ({}, 77, 1),
        ({"auto_create_subscription_group": False}, 0, 26),
        ({"broker_permission": 4}, 0, 16),
    ],
)
def test_refusals(build: BuildBroker, settings: dict[str, Any], offset: int, code: int) -> None:
    kit = build(**settings)
    kit.send(b"once")
    answer = send_back(kit, offset)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_the_answer_waits_until_the_message_is_stored(kit: BrokerHarness) -> None:
    kit.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    kit.broker.server.handle(kit.channel, [RemotingCommand.request(36, header)])
    assert kit.channel.take() == []
    kit.broker.server.turn_ended()
    assert kit.channel.take_one().code == 0


def test_a_oneway_is_done_and_not_answered(kit: BrokerHarness) -> None:
    kit.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    request = RemotingCommand.request(36, header)
    request.flag |= FLAG_ONEWAY
    kit.deliver(request)
    assert kit.channel.take() == []
    assert len(messages(kit, "SCHEDULE_TOPIC_XXXX")) == 1


def test_a_store_that_takes_nothing_is_told_by_name(kit: BrokerHarness) -> None:
    kit.send(b"once")
    kit.store.set_role(slave=True)
    answer = send_back(kit, 0)
    assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE")


def test_leadership_that_is_lost_answers_who_waits(kit: BrokerHarness) -> None:
    kit.send(b"once")
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=1)
    kit.broker.server.handle(kit.channel, [RemotingCommand.request(36, header)])
    kit.broker.services.stop()
    assert kit.channel.take_one().code == 1
    kit.broker.server.turn_ended()
    assert kit.channel.take() == []


# what consumers send to the retry topic themselves, when sending back fails


def test_a_consumer_may_send_to_its_retry_topic(kit: BrokerHarness) -> None:
    answer = kit.send(
        b"again",
        topic=RETRY,
        properties="RETRY_TOPIC\x01T\x02DELAY\x013",
        reconsume_times=1,
        max_reconsume_times=16,
    )
    assert answer.code == 0
    kit.scheduler.advance(10_200)
    (back,) = messages(kit, RETRY)
    assert (back.reconsume_times, back.body) == (1, b"again")


def test_once_too_often_it_becomes_a_dead_letter(kit: BrokerHarness) -> None:
    answer = kit.send(b"again", topic=RETRY, reconsume_times=2, max_reconsume_times=2)
    assert answer.code == 0
    assert [m.body for m in messages(kit, DLQ)] == [b"again"]
    assert messages(kit, RETRY) == []
    kit.send(b"again", topic=RETRY, reconsume_times=16)
    assert len(messages(kit, DLQ)) == 2


def test_the_group_of_a_retry_topic_must_be_known(build: BuildBroker) -> None:
    kit = build(auto_create_subscription_group=False)
    assert kit.send(topic=RETRY).code == 26
