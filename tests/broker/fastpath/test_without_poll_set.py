"""The fast path on a system without epoll: the loop watches each connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqpy.client import Message, Producer, PullConsumer
from rmqpy.testing.in_process import name_server_and_broker

engine = pytest.importorskip("rmqpy.broker.fastpath.engine")


def test_a_broker_without_epoll_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CAN_WATCH", False)

    async def main() -> list[bytes]:
        async with name_server_and_broker(tmp_path) as running:
            async with Producer("writers", running.name_server) as producer:
                sent = [
                    await producer.send(Message(topic="TBW102", body=b"%d" % number))
                    for number in range(20)
                ]
            async with PullConsumer("readers", running.name_server) as consumer:
                return [
                    (await consumer.pull(each.queue, each.queue_offset, 1)).messages[0].body
                    for each in sent
                ]

    assert asyncio.run(main()) == [b"%d" % number for number in range(20)]
