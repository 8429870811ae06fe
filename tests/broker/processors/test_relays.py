"""Requests that the broker sends to its clients: offset resets, status, running info, direct
consumption, pushed replies.
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


def member(harness: BrokerHarness, client_id: str, port: int = 1) -> MemoryChannel:
    channel = MemoryChannel(peer=("10.0.0.5", port))
    harness.heartbeat(channel, client_id, subscriptions=SUBSCRIPTIONS)
    return channel


def sent_request(channel: MemoryChannel) -> RemotingCommand:
    """Return the one request that the broker has sent on a channel."""
    (found,) = [c for c in channel.take() if not c.is_response and c.code != 40]
    return found


def answer(
    harness: BrokerHarness, channel: MemoryChannel, request: RemotingCommand, **fields: Any
) -> None:
    response = RemotingCommand.response_to(request)
    for name, value in fields.items():
        setattr(response, name, value)
    harness.deliver(response, channel=channel)


def running_info(harness: BrokerHarness, client_id: str = "c1") -> None:
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group="CG", client_id=client_id, jstack_enable=True
    )
    harness.deliver(RemotingCommand.request(307, header))


def test_running_info_is_fetched_from_the_client(harness: BrokerHarness) -> None:
    channel = member(harness, "c1")
    running_info(harness)
    request = sent_request(channel)
    assert request.code == 307 and not request.is_oneway
    assert request.ext_fields == {
        "consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"
    }  # fmt: skip
    assert harness.channel.take() == []
    answer(harness, channel, request, body=b'{"properties":{}}', remark="well")
    got = harness.channel.take_one()
    assert (got.code, got.body, got.remark, got.opaque) == (0, b'{"properties":{}}', "well", 0)
    answer(harness, channel, request, body=b"twice")
    assert harness.channel.take() == []


def test_a_client_that_does_not_answer_in_time_is_a_timeout(harness: BrokerHarness) -> None:
    channel = member(harness, "c1")
    running_info(harness)
    harness.scheduler.advance(9_999)
    assert harness.channel.take() == []
    harness.scheduler.advance(1)
    assert harness.channel.take_one().code == 207
    answer(harness, channel, sent_request(channel))
    assert harness.channel.take() == []


def test_a_client_that_disconnects_is_a_timeout(harness: BrokerHarness) -> None:
    channel = member(harness, "c1")
    running_info(harness)
    harness.broker.server.channel_closed(channel)
    assert harness.channel.take_one().code == 207


def test_only_the_connection_that_received_the_request_may_answer(harness: BrokerHarness) -> None:
    channel = member(harness, "c1")
    running_info(harness)
    request = sent_request(channel)
    answer(harness, MemoryChannel(), request, body=b"forged")
    assert harness.channel.take() == []
    answer(harness, channel, request, body=b"true")
    assert harness.channel.take_one().body == b"true"


@pytest.mark.parametrize("client_id", ["c2", ""])
def test_a_client_that_is_not_online_is_an_error(harness: BrokerHarness, client_id: str) -> None:
    member(harness, "c1")
    running_info(harness, client_id)
    got = harness.channel.take_one()
    assert got.code == 1 and "not online" in (got.remark or "")


def test_a_message_is_consumed_directly(harness: BrokerHarness) -> None:
    sent = harness.send(b"now")
    channel = member(harness, "c1")
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="CG", client_id="c1", msg_id=sent.ext_fields["msgId"]
    )
    harness.deliver(RemotingCommand.request(309, header))
    request = sent_request(channel)
    assert request.code == 309 and request.ext_fields["brokerName"] == "broker-a"
    assert decode_message(request.body).body == b"now"
    answer(harness, channel, request, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert b"CR_SUCCESS" in harness.channel.take_one().body
    header.msg_id = "0A00000200002A9F0000000000000FFF"
    assert harness.call(309, header).code == 1
    header.msg_id = "what"
    assert harness.call(309, header).code == 1


def reset(
    harness: BrokerHarness, timestamp: int, force: bool = True, language: int = 0
) -> RemotingCommand:
    header = ResetOffsetRequestHeader(topic="T", group="CG", timestamp=timestamp, is_force=force)
    request = RemotingCommand.request(222, header)
    request.language = language
    harness.deliver(request)
    got: RemotingCommand = harness.channel.take_one()
    return got


def commit_offsets(harness: BrokerHarness, offset: int) -> None:
    for queue_id in range(4):
        harness.broker.offsets.commit("CG", "T", queue_id, offset if queue_id == 0 else 0)


def send_five(harness: BrokerHarness) -> int:
    """Send five messages to queue 0, one per second, and return the time of the third."""
    times = []
    for number in range(5):
        times.append(harness.scheduler.now_ms())
        harness.send(b"%d" % number)
        harness.scheduler.advance(1_000)
    return times[2]


@pytest.mark.parametrize(
    ("at", "force", "committed", "chosen"),
    [(2, True, 4, 2), (2, True, 1, 2), (2, False, 4, 2), (2, False, 1, 1), (-1, True, 1, 5)],
)
def test_offsets_are_reset_by_the_members(
    harness: BrokerHarness, at: int, force: bool, committed: int, chosen: int
) -> None:
    third_ms = send_five(harness)
    commit_offsets(harness, committed)
    channels = [member(harness, f"c{number}", number) for number in (1, 2)]
    got = reset(harness, third_ms if at == 2 else -1, force)
    assert got.code == 0
    table = ResetOffsetBody.decode(got.body).offset_table
    assert table[MessageQueue("T", "broker-a", 0)] == chosen
    assert len(table) == 4
    for channel in channels:
        request = sent_request(channel)
        assert request.code == 220 and request.is_oneway
        assert request.body == got.body
        assert request.ext_fields["isForce"] == "false"
    assert harness.broker.offsets.get("CG", "T", 0) == committed


def test_cpp_clients_receive_offsets_as_a_list(harness: BrokerHarness) -> None:
    send_five(harness)
    commit_offsets(harness, 1)
    channel = member(harness, "c1")
    assert reset(harness, -1, language=LANGUAGE_CPP).code == 0
    rows = ResetOffsetBodyForC.decode(sent_request(channel).body).offset_table
    assert [(row.queue_id, row.offset) for row in rows] == [(0, 5), (1, 0), (2, 0), (3, 0)]


def test_impossible_resets_are_refused(harness: BrokerHarness) -> None:
    assert reset(harness, -1).code == 1
    send_five(harness)
    assert reset(harness, -1).remark == "THe consumer group <CG> not exist"
    commit_offsets(harness, 1)
    assert reset(harness, -1).code == 206


def test_status_of_all_members_or_one(harness: BrokerHarness) -> None:
    send_five(harness)
    channels = {f"c{number}": member(harness, f"c{number}", number) for number in (1, 2)}
    queue = MessageQueue("T", "broker-a", 0)

    def ask(client_id: str | None) -> dict[str, Any]:
        header = GetConsumerStatusRequestHeader(topic="T", group="CG", client_addr=client_id)
        harness.deliver(RemotingCommand.request(223, header))
        for number, channel in enumerate(channels.values()):
            for request in [c for c in channel.take() if c.code == 221]:
                body = GetConsumerStatusBody(message_queue_table={queue: number}).encode()
                answer(harness, channel, request, body=body)
        return GetConsumerStatusBody.decode(harness.channel.take_one().body).consumer_table

    assert ask(None) == {"c1": {queue: 0}, "c2": {queue: 1}}
    assert ask("c2") == {"c2": {queue: 1}}
    assert ask("nobody") == {}


def test_the_status_of_a_silent_member_is_left_out(harness: BrokerHarness) -> None:
    member(harness, "c1")
    harness.deliver(
        RemotingCommand.request(223, GetConsumerStatusRequestHeader(topic="T", group="CG"))
    )
    harness.scheduler.advance(5_000)
    got = harness.channel.take_one()
    assert got.code == 0 and GetConsumerStatusBody.decode(got.body).consumer_table == {}
    header = GetConsumerStatusRequestHeader(topic="T", group="nobody")
    assert harness.call(223, header).code == 1


def test_offsets_are_cloned(harness: BrokerHarness) -> None:
    send_five(harness)
    commit_offsets(harness, 3)
    header = CloneGroupOffsetRequestHeader(src_group="CG", dest_group="Other", topic="T")
    assert harness.call(314, header).code == 0
    assert harness.broker.offsets.get("Other", "T", 0) == 3
    header = CloneGroupOffsetRequestHeader(src_group="CG", dest_group="Third")
    assert harness.call(314, header).code == 0
    assert harness.broker.offsets.get("Third", "T", 0) == 3


# Request and reply


def stored_at(offset: int) -> str:
    return f"0A00000200002A9F{offset:016X}"


def reply(harness: BrokerHarness, properties: str, code: int = 325) -> None:
    command = harness.send_command(b"yes", code=310, topic="C_REPLY_TOPIC", properties=properties)
    command.code = code
    harness.deliver(command)


def test_a_reply_is_pushed_to_the_requesting_client(harness: BrokerHarness) -> None:
    requester = MemoryChannel(peer=("10.0.0.6", 7))
    harness.heartbeat(requester, "requester", group=None, producer="PG")
    reply(harness, "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01requester\x02CORRELATION_ID\x0142")
    pushed = sent_request(requester)
    header = ReplyMessageRequestHeader.decode(pushed.ext_fields)
    assert (pushed.code, pushed.body, header.topic) == (326, b"yes", "C_REPLY_TOPIC")
    assert (header.born_host, header.store_host) == ("10.0.0.1:1234", "10.0.0.2:10911")
    assert header.properties is not None and "CORRELATION_ID\x0142" in header.properties
    assert f"PUSH_REPLY_TIME\x01{harness.scheduler.now_ms()}" in header.properties
    assert harness.channel.take() == []
    answer(harness, requester, pushed)
    got = harness.channel.take_one()
    place = (got.ext_fields["msgId"], got.ext_fields["queueOffset"])
    assert (got.code, place) == (0, (stored_at(0), "0"))
    assert harness.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 1


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("K\x01v", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01gone", "push reply message fail, channel of <gone> not found."),
    ],
)
def test_a_reply_without_a_requesting_client_is_an_error(
    harness: BrokerHarness, properties: str, remark: str
) -> None:
    reply(harness, properties)
    got = harness.channel.take_one()
    assert (got.code, got.remark) == (1, remark)
    assert harness.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 1


def test_storing_replies_can_be_switched_off(build: BuildBroker) -> None:
    harness = build(store_reply_message_enable=False)
    reply(harness, "K\x01v")
    assert harness.store.reader.max_queue_offset("C_REPLY_TOPIC", 0) == 0


def test_a_reply_that_the_client_rejects_is_an_error(harness: BrokerHarness) -> None:
    requester = MemoryChannel(peer=("10.0.0.6", 7))
    harness.heartbeat(requester, "requester", group=None, producer="PG")
    reply(harness, "REPLY_TO_CLIENT\x01requester")
    answer(harness, requester, sent_request(requester), code=1)
    assert harness.channel.take_one().code == 1
