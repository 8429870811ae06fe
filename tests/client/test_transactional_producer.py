"""Half messages, their ends, and what the broker asks back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness.client import ClientWorld

from rmqpy.client.core.message import Message, MessageExt
from rmqpy.client.producer import ProducerSettings
from rmqpy.client.transactional_producer import TransactionalProducer, TransactionState
from rmqpy.codec.properties import decode_properties
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

Run = Callable[[Any], Any]
END, SEND = RequestCode.END_TRANSACTION, RequestCode.SEND_MESSAGE_V2


async def committed(_message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT


def test_the_end_names_the_half_message(world: ClientWorld, run: Run) -> None:
    seen: list[str] = []

    async def execute(message: Message, unique_id: str) -> TransactionState:
        assert len(world.requests(SEND)) == len(world.requests(END)) + 1
        seen.append(unique_id)
        return TransactionState(int(message.body))

    async def main() -> None:
        async with TransactionalProducer("G", check=committed, instance=world.instance()) as p:
            for state in (8, 12, 0):
                result = await p.send_in_transaction(
                    Message(topic="T", body=b"%d" % state), execute
                )
                assert result.state.value == state

    run(main())
    half = world.requests(SEND)[0].command.ext_fields
    properties = decode_properties(half["i"].encode())
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "G")
    assert int(half["f"]) & 4
    ends = [each.command for each in world.requests(END)]
    assert [end.ext_fields["commitOrRollback"] for end in ends] == ["8", "12", "0"]
    assert all(end.is_oneway for end in ends)
    assert {
        "producerGroup": "G",
        "tranStateTableOffset": "101",
        "commitLogOffset": "1",
        "fromTransactionCheck": "false",
        "msgId": seen[0],
        "transactionId": seen[0],
    }.items() <= ends[0].ext_fields.items()


def test_a_fault_in_the_transaction_leaves_the_answer_to_the_check(
    world: ClientWorld, run: Run
) -> None:
    async def execute(_message: Message, _unique_id: str) -> TransactionState:
        raise ValueError("database gone")

    async def main() -> None:
        async with TransactionalProducer("G", check=committed, instance=world.instance()) as p:
            result = await p.send_in_transaction(Message(topic="T", body=b"b"), execute)
            assert result.state is TransactionState.UNKNOWN

    run(main())
    assert world.requests(END)[0].command.ext_fields["commitOrRollback"] == "0"


@pytest.mark.parametrize("code", [10, 11, 12])
def test_what_is_not_safely_stored_is_rolled_back_unexecuted(
    world: ClientWorld, run: Run, code: int
) -> None:
    async def execute(_message: Message, _unique_id: str) -> TransactionState:
        raise AssertionError("must not run")

    async def main() -> None:
        async with TransactionalProducer("G", check=committed, instance=world.instance()) as p:
            result = await p.send_in_transaction(Message(topic="T", body=b"b"), execute)
            assert result.state is TransactionState.ROLLBACK

    world.answers = {
        address: (
            (
                lambda request: (
                    world.stored_at(request, code)
                    if request.code == SEND
                    else RemotingCommand.response_to(request)
                )
            )
            if address.startswith("10.0.0") and address.endswith("10911")
            else answer
        )
        for address, answer in world.answers.items()
    }
    run(main())
    assert world.requests(END)[0].command.ext_fields["commitOrRollback"] == "12"


def test_the_broker_asks_and_the_check_answers(
    world: ClientWorld, run: Run, record: Callable[..., bytes]
) -> None:
    body = record(7, PGROUP="G", UNIQ_KEY="U1", TRAN_MSG="true")
    fields = {"tranStateTableOffset": "7", "commitLogOffset": "7000", "bname": "a"}
    ask = RemotingCommand(
        code=RequestCode.CHECK_TRANSACTION_STATE, flag=2, ext_fields=fields, body=body
    )
    asked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.msg_id)
        if len(asked) == 2:
            raise ValueError("database gone")
        return TransactionState.COMMIT

    async def main() -> None:
        instance = world.instance()
        channel = MemoryChannel()
        async with TransactionalProducer("G", check=check, instance=instance):
            for _ in range(2):
                instance.pushed.handle(channel, [ask])
                while len(world.requests(END)) < len(asked) or not asked:
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
        host, port = channel.peer
        assert {each.address for each in world.requests(END)} == {f"{host}:{port}"}

    run(main())
    ends = [each.command.ext_fields for each in world.requests(END)]
    assert asked == ["U1", "U1"]
    assert [end["commitOrRollback"] for end in ends] == ["8", "0"]
    assert {
        "fromTransactionCheck": "true",
        "tranStateTableOffset": "7",
        "commitLogOffset": "7000",
        "msgId": "U1",
        "bname": "a",
    }.items() <= ends[0].items()


def test_ordered_sends_share_a_queue(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        async with TransactionalProducer(
            "G", check=committed, settings=ProducerSettings(), instance=world.instance()
        ) as producer:
            for key in ("order-1", "order-2", "order-1", "order-2"):
                await producer.send_ordered(Message(topic="T", body=b"b"), key)

    run(main())
    queues = [(each.address, each.command.ext_fields["e"]) for each in world.requests(SEND)]
    # "order-1".hashCode() is -1207111310, and 1207111310 % 4 is 2: the third of a0 a1 b0 b1
    assert queues[0] == queues[2] == ("10.0.0.3:10911", "0")
    assert queues[1] == queues[3]
