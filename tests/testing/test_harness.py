"""The broker in memory, used as docs/how-to/test-with-rmqpy.md shows it to users."""

from __future__ import annotations

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.testing.harness import BuildBroker


def test_a_message_survives_kill_9(rmq_memory_broker: BuildBroker) -> None:
    first = rmq_memory_broker()
    assert first.send(b"hello").code == ResponseCode.SUCCESS
    second = rmq_memory_broker(files=first.files.kill(), scheduler=first.scheduler)
    pulled = second.pull()
    assert pulled.code == ResponseCode.SUCCESS
    assert b"hello" in pulled.body


def test_a_held_pull_is_answered_when_its_suspend_time_has_passed(
    rmq_memory_broker: BuildBroker,
) -> None:
    broker = rmq_memory_broker()
    broker.send(b"first")
    broker.deliver(broker.pull_command(queue_offset=1, sys_flag=6, suspend_timeout_millis=2000))
    assert broker.channel.take() == []
    broker.scheduler.advance(10_000)
    assert broker.channel.take_one().code == ResponseCode.PULL_NOT_FOUND


def test_a_broker_registers_with_its_name_servers(rmq_memory_broker: BuildBroker) -> None:
    broker = rmq_memory_broker()
    broker.scheduler.run_until_idle()
    codes = {command.code for _, command, _ in broker.network.take()}
    assert RequestCode.REGISTER_BROKER in codes
