"""One load of rmqpy's client, in its own process; ``clients.py`` starts it.

    python bench/client_load.py MODE NAMESRV TOPIC GROUP SECONDS WARM_SECONDS

Prints one JSON line: the messages of the measured time, its CPU-seconds (of this process), and its
seconds. ``ClientLoad.java`` is the same for Java's client.

With ``RMQPY_BENCH_LOOP=uvloop`` the load runs on that loop, and with ``RMQPY_BENCH_READ_AHEAD=off``
pulls are not read ahead. The modules of the client are imported
from the path, so ``PYTHONPATH`` selects another checkout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from meter import Meter

from rmqpy.client import (
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PullSettings,
    PullStatus,
    PushConsumer,
    PushSettings,
)

BODY: Final = b"x" * 128
BODY_BYTES: Final = len(BODY)
IN_FLIGHT: Final = 256
BATCHES_IN_FLIGHT: Final = 16
BATCH: Final = 16
PULL: Final = 32
FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"


async def repeat(count: int, once: Callable[[], Awaitable[bool]]) -> None:
    """Run ``count`` loops of ``once`` at the same time, until it returns False."""

    async def loop() -> None:
        while await once():
            pass

    await asyncio.gather(*(loop() for _ in range(count)))


def whole(messages: Sequence[MessageExt]) -> int:
    """Return how many messages have the expected body."""
    found = 0
    for each in messages:
        found += len(each.body) == BODY_BYTES
    return found


async def produce(mode: str, namesrv: str, topic: str, group: str, meter: Meter) -> None:
    async with Producer(group, namesrv) as producer:
        await producer.send(Message(topic=topic, body=BODY))

        async def send() -> bool:
            await producer.send(Message(topic=topic, body=BODY))
            return meter.add(1)

        async def batch() -> bool:
            await producer.send_batch([Message(topic=topic, body=BODY) for _ in range(BATCH)])
            return meter.add(BATCH)

        async def oneway() -> bool:
            for _ in range(IN_FLIGHT):
                await producer.send_oneway(Message(topic=topic, body=BODY))
            await asyncio.sleep(0)
            return meter.add(IN_FLIGHT)

        loads = {"send": (IN_FLIGHT, send), "batch": (BATCHES_IN_FLIGHT, batch)}
        await repeat(*loads.get(mode, (1, oneway)))


async def pull(namesrv: str, topic: str, group: str, meter: Meter) -> None:
    """Read all queues from their first to their last message, again and again."""
    # The default of another checkout, which may not have the setting, is not named.
    is_off = os.environ.get("RMQPY_BENCH_READ_AHEAD") == "off"
    settings = PullSettings(read_ahead=False) if is_off else None
    async with PullConsumer(group, namesrv, settings=settings) as consumer:
        queues = await consumer.queues(topic)
        while True:
            for queue in queues:
                offset = 0
                while True:
                    result = await consumer.pull(queue, offset, PULL)
                    if result.status is not PullStatus.FOUND:
                        break
                    offset = result.next_begin_offset
                    if not meter.add(whole(result.messages)):
                        return


async def push(namesrv: str, topic: str, group: str, meter: Meter) -> None:
    ended = asyncio.Event()

    async def consume(messages: Sequence[MessageExt]) -> None:
        if not meter.add(whole(messages)):
            ended.set()

    settings = PushSettings(from_where=FROM_FIRST)
    async with PushConsumer(group, namesrv, listener=consume, settings=settings) as consumer:
        consumer.subscribe(topic)
        await ended.wait()


def main() -> None:
    mode, namesrv, topic, group, seconds, warm_seconds = sys.argv[1:]
    meter = Meter(float(seconds), float(warm_seconds))
    if mode == "pull":
        load = pull(namesrv, topic, group, meter)
    elif mode == "push":
        load = push(namesrv, topic, group, meter)
    else:
        load = produce(mode, namesrv, topic, group, meter)
    if os.environ.get("RMQPY_BENCH_LOOP") == "uvloop":
        import uvloop

        uvloop.run(load)
    else:
        asyncio.run(load)
    print(json.dumps(meter.result), flush=True)


if __name__ == "__main__":
    main()
