"""The client under faults: what the application observes (docs/reference/client.md has the table).

Nothing acknowledged is lost, and nothing hangs: each test has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import count
from typing import Any

import pytest

from rmqpy.client import (
    ClientSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushSettings,
)
from rmqpy.client.errors import (
    InvalidMessageError,
    NetworkError,
    RequestRejectedError,
    RequestTimeoutError,
    ResponseCode,
    RmqError,
)
from rmqpy.remoting.bodies import CONSUME_FROM_FIRST_OFFSET
from rmqpy.testing import Broker, NameServer

SECONDS_MAX = 60
FIRST = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, rebalance_ms=200, persist_ms=50)
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"maxMessageSize": "65536"}) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"Topic{next(_numbers)}"
    broker.create_topic(name, 2)
    return name


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(main())


def settings_of(broker: Broker) -> ClientSettings:
    return ClientSettings(
        name_servers=broker.name_server,
        request_timeout_ms=300,
        route_suspect_pause_ms=20,
    )


def stored(broker: Broker, topic: str) -> set[bytes]:
    return {message.body for message in broker.messages(topic)}


async def restart(broker: Broker) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


def test_a_normal_start_and_end_log_no_warning(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the first send to a topic that no server knows yet, nor a new group."""

    async def main() -> None:
        settings, new = settings_of(broker), f"New{next(_numbers)}"
        async with Producer("calm", settings) as producer:
            await producer.send(Message(topic=new, body=b"1"))
            consumer = PushConsumer("calm-group", settings, settings=FIRST)
            consumer.subscribe(new)
            async with consumer:
                async for message in consumer:
                    assert message.body == b"1"
                    break

    caplog.set_level("INFO", logger="rmqpy.client")
    run(main)
    logged = [each for each in caplog.records if each.name.startswith("rmqpy.client")]
    assert not [each.getMessage() for each in logged if each.levelname != "INFO"]
    assert len(logged) <= 4, [each.getMessage() for each in logged]


