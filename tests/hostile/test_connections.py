"""Many idle connections, slow senders, large announcements, and work by the batch."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.hostile import BesiegedSite, HonestClient

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.testing.blocking_connection import send_request

IDLE = 2_000
IDLE_BYTES_MAX = 24 << 10
"""Of both ends: the test holds the other one."""
SLOW = 100
ANNOUNCING = 32
SENT_BYTES = 256 << 10

Besiege = Callable[[Any], None]


def opened(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    sockets = []
    for _ in range(count):
        each = socket.create_connection((host, int(port)))
        each.setblocking(False)
        sockets.append(each)
    return sockets


async def accepted(site: BesiegedSite, count: int) -> None:
    servers = site.broker._parts.servers
    while sum(server.connections for server in servers) < count:
        await asyncio.sleep(0.001)


@pytest.mark.slow
def test_2000_idle_connections_cost_little(besiege: Besiege, resident: Callable[[], int]) -> None:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard_limit < 3 * IDLE:
        pytest.skip(f"only {hard_limit} open files are allowed")

    async def test(site: BesiegedSite) -> None:
        before = resident()
        sockets: list[socket.socket] = []
        for _ in range(IDLE // 100):
            sockets += opened(site.broker.address, 100)
            await accepted(site, len(sockets))
        cost = (resident() - before) / IDLE
        assert cost < IDLE_BYTES_MAX, f"{cost:.0f} bytes a connection"
        await site.until_over(asyncio.sleep(0.3))
        for each in sockets:  # none of them was closed
            with contextlib.suppress(BlockingIOError):
                assert each.recv(1) != b""
            each.close()

    besiege(test)


@pytest.mark.slow
def test_slow_senders_get_their_answer_and_keep_nobody_waiting(besiege: Besiege) -> None:
    async def test(site: BesiegedSite) -> None:
        frame = encode_command(send_request("Slow", 0, [b"byte by byte"]))

        async def dribble() -> int:
            host, _, port = site.broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for place in range(0, len(frame), 16):
                writer.write(frame[place : place + 16])
                await asyncio.sleep(0.01)
            answer = await reader.readexactly(4)
            writer.close()
            return len(answer)

        async def siege() -> None:
            assert await asyncio.gather(*(dribble() for _ in range(SLOW))) == [4] * SLOW

        await site.until_over(siege())
        assert len(await site.read("Slow")) == SLOW

    besiege(test)


@pytest.mark.slow
def test_memory_follows_what_was_sent_not_what_was_announced(
    besiege: Besiege, resident: Callable[[], int]
) -> None:
    async def test(site: BesiegedSite) -> None:
        before = resident()
        sockets = opened(site.broker.address, ANNOUNCING)
        announced = (MAX_FRAME - 4).to_bytes(4) + (100).to_bytes(4)
        for each in sockets:
            data = memoryview(announced + bytes(SENT_BYTES))
            while data:
                try:
                    data = data[each.send(data) :]
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        await accepted(site, ANNOUNCING)
        await site.until_over(asyncio.sleep(0.1))
        growth = resident() - before
        sent = ANNOUNCING * SENT_BYTES
        assert growth < 6 * sent, f"{growth >> 20} MiB for {sent >> 20} MiB"
        for each in sockets:
            each.close()

    besiege(test)


@pytest.mark.slow
def test_a_reader_of_nothing_is_bounded(
    besiege: Besiege, resident: Callable[[], int], connect: Callable[[str], Awaitable[HonestClient]]
) -> None:
    """Thousands of requests with large answers, and the answers are not taken."""

    async def test(site: BesiegedSite) -> None:
        client = await connect(site.broker.address)
        for number in range(100):
            await client.call(send_request(f"Topic-{number}", 0, [b"x"]))
        await client.close()
        before = resident()
        request = encode_command(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        sockets = opened(site.broker.address, 4)

        async def siege() -> None:
            for each in sockets:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    for _ in range(6):
                        each.send(request * 100)
                        await asyncio.sleep(0.002)

        await site.until_over(siege())
        grown = resident() - before
        assert grown < 128 << 20, f"{grown >> 20} MiB"
        for each in sockets:
            each.close()

    besiege(test)


@pytest.mark.slow
def test_strange_json_does_not_stop_the_loop(
    besiege: Besiege, connect: Callable[[str], Awaitable[HonestClient]]
) -> None:
    """What only the tolerant reader could read, or what would make a million objects, in bulk."""
    million = 1 << 20
    bodies = [
        b'{"clientID":"c",' + b"a:1," * million + b"}",
        b"{'clientID':'c','x':[" + b"1," * (4 * million) + b"]}",
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * 500_000 + b"{}]}",
        b"[" + b"/**/" * (3 * million) + b"]",
    ]

    async def test(site: BesiegedSite) -> None:
        client = await connect(site.broker.address)
        name_client = await connect(site.namesrv.address)

        async def siege() -> None:
            for body in bodies:
                for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ):
                    answer = await client.call(RemotingCommand(code, body=body))
                    assert answer.code == ResponseCode.SYSTEM_ERROR
                register = RemotingCommand(
                    RequestCode.REGISTER_BROKER,
                    ext_fields={
                        "brokerName": "b",
                        "brokerAddr": "127.0.0.1:1",
                        "clusterName": "c",
                        "haServerAddr": "127.0.0.1:2",
                        "brokerId": "0",
                    },
                    body=body,
                )
                answer = await name_client.call(register)
                assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)

        begin = time.monotonic()
        await site.until_over(siege())
        assert time.monotonic() - begin < 20
        await client.close()
        await name_client.close()

    besiege(test)
