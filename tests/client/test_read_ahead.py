"""Pulls in sequence: what is requested ahead, and what the reader gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from attrs import define, field
from harness.client import A0, ClientWorld, Run, encode_record

from rmqpy.client import MessageQueue, PullConsumer, PullSettings, PullStatus
from rmqpy.client.core.read_ahead import QUEUES_MAX, QUICK_MS
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RequestTimeoutError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import PullMessageResponseHeader

QUEUE = MessageQueue("T", "a", 0)
Use = Callable[[PullConsumer], Coroutine[object, object, None]]


@define
class Log:
    """A queue of ``end`` messages, and the pulls that have reached it. ``codes`` are the codes, and
    None for no answer, of the pulls at an offset, the first one first; otherwise the log answers.
    """

    world: ClientWorld
    end: int = 100
    codes: dict[int, list[int | None]] = field(factory=dict)
    pulls: list[tuple[int, int]] = field(factory=list)
    """The queue id and offset of each."""

    def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return RemotingCommand.response_to(request)
        fields = request.ext_fields
        offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        self.pulls.append((int(fields["queueId"]), offset))
        following = min(self.end, offset + count)
        code: int | None = 0 if offset < self.end else ResponseCode.PULL_NOT_FOUND
        if self.codes.get(offset):
            code = self.codes[offset].pop(0)
        if code is None:
            return None
        body = b""
        if code == 0:
            body = b"".join(encode_record(each, b"%d" % each) for each in range(offset, following))
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=following,
            min_offset=0,
            max_offset=self.end,
        )
        return RemotingCommand.response_to(request, code, None, header, body)

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset in self.pulls]


@pytest.fixture
def log(world: ClientWorld) -> Log:
    log = Log(world)
    world.answers[A0] = log.answer
    return log


@pytest.fixture
def with_consumer(world: ClientWorld, run: Run) -> Callable[..., None]:
    def with_consumer(use: Use, settings: PullSettings | None = None) -> None:
        async def main() -> None:
            instance = world.instance()
            async with PullConsumer("CID", instance=instance, settings=settings) as consumer:
                await use(consumer)

        run(main())

    return with_consumer


async def read(consumer: PullConsumer, *offsets: int, count: int = 2) -> None:
    """Pull at each of the offsets, at which there are ``count`` messages."""
    for offset in offsets:
        result = await consumer.pull(QUEUE, offset, count)
        assert result.status is PullStatus.FOUND
        assert [each.queue_offset for each in result.messages] == [*range(offset, offset + count)]
        assert [each.body for each in result.messages] == [
            b"%d" % each for each in range(offset, offset + count)
        ]
        assert result.next_begin_offset == offset + count


async def arrived(log: Log, count: int) -> None:
    """Let pulls arrive that nobody awaits, until there are ``count``."""
    await log.world.pause(0)
    await log.world.pause(0)
    assert len(log.pulls) == count, log.pulls


def test_a_sequence_is_read_ahead_and_each_pull_is_sent_once(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0)
        await arrived(log, 1)  # One pull is no sequence.
        await read(consumer, 2)
        await arrived(log, 3)
        await read(consumer, 4, 6, 8)
        await arrived(log, 6)

    with_consumer(use)
    assert log.offsets == [0, 2, 4, 6, 8, 10]


def test_nothing_is_requested_ahead_at_the_end_of_a_queue(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    log.end = 6

    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2, 4)
        for number in range(3):
            result = await consumer.pull(QUEUE, 6, 2, suspend_ms=1_000)
            assert result.status is PullStatus.NO_NEW_MSG
            await arrived(log, 4 + number)
        log.end = 8
        await read(consumer, 6)

    with_consumer(use)
    assert log.offsets == [0, 2, 4, 6, 6, 6, 6]


def test_messages_that_arrive_after_the_end_are_found(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    """A response without messages, requested ahead, says nothing about the next pull."""
    log.codes[4] = [ResponseCode.PULL_NOT_FOUND]

    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        await arrived(log, 3)
        await read(consumer, 4)

    with_consumer(use)
    assert log.offsets[:4] == [0, 2, 4, 4]


@pytest.mark.parametrize("offset, count", [(0, 2), (5, 2), (4, 3)])
def test_another_pull_gets_its_own_messages(
    log: Log, with_consumer: Callable[..., None], offset: int, count: int
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        await arrived(log, 3)
        await read(consumer, offset, count=count)
        await arrived(log, 4)
        await read(consumer, 4)

    with_consumer(use)
    assert log.offsets == [0, 2, 4, offset, 4]


def test_a_pull_with_another_expression_gets_its_own_messages(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        await arrived(log, 3)
        assert not (await consumer.pull(QUEUE, 4, 2, "TagA")).messages
        await arrived(log, 4)

    with_consumer(use)
    assert log.offsets == [0, 2, 4, 4]


def test_a_slow_reader_gets_new_messages_and_costs_one_request(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        await arrived(log, 3)
        for number, offset in enumerate((4, 6, 8)):
            await log.world.pause(QUICK_MS + 1)
            await read(consumer, offset)
            await arrived(log, 4 + number)

    with_consumer(use)
    assert log.offsets == [0, 2, 4, 4, 6, 8]


def test_read_ahead_can_be_switched_off(log: Log, with_consumer: Callable[..., None]) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2, 4)
        await arrived(log, 3)

    with_consumer(use, PullSettings(read_ahead=False))
    assert log.offsets == [0, 2, 4]


def test_a_response_that_no_message_matched_is_passed_on(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    log.codes[4] = [ResponseCode.PULL_RETRY_IMMEDIATELY]

    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        result = await consumer.pull(QUEUE, 4, 2)
        assert (result.status, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 6)
        await read(consumer, 6)

    with_consumer(use)
    assert log.offsets[:4] == [0, 2, 4, 6]


def test_a_refusal_counts_only_if_the_pull_itself_is_refused(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    log.codes[4] = [ResponseCode.NO_PERMISSION]
    log.codes[8] = [ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]

    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2, 4, 6)
        with pytest.raises(RequestRejectedError):
            await consumer.pull(QUEUE, 8, 2)
        await read(consumer, 8)

    with_consumer(use)
    assert log.offsets[:8] == [0, 2, 4, 4, 6, 8, 8, 8]


def test_a_pull_is_sent_again_if_the_connection_was_closed_meanwhile(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0)
        answer = log.world.answers.pop(A0)

        def last(request: RemotingCommand) -> RemotingCommand | None:
            del log.world.answers[A0]
            return answer(request)

        log.world.answers[A0] = last
        await read(consumer, 2)
        await arrived(log, 2)
        log.world.answers[A0] = answer
        await read(consumer, 4)

    with_consumer(use)
    assert log.offsets[:3] == [0, 2, 4]


def test_a_pull_that_is_not_answered_takes_no_longer_than_without_read_ahead(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    log.codes[4] = [None]

    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        with pytest.raises(RequestTimeoutError):
            await consumer.pull(QUEUE, 4, 2)
        assert log.offsets == [0, 2, 4]
        await read(consumer, 4)

    with_consumer(use, PullSettings(pull_timeout_ms=QUICK_MS // 2))


def test_only_some_queues_are_read_ahead_at_a_time(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    queues = [MessageQueue("T", "a", number) for number in range(QUEUES_MAX + 2)]

    async def use(consumer: PullConsumer) -> None:
        for offset in (0, 2):
            for queue in queues:
                assert len((await consumer.pull(queue, offset, 2)).messages) == 2
        await arrived(log, 2 * len(queues) + QUEUES_MAX)
        assert [number for number, offset in log.pulls if offset == 4] == [*range(QUEUES_MAX)]
        await log.world.pause(QUICK_MS + 1)
        for offset in (0, 2):
            await consumer.pull(queues[-1], offset, 2)
        await arrived(log, 2 * len(queues) + QUEUES_MAX + 3)
        assert log.pulls[-1] == (queues[-1].queue_id, 4)

    with_consumer(use)


def test_a_consumer_may_be_closed_while_a_pull_is_awaited(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2)
        task = asyncio.create_task(read(consumer, 4))
        await log.world.pause(0)
        await consumer.close()
        await task

    with_consumer(use)
    assert log.offsets[:3] == [0, 2, 4]


def test_errors_of_the_network_reach_the_reader(
    log: Log, with_consumer: Callable[..., None]
) -> None:
    async def use(consumer: PullConsumer) -> None:
        await read(consumer, 0, 2, 4)
        del log.world.answers[A0]
        with pytest.raises(NetworkError):
            await consumer.pull(MessageQueue("T", "a", 1), 0, 2)

    with_consumer(use)
