"""The way of a request through the broker: dispatch by code, faults, ports, forms."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqpy.config.loading import FlushDiskType
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import StoreError
from rmqpy.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.command_header import header_fields
from rmqpy.remoting.headers import REQUEST_HEADERS
from rmqpy.store.retention import RetentionCleaner
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel


@pytest.mark.parametrize("code", [0, 13, 22, 27, 54, 210, 351, 901, 12345])
def test_unknown_codes(kit: BrokerHarness, code: int) -> None:
    answer = kit.call(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_an_unknown_oneway_request_is_answered_all_the_same(kit: BrokerHarness) -> None:
    command = RemotingCommand.request(12345)
    command.flag |= FLAG_ONEWAY
    kit.deliver(command)
    assert kit.channel.take_one().code == 3


def test_a_refused_oneway_request_is_silent(kit: BrokerHarness) -> None:
    command = RemotingCommand.request(37)
    command.flag |= FLAG_ONEWAY
    kit.deliver(command)
    assert kit.channel.take() == []


def test_answers_to_nobodys_question_are_ignored(kit: BrokerHarness) -> None:
    kit.deliver(RemotingCommand(0, opaque=77, flag=FLAG_RESPONSE))
    assert kit.channel.take() == []


def test_the_fast_port_does_everything_but_pull(kit: BrokerHarness) -> None:
    port = kit.broker.fast_port
    port.handle(kit.channel, [kit.send_command(), kit.pull_command()])
    port.turn_ended()
    codes = sorted(answer.code for answer in kit.channel.take())
    assert codes == [0, 3]
    port.channel_closed(kit.channel)


def test_replies_have_opaque_and_form_of_the_request(kit: BrokerHarness) -> None:
    command = kit.send_command()
    command.opaque, command.serialize_type = 4711, SERIALIZE_ROCKETMQ
    unknown = RemotingCommand(12345, opaque=4712, serialize_type=SERIALIZE_ROCKETMQ)
    kit.deliver(command, unknown)
    answers = {answer.opaque: answer for answer in kit.channel.take()}
    assert answers[4711].code == 0 and answers[4711].serialize_type == SERIALIZE_ROCKETMQ
    assert answers[4711].ext_fields["queueOffset"] == "0"
    assert answers[4712].code == 3
    assert {answer.version for answer in answers.values()} == {407}


def test_one_broken_request_harms_no_other(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(kit.store.reader, "max_queue_offset", broken)
    question = RemotingCommand.request(30)
    question.ext_fields = {"topic": "T", "queueId": "0"}
    kit.deliver(kit.send_command(), question, kit.send_command())
    codes = sorted(answer.code for answer in kit.channel.take())
    assert codes == [0, 0, 1]
    assert not kit.channel.closed


@pytest.mark.slow
def test_an_answer_too_large_for_a_frame_is_an_error(kit: BrokerHarness) -> None:
    for number in range(3):
        kit.broker.groups.find_or_create(f"G{number}")
    kit.broker.groups.get("G0").group_name = "x" * (17 << 20)
    answer = kit.call(201)
    assert answer.code == 1 and "larger than a peer accepts" in answer.remark


def test_a_failed_dispatch_stops_the_store_not_the_broker(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.send()

    def broken() -> None:
        kit.store.health.fail("planted")
        raise StoreError("/store/consumequeue", "damage", "none", "repair it")

    with monkeypatch.context() as patch:
        patch.setattr(kit.store, "dispatch", broken)
        assert kit.send().code == 0
    assert kit.send().code == 14


def test_periodic_work_that_fails_is_done_again(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = build(start=False)
    calls: list[int] = []

    def broken(*_: object) -> None:
        calls.append(1)
        raise OSError("planted")

    monkeypatch.setattr(RetentionCleaner, "round", broken)
    kit.broker.start()
    kit.scheduler.advance(30_000)
    assert len(calls) == 3


def test_a_full_disk_is_noticed_and_forgiven(kit: BrokerHarness) -> None:
    kit.files.free_bytes = kit.files.total_bytes // 20
    kit.scheduler.advance(10_000)
    assert kit.send().code == 14
    kit.files.free_bytes = kit.files.total_bytes // 2
    kit.scheduler.advance(10_000)
    assert kit.send().code == 0


def test_a_lost_leadership_answers_who_waits(kit: BrokerHarness) -> None:
    kit.broker.server.handle(kit.channel, [kit.send_command()])
    kit.broker.server.leadership_lost()
    answer = kit.channel.take_one()
    assert answer.code == 14 and "msgId" not in answer.ext_fields


def test_a_stopped_broker_plans_nothing(kit: BrokerHarness) -> None:
    kit.broker.stop(lambda: None)
    for _, command, done in kit.network.take():
        if command.code == 104:
            done(RemotingCommand.response_to(command), None)
    kit.scheduler.run_until_idle()
    assert kit.scheduler.waiting == 0


def test_channel_closed_takes_the_member_away(kit: BrokerHarness) -> None:
    channel = MemoryChannel()
    kit.heartbeat(channel)
    kit.broker.server.channel_closed(channel)
    assert kit.broker.clients.consumer_group("CG") is None


def test_a_stop_waits_for_the_flush_and_the_writes_that_run(build: BuildBroker) -> None:
    kit = build(namesrv_addr=None, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.scheduler.blocking_ms = 50
    kit.deliver(kit.send_command())
    stopped: list[bool] = []
    kit.broker.stop(lambda: stopped.append(True))
    kit.scheduler.advance(49)
    assert stopped == []
    kit.scheduler.advance(1)
    assert kit.channel.take_one().code == 0, "what was flushed is acknowledged"
    assert stopped == [True]
    assert b'"T"' in kit.files.read_bytes("/store/config/topics.json")
    assert kit.scheduler.waiting == 0


def test_what_cannot_be_acknowledged_any_more_is_answered_at_the_stop(build: BuildBroker) -> None:
    kit = build(namesrv_addr=None, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.scheduler.blocking_ms = 50
    kit.deliver(kit.send_command(b"flushed"))
    kit.deliver(kit.send_command(b"too late"))
    kit.broker.stop(lambda: None)
    kit.scheduler.advance(50)
    assert [answer.code for answer in kit.channel.take()] == [0, 14]


def test_a_table_that_cannot_be_written_does_not_hold_up_the_stop(build: BuildBroker) -> None:
    kit = build(namesrv_addr=None)
    kit.files.fail_write("/config/")
    stopped: list[bool] = []
    kit.broker.stop(lambda: stopped.append(True))
    kit.scheduler.run_until_idle()
    assert stopped == [True]


def test_a_broker_restarted_on_its_store_goes_on(build: BuildBroker) -> None:
    kit = build(namesrv_addr=None)
    kit.send(b"before")
    kit.broker.stop(lambda: None)
    kit.scheduler.run_until_idle()
    kit.store.shutdown()
    again = build(files=kit.files, namesrv_addr=None)
    assert again.send(b"after").ext_fields["queueOffset"] == "1"
    assert again.pull().ext_fields["nextBeginOffset"] == "2"


def test_messages_of_a_killed_broker_are_there_after_it(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.deliver(kit.send_command(b"acknowledged"))
    kit.scheduler.run_until_idle()
    assert kit.channel.take_one().code == 0
    after = kit.files.crash()
    again = build(files=after)
    again.send(b"next")
    assert again.pull(max_msg_nums=1).body.count(b"acknowledged") == 1


def test_derived_files_are_flushed_beside_the_loop(kit: BrokerHarness) -> None:
    kit.send()
    kit.scheduler.blocking_ms = 20
    kit.scheduler.advance(60_000)
    queue = next(path for path in kit.files.nodes if "/consumequeue/T/0/" in path)
    assert not kit.files.nodes[queue].durable
    kit.scheduler.advance(20)
    node = kit.files.nodes[queue]
    assert node.durable and node.durable[:20] == bytes(node.data[:20])


def test_derived_files_that_cannot_be_flushed_stop_the_store(kit: BrokerHarness) -> None:
    kit.send()
    kit.files.fail_sync("/consumequeue/")
    kit.scheduler.advance(60_000)
    assert kit.store.health.failure is not None
    assert kit.send().code == 14


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
def test_whatever_a_request_says_it_gets_one_answer(
    kit: BrokerHarness, data: st.DataObject
) -> None:
    """No header and no body makes the broker raise, stay silent or leave its folder.

    One broker for all examples: what one leaves behind is there for the next.
    """
    code = data.draw(st.sampled_from(sorted(kit.broker.server._handlers)))
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
    kit.deliver(command, channel=channel)
    answers = [answer for answer in channel.take() if answer.is_response]
    assert len(answers) == 1
    assert not re.match(r"\w*[Ee]rror: ", answers[0].remark or ""), answers[0].remark
    assert not [path for path in kit.files.nodes if ".." in path or "\0" in path]


def test_requests_of_tools_take_a_slice_of_a_turn(build: BuildBroker) -> None:
    """What is not begun in time is handed back, with what stands behind it; sends are not."""
    kit = build()
    asked: list[int] = []

    def slow(_channel: Any, request: RemotingCommand) -> RemotingCommand:
        asked.append(request.opaque)
        kit.scheduler.advance(3)
        return RemotingCommand.response_to(request)

    kit.broker.server.register_handlers({9001: slow})
    tools = [RemotingCommand(9001, opaque) for opaque in range(3)]
    send = kit.send_command()
    commands: list[RemotingCommand] = [*tools, send]
    turns = 0
    while commands:
        turns += 1
        commands = list(kit.broker.server.handle(kit.channel, commands) or ())
        assert asked == list(range(turns))
        kit.broker.server.turn_ended()
    assert turns == 3
    assert [answer.code for answer in kit.channel.take()] == [0] * 4
    assert not kit.broker.server.handle(kit.channel, [tools[0], kit.send_command()])
    assert kit.broker.server.handle(MemoryChannel(), [kit.pull_command(), tools[1]]) == [tools[1]]
