"""A fenced broker accepts and writes no messages, opens by itself, and loses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.broker import queue_messages

from rmqpy.broker.services.fence import SECONDS_MAX
from rmqpy.config.keys import BrokerRole
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.flags import TRANSACTION_COMMIT
from rmqpy.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    FenceRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker

SCHEDULE, HALF = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
CHECK_INTERVAL_MS = 60_000


def fence(harness: BrokerHarness, seconds: int | None) -> dict[str, Any]:
    answer = harness.call(RequestCode.RMQPY_FENCE, FenceRequestHeader(seconds=seconds))
    assert answer.code == 0, answer.remark
    state: dict[str, Any] = json.loads(answer.body)
    return state


def end_of_log(harness: BrokerHarness) -> int:
    return harness.store.log.max_offset


def send_delayed(harness: BrokerHarness, level: int, name: str = "U") -> None:
    properties = f"UNIQ_KEY\x01{name}\x02WAIT\x01true\x02DELAY\x01{level}"
    assert harness.send(name.encode(), properties=properties).code == 0


def send_half(harness: BrokerHarness) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U\x02WAIT\x01true"
    born_ms = harness.scheduler.now_ms()
    answer = harness.send(b"half", properties=properties, sys_flag=4, born_timestamp=born_ms)
    assert answer.code == 0


def test_a_fenced_broker_refuses_messages_until_it_is_lifted(harness: BrokerHarness) -> None:
    harness.send(b"before")
    end = end_of_log(harness)
    state = fence(harness, 10)
    assert state == {
        "role": "ASYNC_MASTER",
        "remaining_ms": 10_000,
        "waiting": 0,
        "begin": 0,
        "end": end,
        "confirmed": end,
        "drained": True,
        "broker_id": 0,
        "ha_address": harness.broker.identity.ha_address,
        "member": False,
        "stream_end": None,
    }
    assert harness.send(b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "fenced" in harness.broker.information.table()["storeRefusesPuts"]
    assert end_of_log(harness) == end
    assert harness.pull().code == 0, "reads continue"
    assert fence(harness, 0)["remaining_ms"] == 0
    assert harness.send(b"after").code == 0
    assert [m.body for m in queue_messages(harness.store, "T")] == [b"before", b"after"]


def test_a_fence_ends_at_its_deadline(harness: BrokerHarness) -> None:
    fence(harness, 10)
    harness.scheduler.advance(9_000)
    assert fence(harness, None)["remaining_ms"] == 1_000
    fence(harness, 10)  # a new deadline
    harness.scheduler.advance(9_999)
    assert harness.send(b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
    harness.scheduler.advance(1)
    assert fence(harness, None) | {"end": 0, "confirmed": 0} == {
        "role": "ASYNC_MASTER",
        "remaining_ms": 0,
        "waiting": 0,
        "begin": 0,
        "end": 0,
        "confirmed": 0,
        "drained": False,
        "broker_id": 0,
        "ha_address": harness.broker.identity.ha_address,
        "member": False,
        "stream_end": None,
    }
    assert harness.send(b"after").code == 0


def test_delayed_messages_wait_for_the_end_of_the_fence(harness: BrokerHarness) -> None:
    for number in range(5):
        send_delayed(harness, 1, f"U{number}")
    fence(harness, 60)
    end = end_of_log(harness)
    harness.scheduler.advance(30_000)
    assert end_of_log(harness) == end
    harness.scheduler.advance(30_000 + 1_000)
    delivered = queue_messages(harness.store, "T")
    assert [message.body for message in delivered] == [b"U%d" % number for number in range(5)]


def test_transactions_are_neither_checked_nor_ended_while_fenced(harness: BrokerHarness) -> None:
    harness.heartbeat(producer="PG", group=None)
    send_half(harness)
    fence(harness, 600)
    end = end_of_log(harness)
    harness.scheduler.advance(CHECK_INTERVAL_MS + 40_000)  # clients are forgotten after 120 s
    (half,) = queue_messages(harness.store, HALF)
    header = EndTransactionRequestHeader(
        producer_group="PG",
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        commit_or_rollback=TRANSACTION_COMMIT,
        msg_id="U",
    )
    assert [each.code for each in harness.channel.take()] == [], "no producer was asked"
    refused = harness.call(RequestCode.END_TRANSACTION, header)
    assert refused.code == ResponseCode.SYSTEM_BUSY and "fenced" in str(refused.remark)
    assert end_of_log(harness) == end
    fence(harness, 0)
    assert harness.call(RequestCode.END_TRANSACTION, header).code == 0
    assert [message.body for message in queue_messages(harness.store, "T")] == [b"half"]


def test_a_message_that_a_consumer_sends_back_is_refused(harness: BrokerHarness) -> None:
    harness.heartbeat()
    harness.send(b"failed")
    fence(harness, 60)
    header = ConsumerSendMsgBackRequestHeader(
        offset=0, group="CG", delay_level=3, origin_msg_id="U", origin_topic="T"
    )
    answer = harness.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SYSTEM_BUSY and "fenced" in str(answer.remark)
    fence(harness, 0)
    assert harness.call(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == 0


@pytest.mark.parametrize("seconds", [-1, SECONDS_MAX + 1])
def test_a_deadline_out_of_range_is_refused(harness: BrokerHarness, seconds: int) -> None:
    answer = harness.call(RequestCode.RMQPY_FENCE, FenceRequestHeader(seconds=seconds))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"seconds={seconds}: expected 1 to {SECONDS_MAX}" in str(answer.remark)
    assert harness.send(b"open").code == 0


def test_a_slave_answers_with_its_end(build: BuildBroker) -> None:
    slave = build(broker_role=BrokerRole.SLAVE, broker_id=1)
    assert fence(slave, 5)["role"] == "SLAVE"
    fence(slave, 0)


def test_stopping_a_fenced_broker_leaves_no_timer(harness: BrokerHarness) -> None:
    fence(harness, 60)
    harness.broker.fence.stop()
    harness.scheduler.advance(61_000)
    assert harness.send(b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
