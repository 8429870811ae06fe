"""Both servers on real loopback sockets: the plain one, and the one of the fast path with a feed
that answers no frame itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import Sequence
from typing import Self

import pytest
from harness.net import EchoHandler, InLoop, SkewedScheduler, until

from rmqpy.model.errors import ConfigError
from rmqpy.net.connection import ConnectionLimits, RemotingConnection
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.net.server.server import FAULTS_LOGGED_MAX, LOG_PERIOD_MS, RemotingServer
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


class Peer:
    """A raw stream to a server, which can send what no client sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.receiver = FrameDecoder()
        self.answers: list[RemotingCommand] = []

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Self:
        return cls(*await asyncio.open_connection(*address))

    async def read(self, count: int) -> list[RemotingCommand]:
        """Read until ``count`` answers have arrived in total, and return all answers."""
        while len(self.answers) < count:
            data = await self.reader.read(65536)
            assert data, f"closed after {len(self.answers)} answers"
            self.answers += self.receiver.receive(data)
        return self.answers

    async def read_to_end(self) -> bytes:
        rest = bytearray()
        try:
            while data := await self.reader.read(65536):
                rest += data
        except ConnectionResetError:
            pass
        return bytes(rest)


def frame(code: int = 10, opaque: int = 1, body: bytes = b"", flag: int = 0) -> bytes:
    return encode_command(RemotingCommand(code, opaque, flag, body=body))


async def start_server(
    scheduler: AsyncioScheduler, handler: EchoHandler, **limits: int
) -> tuple[RemotingServer, tuple[str, int]]:
    """Start a server with ``ConnectionLimits(**limits)`` and return it with its address."""
    server = handler.make_server(scheduler, ConnectionLimits(**limits))
    return server, await server.listen("127.0.0.1", 0)


def connection_of(channel: Channel) -> RemotingConnection:
    assert isinstance(channel, RemotingConnection)
    return channel


