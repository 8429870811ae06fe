"""Plain and TLS connections to one broker: C and Python append to the same queues in turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqpy.client import (
    ClientInstance,
    ClientSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    TlsSide,
)
from rmqpy.config.loading import load_namesrv_configuration
from rmqpy.model.errors import RmqError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.testing.in_process import broker_in_process

SENDS = 400
AT_ONCE = 16


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_plain_and_tls_senders_share_a_queue(mode: str, tmp_path: Path, tls_folder: Path) -> None:
    certificate = {
        "tls.server.certPath": str(tls_folder / "server.pem"),
        "tls.server.keyPath": str(tls_folder / "server.key"),
    }
    own = {"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}
    loaded = load_namesrv_configuration(None, {**certificate, **own}, {"HOME": str(tmp_path)})
    trusted = TlsSide(trust=str(tls_folder / "ca.pem"), verify=True)

    async def main(scheduler: AsyncioScheduler) -> None:
        namesrv = NamesrvProcess(loaded.configuration, scheduler)
        await namesrv.start()
        address = namesrv.address
        settings = {**certificate, "flushDiskType": mode}
        plain = await ClientInstance.open(ClientSettings(name_servers=address))
        encrypted = await ClientInstance.open(ClientSettings(name_servers=address, tls=trusted))
        try:
            async with asyncio.timeout(60), broker_in_process(tmp_path, address, settings):
                await send_first(plain)
                await send_from_both(plain, encrypted)
                await pull_is_resumed_over_tls(plain, encrypted)
                await plain.close()
                await encrypted.close()
        finally:
            await namesrv.stop()

    run(main)


async def send_first(instance: ClientInstance) -> None:
    """Send a message once the broker has registered."""
    async with Producer("first", instance=instance) as producer:
        while True:
            try:
                await producer.send(Message(topic="Shared", body=b"first"))
                return
            except RmqError:
                await asyncio.sleep(0.05)


async def send_from_both(plain: ClientInstance, encrypted: ClientInstance) -> None:
    queue = MessageQueue("Shared", "a", 1)
    offsets: list[int] = []
    async with (
        Producer("plain", instance=plain) as first,
        Producer("secret", instance=encrypted) as second,
    ):

        async def send(producer: Producer, numbers: range) -> None:
            for number in numbers:
                sent = await producer.send(Message(topic="Shared", body=b"%d" % number), queue)
                offsets.append(sent.queue_offset)

        each = SENDS // AT_ONCE
        await asyncio.gather(
            *(
                send(second if index % 2 else first, range(index * each, (index + 1) * each))
                for index in range(AT_ONCE)
            )
        )
    first_offset = min(offsets)
    assert sorted(offsets) == list(range(first_offset, first_offset + SENDS))
    async with PullConsumer("readers", instance=encrypted) as consumer:
        bodies: list[bytes] = []
        while len(bodies) < SENDS:
            pulled = await consumer.pull(queue, first_offset + len(bodies))
            bodies += [message.body for message in pulled.messages]
    assert sorted(map(int, bodies)) == list(range(SENDS))


async def pull_is_resumed_over_tls(plain: ClientInstance, encrypted: ClientInstance) -> None:
    """A held pull of a TLS connection is resumed by a send that C has answered."""
    queue = MessageQueue("Shared", "a", 2)
    async with PullConsumer("waiting", instance=encrypted) as consumer:
        end = await consumer.max_offset(queue)
        waiting = asyncio.ensure_future(consumer.pull(queue, end, suspend_ms=20_000))
        await asyncio.sleep(0.2)
        async with Producer("waker", instance=plain) as producer:
            await producer.send(Message(topic="Shared", body=b"news"), queue)
        async with asyncio.timeout(3):
            found = await waiting
    assert [message.body for message in found.messages] == [b"news"]