def test_a_send_waits_for_a_broker_that_restarts(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer("waits", settings_of(broker)) as producer:
            await producer.send(Message(topic=topic, body=b"before"))
            await asyncio.to_thread(broker.kill)
            sending = asyncio.ensure_future(
                producer.send(Message(topic=topic, body=b"meanwhile"), timeout_ms=30_000)
            )
            await asyncio.to_thread(broker.start)
            await sending

    run(main)
    assert stored(broker, topic) == {b"before", b"meanwhile"}


def test_a_first_send_waits_for_a_broker_that_is_down() -> None:
    async def main() -> None:
        async with NameServer() as namesrv, Producer("early", namesrv.address) as producer:
            message = Message(topic="Early", body=b"1")
            with pytest.raises(RequestRejectedError, match=r"in [0-9]+ ms, topic Early") as late:
                await producer.send(message, timeout_ms=300)
            assert late.value.response_code is ResponseCode.TOPIC_NOT_EXIST
            assert late.value.retriable
            sending = asyncio.ensure_future(producer.send(message, timeout_ms=30_000))
            async with Broker(name_server=namesrv):
                await sending

    run(main)


def test_what_is_acknowledged_during_kills_is_stored(broker: Broker, topic: str) -> None:
    acknowledged: set[bytes] = set()
    errors: list[RmqError] = []

    async def send_many(producer: Producer, name: int) -> None:
        for number in range(40):
            body = b"%d-%d" % (name, number)
            try:
                await producer.send(Message(topic=topic, body=body), timeout_ms=10_000)
                acknowledged.add(body)
            except RmqError as error:
                errors.append(error)

    async def main() -> None:
        async with Producer("kills", settings_of(broker)) as producer:
            senders = [asyncio.ensure_future(send_many(producer, name)) for name in range(4)]
            await restart(broker)
            await restart(broker)
            await asyncio.gather(*senders)

    run(main)
    assert all(error.retriable for error in errors)
    assert len(acknowledged) + len(errors) == 160
    assert acknowledged <= stored(broker, topic)


def test_a_consumer_receives_everything_across_a_kill(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer("feeds", settings_of(broker)) as producer:
            for number in range(30):
                await producer.send(Message(topic=topic, body=b"%d" % number))
            consumer = PushConsumer(f"group-{topic}", settings_of(broker), settings=FIRST)
            consumer.subscribe(topic)
            async with consumer:
                found = {(await anext(consumer)).body for _ in range(5)}
                await restart(broker)
                for number in range(30, 40):
                    await producer.send(
                        Message(topic=topic, body=b"%d" % number), timeout_ms=10_000
                    )
                while len(found) < 40:
                    found.add((await anext(consumer)).body)

    run(main)


def test_a_queue_is_read_in_sequence_across_a_kill(broker: Broker, topic: str) -> None:
    """No pull fails, whether or not the response that was requested ahead had arrived."""

    async def main() -> None:
        settings = settings_of(broker)
        async with Producer("feeds", settings) as producer:
            sent = [await producer.send(Message(topic=topic, body=b"0"))]
            queue = sent[0].queue
            sent += [
                await producer.send(Message(topic=topic, body=b"%d" % number), queue=queue)
                for number in range(1, 40)
            ]
        async with PullConsumer(f"group-{topic}", settings) as consumer:
            found: list[bytes] = []
            offset = 0
            while len(found) < len(sent):
                result = await consumer.pull(queue, offset, 3)
                found += [each.body for each in result.messages]
                offset = result.next_begin_offset
                if offset == 21:
                    await restart(broker)
            assert found == [b"%d" % number for number in range(40)]

    run(main)


def test_a_paused_broker_is_a_time_out_and_the_message_may_be_stored(
    broker: Broker, topic: str
) -> None:
    async def main() -> None:
        async with Producer("pauses", settings_of(broker)) as producer:
            await producer.send(Message(topic=topic, body=b"before"))
            with (
                broker.paused(),
                pytest.raises(RequestTimeoutError, match="did not answer") as late,
            ):
                await producer.send(Message(topic=topic, body=b"meanwhile"), timeout_ms=200)
            assert late.value.retriable
            await producer.send(Message(topic=topic, body=b"after"), timeout_ms=10_000)

    run(main)
    assert stored(broker, topic) >= {b"before", b"after"}


def test_a_consumer_waits_for_a_paused_broker_and_for_a_name_server(
    broker: Broker, topic: str
) -> None:
    """It receives nothing while the broker is paused, and everything while the name server is
    away.
    """

    async def main() -> None:
        consumer = PushConsumer(f"group-{topic}", settings_of(broker), settings=FIRST)
        consumer.subscribe(topic)
        async with Producer("feeds", settings_of(broker)) as producer, consumer:
            await producer.send(Message(topic=topic, body=b"before"))
            assert (await anext(consumer)).body == b"before"
            with broker.paused():
                waiting = asyncio.ensure_future(anext(consumer))
                sending = asyncio.ensure_future(
                    producer.send(Message(topic=topic, body=b"meanwhile"), timeout_ms=30_000)
                )
                await asyncio.wait({waiting, sending}, timeout=0.1)
                assert not waiting.done() and not sending.done()
            await sending
            assert (await waiting).body == b"meanwhile"
            await asyncio.to_thread(broker.stop, "namesrv")
            try:
                found: set[bytes] = set()
                for body in (b"later", b"last"):
                    await producer.send(Message(topic=topic, body=body))
                while found < {b"later", b"last"}:
                    found.add((await anext(consumer)).body)
            finally:
                await asyncio.to_thread(broker.start, "namesrv")

    run(main)
    broker.kill()
    broker.start()  # It registers at once, not after half a minute.


@pytest.mark.slow
def test_sends_wait_for_an_election_and_are_refused_without_a_majority() -> None:
    acknowledged: list[bytes] = []

    async def main(group: Broker) -> None:
        consumer = PushConsumer("elections", settings_of(group), settings=FIRST)
        consumer.subscribe("Elections")
        async with Producer("elects", settings_of(group)) as producer, consumer:

            async def send(body: bytes, timeout_ms: int = 30_000) -> None:
                await producer.send(Message(topic="Elections", body=body), timeout_ms=timeout_ms)
                acknowledged.append(body)

            await send(b"before")
            first = await asyncio.to_thread(group.leader)
            await asyncio.to_thread(group.kill, first)
            await send(b"after the election")
            second = await asyncio.to_thread(group.leader)
            assert second != first
            await asyncio.to_thread(group.kill, ({"n0", "n1", "n2"} - {first, second}).pop())
            with pytest.raises(RmqError) as refused:
                await send(b"without a majority", timeout_ms=1_000)
            assert refused.value.retriable
            await asyncio.to_thread(group.start, first)
            await send(b"with a majority")
            found: set[bytes] = set()
            while not found >= set(acknowledged):
                found.add((await anext(consumer)).body)

    with Broker(members=3, topics=["Elections:1"]) as group:
        run(lambda: main(group))


def test_a_client_closes_in_bounded_time_while_nothing_answers(broker: Broker, topic: str) -> None:
    async def main() -> None:
        producer = Producer("closes", settings_of(broker))
        await producer.start()
        await producer.send(Message(topic=topic, body=b"1"))
        consumer = PushConsumer(f"group-{topic}", settings_of(broker), settings=FIRST)
        consumer.subscribe(topic)
        await consumer.start()
        await anext(consumer)
        with broker.paused():
            async with asyncio.timeout(10):
                await asyncio.gather(producer.close(), consumer.close())

    run(main)


def test_known_topics_are_served_while_the_name_server_is_away(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer("knows", settings_of(broker)) as producer:
            await producer.send(Message(topic=topic, body=b"before"))
            await asyncio.to_thread(broker.stop, "namesrv")
            try:
                await producer.send(Message(topic=topic, body=b"meanwhile"))
                with pytest.raises(NetworkError, match="no name server answers"):
                    await producer.send(Message(topic="Unknown", body=b"1"), timeout_ms=200)
                async with Producer("starts", settings_of(broker)) as other:
                    with pytest.raises(NetworkError, match="no name server answers"):
                        await other.send(Message(topic=topic, body=b"1"), timeout_ms=200)
            finally:
                await asyncio.to_thread(broker.start, "namesrv")
            await producer.send(Message(topic=topic, body=b"after"))

    run(main)
    with_all = {b"before", b"meanwhile", b"after"}
    broker.kill()
    broker.start()  # It registers at once, not after half a minute.
    assert stored(broker, topic) == with_all


def test_a_message_that_is_too_large_is_refused_by_both_sides(broker: Broker, topic: str) -> None:
    plain = ProducerSettings(compress_from_bytes=None)

    async def main() -> None:
        async with Producer("large", settings_of(broker), settings=plain) as producer:
            with pytest.raises(InvalidMessageError, match="more than 4194304"):
                await producer.send(Message(topic=topic, body=bytes(5 << 20)))
            with pytest.raises(RequestRejectedError) as refused:
                await producer.send(Message(topic=topic, body=bytes(100_000)))
            assert refused.value.response_code is ResponseCode.MESSAGE_ILLEGAL
            assert not refused.value.retriable
            await producer.send(Message(topic=topic, body=b"small"))

    run(main)
    assert stored(broker, topic) == {b"small"}


def test_a_slow_consumer_holds_a_bounded_number_of_messages(broker: Broker, topic: str) -> None:
    settings = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, held_messages_max=40)

    async def main() -> None:
        async with Producer("fast", settings_of(broker)) as producer:
            for start in range(0, 400, 100):
                batch = [Message(topic=topic, body=b"%d" % n) for n in range(start, start + 100)]
                await producer.send_batch(batch)
        consumer = PushConsumer(f"group-{topic}", settings_of(broker), settings=settings)
        consumer.subscribe(topic)
        async with consumer:
            found = {(await anext(consumer)).body}
            await asyncio.sleep(0.2)
            held = sum(each.process_queue.count for each in consumer.consuming.values())
            assert 0 < held <= 40 + 2 * 32
            while len(found) < 400:
                found.add((await anext(consumer)).body)

    run(main)


# -- cancellation and close


def test_a_consumer_may_be_cancelled_at_every_await_and_loses_nothing(
    broker: Broker, topic: str
) -> None:
    """What was not finished is delivered again, to the next iteration or the next consumer."""

    async def take(consumer: PushConsumer, found: set[bytes]) -> None:
        found.add((await anext(consumer)).body)

    async def main() -> None:
        async with Producer("feeds", settings_of(broker)) as producer:
            for number in range(30):
                await producer.send(Message(topic=topic, body=b"%d" % number))
        found: set[bytes] = set()
        consumer = PushConsumer(f"group-{topic}", settings_of(broker), settings=FIRST)
        consumer.subscribe(topic)
        async with consumer:
            await take(consumer, found)
            for turns in (*range(12), 20):
                await cancelled_after(turns, take(consumer, found))
            while len(found) < 30:
                await take(consumer, found)

    run(main)


async def cancelled_after(turns: int, work: Coroutine[Any, Any, object]) -> bool:
    """Cancel ``work`` after some turns of the loop. Return whether it had ended before."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ended


def test_a_send_may_be_cancelled_at_every_await(broker: Broker, topic: str) -> None:
    acknowledged: set[bytes] = set()

    async def send(producer: Producer, body: bytes) -> None:
        await producer.send(Message(topic=topic, body=body))
        acknowledged.add(body)

    async def main() -> None:
        for turns in range(60):
            producer = Producer(f"cancelled-{turns}", settings_of(broker))
            await producer.start()
            await cancelled_after(turns, send(producer, b"first %d" % turns))
            await send(producer, b"second %d" % turns)
            await producer.close()

    run(main)
    assert acknowledged >= {b"second %d" % turns for turns in range(60)}
    assert acknowledged <= stored(broker, topic)


@pytest.mark.parametrize("kind", ["producer", "pull", "push"])
def test_start_and_close_may_be_cancelled_at_every_await(
    broker: Broker, topic: str, kind: str
) -> None:
    def create(turns: int) -> Producer | PullConsumer | PushConsumer:
        group = f"{kind}-{turns}"
        if kind == "producer":
            return Producer(group, settings_of(broker))
        if kind == "pull":
            return PullConsumer(group, settings_of(broker))
        consumer = PushConsumer(group, settings_of(broker), settings=FIRST)
        consumer.subscribe(topic)
        return consumer

    async def main() -> None:
        before = len(asyncio.all_tasks())
        for turns in (*range(12), 20, 40):
            starting = create(turns)
            await cancelled_after(turns, starting.start())
            await starting.close()
            closing = create(turns)
            await closing.start()
            await cancelled_after(turns, closing.close())
            await closing.close()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before, asyncio.all_tasks()

    run(main)


def test_a_send_in_progress_ends_when_the_producer_is_closed(broker: Broker, topic: str) -> None:
    async def main() -> None:
        for turns in (0, 1, 5, 20):
            producer = Producer(f"ends-{turns}", settings_of(broker))
            await producer.start()
            sending = asyncio.ensure_future(producer.send(Message(topic=topic, body=b"1")))
            for _ in range(turns):
                await asyncio.sleep(0)
            await producer.close()
            outcome = (await asyncio.gather(sending, return_exceptions=True))[0]
            assert not isinstance(outcome, BaseException) or isinstance(outcome, RmqError)

    run(main)
