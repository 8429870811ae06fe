"""Transactions: half messages, their ends, the questions about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.broker.services.half_messages import op_message
from rmqpy.broker.services.transaction_check import check_request
from rmqpy.codec.message import decode_message
from rmqpy.model.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import decode_command, encode_command
from rmqpy.remoting.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
ROUND_MS = 60_000


def messages(kit: BrokerHarness, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    end = kit.store.reader.max_queue_offset(topic, queue_id)
    start = kit.store.reader.min_queue_offset(topic, queue_id)
    found = []
    while start < end:
        units = kit.store.reader.queue_units(topic, queue_id, start, end - start)
        found += [decode_message(kit.store.reader.message_at(unit[0])) for unit in units]
        start += len(units)
    return found


def send_half(
    kit: BrokerHarness, name: str = "U", more: str = "", **fields: Any
) -> RemotingCommand:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01{name}\x02WAIT\x01true{more}"
    values = {
        "properties": properties,
        "sys_flag": 4,
        "born_timestamp": kit.scheduler.now_ms(),
        **fields,
    }
    answer: RemotingCommand = kit.send(name.encode(), **values)
    return answer


def end_header(half: StoredMessage, what: int, **fields: Any) -> EndTransactionRequestHeader:
    values = {
        "producer_group": "PG",
        "tran_state_table_offset": half.queue_offset,
        "commit_log_offset": half.physical_offset,
        "commit_or_rollback": what,
        "msg_id": "U",
    }
    return EndTransactionRequestHeader(**{**values, **fields})


def committed(kit: BrokerHarness) -> tuple[int, int]:
    offsets = kit.broker.offsets
    return tuple(offsets.get("CID_RMQ_SYS_TRANS", topic, 0) for topic in (HALF, OP))


def questions(kit: BrokerHarness) -> list[RemotingCommand]:
    return [command for command in kit.channel.take() if command.code == 39]


def test_a_half_message_waits_in_the_half_topic(kit: BrokerHarness) -> None:
    answer = send_half(kit, queue_id=2)
    assert answer.code == 0
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("2", "0")
    (half,) = messages(kit, HALF)
    assert half.sys_flag == 0
    assert half.properties == {
        "TRAN_MSG": "true",
        "PGROUP": "PG",
        "UNIQ_KEY": "U",
        "WAIT": "true",
        "CLUSTER": "C",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert messages(kit, "T", 2) == []


def test_commit_gives_the_message_and_notes_it(kit: BrokerHarness) -> None:
    send_half(kit, queue_id=1, flag=5)
    (half,) = messages(kit, HALF)
    assert kit.call(37, end_header(half, TRANSACTION_COMMIT)).code == 0
    (final,) = messages(kit, "T", 1)
    assert final.sys_flag == 8
    assert final.prepared_transaction_offset == half.physical_offset
    assert final.raw_properties == half.raw_properties
    assert (final.flag, final.body) == (5, b"U")
    assert (final.born_timestamp_ms, final.born_host) == (half.born_timestamp_ms, half.born_host)
    (op,) = messages(kit, OP)
    assert (op.body, op.raw_properties, op.sys_flag) == (b"0", b"WAIT\x01true\x02TAGS\x01d", 0)


def test_rollback_only_notes_it(kit: BrokerHarness) -> None:
    send_half(kit)
    (half,) = messages(kit, HALF)
    assert kit.call(37, end_header(half, TRANSACTION_ROLLBACK)).code == 0
    assert messages(kit, "T") == []
    assert [op.body for op in messages(kit, OP)] == [b"0"]


def test_unknown_changes_nothing(kit: BrokerHarness) -> None:
    send_half(kit)
    (half,) = messages(kit, HALF)
    assert kit.call(37, end_header(half, 0)).code == 0
    assert messages(kit, OP) == []


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 7}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 99_999}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_must_name_its_half_message(
    kit: BrokerHarness, fields: dict[str, Any], remark: str
) -> None:
    send_half(kit)
    (half,) = messages(kit, HALF)
    answer = kit.call(37, end_header(half, TRANSACTION_COMMIT, **fields))
    assert (answer.code, answer.remark) == (1, remark)
    assert messages(kit, OP) == []


def test_an_ordinary_message_cannot_be_committed(kit: BrokerHarness) -> None:
    kit.send(properties="PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010")
    (message,) = messages(kit, "T")
    assert kit.call(37, end_header(message, TRANSACTION_COMMIT)).code == 1
    assert len(messages(kit, "T")) == 1


def test_a_slave_ends_nothing(kit: BrokerHarness) -> None:
    send_half(kit)
    (half,) = messages(kit, HALF)
    kit.broker.identity.role = type(kit.broker.identity.role).SLAVE
    assert kit.call(37, end_header(half, TRANSACTION_COMMIT)).code == 11


def test_the_delay_of_a_transaction_begins_with_its_commit(kit: BrokerHarness) -> None:
    send_half(kit, more="\x02DELAY\x011")
    (half,) = messages(kit, HALF)
    kit.scheduler.advance(5_000)
    kit.call(37, end_header(half, TRANSACTION_COMMIT))
    assert messages(kit, "T") == []
    kit.scheduler.advance(1_200)
    (final,) = messages(kit, "T")
    assert final.sys_flag == 8


def test_an_ended_transaction_is_not_asked_about(kit: BrokerHarness) -> None:
    kit.heartbeat(group=None, producer="PG")
    send_half(kit, "a")
    send_half(kit, "b")
    for half, what in zip(messages(kit, HALF), (8, 12), strict=True):
        kit.call(37, end_header(half, what))
    kit.scheduler.advance(ROUND_MS + 1_000)
    assert questions(kit) == []
    assert committed(kit) == (2, 2)
    assert len(messages(kit, HALF)) == 2


def test_a_producer_is_asked_and_its_answer_counts(kit: BrokerHarness) -> None:
    kit.heartbeat(group=None, producer="PG")
    send_half(kit, queue_id=3)
    kit.scheduler.advance(ROUND_MS + 1_000)
    (asked,) = questions(kit)
    assert asked.is_oneway
    header = CheckTransactionStateRequestHeader.decode(asked.ext_fields)
    _, again = messages(kit, HALF)
    assert again.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert header.tran_state_table_offset == again.queue_offset == 1
    assert header.commit_log_offset == again.physical_offset
    assert header.msg_id == header.transaction_id == "U"
    message = decode_message(asked.body)
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"U")
    assert committed(kit) == (1, -1)
    kit.call(37, end_header(again, TRANSACTION_COMMIT, from_transaction_check=True))
    kit.scheduler.advance(ROUND_MS)
    assert questions(kit) == []
    assert [m.body for m in messages(kit, "T", 3)] == [b"U"]
    assert committed(kit) == (2, 1)


def test_young_messages_are_asked_about_later(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000, transaction_time_out=25_000)
    kit.heartbeat(group=None, producer="PG")
    send_half(kit)
    kit.scheduler.advance(21_000)
    assert questions(kit) == []
    kit.scheduler.advance(10_000)
    assert len(questions(kit)) == 1


def test_after_enough_questions_it_is_given_up(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=2_000, transaction_time_out=1_000,
                transaction_check_max=3)  # fmt: skip
    kit.heartbeat(group=None, producer="PG")
    send_half(kit, flag=6)
    kit.scheduler.advance(20_000)
    assert len(questions(kit)) == 3
    (given_up,) = messages(kit, GIVEN_UP)
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert (given_up.body, given_up.flag) == (b"U", 6)
    assert kit.broker.topics.get(GIVEN_UP).write_queue_nums == 1
    assert committed(kit) == (4, -1)


def test_what_is_older_than_the_log_is_kept_is_given_up_at_once(kit: BrokerHarness) -> None:
    send_half(kit, born_timestamp=kit.scheduler.now_ms() - 73 * 3_600_000)
    kit.scheduler.advance(ROUND_MS + 1_000)
    assert len(messages(kit, GIVEN_UP)) == 1


def test_a_message_with_its_own_immunity_lets_others_pass(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000)
    kit.heartbeat(group=None, producer="PG")
    send_half(kit, "late", "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0135")
    send_half(kit, "soon")
    kit.scheduler.advance(11_000)
    assert [decode_message(q.body).body for q in questions(kit)] == [b"soon"]
    again = messages(kit, HALF)[2]
    assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    kit.call(37, end_header(messages(kit, HALF)[0], TRANSACTION_COMMIT))
    kit.scheduler.advance(60_000)
    assert b"late" not in [decode_message(q.body).body for q in questions(kit)]


def test_without_a_producer_the_times_count_all_the_same(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000)
    send_half(kit)
    kit.scheduler.advance(25_000)
    assert [m.properties.get("TRANSACTION_CHECK_TIMES") for m in messages(kit, HALF)] == [
        None, "1", "2"
    ]  # fmt: skip


def test_producers_are_asked_in_turn(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000)
    others = [MemoryChannel(peer=("10.0.0.9", port)) for port in (1, 2)]
    for number, channel in enumerate(others):
        kit.heartbeat(channel, f"c{number}", group=None, producer="PG")
    for number in range(4):
        send_half(kit, f"U{number}")
    kit.scheduler.advance(11_000)
    assert [len(channel.take()) for channel in others] == [2, 2]


def test_op_messages_of_5x_name_many(kit: BrokerHarness) -> None:
    for number in range(3):
        send_half(kit, f"U{number}")
    op = op_message(0, 0, kit.broker.identity, kit.scheduler.now_ms())
    op.body = b"0,2,"
    kit.broker.server.run_in_turn(lambda: kit.store.appender.put([op]))
    kit.scheduler.advance(ROUND_MS + 1_000)
    assert len(messages(kit, HALF)) == 4
    assert committed(kit) == (3, 1)


def test_a_slave_asks_nobody(kit: BrokerHarness) -> None:
    kit.heartbeat(group=None, producer="PG")
    send_half(kit)
    kit.broker.services.stop()
    kit.scheduler.advance(ROUND_MS + 30_000)
    assert questions(kit) == []
    kit.broker.services.start()
    kit.heartbeat(group=None, producer="PG")
    kit.scheduler.advance(ROUND_MS + 1_000)
    assert len(questions(kit)) == 1


def test_a_round_that_cannot_write_is_done_again(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000)
    send_half(kit, "a")
    kit.scheduler.advance(8_000)
    kit.store.set_role(slave=True)
    kit.scheduler.advance(3_000)
    assert committed(kit) == (-1, -1)
    kit.store.set_role(slave=False)
    kit.scheduler.advance(10_000)
    assert len(messages(kit, HALF)) == 2 and committed(kit) == (1, -1)


@pytest.mark.slow
def test_many_half_messages_are_walked_in_steps(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000, mapped_file_size_commit_log=1 << 20)
    for number in range(300):
        send_half(kit, f"U{number}")
    for half in messages(kit, HALF)[::2]:
        kit.deliver(RemotingCommand.request(37, end_header(half, 12)))
    kit.scheduler.advance(11_000)
    assert len(messages(kit, HALF)) == 450
    assert committed(kit) == (300, 150)


def test_a_given_up_message_can_be_taken_up_again(build: BuildBroker) -> None:
    kit = build(transaction_check_interval=10_000, transaction_check_max=0)
    send_half(kit)
    kit.scheduler.advance(11_000)
    (given_up,) = messages(kit, GIVEN_UP)
    msg_id = f"0A00000200002A9F{given_up.physical_offset:016X}"
    answer = kit.call(323, ResumeCheckHalfMessageRequestHeader(msg_id=msg_id))
    assert answer.code == 0
    assert messages(kit, HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert kit.call(323, ResumeCheckHalfMessageRequestHeader(msg_id="x")).code == 1
    kit.send(b"ordinary")
    (ordinary,) = messages(kit, "T")
    msg_id = f"0A00000200002A9F{ordinary.physical_offset:016X}"
    assert kit.call(323, ResumeCheckHalfMessageRequestHeader(msg_id=msg_id)).code == 1


# what a Java broker left behind


def test_the_question_is_javas_byte_for_byte() -> None:
    path = Path(__file__).parent / "data" / "check_transaction_state.json"
    for row in json.loads(path.read_text()):
        java = decode_command(memoryview(bytes.fromhex(row))[4:])
        message = decode_message(java.body)
        header = CheckTransactionStateRequestHeader.decode(java.ext_fields)
        half = decode_message(java.body)
        ours = check_request(half)
        ours.opaque = java.opaque
        assert ours.flag == FLAG_ONEWAY and message.queue_offset == header.tran_state_table_offset
        assert encode_command(ours) == bytes.fromhex(row)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    [("A-classic-clean-v497", "store"), ("B-master-slave-v497", "master"),
     ("A-classic-clean-v533", "store")],
)  # fmt: skip
def test_half_messages_of_a_java_broker_are_resolved(
    build: BuildBroker, golden_copy: Callable[[str], Path], name: str, part: str
) -> None:
    root = str(golden_copy(name) / part)
    probe = build(files=OsFileSystem(), scheduler=ManualScheduler(start_ms=1_800_000_000_000),
                  store_path_root_dir=root, store_path_commit_log=f"{root}/commitlog",
                  max_message_size=32768, mapped_file_size_consume_queue=2000,
                  transaction_check_interval=2_000, transaction_time_out=1_000,
                  file_reserved_time=1_000_000)  # fmt: skip
    before = committed(probe)
    pending = half_without_end(probe, before[0])
    probe.heartbeat(group=None, producer="PID_tx_a" if name.startswith("A") else "PID_tx_b")
    probe.scheduler.advance(60_000)
    ends = {topic: probe.store.reader.max_queue_offset(topic, 0) for topic in (HALF, OP)}
    assert committed(probe)[0] == ends[HALF]
    given_up = [m.properties["UNIQ_KEY"] for m in messages(probe, GIVEN_UP)]
    assert set(pending) <= set(given_up)
    assert len(given_up) == len(set(given_up))
    probe.store.shutdown()


def half_without_end(kit: BrokerHarness, since: int) -> list[str]:
    ops = {int(text) for op in messages(kit, OP) for text in op.body.decode().split(",") if text}
    return [
        half.properties["UNIQ_KEY"]
        for half in messages(kit, HALF)
        if half.queue_offset >= since and half.queue_offset not in ops
    ]
