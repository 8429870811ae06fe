"""Transactions: half messages, their ends, and the checks of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.broker import flip_body, queue_messages

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
from rmqpy.store.reader import QueueMessageReader
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
ROUND_MS = 60_000


def send_half(
    harness: BrokerHarness, name: str = "U", more: str = "", **fields: Any
) -> RemotingCommand:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01{name}\x02WAIT\x01true{more}"
    values = {
        "properties": properties,
        "sys_flag": 4,
        "born_timestamp": harness.scheduler.now_ms(),
        **fields,
    }
    answer: RemotingCommand = harness.send(name.encode(), **values)
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


def committed(harness: BrokerHarness) -> tuple[int, int]:
    offsets = harness.broker.offsets
    group = "CID_RMQ_SYS_TRANS"
    return offsets.get(group, HALF, 0), offsets.get(group, OP, 0)


def check_requests(harness: BrokerHarness) -> list[RemotingCommand]:
    return [command for command in harness.channel.take() if command.code == 39]


def test_a_half_message_waits_in_the_half_topic(harness: BrokerHarness) -> None:
    answer = send_half(harness, queue_id=2)
    assert answer.code == 0
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("2", "0")
    (half,) = queue_messages(harness.store, HALF)
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
    assert queue_messages(harness.store, "T", 2) == []


def test_a_commit_delivers_the_message_and_records_the_end(harness: BrokerHarness) -> None:
    send_half(harness, queue_id=1, flag=5)
    (half,) = queue_messages(harness.store, HALF)
    assert harness.call(37, end_header(half, TRANSACTION_COMMIT)).code == 0
    (final,) = queue_messages(harness.store, "T", 1)
    assert final.sys_flag == 8
    assert final.prepared_transaction_offset == half.physical_offset
    assert final.raw_properties == half.raw_properties
    assert (final.flag, final.body) == (5, b"U")
    assert (final.born_timestamp_ms, final.born_host) == (half.born_timestamp_ms, half.born_host)
    (op,) = queue_messages(harness.store, OP)
    assert (op.body, op.raw_properties, op.sys_flag) == (b"0", b"WAIT\x01true\x02TAGS\x01d", 0)


def test_a_rollback_only_records_the_end(harness: BrokerHarness) -> None:
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    assert harness.call(37, end_header(half, TRANSACTION_ROLLBACK)).code == 0
    assert queue_messages(harness.store, "T") == []
    assert [op.body for op in queue_messages(harness.store, OP)] == [b"0"]


def test_an_unknown_outcome_changes_nothing(harness: BrokerHarness) -> None:
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    assert harness.call(37, end_header(half, 0)).code == 0
    assert queue_messages(harness.store, OP) == []


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
    harness: BrokerHarness, fields: dict[str, Any], remark: str
) -> None:
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    answer = harness.call(37, end_header(half, TRANSACTION_COMMIT, **fields))
    assert (answer.code, answer.remark) == (1, remark)
    assert queue_messages(harness.store, OP) == []


def test_an_ordinary_message_cannot_be_committed(harness: BrokerHarness) -> None:
    harness.send(properties="PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010")
    (message,) = queue_messages(harness.store, "T")
    assert harness.call(37, end_header(message, TRANSACTION_COMMIT)).code == 1
    assert len(queue_messages(harness.store, "T")) == 1


def test_a_slave_ends_no_transaction(harness: BrokerHarness) -> None:
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    harness.broker.identity.role = type(harness.broker.identity.role).SLAVE
    assert harness.call(37, end_header(half, TRANSACTION_COMMIT)).code == 11


def test_the_delay_of_a_transaction_starts_with_its_commit(harness: BrokerHarness) -> None:
    send_half(harness, more="\x02DELAY\x011")
    (half,) = queue_messages(harness.store, HALF)
    harness.scheduler.advance(5_000)
    harness.call(37, end_header(half, TRANSACTION_COMMIT))
    assert queue_messages(harness.store, "T") == []
    harness.scheduler.advance(1_200)
    (final,) = queue_messages(harness.store, "T")
    assert final.sys_flag == 8


def test_an_ended_transaction_is_not_checked(harness: BrokerHarness) -> None:
    harness.heartbeat(group=None, producer="PG")
    send_half(harness, "a")
    send_half(harness, "b")
    for half, what in zip(queue_messages(harness.store, HALF), (8, 12), strict=True):
        harness.call(37, end_header(half, what))
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert check_requests(harness) == []
    assert committed(harness) == (2, 2)
    assert len(queue_messages(harness.store, HALF)) == 2


def test_offsets_beyond_the_queues_that_a_power_loss_shortened_are_corrected(
    harness: BrokerHarness,
) -> None:
    """New half messages have lower offsets than the committed one; ended ones stay ended."""
    harness.heartbeat(group=None, producer="PG")
    send_half(harness, "a")
    send_half(harness, "b")
    (first, _) = queue_messages(harness.store, HALF)
    harness.call(37, end_header(first, 8))
    for topic, offset in ((HALF, 7), (OP, 5)):
        harness.broker.offsets.commit("CID_RMQ_SYS_TRANS", topic, 0, offset)
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert len(check_requests(harness)) == 1
    assert committed(harness)[0] <= 2


def test_the_producer_is_checked_and_its_answer_ends_the_transaction(
    harness: BrokerHarness,
) -> None:
    harness.heartbeat(group=None, producer="PG")
    send_half(harness, queue_id=3)
    harness.scheduler.advance(ROUND_MS + 1_000)
    (check,) = check_requests(harness)
    assert check.is_oneway
    header = CheckTransactionStateRequestHeader.decode(check.ext_fields)
    _, again = queue_messages(harness.store, HALF)
    assert again.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert header.tran_state_table_offset == again.queue_offset == 1
    assert header.commit_log_offset == again.physical_offset
    assert header.msg_id == header.transaction_id == "U"
    message = decode_message(check.body)
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"U")
    assert committed(harness) == (1, -1)
    harness.call(37, end_header(again, TRANSACTION_COMMIT, from_transaction_check=True))
    harness.scheduler.advance(ROUND_MS)
    assert check_requests(harness) == []
    assert [m.body for m in queue_messages(harness.store, "T", 3)] == [b"U"]
    assert committed(harness) == (2, 1)


def test_a_damaged_half_message_is_neither_delivered_nor_skipped(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a DLedger group its entry is fetched from another member."""
    monkeypatch.setattr(QueueMessageReader, "is_awaiting_repair", lambda self, offset: True)
    harness.heartbeat(group=None, producer="PG")
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    flip_body(harness, half.physical_offset)
    refused = harness.call(37, end_header(half, TRANSACTION_COMMIT))
    assert refused.code == 1
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert check_requests(harness) == [] and committed(harness)[0] <= 0
    flip_body(harness, half.physical_offset)
    harness.scheduler.advance(ROUND_MS)
    assert len(check_requests(harness)) == 1
    assert queue_messages(harness.store, "T") == []


