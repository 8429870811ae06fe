"""What the broker asks of its clients: offset resets, status, running info, direct consumption,
pushed replies.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import (
    GetConsumerStatusBody,
    MessageQueue,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    SubscriptionData,
)
from rmqpy.remoting.command import LANGUAGE_CPP, RemotingCommand
from rmqpy.remoting.headers import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ReplyMessageRequestHeader,
    ResetOffsetRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel

SUBSCRIPTIONS = (SubscriptionData(topic="T", sub_string="*"),)


def member(kit: BrokerHarness, client_id: str, port: int = 1) -> MemoryChannel:
    channel = MemoryChannel(peer=("10.0.0.5", port))
    kit.heartbeat(channel, client_id, subscriptions=SUBSCRIPTIONS)
    return channel


def question(channel: MemoryChannel) -> RemotingCommand:
    """The one request that the broker has sent there."""
    (found,) = [c for c in channel.take() if not c.is_response and c.code != 40]
    return found


def answer(
    kit: BrokerHarness, channel: MemoryChannel, asked: RemotingCommand, **fields: Any
) -> None:
    response = RemotingCommand.response_to(asked)
    for name, value in fields.items():
        setattr(response, name, value)
    kit.deliver(response, channel=channel)


def running_info(kit: BrokerHarness, client_id: str = "c1") -> None:
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group="CG", client_id=client_id, jstack_enable=True
    )
    kit.deliver(RemotingCommand.request(307, header))


def test_running_info_comes_from_the_client(kit: BrokerHarness) -> None:
    channel = member(kit, "c1")
    running_info(kit)
    asked = question(channel)
    assert asked.code == 307 and not asked.is_oneway
    assert asked.ext_fields == {
        "consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"
    }  # fmt: skip
    assert kit.channel.take() == []
    answer(kit, channel, asked, body=b'{"properties":{}}', remark="well")
    got = kit.channel.take_one()
    assert (got.code, got.body, got.remark, got.opaque) == (0, b'{"properties":{}}', "well", 0)
    answer(kit, channel, asked, body=b"twice")
    assert kit.channel.take() == []


def test_who_does_not_answer_in_time(kit: BrokerHarness) -> None:
    channel = member(kit, "c1")
    running_info(kit)
    kit.scheduler.advance(9_999)
    assert kit.channel.take() == []
    kit.scheduler.advance(1)
    assert kit.channel.take_one().code == 207
    answer(kit, channel, question(channel))
    assert kit.channel.take() == []


def test_who_goes_without_an_answer(kit: BrokerHarness) -> None:
    channel = member(kit, "c1")
    running_info(kit)
    kit.broker.server.channel_closed(channel)
    assert kit.channel.take_one().code == 207


def test_only_the_connection_that_was_asked_answers(kit: BrokerHarness) -> None:
    channel = member(kit, "c1")
    running_info(kit)
    asked = question(channel)
    answer(kit, MemoryChannel(), asked, body=b"forged")
    assert kit.channel.take() == []
    answer(kit, channel, asked, body=b"true")
    assert kit.channel.take_one().body == b"true"


@pytest.mark.parametrize("client_id", ["c2", ""])
def test_who_is_not_online_is_not_asked(kit: BrokerHarness, client_id: str) -> None:
    member(kit, "c1")
    running_info(kit, client_id)
    got = kit.channel.take_one()
    assert got.code == 1 and "not online" in got.remark


def test_a_message_is_consumed_directly(kit: BrokerHarness) -> None:
    sent = kit.send(b"now")
    channel = member(kit, "c1")
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="CG", client_id="c1", msg_id=sent.ext_fields["msgId"]
    )
    kit.deliver(RemotingCommand.request(309, header))
    asked = question(channel)
    assert asked.code == 309 and asked.ext_fields["brokerName"] == "broker-a"
    assert decode_message(asked.body).body == b"now"
    answer(kit, channel, asked, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert b"CR_SUCCESS" in kit.channel.take_one().body
    header.msg_id = "0A00000200002A9F0000000000000FFF"
    assert kit.call(309, header).code == 1
    header.msg_id = "what"
    assert kit.call(309, header).code == 1


def reset(
    kit: BrokerHarness, timestamp: int, force: bool = True, language: int = 0
) -> RemotingCommand:
    header = ResetOffsetRequestHeader(topic="T", group="CG", timestamp=timestamp, is_force=force)
    request = RemotingCommand.request(222, header)
    request.language = language
    kit.deliver(request)
    got: RemotingCommand = kit.channel.take_one()
    return got


def consumed(kit: BrokerHarness, offset: int) -> None:
    for queue_id in range(4):
        kit.broker.offsets.commit("CG", "T", queue_id, offset if queue_id == 0 else 0)


def filled(kit: BrokerHarness) -> int:
    """Five messages a second apart in queue 0; the time of the third."""
    times = []
    for number in range(5):
        times.append(kit.scheduler.now_ms())
        kit.send(b"%d" % number)
        kit.scheduler.advance(1_000)
    return times[2]


@pytest.mark.parametrize(
    ("at", "force", "committed", "chosen"),
    [(2, True, 4, 2), (2, True, 1, 2), (2, False, 4, 2), (2, False, 1, 1), (-1, True, 1, 5)],
)
def test_offsets_are_reset_by_the_members(
    kit: BrokerHarness, at: int, force: bool, committed: int, chosen: int
) -> None:
    third_ms = filled(kit)
    consumed(kit, committed)
    channels = [member(kit, f"c{number}", number) for number in (1, 2)]
    got = reset(kit, third_ms if at == 2 else -1, force)
    assert got.code == 0
    table = ResetOffsetBody.decode(got.body).offset_table
    assert table[MessageQueue("T", "broker-a", 0)] == chosen
    assert len(table) == 4
    for channel in channels:
        asked = question(channel)
        assert asked.code == 220 and asked.is_oneway
        assert asked.body == got.body
        assert asked.ext_fields["isForce"] == "false"
    assert kit.broker.offsets.get("CG", "T", 0) == committed


def test_the_list_form_for_cpp(kit: BrokerHarness) -> None:
    filled(kit)
    consumed(kit, 1)
    channel = member(kit, "c1")
    assert reset(kit, -1, language=LANGUAGE_CPP).code == 0
    rows = ResetOffsetBodyForC.decode(question(channel).body).offset_table
    assert [(row.queue_id, row.offset) for row in rows] == [(0, 5), (1, 0), (2, 0), (3, 0)]


def test_resets_that_cannot_be(kit: BrokerHarness) -> None:
    assert reset(kit, -1).code == 1
    filled(kit)
    assert reset(kit, -1).remark == "THe consumer group <CG> not exist"
    consumed(kit, 1)
    assert reset(kit, -1).code == 206


def test_status_of_all_members_or_one(kit: BrokerHarness) -> None:
    filled(kit)
    channels = {f"c{number}": member(kit, f"c{number}", number) for number in (1, 2)}
    queue = MessageQueue("T", "broker-a", 0)

    def ask(client_id: str | None) -> dict[str, Any]:
        header = GetConsumerStatusRequestHeader(topic="T", group="CG", client_addr=client_id)
        kit.deliver(RemotingCommand.request(223, header))
        for number, channel in enumerate(channels.values()):
            for asked in [c for c in channel.take() if c.code == 221]:
                body = GetConsumerStatusBody(message_queue_table={queue: number}).encode()
                answer(kit, channel, asked, body=body)
        return GetConsumerStatusBody.decode(kit.channel.take_one().body).consumer_table

    assert ask(None) == {"c1": {queue: 0}, "c2": {queue: 1}}
    assert ask("c2") == {"c2": {queue: 1}}
    assert ask("nobody") == {}


def test_status_of_who_is_silent_is_left_out(kit: BrokerHarness) -> None:
    member(kit, "c1")
    kit.deliver(RemotingCommand.request(223, GetConsumerStatusRequestHeader(topic="T", group="CG")))
    kit.scheduler.advance(5_000)
    got = kit.channel.take_one()
    assert got.code == 0 and GetConsumerStatusBody.decode(got.body).consumer_table == {}
    header = GetConsumerStatusRequestHeader(topic="T", group="nobody")
    assert kit.call(223, header).code == 1


def test_offsets_are_cloned(kit: BrokerHarness) -> None:
    filled(kit)
    consumed(kit, 3)
    header = CloneGroupOffsetRequestHeader(src_group="CG", dest_group="Other", topic="T")
    assert kit.call(314, header).code == 0
    assert kit.broker.offsets.get("Other", "T", 0) == 3
    header = CloneGroupOffsetRequestHeader(src_group="CG", dest_group="Third")
    assert kit.call(314, header).code == 0
    assert kit.broker.offsets.get("Third", "T", 0) == 3


# request and reply


def stored_at(offset: int) -> str:
    return f"0A00000200002A9F{offset:016X}"


def reply(kit: BrokerHarness, properties: str, code: int = 325) -> None:
    command = kit.send_command(b"yes", code=310, topic="C_REPLY_TOPIC", properties=properties)
    command.code = code
    kit.deliver(command)


def test_a_reply_is_pushed_to_who_asked(kit: BrokerHarness) -> None:
    asker = MemoryChannel(peer=("10.0.0.6", 7))
    kit.heartbeat(asker, "asker", group=None, producer="PG")
    reply(kit, "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x0142")
    pushed = question(asker)
    header = ReplyMessageRequestHeader.decode(pushed.ext_fields)
    assert (pushed.code, pushed.body, header.topic) == (326, b"yes", "C_REPLY_TOPIC")
    assert (header.born_host, header.store_host) == ("10.0.0.1:1234", "10.0.0.2:10911")
    assert header.properties is not None and "CORRELATION_ID\x0142" in header.properties
    assert f"PUSH_REPLY_TIME\x01{kit.scheduler.now_ms()}" in header.properties
    assert kit.channel.take() == []
    answer(kit, asker, pushed)
    got = kit.channel.take_one()
    place = (got.ext_fields["msgId"], got.ext_fields["queueOffset"])
    assert (got.code, place) == (0, (stored_at(0), "0"))
    assert kit.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 1


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("K\x01v", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01gone", "push reply message fail, channel of <gone> not found."),
    ],
)
def test_a_reply_that_nobody_waits_for(kit: BrokerHarness, properties: str, remark: str) -> None:
    reply(kit, properties)
    got = kit.channel.take_one()
    assert (got.code, got.remark) == (1, remark)
    assert kit.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 1


def test_replies_need_not_be_stored(build: BuildBroker) -> None:
    kit = build(store_reply_message_enable=False)
    reply(kit, "K\x01v")
    assert kit.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 0


def test_an_asker_that_does_not_take_it(kit: BrokerHarness) -> None:
    asker = MemoryChannel(peer=("10.0.0.6", 7))
    kit.heartbeat(asker, "asker", group=None, producer="PG")
    reply(kit, "REPLY_TO_CLIENT\x01asker")
    answer(kit, asker, question(asker), code=1)
    assert kit.channel.take_one().code == 1