def test_a_channel_knows_its_peer_and_its_local_port(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        peer = await Peer.connect(address)
        peer.writer.write(frame(opaque=77, body=b"hello"))
        (answer,) = await peer.read(1)
        assert (answer.opaque, answer.body, answer.flag) == (77, b"hello", 1)
        (channel,) = handler.channels
        assert channel.peer == peer.writer.get_extra_info("sockname")
        assert connection_of(channel).local_port == address[1]
        assert server.connections == 1
        peer.writer.close()
        await until(lambda: handler.closed)
        assert handler.closed == [channel]
        assert channel.closed
        channel.write(frame())  # dropped, not an error
        await server.close()
        assert scheduler.failure_log.failures == 0

    in_loop(main)


def test_frames_sent_byte_by_byte_are_answered(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        peer = await Peer.connect(address)
        peer.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = frame(opaque=1, body=b"one") + frame(opaque=2, body=b"two")
        for number in range(len(data)):
            peer.writer.write(data[number : number + 1])
            await asyncio.sleep(0)
        answers = await peer.read(2)
        assert [(each.opaque, each.body) for each in answers] == [(1, b"one"), (2, b"two")]
        await server.close()

    in_loop(main)


def test_all_frames_of_one_read_are_one_call_and_one_turn(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        peer = await Peer.connect(address)
        peer.writer.write(b"".join(frame(opaque=number) for number in range(50)))
        answers = await peer.read(50)
        assert [each.opaque for each in answers] == list(range(50))
        assert sum(len(call) for call in handler.calls) == 50
        assert handler.turns == len(handler.calls) <= 2
        await server.close()

    in_loop(main)


def test_postponed_requests_keep_their_order_and_let_others_pass(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    """One connection has many outstanding requests, each of which takes a turn."""

    async def main(scheduler: SkewedScheduler) -> None:
        handler.at_once = 1
        server, address = await start_server(scheduler, handler)
        slow, quick = await Peer.connect(address), await Peer.connect(address)
        slow.writer.write(b"".join(frame(opaque=number) for number in range(100)) + frame()[:9])
        await slow.read(1)
        turns = handler.turns
        quick.writer.write(frame(code=11))
        await quick.read(1)
        assert handler.turns - turns < 20, "the other peer waited for the postponed requests"
        answers = await slow.read(100)
        assert [each.opaque for each in answers] == list(range(100))
        # A feed hands back 64 frames at once; the next ones begin in the turn of the last of these.
        assert handler.turns >= 99
        slow.writer.write(frame()[9:] + frame(opaque=7))
        answers = await slow.read(102)
        assert [each.opaque for each in answers[100:]] == [1, 7]
        await server.close()

    in_loop(main)


def test_connections_whose_requests_are_postponed_take_turns(in_loop: InLoop) -> None:
    """A turn has time for one request, of whichever connection."""

    class OneInEachTurn(EchoHandler):
        used = -1

        def handle(
            self, channel: Channel, commands: Sequence[RemotingCommand]
        ) -> Sequence[RemotingCommand]:
            if self.used == self.turns:
                return commands
            self.used, self.at_once = self.turns, 1
            return super().handle(channel, commands)

    async def main(scheduler: SkewedScheduler) -> None:
        handler = OneInEachTurn()
        server, address = await start_server(scheduler, handler)
        peers = [await Peer.connect(address) for _ in range(4)]
        for code, peer in enumerate(peers):
            peer.writer.write(b"".join(frame(code=code, opaque=each) for each in range(50)))
        for peer in peers:
            answers = await peer.read(50)
            assert [each.opaque for each in answers] == list(range(50))
        codes = [code for call in handler.calls for code in call]
        last = [len(codes) - codes[::-1].index(code) for code in range(4)]
        assert min(last) > 150, f"the last of 50 requests of each peer were handled as {last}"
        await server.close()

    in_loop(main)


def test_postponed_requests_of_a_connection_that_ends_are_dropped(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        handler.at_once = 1
        server, address = await start_server(scheduler, handler)
        aborted, other = await Peer.connect(address), await Peer.connect(address)
        aborted.writer.write(b"".join(frame(opaque=number) for number in range(2000)))
        await aborted.read(1)
        aborted.writer.transport.abort()
        other.writer.write(frame())
        await other.read(1)
        await until(lambda: handler.closed)
        assert scheduler.failure_log.failures == 0
        await server.close()

    in_loop(main)


def test_connections_read_in_one_loop_turn_share_one_turn_end(handler: EchoHandler) -> None:
    async def main(scheduler: AsyncioScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        sockets = [socket.create_connection(address) for _ in range(8)]
        await until(lambda: server.connections == 8)
        for each in sockets:  # The loop does not run meanwhile: all are readable in its next turn.
            each.sendall(frame())
        await until(lambda: len(handler.calls) == 8)
        await until(lambda: handler.turns)
        assert handler.turns == 1
        for each in sockets:
            each.settimeout(5)
            assert each.recv(4) == (len(frame(code=0, flag=1)) - 4).to_bytes(4, "big")
            each.close()
        await server.close()

    run(main, uvloop="off")


NO_EPOLL = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
FEEDS = pytest.mark.parametrize(
    "handler", [(True, False), pytest.param((True, True), marks=NO_EPOLL)], indirect=True
)


@FEEDS
def test_a_patient_server_includes_requests_that_arrive_one_turn_later(
    handler: EchoHandler,
) -> None:
    handler.patient = True

    async def main(scheduler: AsyncioScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        first, second = (socket.create_connection(address) for _ in range(2))
        await until(lambda: server.connections == 2)

        def before_handle(_channel: Channel, _commands: Sequence[RemotingCommand]) -> None:
            if not handler.calls:
                second.sendall(frame())

        handler.before_handle = before_handle
        first.sendall(frame())
        await until(lambda: handler.turns)
        assert (len(handler.calls), handler.turns) == (2, 1)
        for each in first, second:
            each.close()
        await server.close()

    run(main, uvloop="off")


def test_several_ports_share_the_handler_and_ipv6_peers_are_address_pairs(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, main_port = await start_server(scheduler, handler)
        fast_port = await server.listen("127.0.0.1", 0)
        addresses = [main_port, fast_port]
        with contextlib.suppress(ConfigError):  # A host may have no IPv6.
            addresses.append(await server.listen("::1", 0))
        assert server.addresses == addresses
        for address in addresses:
            peer = await Peer.connect(address)
            peer.writer.write(frame())
            await peer.read(1)
        connections = [connection_of(channel) for channel in handler.channels]
        assert [each.local_port for each in connections] == [port for _, port in addresses]
        assert [channel.peer[0] for channel in handler.channels] == [host for host, _ in addresses]
        await server.close()

    in_loop(main)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((20_000).to_bytes(4, "big"), "a frame of 20000 bytes"),
        (b"\xff" * 8, "a frame of 4294967295 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of "),
        (b"\x00\x00\x00\x06\x09\x00\x00\x02{}", "unknown serialize type 9"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02{]", "JSON header"),
    ],
    ids=["oversize", "ones", "http", "serialize_type", "json"],
)
def test_a_peer_that_breaks_the_protocol_is_closed_and_logged_once(
    in_loop: InLoop,
    handler: EchoHandler,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    reason: str,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, max_frame=16_384)
        peer = await Peer.connect(address)
        peer.writer.write(data)
        assert await peer.read_to_end() == b""
        await until(lambda: handler.closed)
        assert server.counts.faults == 1
        assert server.connections == 0
        other = await Peer.connect(address)
        other.writer.write(frame(opaque=5))
        assert (await other.read(1))[0].opaque == 5
        await server.close()

    in_loop(main)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("closing 127.0.0.1:")
    assert reason in lines[0]


def test_a_flood_of_broken_frames_fills_no_log(
    in_loop: InLoop, handler: EchoHandler, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        caplog.clear()
        server, address = await start_server(scheduler, handler)

        async def break_protocol(count: int) -> None:
            for _ in range(count):
                peer = await Peer.connect(address)
                peer.writer.write(b"\xff" * 64)
                assert await peer.read_to_end() == b""

        await break_protocol(FAULTS_LOGGED_MAX + 5)
        assert server.counts.faults == FAULTS_LOGGED_MAX + 5
        lines = [text for text in caplog.messages if text.startswith("closing 127.0.0.1:")]
        assert len(lines) == FAULTS_LOGGED_MAX
        assert "only counted for at most 60 s" in caplog.messages[-1]
        caplog.clear()
        scheduler.skew_ms += LOG_PERIOD_MS
        await break_protocol(1)
        (line,) = caplog.messages
        assert line.startswith("closing 127.0.0.1:")
        await server.close()

    in_loop(main)


def test_requests_read_in_a_turn_are_answered_although_their_peer_was_paused_in_it(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    """Two peers are readable at once; the request of the first fills the second's send queue."""

    def before_handle(channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        if commands[0].code == 7:
            (other,) = [each for each in handler.channels if each is not channel]
            other.write(b"\0" * (4 << 20))

    handler.before_handle = before_handle

    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(
            scheduler, handler, high_water=256 * 1024, low_water=64 * 1024
        )
        second = socket.create_connection(address)
        first = socket.create_connection(address)
        second.send(frame())
        await until(lambda: len(handler.calls) == 1)
        first.send(frame())
        await until(lambda: len(handler.calls) == 2)
        first.send(frame(code=7))
        second.send(frame(code=8))
        await until(lambda: [7] in handler.calls)
        second.setblocking(False)
        received = 0
        while not ([8] in handler.calls and received > 4 << 20):
            try:
                received += len(second.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.0005)
        second.send(frame(code=9))
        await until(lambda: [9] in handler.calls)
        first.close()
        second.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_reading_pauses_for_a_peer_that_does_not_read_and_memory_stays_bounded(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    handler.answer_body = b"x" * 65536

    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(
            scheduler, handler, high_water=256 * 1024, low_water=64 * 1024
        )
        slow = socket.create_connection(address)
        slow.setblocking(False)
        sent = 0
        request = frame(body=b"q" * 8192)
        whole = memoryview(request * 4000)  # 33 MB of requests for 262 MB of answers
        quiet = 0
        while sent < len(whole) and quiet < 200:
            try:
                sent += slow.send(whole[sent : sent + 65536])
                quiet = 0
            except BlockingIOError:
                quiet += 1
                await asyncio.sleep(0.001)
        assert sent < len(whole), "the server read everything of a peer that reads nothing"
        (channel,) = handler.channels
        # At most one read of 128 KiB of requests may be answered above the mark.
        assert connection_of(channel).pending_bytes < 256 * 1024 + 2 * 17 * 66_000
        answered = sum(len(call) for call in handler.calls)
        received = 0
        # The peer reads again: all answers arrive, and the server resumes reading.
        while received < answered * 65536:
            try:
                received += len(slow.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.0005)
        await until(lambda: sum(len(call) for call in handler.calls) > answered)
        slow.close()
        await server.close()
        assert server.turns.unsent.total == 0

    in_loop(main)


@pytest.mark.slow
def test_a_peer_with_too_many_unread_answers_is_disconnected(
    in_loop: InLoop,
    handler: EchoHandler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler.answer_body = b"x" * 1_000_000

    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(
            scheduler, handler, high_water=65536, low_water=4096, pending_bytes=8_000_000
        )
        greedy = socket.create_connection(address)
        greedy.sendall(frame(body=b"") * 200)  # 200 MB of answers
        await until(lambda: handler.closed)
        assert server.counts.faults == 1
        assert server.turns.unsent.total == 0
        greedy.close()
        await server.close()

    in_loop(main)
    assert "the peer does not read" in caplog.text


def test_one_connection_does_not_take_the_whole_turn(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, turn_bytes=128 * 1024)
        peer = await Peer.connect(address)
        body = b"b" * 100_000
        peer.writer.write(b"".join(frame(opaque=n, body=body) for n in range(40)))
        answers = await peer.read(40)
        assert [each.opaque for each in answers] == list(range(40))
        # 4 MB in portions: one turn exceeds the budget by at most one read.
        assert handler.turns >= len(body) * 40 // (256 * 1024)
        await server.close()

    in_loop(main)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        idle, busy = await Peer.connect(address), await Peer.connect(address)
        await until(lambda: server.connections == 2)
        scheduler.skew_ms += 119_000
        busy.writer.write(frame())
        await busy.read(1)
        server.sweep()
        assert server.counts.overdue == 0
        scheduler.skew_ms += 2_000
        server.sweep()
        assert server.counts.overdue == 1
        assert await idle.read_to_end() == b""
        busy.writer.write(frame())
        await busy.read(2)
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_the_sweep_runs_periodically(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, idle_close_ms=40)
        idle = await Peer.connect(address)
        assert await idle.read_to_end() == b""
        await until(lambda: server.counts.overdue == 1)
        await server.close()

    in_loop(main)


def test_an_unfinished_frame_has_a_deadline(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, head_deadline_ms=60_000)
        slow_head, honest = await Peer.connect(address), await Peer.connect(address)
        slow_head.writer.write(frame(opaque=1) + frame()[:9])
        await slow_head.read(1)
        for _ in range(5):
            scheduler.skew_ms += 10_000
            slow_head.writer.write(b" ")  # traffic, but no complete frame
            honest.writer.write(frame()[:5])
            honest.writer.write(frame()[5:])
            await honest.read(len(honest.answers) + 1)
        server.sweep()
        assert server.counts.overdue == 0
        scheduler.skew_ms += 10_001
        server.sweep()
        assert server.counts.overdue == 1
        await slow_head.read_to_end()
        honest.writer.write(frame())
        await honest.read(6)
        await server.close()

    in_loop(main)


def test_a_full_server_rejects_connections_and_logs_it_once_per_minute(
    in_loop: InLoop,
    handler: EchoHandler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, max_connections=2)
        first = [await Peer.connect(address) for _ in range(2)]
        await until(lambda: server.connections == 2)
        for _ in range(3):
            peer = await Peer.connect(address)
            assert await peer.read_to_end() == b""
        scheduler.skew_ms += 60_000
        peer = await Peer.connect(address)
        assert await peer.read_to_end() == b""
        assert server.counts.turned_away == 4
        assert handler.closed == []
        first[0].writer.write(frame(opaque=3))
        assert (await first[0].read(1))[0].opaque == 3
        await server.close()
        assert len(handler.closed) == 2

    in_loop(main)
    lines = [
        each.getMessage()
        for each in caplog.records
        if "connections is reached" in each.getMessage()
    ]
    assert len(lines) == 2
    assert lines[1].endswith("4 since the start")


def test_a_failing_handler_closes_its_connection_and_is_counted(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    handler.fail_on = 13

    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        bad, good = await Peer.connect(address), await Peer.connect(address)
        bad.writer.write(frame(code=13))
        assert await bad.read_to_end() == b""
        assert scheduler.failure_log.failures == 1
        good.writer.write(frame())
        await good.read(1)
        await server.close()

    in_loop(main)


def test_close_sends_queued_replies_first(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        peer = await Peer.connect(address)
        peer.writer.write(frame(code=999))
        await until(lambda: handler.channels)
        reply = frame(opaque=8, body=b"z" * 500_000, flag=1)
        handler.channels[0].write(reply)
        closing = asyncio.ensure_future(server.close())
        assert await peer.read_to_end() == reply
        await closing
        assert handler.closed == handler.channels
        with pytest.raises(OSError):
            await Peer.connect(address)

    in_loop(main)


@pytest.mark.slow
def test_close_does_not_wait_for_a_peer_that_does_not_read(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler, linger_ms=30)
        unread = socket.create_connection(address)
        unread.sendall(frame(code=999))
        await until(lambda: handler.channels)
        handler.channels[0].write(frame(body=b"z" * 15_000_000))
        await server.close()
        assert server.connections == 0
        assert len(handler.closed) == 1
        unread.close()

    in_loop(main)


def test_close_does_not_wait_for_a_connection_that_does_not_end(
    in_loop: InLoop,
    handler: EchoHandler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker did not stop for a minute after SIGTERM because of one."""

    async def main(scheduler: SkewedScheduler) -> None:
        server = RemotingServer(handler, scheduler, ConnectionLimits(linger_ms=1))
        address = await server.listen("127.0.0.1", 0)
        peer = socket.create_connection(address)
        peer.sendall(frame(code=999))
        await until(lambda: handler.channels)
        connection = handler.channels[0]
        with monkeypatch.context() as stuck:
            stuck.setattr(RemotingConnection, "close", lambda _: None)
            stuck.setattr(RemotingConnection, "abort", lambda _: None)
            await server.close()
        port = peer.getsockname()[1]
        assert f"127.0.0.1:{port} (" in caplog.text and "open, 0 bytes unsent)" in caplog.text
        assert isinstance(connection, RemotingConnection)
        connection.abort()
        await until(lambda: handler.closed)
        peer.close()

    monkeypatch.setattr("rmqpy.net.connection.ABORTED_S", 0.01)
    in_loop(main)


def test_a_written_buffer_may_be_reused_immediately(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await start_server(scheduler, handler)
        peer = await Peer.connect(address)
        peer.writer.write(frame(code=999))
        await until(lambda: handler.channels)
        reply = bytearray(frame(opaque=4, body=b"a" * 300_000))
        handler.channels[0].write(reply)
        reply[-300_000:] = b"b" * 300_000
        (answer,) = await peer.read(1)
        assert answer.body == b"a" * 300_000
        await server.close()

    in_loop(main)


def test_the_error_for_a_port_in_use_names_the_address(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, (host, port) = await start_server(scheduler, handler)
        other = RemotingServer(handler, scheduler)
        with pytest.raises(ConfigError, match=f"{host}:{port}"):
            await other.listen(host, port)
        await server.close()

    in_loop(main)


def test_a_header_has_its_own_deadline(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        limits = ConnectionLimits(head_deadline_ms=5_000, frame_deadline_ms=60_000)
        server = handler.make_server(scheduler, limits)
        address = await server.listen("127.0.0.1", 0)
        whole = frame(body=bytes(5_000))
        slow_header, slow_body = [await Peer.connect(address) for _ in range(2)]
        slow_header.writer.write(whole[:20])
        slow_body.writer.write(whole[:3_000])
        await until(lambda: sum(has_partial_frame(each) for each in server._connections) == 2)
        scheduler.skew_ms += 5_000
        server.sweep()
        assert await slow_header.read_to_end() == b""
        slow_body.writer.write(whole[3_000:])
        assert len(await slow_body.read(1)) == 1
        slow_body.writer.close()
        slow_header.writer.close()
        await server.close()

    def has_partial_frame(connection: RemotingConnection) -> bool:
        return connection.partial_since_ms is not None

    in_loop(main)
