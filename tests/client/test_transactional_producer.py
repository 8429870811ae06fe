"""Half messages, the ends of their transactions, and the checks by the broker."""

from __future__ import annotations

import asyncio

import pytest
from harness.client import A0, A1, B0, ClientWorld, Run, encode_record

from rmqpy.client.core.message import Message, MessageExt
from rmqpy.client.producer import ProducerSettings
from rmqpy.client.transactional_producer import TransactionalProducer, TransactionState
from rmqpy.codec.properties import decode_properties
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

END, SEND = RequestCode.END_TRANSACTION, RequestCode.SEND_MESSAGE_V2


async def committed(_message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT


def test_the_end_of_a_transaction_identifies_its_half_message(world: ClientWorld, run: Run) -> None:
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


def test_a_failing_transaction_ends_as_unknown(world: ClientWorld, run: Run) -> None:
    async def execute(_message: Message, _unique_id: str) -> TransactionState:
        raise ValueError("planted")

    async def main() -> None:
        async with TransactionalProducer("G", check=committed, instance=world.instance()) as p:
            result = await p.send_in_transaction(Message(topic="T", body=b"b"), execute)
            assert result.state is TransactionState.UNKNOWN

    run(main())
    assert world.requests(END)[0].command.ext_fields["commitOrRollback"] == "0"


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_message_with_a_warning_is_rolled_back_unexecuted(
    world: ClientWorld, run: Run, code: int
) -> None:
    async def execute(_message: Message, _unique_id: str) -> TransactionState:
        raise AssertionError("must not run")

    async def main() -> None:
        async with TransactionalProducer("G", check=committed, instance=world.instance()) as p:
            result = await p.send_in_transaction(Message(topic="T", body=b"b"), execute)
            assert result.state is TransactionState.ROLLBACK

    def warn(request: RemotingCommand) -> RemotingCommand:
        if request.code == SEND:
            return world.store(request, code)
        return RemotingCommand.response_to(request)

    for address in (A0, A1, B0):
        world.answers[address] = warn
    run(main())
    assert world.requests(END)[0].command.ext_fields["commitOrRollback"] == "12"


def test_the_check_answers_the_broker(world: ClientWorld, run: Run) -> None:
    body = encode_record(7, PGROUP="G", UNIQ_KEY="U1", TRAN_MSG="true")
    fields = {"tranStateTableOffset": "7", "commitLogOffset": "7000", "bname": "a"}
    request = RemotingCommand(
        code=RequestCode.CHECK_TRANSACTION_STATE, flag=2, ext_fields=fields, body=body
    )
    checked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        checked.append(message.msg_id)
        if len(checked) == 2:
            raise ValueError("planted")
        return TransactionState.COMMIT

    async def main() -> None:
        instance = world.instance()
        channel = MemoryChannel()
        async with TransactionalProducer("G", check=check, instance=instance):
            for _ in range(2):
                instance.pushed.handle(channel, [request])
                while len(world.requests(END)) < len(checked) or not checked:
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
        host, port = channel.peer
        assert {each.address for each in world.requests(END)} == {f"{host}:{port}"}

    run(main())
    ends = [each.command.ext_fields for each in world.requests(END)]
    assert checked == ["U1", "U1"]
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
    # "order-1".hashCode() is -1207111310, and 1207111310 % 4 is 2: the third of a0, a1, b0, b1.
    assert queues[0] == queues[2] == (B0, "0")
    assert queues[1] == queues[3]
