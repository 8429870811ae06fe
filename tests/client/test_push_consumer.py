"""Push consumers with a name server and a broker over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import define, field
from harness.client import Run

from rmqpy.client import Message, Producer
from rmqpy.client.consuming.consume_service import ConsumeResult, ConsumeSettings
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.core.message import MessageExt
from rmqpy.client.push_consumer import PushConsumer, PushSettings
from rmqpy.remoting.bodies import CONSUME_FROM_FIRST_OFFSET, MessageQueue
from rmqpy.testing.in_process import name_server_and_broker

QUICK = ConsumeSettings(pause_ms=1, fault_pause_ms=1, suspend_ms=1_000)
FIRST = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)


@asynccontextmanager
async def running_broker(root: Path) -> AsyncIterator[str]:
    """Run a name server and a broker, and yield the address of the name server."""
    async with name_server_and_broker(root) as running:
        yield running.name_server


@define
class RecordingListener:
    """A listener that keeps its messages; ``until`` waits for a number of them."""

    messages: list[MessageExt] = field(factory=list)
    later: int = 0
    """The number of first calls that return RECONSUME_LATER."""

    calls: int = 0
    _arrived: asyncio.Condition = field(factory=asyncio.Condition)

    async def __call__(self, messages: Sequence[MessageExt]) -> ConsumeResult | None:
        self.calls += 1
        if self.calls <= self.later:
            return ConsumeResult.RECONSUME_LATER
        async with self._arrived:
            self.messages += messages
            self._arrived.notify_all()
        return None

    async def until(self, count: int) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def send(producer: Producer, count: int, start: int = 0, tags: str | None = None) -> None:
    for number in range(start, start + count):
        await producer.send(Message(topic="TBW102", body=b"%d" % number, tags=tags))


def numbers(listener: RecordingListener) -> list[int]:
    return sorted(int(body) for body in listener.bodies)


def test_each_message_arrives_once_and_offsets_are_kept(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 40)
            listener = RecordingListener()
            consumer = PushConsumer("C", servers, listener=listener, settings=FIRST)
            consumer.subscribe("TBW102")
            async with consumer:
                await listener.until(40)
                await send(producer, 10, start=40)
                await listener.until(50)
            assert numbers(listener) == list(range(50))
            await send(producer, 5, start=50)
            again = RecordingListener()
            consumer = PushConsumer("C", servers, listener=again, settings=FIRST)
            consumer.subscribe("TBW102")
            async with consumer:
                await again.until(5)
            assert numbers(again) == list(range(50, 55))

    run(main())


@pytest.mark.slow
def test_two_members_share_the_queues_and_one_takes_over(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 1)
            one, two = RecordingListener(), RecordingListener()
            consumers = [
                PushConsumer("C", servers, listener=listener, settings=FIRST)
                for listener in (one, two)
            ]
            for consumer in consumers:
                consumer.subscribe("TBW102")
            async with consumers[0]:
                await one.until(1)
                async with consumers[1]:
                    while not consumers[1].consuming or len(consumers[0].consuming) > 5:
                        await asyncio.sleep(0.01)
                    await send(producer, 80, start=1)
                    while len(one.messages) + len(two.messages) < 81:
                        await asyncio.sleep(0.01)
                    queues = [set(consumer.consuming) for consumer in consumers]
                    assert not queues[0] & queues[1]
                    assert two.messages
                taken_over = len(one.messages)
                await send(producer, 40, start=81)
                await one.until(taken_over + 40)
            # At least once: the new owner may start before the offset of the old one is stored.
            assert sorted({*numbers(one), *numbers(two)}) == list(range(121))

    run(main())


def test_tags_are_compared_exactly(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 5, tags="Aa")  # It has the same Java hash code as BB.
            await send(producer, 5, start=5, tags="BB")
            listener = RecordingListener()
            consumer = PushConsumer("C", servers, listener=listener, settings=FIRST)
            consumer.subscribe("TBW102", "BB || other")
            async with consumer:
                await listener.until(5)
            assert numbers(listener) == list(range(5, 10))

    run(main())


def test_an_ordered_queue_waits_for_the_message_that_failed(run: Run, tmp_path: Path) -> None:
    settings = PushSettings(ordered=True, from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)

    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 1)
            queue = MessageQueue("TBW102", "a", 3)
            for number in range(1, 21):
                await producer.send(Message(topic="TBW102", body=b"%d" % number), queue)
            listener = RecordingListener(later=4)
            consumer = PushConsumer("C", servers, listener=listener, settings=settings)
            consumer.subscribe("TBW102")
            async with consumer:
                await listener.until(21)
                assert all(
                    each.process_queue.locked_ms is not None for each in consumer.consuming.values()
                )
            in_queue = [int(each.body) for each in listener.messages if each.stored.queue_id == 3]
            assert [number for number in in_queue if number] == list(range(1, 21))
            assert listener.calls == 25

    run(main())


def test_broadcasting_delivers_all_to_each_and_keeps_offsets_in_a_file(
    run: Run, tmp_path: Path
) -> None:
    settings = PushSettings(
        broadcasting=True,
        from_where=CONSUME_FROM_FIRST_OFFSET,
        consuming=QUICK,
        offset_directory=tmp_path / "offsets",
    )

    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 10)
            for name in ("one", "two"):
                for start, expected in ((0, 10), (10, 2)):
                    if start:
                        await send(producer, 2, start=10)
                    client = ClientSettings(name_servers=servers, instance_name=name)
                    instance = await ClientInstance.open(client)
                    listener = RecordingListener()
                    consumer = PushConsumer(
                        "C", listener=listener, settings=settings, instance=instance
                    )
                    consumer.subscribe("TBW102")
                    async with consumer:
                        await listener.until(expected + (2 if name == "two" and not start else 0))
                    await instance.close()
            files = sorted((tmp_path / "offsets").glob("*/C/offsets.json"))
            assert [file.parent.parent.name for file in files] == ["127.0.0.1@one", "127.0.0.1@two"]

    run(main())


def test_a_failing_listener_receives_the_message_again(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ordered queue delivers the message again, so that it is never lost."""
    settings = PushSettings(ordered=True, from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)
    failures = 2

    async def main() -> None:
        recording = RecordingListener()

        async def listener(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            nonlocal failures
            if failures:
                failures -= 1
                raise ValueError("planted")
            return await recording(messages)

        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 1)
            consumer = PushConsumer("C", servers, listener=listener, settings=settings)
            consumer.subscribe("TBW102")
            async with consumer:
                await recording.until(1)

    run(main())
    assert caplog.text.count("the listener failed on") == 2
