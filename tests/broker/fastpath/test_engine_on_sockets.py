"""The fast path on real sockets: a broker in memory, and clients that pipeline requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from harness.fastpath import PULL_FIELDS, SEND_FIELDS

from rmqpy.acl.signature import Credentials
from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.codec import backend
from rmqpy.codec.scan import scan_records
from rmqpy.config.security import TlsMode
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.net.server import feed_server
from rmqpy.net.server.feed_api import FEED_BYTES, FeedStatus
from rmqpy.net.server.feed_reader import SPARE_COUNT_MAX
from rmqpy.net.server.feed_server import FastServer
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import ServerTls, TlsContext, TlsSide, client_tls
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_files import MemoryFiles

DEADLINE_S = 20


class Client:
    """A connection, and the responses read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.receiver = FrameDecoder()
        self.answers: list[RemotingCommand] = []

    async def read(self, count: int) -> list[RemotingCommand]:
        while len(self.answers) < count:
            data = await self.reader.read(1 << 16)
            assert data, f"closed after {len(self.answers)} answers"
            self.answers += self.receiver.receive(data)
        taken, self.answers = self.answers[:count], self.answers[count:]
        return taken


Connect = Callable[..., Awaitable[Client]]


def send(opaque: int, queue_id: int = 0, body: bytes = b"x" * 100, binary: bool = False) -> bytes:
    properties = f"UNIQ_KEY\x01U{opaque}\x02WAIT\x01true"
    fields = {**SEND_FIELDS, "e": str(queue_id), "i": properties}
    return encode_command(
        RemotingCommand(310, opaque, ext_fields=fields, body=body, serialize_type=int(binary))
    )


def pull(opaque: int, offset: int, queue_id: int = 0, **others: str) -> bytes:
    fields = {**PULL_FIELDS, "queueId": str(queue_id), "queueOffset": str(offset), **others}
    return encode_command(RemotingCommand(11, opaque, ext_fields=fields))


def expensive_pull(opaque: int) -> bytes:
    """A pull that uses the share of filters in a turn, if there are some hundred messages."""
    return pull(opaque, 0, subscription="c = 1", expressionType="SQL92")


WAYS = ["off-own", "auto-own", "off-asyncio", "auto-asyncio", "off-tls", "auto-tls"]


@pytest.fixture(params=WAYS)
def serving(
    request: pytest.FixtureRequest, build: BuildBroker, tls_folder: Path
) -> Callable[..., None]:
    """Return a function that runs ``main(connect, harness, server)`` against a broker whose main
    port uses the fast path: on asyncio's loop, or on uvloop's where that is installed; with its own
    sockets, those of asyncio, or TLS.
    """
    uvloop, sockets = request.param.split("-")
    if backend.implementation != "c":
        pytest.skip(f"no C to serve with: {backend.reason}")
    own, trust = (
        TlsSide(certificate=str(tls_folder / "server.pem"), key=str(tls_folder / "server.key")),
        TlsSide(trust=str(tls_folder / "ca.pem"), verify=True),
    )
    is_tls = sockets == "tls"
    security = ListenerSecurity(
        ServerTls(TlsMode.PERMISSIVE, TlsContext(own, True, lambda: 0)) if is_tls else None
    )

    def serve(main: Callable[..., Any], **settings: Any) -> None:
        from rmqpy.broker.assembly.wiring import install_fast_path
        from rmqpy.net.server.feed_server import FastServer

        limits = ConnectionLimits(**settings.pop("limits", {}))
        harness = build(**{"mapped_file_size_commit_log": 1 << 22, **settings})

        async def whole(scheduler: AsyncioScheduler) -> None:
            feed = install_fast_path(harness.broker, harness.store, scheduler)
            assert feed is not None
            server = FastServer(
                harness.broker.server,
                scheduler,
                limits,
                feed,
                security,
                own_sockets=sockets != "asyncio",
            )
            address = await server.listen("127.0.0.1", 0)

            async def connect() -> Client:
                tls = client_tls(trust).current() if is_tls else None
                return Client(*await asyncio.open_connection(*address, ssl=tls))

            async with asyncio.timeout(DEADLINE_S):
                await main(connect, harness, server)
                await server.close()

        run(whole, uvloop=uvloop)

    return serve


