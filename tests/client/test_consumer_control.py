"""A push consumer that is iterated over, sought, paused, and limited, and the blocking clients."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count

import pytest

from rmqpy.client import (
    ConsumeResult,
    ConsumeSettings,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    PushSettings,
    TransactionalProducer,
    TransactionState,
)
from rmqpy.client.blocking import (
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingTransactionalProducer,
)
from rmqpy.client.errors import ClientStateError, ClosedError, ConfigError
from rmqpy.remoting.bodies import CONSUME_FROM_FIRST_OFFSET
from rmqpy.testing import Broker

SECONDS_MAX = 30
FIRST = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET)
ORDERED = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, ordered=True)
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic with one queue and the messages 0 to 9."""
    name = f"Topic{next(_numbers)}"
    broker.create_topic(name, 1)
    producer = broker.producer(f"producer-of-{name}")
    for number in range(10):
        producer.send(Message(topic=name, body=b"%d" % number))
    return name


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def consumer_of(broker: Broker, topic: str, settings: PushSettings = FIRST) -> PushConsumer:
    consumer = PushConsumer(f"group-{topic}", broker.name_server, settings=settings)
    consumer.subscribe(topic)
    return consumer


async def taken(consumer: PushConsumer, number: int) -> list[bytes]:
    return [(await anext(consumer)).body for _ in range(number)]


@pytest.mark.parametrize("settings", [FIRST, ORDERED])
def test_messages_are_iterated_over_and_finished_one_by_one(
    broker: Broker, topic: str, settings: PushSettings
) -> None:
    async def main() -> None:
        async with consumer_of(broker, topic, settings) as consumer:
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 4:
                    break
            assert bodies == [b"0", b"1", b"2", b"3"]
        async with consumer_of(broker, topic, settings) as consumer:
            assert await taken(consumer, 1) == [b"3"], "the last one was not finished"
            consumer.acknowledge()
        async with consumer_of(broker, topic, settings) as consumer:
            assert await taken(consumer, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]

    run(main)


def test_an_iteration_ends_with_the_consumer_and_there_is_one(broker: Broker, topic: str) -> None:
    async def main() -> None:
        consumer = consumer_of(broker, topic)
        async with consumer:
            assert len(await taken(consumer, 10)) == 10
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            with pytest.raises(ClientStateError, match="second iteration"):
                await anext(consumer)
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(ClosedError):
            aiter(consumer)
        with_listener = PushConsumer("G", broker.name_server, listener=lambda _messages: None)
        with pytest.raises(ClientStateError, match="needs one without"):
            aiter(with_listener)

    run(main)


def test_a_message_can_be_requested_again(broker: Broker, topic: str) -> None:
    async def main() -> None:
        settings = PushSettings(
            from_where=CONSUME_FROM_FIRST_OFFSET,
            ordered=True,
            consuming=ConsumeSettings(pause_ms=1),
        )
        async with consumer_of(broker, topic, settings) as consumer:
            assert await taken(consumer, 2) == [b"0", b"1"]
            consumer.reconsume_later()
            assert await taken(consumer, 2) == [b"1", b"2"]

    run(main)