def test_a_damaged_end_of_a_transaction_does_not_lead_to_a_check(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueMessageReader, "is_awaiting_repair", lambda self, offset: True)
    harness.heartbeat(group=None, producer="PG")
    send_half(harness)
    (half,) = queue_messages(harness.store, HALF)
    harness.call(37, end_header(half, TRANSACTION_COMMIT))
    (end,) = queue_messages(harness.store, OP)
    flip_body(harness, end.physical_offset)
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert check_requests(harness) == [] and committed(harness)[1] <= 0
    flip_body(harness, end.physical_offset)
    harness.scheduler.advance(ROUND_MS)
    assert check_requests(harness) == [] and committed(harness) == (1, 1)


def test_young_half_messages_are_checked_later(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000, transaction_time_out=25_000)
    harness.heartbeat(group=None, producer="PG")
    send_half(harness)
    harness.scheduler.advance(21_000)
    assert check_requests(harness) == []
    harness.scheduler.advance(10_000)
    assert len(check_requests(harness)) == 1


def test_a_half_message_is_discarded_after_the_last_check(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=2_000, transaction_time_out=1_000,
                transaction_check_max=3)  # fmt: skip
    harness.heartbeat(group=None, producer="PG")
    send_half(harness, flag=6)
    harness.scheduler.advance(20_000)
    assert len(check_requests(harness)) == 3
    (discarded,) = queue_messages(harness.store, DISCARDED)
    assert discarded.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert (discarded.body, discarded.flag) == (b"U", 6)
    assert harness.broker.topics.topics[DISCARDED].write_queue_nums == 1
    assert committed(harness) == (4, -1)


def test_a_half_message_older_than_the_retention_is_discarded_at_once(
    harness: BrokerHarness,
) -> None:
    send_half(harness, born_timestamp=harness.scheduler.now_ms() - 73 * 3_600_000)
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert len(queue_messages(harness.store, DISCARDED)) == 1


def test_a_half_message_with_its_own_immunity_does_not_delay_others(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000)
    harness.heartbeat(group=None, producer="PG")
    send_half(harness, "late", "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0135")
    send_half(harness, "soon")
    harness.scheduler.advance(11_000)
    assert [decode_message(q.body).body for q in check_requests(harness)] == [b"soon"]
    again = queue_messages(harness.store, HALF)[2]
    assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    harness.call(37, end_header(queue_messages(harness.store, HALF)[0], TRANSACTION_COMMIT))
    harness.scheduler.advance(60_000)
    assert b"late" not in [decode_message(q.body).body for q in check_requests(harness)]


