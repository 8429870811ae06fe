"""Many idle connections, slow senders, large announced frames, and expensive requests."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time

import pytest
from harness.hostile import Besiege, BesiegedSite, HonestClient, resident_bytes

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.testing.blocking_connection import send_request

IDLE = 2_000
IDLE_BYTES_MAX = 24 << 10
"""For both ends of a connection: the test holds the other one."""
SLOW = 100
ANNOUNCING = 32
SENT_BYTES = 256 << 10


def open_sockets(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    sockets = []
    for _ in range(count):
        each = socket.create_connection((host, int(port)))
        each.setblocking(False)
        sockets.append(each)
    return sockets


async def until_accepted(site: BesiegedSite, count: int) -> None:
    servers = site.broker._parts.servers
    while sum(server.connections for server in servers) < count:
        await asyncio.sleep(0.001)


@pytest.mark.slow
def test_2000_idle_connections_use_little_memory(besiege: Besiege) -> None:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard_limit < 3 * IDLE:
        pytest.skip(f"the limit of {hard_limit} open files is too low")

    async def test(site: BesiegedSite) -> None:
        before = resident_bytes()
        sockets: list[socket.socket] = []
        for _ in range(IDLE // 100):
            sockets += open_sockets(site.broker.address, 100)
            await until_accepted(site, len(sockets))
        cost = (resident_bytes() - before) / IDLE
        assert cost < IDLE_BYTES_MAX, f"{cost:.0f} bytes per connection"
        await site.until_over(asyncio.sleep(0.3))
        for each in sockets:  # None of them was closed.
            with contextlib.suppress(BlockingIOError):
                assert each.recv(1) != b""
            each.close()

    besiege(test)


@pytest.mark.slow
def test_slow_senders_are_answered_and_delay_no_other_client(besiege: Besiege) -> None:
    async def test(site: BesiegedSite) -> None:
        frame = encode_command(send_request("Slow", 0, [b"byte by byte"]))

        async def send_slowly() -> int:
            host, _, port = site.broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for start in range(0, len(frame), 16):
                writer.write(frame[start : start + 16])
                await asyncio.sleep(0.01)
            answer = await reader.readexactly(4)
            writer.close()
            return len(answer)

        async def siege() -> None:
            assert await asyncio.gather(*(send_slowly() for _ in range(SLOW))) == [4] * SLOW

        await site.until_over(siege())
        assert len(await site.read("Slow")) == SLOW

    besiege(test)


@pytest.mark.slow
def test_memory_depends_on_received_bytes_not_on_announced_lengths(besiege: Besiege) -> None:
    async def test(site: BesiegedSite) -> None:
        before = resident_bytes()
        sockets = open_sockets(site.broker.address, ANNOUNCING)
        announced = (MAX_FRAME - 4).to_bytes(4) + (100).to_bytes(4)
        for each in sockets:
            data = memoryview(announced + bytes(SENT_BYTES))
            while data:
                try:
                    data = data[each.send(data) :]
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        await until_accepted(site, ANNOUNCING)
        await site.until_over(asyncio.sleep(0.1))
        growth = resident_bytes() - before
        sent = ANNOUNCING * SENT_BYTES
        assert growth < 6 * sent, f"{growth >> 20} MiB for {sent >> 20} MiB"
        for each in sockets:
            each.close()

    besiege(test)


@pytest.mark.slow
def test_unread_answers_use_bounded_memory(besiege: Besiege) -> None:
    """A client sends thousands of requests with large answers and does not read the answers."""

    async def test(site: BesiegedSite) -> None:
        client = await HonestClient.connect(site.broker.address)
        for number in range(100):
            await client.call(send_request(f"Topic-{number}", 0, [b"x"]))
        await client.close()
        before = resident_bytes()
        request = encode_command(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        sockets = open_sockets(site.broker.address, 4)

        async def siege() -> None:
            for each in sockets:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    for _ in range(6):
                        each.send(request * 100)
                        await asyncio.sleep(0.002)

        await site.until_over(siege())
        growth = resident_bytes() - before
        assert growth < 128 << 20, f"{growth >> 20} MiB"
        for each in sockets:
            each.close()

    besiege(test)


@pytest.mark.slow
def test_expensive_json_does_not_block_the_loop(besiege: Besiege) -> None:
    """The bodies need the tolerant decoder, or have a million objects."""
    million = 1 << 20
    bodies = [
        b'{"clientID":"c",' + b"a:1," * million + b"}",
        b"{'clientID':'c','x':[" + b"1," * (4 * million) + b"]}",
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * 500_000 + b"{}]}",
        b"[" + b"/**/" * (3 * million) + b"]",
    ]

    async def test(site: BesiegedSite) -> None:
        client = await HonestClient.connect(site.broker.address)
        name_client = await HonestClient.connect(site.namesrv.address)

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

        start = time.monotonic()
        await site.until_over(siege())
        assert time.monotonic() - start < 20
        await client.close()
        await name_client.close()

    besiege(test)
