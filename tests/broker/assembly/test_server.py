"""Requests at the broker's server: dispatch by code, faults, ports, serialization, restart."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqpy.config.loading import FlushDiskType
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import StoreError
from rmqpy.remoting.bodies import TopicConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.command_header import header_fields
from rmqpy.remoting.headers import REQUEST_HEADERS
from rmqpy.store.retention import RetentionCleaner
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel


@pytest.mark.parametrize("code", [0, 13, 22, 27, 54, 210, 351, 901, 12345])
def test_unknown_codes_are_answered_as_not_supported(harness: BrokerHarness, code: int) -> None:
    answer = harness.call(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_an_unknown_oneway_request_is_answered(harness: BrokerHarness) -> None:
    command = RemotingCommand.request(12345)
    command.flag |= FLAG_ONEWAY
    harness.deliver(command)
    assert harness.channel.take_one().code == 3


def test_a_refused_oneway_request_is_silent(harness: BrokerHarness) -> None:
    command = RemotingCommand.request(37)
    command.flag |= FLAG_ONEWAY
    harness.deliver(command)
    assert harness.channel.take() == []


def test_a_response_without_a_request_is_ignored(harness: BrokerHarness) -> None:
    harness.deliver(RemotingCommand(0, opaque=77, flag=FLAG_RESPONSE))
    assert harness.channel.take() == []


def test_the_fast_port_serves_everything_but_pulls(harness: BrokerHarness) -> None:
    port = harness.broker.fast_port
    port.handle(harness.channel, [harness.send_command(), harness.pull_command()])
    port.turn_ended()
    codes = sorted(answer.code for answer in harness.channel.take())
    assert codes == [0, 3]
    port.channel_closed(harness.channel)


def test_replies_have_the_opaque_and_serialization_of_the_request(harness: BrokerHarness) -> None:
    command = harness.send_command()
    command.opaque, command.serialize_type = 4711, SERIALIZE_ROCKETMQ
    unknown = RemotingCommand(12345, opaque=4712, serialize_type=SERIALIZE_ROCKETMQ)
    harness.deliver(command, unknown)
    answers = {answer.opaque: answer for answer in harness.channel.take()}
    assert answers[4711].code == 0 and answers[4711].serialize_type == SERIALIZE_ROCKETMQ
    assert answers[4711].ext_fields["queueOffset"] == "0"
    assert answers[4712].code == 3
    assert {answer.version for answer in answers.values()} == {407}


def test_a_failing_request_does_not_affect_others(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(harness.store.reader, "max_queue_offset", broken)
    question = RemotingCommand.request(30)
    question.ext_fields = {"topic": "T", "queueId": "0"}
    harness.deliver(harness.send_command(), question, harness.send_command())
    codes = sorted(answer.code for answer in harness.channel.take())
    assert codes == [0, 0, 1]
    assert not harness.channel.closed


@pytest.mark.slow
def test_an_answer_too_large_for_a_frame_is_an_error(harness: BrokerHarness) -> None:
    harness.broker.topics.put(TopicConfig("T", attributes={"+x": "x" * (17 << 20)}))
    answer = harness.call(21)
    assert answer.code == 1 and "larger than a peer accepts" in (answer.remark or "")


def test_a_failed_dispatch_stops_the_store_not_the_broker(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.send()

    def broken() -> None:
        harness.store.health.fail("planted")
        raise StoreError("/store/consumequeue", "damage", "none", "repair it")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store, "dispatch", broken)
        assert harness.send().code == 0
    assert harness.send().code == 14


def test_failed_periodic_work_is_repeated(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build(start=False)
    calls: list[int] = []

    def broken(*_: object) -> None:
        calls.append(1)
        raise OSError("planted")

    monkeypatch.setattr(RetentionCleaner, "round", broken)
    harness.broker.start()
    harness.scheduler.advance(30_000)
    assert len(calls) == 3


def test_a_full_disk_refuses_messages_until_space_is_free(harness: BrokerHarness) -> None:
    harness.files.free_bytes = harness.files.total_bytes // 20
    harness.scheduler.advance(10_000)
    assert harness.send().code == 14
    harness.files.free_bytes = harness.files.total_bytes // 2
    harness.scheduler.advance(10_000)
    assert harness.send().code == 0


def test_waiting_senders_are_answered_when_leadership_is_lost(harness: BrokerHarness) -> None:
    harness.broker.server.handle(harness.channel, [harness.send_command()])
    harness.broker.server.leadership_lost()
    answer = harness.channel.take_one()
    assert answer.code == 14 and "msgId" not in answer.ext_fields


def test_a_stopped_broker_has_no_timers(harness: BrokerHarness) -> None:
    harness.broker.stop(lambda: None)
    for _, command, done in harness.network.take():
        if command.code == 104:
            done(RemotingCommand.response_to(command), None)
    harness.scheduler.run_until_idle()
    assert harness.scheduler.waiting == 0


def test_a_closed_channel_removes_its_consumer(harness: BrokerHarness) -> None:
    channel = MemoryChannel()
    harness.heartbeat(channel)
    harness.broker.server.channel_closed(channel)
    assert harness.broker.clients.consumer_group("CG") is None


def test_a_stop_waits_for_running_flushes_and_writes(build: BuildBroker) -> None:
    harness = build(namesrv_addr=None, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.scheduler.blocking_ms = 50
    harness.deliver(harness.send_command())
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    harness.scheduler.advance(49)
    assert stopped == []
    harness.scheduler.advance(1)
    assert harness.channel.take_one().code == 0, "the flushed message is acknowledged"
    assert stopped == [True]
    assert b'"T"' in harness.files.read_bytes("/store/config/topics.json")
    assert harness.scheduler.waiting == 0


def test_sends_that_can_no_longer_be_acknowledged_are_refused_at_the_stop(
    build: BuildBroker,
) -> None:
    harness = build(namesrv_addr=None, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.scheduler.blocking_ms = 50
    harness.deliver(harness.send_command(b"flushed"))
    harness.deliver(harness.send_command(b"too late"))
    harness.broker.stop(lambda: None)
    harness.scheduler.advance(50)
    assert [answer.code for answer in harness.channel.take()] == [0, 14]


def test_a_table_that_cannot_be_written_does_not_block_the_stop(build: BuildBroker) -> None:
    harness = build(namesrv_addr=None)
    harness.files.fail_write("/config/")
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    harness.scheduler.run_until_idle()
    assert stopped == [True]


def test_a_restarted_broker_continues_on_its_store(build: BuildBroker) -> None:
    harness = build(namesrv_addr=None)
    harness.send(b"before")
    harness.broker.stop(lambda: None)
    harness.scheduler.run_until_idle()
    harness.store.shutdown()
    again = build(files=harness.files, namesrv_addr=None)
    assert again.send(b"after").ext_fields["queueOffset"] == "1"
    assert again.pull().ext_fields["nextBeginOffset"] == "2"


def test_acknowledged_messages_survive_a_power_failure(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.deliver(harness.send_command(b"acknowledged"))
    harness.scheduler.run_until_idle()
    assert harness.channel.take_one().code == 0
    after = harness.files.crash()
    again = build(files=after)
    again.send(b"next")
    assert again.pull(max_msg_nums=1).body.count(b"acknowledged") == 1


def test_derived_files_are_flushed_outside_the_loop(harness: BrokerHarness) -> None:
    harness.send()
    harness.scheduler.blocking_ms = 20
    harness.scheduler.advance(60_000)
    queue = next(path for path in harness.files.nodes if "/consumequeue/T/0/" in path)
    assert not harness.files.nodes[queue].durable
    harness.scheduler.advance(20)
    node = harness.files.nodes[queue]
    assert node.durable and node.durable[:20] == bytes(node.data[:20])


def test_derived_files_that_cannot_be_flushed_stop_the_store(harness: BrokerHarness) -> None:
    harness.send()
    harness.files.fail_sync("/consumequeue/")
    harness.scheduler.advance(60_000)
    assert harness.store.health.failure is not None
    assert harness.send().code == 14


HOSTILE = [
    "",
    "0",
    "1",
    "-1",
    "2147483648",
    "9223372036854775807",
    "99999999999999999999",
    "T",
    "CG",
    "../../x",
    "a\0b",
    "true",
    "TAG",
    "SQL92",
    "%RETRY%CG",
    "KEYS\x01\x02\x01x",
    "é" * 40,
]
PLAUSIBLE = ["0", "1", "-1", "7", "2147483647", "-2147483648", "99999999999999999999", "x"]
BODIES = [
    b"",
    b"{",
    b"[[[[",
    b'{"offsetTable":{{}:1}}',
    b"\0" * 40,
    b"\xff" * 9,
    b'{"groupName":1}',
]


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_request_gets_exactly_one_answer(harness: BrokerHarness, data: st.DataObject) -> None:
    """No header and no body makes the broker raise, stay silent, or leave its folder.

    All examples use one broker, so the effects of one example are present in the next.
    """
    code = data.draw(st.sampled_from(sorted(harness.broker.server._handlers)))
    header = REQUEST_HEADERS.get(RequestCode(code))
    fields = header_fields(header) if header is not None else ()
    command = RemotingCommand(code, body=data.draw(st.sampled_from(BODIES)))
    for item in fields:
        if item.mandatory or data.draw(st.booleans()):
            fitting = PLAUSIBLE if "number" in item.kind else HOSTILE
            command.ext_fields[item.wire_name] = data.draw(st.sampled_from(fitting))
    if code in (11, 361):
        command.ext_fields["sysFlag"] = "4"
    channel = MemoryChannel()
    harness.deliver(command, channel=channel)
    harness.scheduler.run_until_idle()  # the answer to a changed table waits for its write
    answers = [answer for answer in channel.take() if answer.is_response]
    assert len(answers) == 1
    assert not re.match(r"\w*[Ee]rror: ", answers[0].remark or ""), answers[0].remark
    assert not [path for path in harness.files.nodes if ".." in path or "\0" in path]


def test_administrative_requests_are_limited_to_a_slice_of_a_turn(build: BuildBroker) -> None:
    """Requests that do not start in time are returned with those after them, except sends."""
    harness = build()
    handled: list[int] = []

    def slow(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
        handled.append(request.opaque)
        harness.scheduler.advance(3)
        return RemotingCommand.response_to(request)

    harness.broker.server.register_handlers({9001: slow})
    tools = [RemotingCommand(9001, opaque) for opaque in range(3)]
    send = harness.send_command()
    commands: list[RemotingCommand] = [*tools, send]
    turns = 0
    while commands:
        turns += 1
        commands = list(harness.broker.server.handle(harness.channel, commands) or ())
        assert handled == list(range(turns))
        harness.broker.server.turn_ended()
    assert turns == 3
    assert [answer.code for answer in harness.channel.take()] == [0] * 4
    assert not harness.broker.server.handle(harness.channel, [tools[0], harness.send_command()])
    assert harness.broker.server.handle(MemoryChannel(), [harness.pull_command(), tools[1]]) == [
        tools[1]
    ]