def test_checks_are_counted_without_a_producer(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000)
    send_half(harness)
    harness.scheduler.advance(25_000)
    halves = queue_messages(harness.store, HALF)
    assert [m.properties.get("TRANSACTION_CHECK_TIMES") for m in halves] == [None, "1", "2"]


def test_producers_are_checked_in_turn(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000)
    others = [MemoryChannel(peer=("10.0.0.9", port)) for port in (1, 2)]
    for number, channel in enumerate(others):
        harness.heartbeat(channel, f"c{number}", group=None, producer="PG")
    for number in range(4):
        send_half(harness, f"U{number}")
    harness.scheduler.advance(11_000)
    assert [len(channel.take()) for channel in others] == [2, 2]


def test_op_messages_of_5x_name_several_half_messages(harness: BrokerHarness) -> None:
    for number in range(3):
        send_half(harness, f"U{number}")
    op = op_message(0, 0, harness.broker.identity, harness.scheduler.now_ms())
    op.body = b"0,2,"

    def put() -> None:
        harness.store.appender.put([op])

    harness.broker.server.run_in_turn(put)
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert len(queue_messages(harness.store, HALF)) == 4
    assert committed(harness) == (3, 1)


def test_a_slave_checks_no_producer(harness: BrokerHarness) -> None:
    harness.heartbeat(group=None, producer="PG")
    send_half(harness)
    harness.broker.services.stop()
    harness.scheduler.advance(ROUND_MS + 30_000)
    assert check_requests(harness) == []
    harness.broker.services.start()
    harness.heartbeat(group=None, producer="PG")
    harness.scheduler.advance(ROUND_MS + 1_000)
    assert len(check_requests(harness)) == 1


def test_a_round_that_cannot_write_is_repeated(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000)
    send_half(harness, "a")
    harness.scheduler.advance(8_000)
    harness.store.set_role(slave=True)
    harness.scheduler.advance(3_000)
    assert committed(harness) == (-1, -1)
    harness.store.set_role(slave=False)
    harness.scheduler.advance(10_000)
    assert len(queue_messages(harness.store, HALF)) == 2 and committed(harness) == (1, -1)


@pytest.mark.slow
def test_many_half_messages_are_checked_in_steps(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000, mapped_file_size_commit_log=1 << 20)
    for number in range(300):
        send_half(harness, f"U{number}")
    for half in queue_messages(harness.store, HALF)[::2]:
        harness.deliver(RemotingCommand.request(37, end_header(half, 12)))
    harness.scheduler.advance(11_000)
    assert len(queue_messages(harness.store, HALF)) == 450
    assert committed(harness) == (300, 150)


def test_a_discarded_half_message_can_be_resumed(build: BuildBroker) -> None:
    harness = build(transaction_check_interval=10_000, transaction_check_max=0)
    send_half(harness)
    harness.scheduler.advance(11_000)
    (discarded,) = queue_messages(harness.store, DISCARDED)
    msg_id = f"0A00000200002A9F{discarded.physical_offset:016X}"
    answer = harness.call(323, ResumeCheckHalfMessageRequestHeader(msg_id=msg_id))
    assert answer.code == 0
    assert queue_messages(harness.store, HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert harness.call(323, ResumeCheckHalfMessageRequestHeader(msg_id="x")).code == 1
    harness.send(b"ordinary")
    (ordinary,) = queue_messages(harness.store, "T")
    msg_id = f"0A00000200002A9F{ordinary.physical_offset:016X}"
    assert harness.call(323, ResumeCheckHalfMessageRequestHeader(msg_id=msg_id)).code == 1


# Half messages of a Java broker


def test_the_check_request_is_javas_byte_for_byte() -> None:
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
    discarded = [m.properties["UNIQ_KEY"] for m in queue_messages(probe.store, DISCARDED)]
    assert set(pending) <= set(discarded)
    assert len(discarded) == len(set(discarded))
    probe.store.shutdown()


def half_without_end(harness: BrokerHarness, since: int) -> list[str]:
    bodies = [op.body.decode() for op in queue_messages(harness.store, OP)]
    ended = {int(text) for body in bodies for text in body.split(",") if text}
    return [
        half.properties["UNIQ_KEY"]
        for half in queue_messages(harness.store, HALF)
        if half.queue_offset >= since and half.queue_offset not in ended
    ]