def record_handled(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """Return a list to which every request that reaches the processors is appended."""
    handled: list[RemotingCommand] = []
    handle = BrokerServer.handle

    def record(
        server: BrokerServer, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        handled.extend(commands)
        return handle(server, channel, commands)

    monkeypatch.setattr(BrokerServer, "handle", record)
    return handled


@pytest.mark.slow
def test_pipelined_sends_cut_anywhere(serving: Callable[..., None]) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        clients = [await connect() for _ in range(3)]
        data = [
            b"".join(send(n, queue_id=number, binary=n % 2 == 1) for n in range(300))
            for number in range(3)
        ]
        for start in range(0, max(map(len, data)), 777):
            for client, stream in zip(clients, data, strict=True):
                client.writer.write(stream[start : start + 777])
            await asyncio.sleep(0)
        for number, client in enumerate(clients):
            answers = await client.read(300)
            answers.sort(key=lambda answer: answer.opaque)  # The responses of a turn have no order.
            assert [answer.opaque for answer in answers] == list(range(300))
            assert {answer.code for answer in answers} == {0}
            offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers]
            assert offsets == list(range(300))
            assert harness.store.reader.max_queue_offset("T", number) == 300

    serving(main)


@pytest.mark.slow
def test_known_sends_do_not_reach_the_processors(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        handled = record_handled(monkeypatch)
        client = await connect()
        client.writer.write(send(0))
        await client.read(1)
        client.writer.write(b"".join(send(n) for n in range(300)))
        await client.read(300)
        assert len(handled) == 1
        assert harness.store.reader.max_queue_offset("T", 0) == 301

    serving(main)


@pytest.mark.slow
def test_with_access_control_only_signed_requests_are_accepted(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, forger = (Credentials("plain-user", word) for word in ("plain-secret", "guessed"))
    files = MemoryFiles()
    files.put(
        "/rocketmq/conf/plain_acl.yml",
        b"accounts: [{accessKey: plain-user, secretKey: plain-secret, topicPerms: [T=PUB]}]",
    )

    def signed(credentials: Credentials, opaque: int) -> bytes:
        return encode_command(credentials.signed(decode_command(memoryview(send(opaque))[4:])))

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        handled = record_handled(monkeypatch)
        client = await connect()
        client.writer.write(signed(signer, 0))
        await client.read(1)
        client.writer.write(b"".join(signed(signer, n) for n in range(300)))
        assert {answer.code for answer in await client.read(300)} == {0}
        assert len(handled) == 1
        client.writer.write(b"".join([send(1), signed(forger, 2), signed(signer, 3)]))
        answers = {answer.opaque: answer.code for answer in await client.read(3)}
        assert answers == {1: 1, 2: 1, 3: 0}
        assert harness.store.reader.max_queue_offset("T", 0) == 302

    serving(main, files=files, acl_enable=True, rocketmq_home="/rocketmq")


def test_sent_messages_are_pulled(serving: Callable[..., None]) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        client = await connect()
        client.writer.write(b"".join(send(n, body=b"%d" % n) for n in range(500)))
        await client.read(500)
        offsets: list[int] = []
        while len(offsets) < 500:
            client.writer.write(pull(9, len(offsets)))
            (answer,) = await client.read(1)
            scan = scan_records(memoryview(answer.body), 0, dledger=False, check_crc=True)
            assert scan.queue_offset[0] == len(offsets)
            offsets += scan.queue_offset
        assert offsets == list(range(500))

    serving(main)


SET_WAYS = pytest.mark.parametrize(
    "serving", [way for way in WAYS if way.endswith("-own")], indirect=True
)
"""The ways in which C reads several connections with one call."""


@SET_WAYS
def test_pull_replies_are_sent_before_the_turn_ends(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait only if a message of the same turn must be written first."""

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        if server.feed.ready is None:
            pytest.skip("no epoll here")
        client = await connect()
        for frame in (send(0), pull(1, 0), send(1), pull(1, 0)):  # C learns their headers.
            client.writer.write(frame)
            await client.read(1)
        with monkeypatch.context() as turn:
            turn.setattr(BrokerServer, "turn_ended", lambda _server: None)
            client.writer.write(pull(2, 0))
            (answer,) = await client.read(1)
            assert (answer.opaque, answer.code) == (2, 0)
            client.writer.write(send(3) + pull(4, 0))
            while not harness.store.log.has_staged:
                await asyncio.sleep(0)
            assert server.feed.core.outgoing_count == 2
        harness.broker.server.turn_ended()
        assert [answer.opaque for answer in await client.read(2)] == [3, 4]

    serving(main)


@SET_WAYS
def test_a_turn_ends_even_if_pulls_never_stop(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        ready = server.feed.ready
        if ready is None:
            pytest.skip("no epoll here")
        client = await connect()
        client.writer.write(send(0))
        await client.read(1)
        calls = 0

        def receive(core: object, begin: bool) -> int:
            nonlocal calls
            calls += 1
            return FeedStatus.NONE_LEFT

        with monkeypatch.context() as always:
            always.setattr(ready, "receive", receive)
            always.setattr(ready, "drained", lambda: [0])
            always.setattr(ready, "flush_replies_early", lambda: calls < 1_000_000)
            server._readable()
        assert 0 < calls < 1_000_000

    serving(main)


async def make_ready_for_filters(client: Client) -> None:
    client.writer.write(b"".join(send(n) for n in range(400)))
    await client.read(400)
    client.writer.write(expensive_pull(0))
    await client.read(1)


@pytest.mark.parametrize(("patience_ms", "turns"), [(0, 9), (60_000, 1)])
@SET_WAYS
def test_filters_exceed_their_share_of_a_turn_while_nobody_else_waits(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch, patience_ms: int, turns: int
) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        if server.feed.ready is None:
            pytest.skip("no epoll here")
        client = await connect()
        await make_ready_for_filters(client)
        monkeypatch.setattr(feed_server, "AGAIN_MS", patience_ms)
        await asyncio.sleep(0)
        before = server.turns.number
        client.writer.write(b"".join(expensive_pull(n) for n in range(9)))
        await client.read(9)
        assert turns <= server.turns.number - before + 1 <= turns + 1

    serving(main, enable_property_filter=True)


@pytest.mark.parametrize("serving", ["off-own", "auto-own", "off-asyncio"], indirect=True)
def test_filters_of_all_connections_have_their_turn(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "AGAIN_MS", 0)

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        greedy, modest = await connect(), await connect()
        await make_ready_for_filters(greedy)
        greedy.writer.write(b"".join(expensive_pull(n) for n in range(200)))
        await greedy.read(1)
        before = server.turns.number
        for _ in range(5):
            modest.writer.write(expensive_pull(0))
            await modest.read(1)
        assert server.turns.number - before < 100
        await greedy.read(199)

    serving(main, enable_property_filter=True)


@pytest.mark.slow
def test_messages_larger_than_the_buffer(
    serving: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive in order and unchanged, and without Python."""
    sizes = [100, FEED_BYTES - 500, FEED_BYTES, 600_000, 100, 3_000_000, 300_000, 100]

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        client = await connect()
        handled = record_handled(monkeypatch)
        bodies = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
        client.writer.write(send(99))
        await client.read(1)
        for round_ in range(2):
            handled.clear()
            client.writer.write(b"".join(send(n, body=body) for n, body in enumerate(bodies)))
            answers = sorted(await client.read(len(sizes)), key=lambda answer: answer.opaque)
            first = 1 + round_ * len(sizes)
            offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers]
            assert offsets == list(range(first, first + len(sizes)))
            assert not handled
        assert len(server.spare) <= SPARE_COUNT_MAX
        for offset, body in enumerate(bodies, first):
            client.writer.write(pull(offset, offset))
            (answer,) = await client.read(1)
            assert answer.body.count(body) == 1

    serving(main, mapped_file_size_commit_log=1 << 23)


@pytest.mark.slow
def test_a_large_frame_arrives_in_any_pieces(serving: Callable[..., None]) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        slow, quick = await connect(), await connect()
        data = send(0, body=b"l" * 700_000) + send(1)
        sizes = cycle([1, 3, 5, 70_000, FEED_BYTES - 1, FEED_BYTES + 1])
        opaque = position = 0
        while position < len(data):
            piece = data[position : position + next(sizes)]
            position += len(piece)
            slow.writer.write(piece)
            opaque += 1
            quick.writer.write(send(opaque, queue_id=1, body=b"q" * (opaque % 2 * 500_000)))
            await quick.read(1)
        assert [answer.code for answer in await slow.read(2)] == [0, 0]

    serving(main, mapped_file_size_commit_log=1 << 23)


@pytest.mark.slow
def test_a_malformed_large_frame_ends_only_its_connection(serving: Callable[..., None]) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        client = await connect()
        for opaque in range(3):
            stranger = await connect()
            stranger.writer.write((900_000).to_bytes(4) + (7 << 24 | 800_000).to_bytes(4))
            stranger.writer.write(bytes(900_000))
            with suppress(ConnectionError):
                assert await stranger.reader.read() == b""
            client.writer.write(send(opaque, body=bytes(2_000_000)))
            (answer,) = await client.read(1)
            assert (answer.code, answer.opaque) == (0, opaque)

    serving(main, mapped_file_size_commit_log=1 << 23)


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_not_read(serving: Callable[..., None]) -> None:
    """Its replies wait, up to a limit, while others are served; once it reads, it receives them
    all.
    """

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        first = await connect()
        first.writer.write(b"".join(send(n, body=bytes(2000)) for n in range(64)))
        await first.read(64)
        loop = asyncio.get_running_loop()
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.setblocking(False)
        await loop.sock_connect(silent, server.addresses[0])
        await loop.sock_sendall(silent, b"".join(pull(n, 0) for n in range(200)))
        while not any(
            each.pending_bytes for each in server._connections if each.peer == silent.getsockname()
        ):
            await asyncio.sleep(0.001)
        first.writer.write(send(1))
        await first.read(1)
        receiver = FrameDecoder()
        answers: list[RemotingCommand] = []
        while len(answers) < 200:
            answers += receiver.receive(await loop.sock_recv(silent, 1 << 16))
        assert [answer.opaque for answer in answers] == list(range(200))
        silent.close()

    serving(main, limits={"high_water": 64 * 1024, "low_water": 16 * 1024})


@pytest.mark.slow
def test_replies_to_a_slow_reader_stay_in_order(serving: Callable[..., None]) -> None:
    """Replies of many turns are sent to a peer whose socket accepts parts of frames."""

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        first = await connect()
        first.writer.write(b"".join(send(n, body=bytes(2000)) for n in range(64)))
        await first.read(64)
        loop = asyncio.get_running_loop()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, server.addresses[0])
        receiver = FrameDecoder()
        answers: list[RemotingCommand] = []
        for number in range(400):
            await loop.sock_sendall(slow, pull(number, 0))
            await asyncio.sleep(0)
            if number % 3 == 0:
                answers += receiver.receive(await loop.sock_recv(slow, 5000))
        while len(answers) < 400:
            answers += receiver.receive(await loop.sock_recv(slow, 1 << 16))
        assert [answer.opaque for answer in answers] == list(range(400))
        slow.close()

    serving(main, limits={"high_water": 1 << 30, "low_water": 1 << 20})


def test_replies_wait_for_the_disk(serving: Callable[..., None]) -> None:
    from rmqpy.config.keys import FlushDiskType

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        client = await connect()
        client.writer.write(b"".join(send(n) for n in range(40)))
        reading = asyncio.ensure_future(client.read(40))
        waited = 0
        while not reading.done():
            waited = max(waited, harness.broker.gate.waiting)
            harness.scheduler.run_until_idle()  # This runs the flush.
            await asyncio.sleep(0)
        answers = await reading
        assert waited
        assert {answer.code for answer in answers} == {0}

    serving(main, flush_disk_type=FlushDiskType.SYNC_FLUSH)


@pytest.mark.slow
def test_an_aborted_connection_does_not_affect_others(serving: Callable[..., None]) -> None:
    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        first, second = await connect(), await connect()
        for number in range(20):
            aborted = await connect()
            aborted.writer.write(send(number) * 30)
            aborted.writer.transport.abort()
            second.writer.write(send(number))
        assert {answer.code for answer in await second.read(20)} == {0}
        first.writer.write(b"\x00\x00\x00\x02ab")
        assert await first.reader.read() == b""
        assert server.counts.faults == 1

    serving(main)


@pytest.mark.slow
def test_pulls_wait_in_the_kernel_until_their_client_reads(serving: Callable[..., None]) -> None:
    """Received in one read, 600 pulls of 128 KB must not be answered ahead of the client."""
    pulls, page, high_water = 600, 32 * 4096, 256 << 10

    async def main(connect: Connect, harness: BrokerHarness, server: FastServer) -> None:
        client, other = await connect(), await connect()
        for n in range(32):
            client.writer.write(send(n, body=b"x" * 4096))
        await client.read(32)
        client.writer.write(pull(0, 0))
        (first,) = await client.read(1)
        assert len(first.body) > page
        client.writer.write(b"".join(pull(n, 0) for n in range(pulls)))
        await client.writer.drain()
        while not server.turns.unsent.pauses:
            await asyncio.sleep(0.001)
        other.writer.write(pull(7, 0))  # which takes two turns at least
        assert (await other.read(1))[0].body == first.body
        limit = high_water + ConnectionLimits().turn_reply_bytes + 2 * page
        assert high_water < server.turns.unsent.total < limit
        answers = await client.read(pulls)
        assert sorted(answer.opaque for answer in answers) == list(range(pulls))
        assert all(answer.body == first.body for answer in answers)
        assert (server.turns.unsent.disconnected, server.counts.faults) == (0, 0)
        client.writer.close()
        other.writer.close()
        while server.connections:
            await asyncio.sleep(0.001)
        assert server.turns.unsent.total == 0

    serving(main, limits={"high_water": high_water, "low_water": 64 << 10})