def test_a_queue_continues_where_it_is_sought(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with consumer_of(broker, topic) as consumer:
            assert await taken(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
            (queue,) = (each for each in consumer.assignment() if each.topic == topic)
            await consumer.seek(queue, 2)
            assert await taken(consumer, 2) == [b"2", b"3"]
            await consumer.seek_to_beginning(queue)
            assert await taken(consumer, 1) == [b"0"]
            await consumer.seek_to_end(queue)
            broker.send(topic, b"new")
            assert await taken(consumer, 1) == [b"new"]
            with pytest.raises(ConfigError, match="offset: found -1"):
                await consumer.seek(queue, -1)
            with pytest.raises(ClientStateError, match="not in the assignment"):
                await consumer.seek(MessageQueue(topic, "other", 0), 0)

    run(main)


def test_a_listener_may_not_seek_and_its_error_is_reported(broker: Broker, topic: str) -> None:
    async def main() -> None:
        errors: list[tuple[Exception, MessageQueue | None]] = []

        async def listen(messages: Sequence[MessageExt]) -> None:
            await consumer.seek(messages[0].queue, 0)

        consumer = PushConsumer(
            "seeker",
            broker.name_server,
            listener=listen,
            settings=FIRST,
            on_error=lambda error, queue: errors.append((error, queue)),
        )
        consumer.subscribe(topic)
        async with consumer:
            await until(lambda: errors)
        error, queue = errors[0]
        assert isinstance(error, ClientStateError)
        assert queue is not None and queue.topic == topic

    run(main)


def test_a_listener_that_returns_something_else_has_failed(broker: Broker, topic: str) -> None:
    async def main() -> None:
        errors: list[Exception] = []
        listener: object = lambda _messages: "done"  # noqa: E731
        consumer = PushConsumer(
            "wrong",
            broker.name_server,
            listener=listener,  # type: ignore[arg-type]
            settings=FIRST,
            on_error=lambda error, _queue: errors.append(error),
        )
        consumer.subscribe(topic)
        async with consumer:
            await until(lambda: errors)
        assert "found 'done', expected a ConsumeResult" in str(errors[0])

    run(main)


@pytest.mark.parametrize("settings", [FIRST, ORDERED])
def test_a_paused_queue_delivers_nothing_until_it_is_resumed(
    broker: Broker, topic: str, settings: PushSettings
) -> None:
    async def main() -> None:
        async with consumer_of(broker, topic, settings) as consumer:
            await taken(consumer, 3)
            (queue,) = (each for each in consumer.assignment() if each.topic == topic)
            consumer.pause(queue)
            assert consumer.paused() == {queue}
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.05)
            assert not waiting.done() or (await waiting).body == b"3", "at most one was on its way"
            consumer.resume(queue)
            assert consumer.paused() == frozenset()
            first = (await waiting).body
            rest = await taken(consumer, 6)
            assert [first, *rest] == [b"%d" % number for number in range(3, 10)]

    run(main)


def test_callbacks_learn_of_the_share_and_may_seek(broker: Broker, topic: str) -> None:
    async def main() -> None:
        assigned: list[MessageQueue] = []
        revoked: list[MessageQueue] = []

        async def on_assigned(queues: list[MessageQueue]) -> None:
            for queue in queues:
                if queue.topic == topic:
                    assigned.append(queue)
                    await consumer.seek(queue, 8)

        consumer = PushConsumer(
            f"group-{topic}",
            broker.name_server,
            settings=PushSettings(),
            on_assigned=on_assigned,
            on_revoked=lambda queues: revoked.extend(queues),
        )
        consumer.subscribe(topic)
        async with consumer:
            assert await taken(consumer, 2) == [b"8", b"9"]
            assert not revoked
        assert assigned and set(assigned) <= set(revoked)

    run(main)


def test_all_queues_together_hold_no_more_than_the_limit(broker: Broker) -> None:
    name = f"Topic{next(_numbers)}"
    broker.create_topic(name, 4)
    producer = broker.producer(f"producer-of-{name}")
    for number in range(200):
        producer.send(Message(topic=name, body=b"%d" % number))
    settings = PushSettings(
        from_where=CONSUME_FROM_FIRST_OFFSET,
        held_messages_max=20,
        held_bytes_max=10_000,
        consuming=ConsumeSettings(pull_max=4),
    )

    async def main() -> None:
        async with consumer_of(broker, name, settings) as consumer:
            bodies: set[bytes] = set()
            most = 0
            while len(bodies) < 200:
                bodies.add((await anext(consumer)).body)
                held = [each.process_queue.count for each in consumer.consuming.values()]
                most = max(most, sum(held))
            assert 0 < most <= 20 + 4 * 4

    run(main)


# -- blocking


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (BlockingProducer, Producer),
        (BlockingPullConsumer, PullConsumer),
        (BlockingTransactionalProducer, TransactionalProducer),
        (BlockingPushConsumer, PushConsumer),
    ],
)
def test_the_blocking_clients_have_all_methods(blocking: type, asynchronous: type) -> None:
    internal = {"rebalance", "move", "wake_rebalance", "offsets", "subscription_data"}
    internal |= {"check_open", "has_total_room", "room_changed"}
    offsets = {"min_offset", "max_offset", "search_offset", "earliest_time", "commit_offset"}
    if asynchronous is PushConsumer:
        internal |= offsets | {"query_by_key", "view_message"}
    methods = {
        name
        for name, _ in inspect.getmembers(asynchronous, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - internal <= set(dir(blocking))


def test_a_blocking_consumer_listens_in_threads_and_is_iterated_over(
    broker: Broker, topic: str
) -> None:
    heard: list[bytes] = []
    all_heard = threading.Event()

    def listen(messages: Sequence[MessageExt]) -> ConsumeResult:
        time.sleep(0.001)
        heard.extend(message.body for message in messages)
        if len(heard) >= 10:
            all_heard.set()
        return ConsumeResult.SUCCESS

    listening = BlockingPushConsumer(
        f"listen-{topic}", broker.name_server, listener=listen, settings=FIRST
    )
    listening.subscribe(topic)
    with listening:
        assert all_heard.wait(SECONDS_MAX)
    iterated = BlockingPushConsumer(f"iterate-{topic}", broker.name_server, settings=FIRST)
    with pytest.raises(ClientStateError, match="not started"):
        iterated.seek(MessageQueue(topic, "b", 0), 0)
    iterated.subscribe(topic)
    with iterated as consumer:
        found = [message.body for message, _ in zip(consumer, range(5), strict=False)]
        assert found == [b"%d" % number for number in range(5)]
        (queue,) = (each for each in consumer.assignment() if each.topic == topic)
        consumer.seek(queue, 9)
        last = consumer.get(SECONDS_MAX)
        assert last is not None and last.body == b"9"
        assert consumer.get(0.01) is None
        consumer.persist_offsets()
        assert consumer.committed_offset(queue) == 10
        consumer.pause(queue)
        assert consumer.paused() == {queue}
        consumer.resume(queue)
        with pytest.raises(ClientStateError, match="already started"):
            consumer.start()
    with pytest.raises(ClosedError):
        iterated.persist_offsets()


def test_a_blocking_transaction_is_executed_in_a_thread(broker: Broker) -> None:
    broker.create_topic("Bank", 1)
    threads: list[str] = []

    def execute(_message: Message, _unique_id: str) -> TransactionState:
        threads.append(threading.current_thread().name)
        return TransactionState.UNKNOWN

    checked = threading.Event()

    def check(_message: MessageExt) -> TransactionState:
        checked.set()
        return TransactionState.COMMIT

    producer = BlockingTransactionalProducer("bank", broker.name_server, check=check)
    with producer:
        outcome = producer.send_in_transaction(Message(topic="Bank", body=b"10"), execute)
        assert outcome.state is TransactionState.UNKNOWN
        assert threads and threads[0] != "rmqpy-client"
        assert broker.messages("Bank") == []
        broker.advance(70)  # The broker checks transactions each minute.
        assert checked.wait(SECONDS_MAX)
        deadline = time.monotonic() + SECONDS_MAX
        while not broker.messages("Bank") and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [message.body for message in broker.messages("Bank")] == [b"10"]
