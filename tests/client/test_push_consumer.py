"""A push consumer against a name server and a broker of ours, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from rmqpy.client import Message, Producer
from rmqpy.client.consuming.consume_service import ConsumeResult, ConsumeSettings
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.core.message import MessageExt
from rmqpy.client.push_consumer import PushConsumer, PushSettings
from rmqpy.remoting.bodies import CONSUME_FROM_FIRST_OFFSET, MessageQueue
from rmqpy.testing.in_process import name_server_and_broker

Run = Callable[[Any], Any]
QUICK = ConsumeSettings(pause_ms=1, fault_pause_ms=1, suspend_ms=1_000)
FIRST = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)


@asynccontextmanager
async def running_broker(root: Path) -> AsyncIterator[str]:
    """The name server's address."""
    async with name_server_and_broker(root) as running:
        yield running.name_server


@define
class Heard:
    """A listener that keeps what it hears; ``until`` waits for a number of messages."""

    messages: list[MessageExt] = field(factory=list)
    later: int = 0
    """So many calls answer LATER first."""

    calls: int = 0
    _news: asyncio.Condition = field(factory=asyncio.Condition)

    async def __call__(self, messages: Sequence[MessageExt]) -> ConsumeResult | None:
        self.calls += 1
        if self.calls <= self.later:
            return ConsumeResult.RECONSUME_LATER
        async with self._news:
            self.messages += messages
            self._news.notify_all()
        return None

    async def until(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: len(self.messages) >= count)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def send(producer: Producer, count: int, start: int = 0, tags: str | None = None) -> None:
    for number in range(start, start + count):
        await producer.send(Message(topic="TBW102", body=b"%d" % number, tags=tags))


def numbers(heard: Heard) -> list[int]:
    return sorted(int(body) for body in heard.bodies)


def test_every_message_once_and_the_offsets_are_kept(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 40)
            heard = Heard()
            consumer = PushConsumer("C", servers, listener=heard, settings=FIRST)
            consumer.subscribe("TBW102")
            async with consumer:
                await heard.until(40)
                await send(producer, 10, start=40)
                await heard.until(50)
            assert numbers(heard) == list(range(50))
            await send(producer, 5, start=50)
            again = Heard()
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
            one, two = Heard(), Heard()
            consumers = [
                PushConsumer("C", servers, listener=heard, settings=FIRST) for heard in (one, two)
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
            # At least once: the new owner may begin before the old one has handed over its offset.
            assert sorted({*numbers(one), *numbers(two)}) == list(range(121))

    run(main())


def test_tags_are_compared_exactly(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 5, tags="Aa")  # its Java hash is that of BB
            await send(producer, 5, start=5, tags="BB")
            heard = Heard()
            consumer = PushConsumer("C", servers, listener=heard, settings=FIRST)
            consumer.subscribe("TBW102", "BB || other")
            async with consumer:
                await heard.until(5)
            assert numbers(heard) == list(range(5, 10))

    run(main())


def test_in_order_a_queue_waits_for_its_message(run: Run, tmp_path: Path) -> None:
    settings = PushSettings(ordered=True, from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)

    async def main() -> None:
        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 1)
            queue = MessageQueue("TBW102", "a", 3)
            for number in range(1, 21):
                await producer.send(Message(topic="TBW102", body=b"%d" % number), queue)
            heard = Heard(later=4)
            consumer = PushConsumer("C", servers, listener=heard, settings=settings)
            consumer.subscribe("TBW102")
            async with consumer:
                await heard.until(21)
                assert all(
                    each.process_queue.locked_ms is not None for each in consumer.consuming.values()
                )
            in_queue = [int(each.body) for each in heard.messages if each.stored.queue_id == 3]
            assert [number for number in in_queue if number] == list(range(1, 21))
            assert heard.calls == 25

    run(main())


def test_broadcasting_gives_all_to_each_and_keeps_offsets_in_a_file(
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
                    heard = Heard()
                    consumer = PushConsumer(
                        "C", listener=heard, settings=settings, instance=instance
                    )
                    consumer.subscribe("TBW102")
                    async with consumer:
                        await heard.until(expected + (2 if name == "two" and not start else 0))
                    await instance.close()
            files = sorted((tmp_path / "offsets").glob("*/C/offsets.json"))
            assert [file.parent.parent.name for file in files] == ["127.0.0.1@one", "127.0.0.1@two"]

    run(main())


def test_a_failing_listener_gets_the_message_again(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker takes it back, or the queue tries once more: it is never lost."""
    settings = PushSettings(ordered=True, from_where=CONSUME_FROM_FIRST_OFFSET, consuming=QUICK)
    failures = 2

    async def main() -> None:
        heard = Heard()

        async def listener(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            nonlocal failures
            if failures:
                failures -= 1
                raise ValueError("not today")
            return await heard(messages)

        async with running_broker(tmp_path) as servers, Producer("P", servers) as producer:
            await send(producer, 1)
            consumer = PushConsumer("C", servers, listener=listener, settings=settings)
            consumer.subscribe("TBW102")
            async with consumer:
                await heard.until(1)

    run(main())
    assert caplog.text.count("the listener failed on") == 2
