"""The waiting time of unread requests: during a long commit, and after a full buffer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from harness.net import EchoHandler, FallbackFeed, InLoop, SkewedScheduler

from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.server.feed_server import FastServer
from rmqpy.net.server.server import RemotingServer
from rmqpy.net.server.stall_detector import StallDetector
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


class RecordingFilter:
    """An overload filter that rejects requests after ``patience_ms`` and records its calls."""

    patience_ms = 200

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        """The waiting time and the opaques of each call."""

    def sift(
        self, channel: Channel, commands: Sequence[RemotingCommand], waited_ms: int
    ) -> list[RemotingCommand]:
        self.calls.append((waited_ms, [command.opaque for command in commands]))
        if waited_ms < self.patience_ms:
            return list(commands)
        for command in commands:
            channel.write(encode_command(RemotingCommand.response_to(command, 2, "too old")))
        return []


class ManualDetector(StallDetector):
    """A detector without a thread: the test calls ``check`` itself."""

    def start(self) -> None:
        pass


class Unmarked:
    """A connection that must not be marked."""

    def marked(self, seen_ms: int, unread: int) -> None:
        raise AssertionError("the mark of an earlier turn was applied")


class Site:
    """A server with a filter, and two connected peers."""

    def __init__(self, scheduler: SkewedScheduler, handler: EchoHandler) -> None:
        self.scheduler = scheduler
        self.filter = RecordingFilter()
        self.server: RemotingServer = handler.make_server(scheduler, ConnectionLimits())
        self.peers = [socket.socket(), socket.socket()]

    @property
    def feed(self) -> FallbackFeed:
        assert isinstance(self.server, FastServer)
        assert isinstance(self.server.feed, FallbackFeed)
        return self.server.feed

    async def start(self, detector: StallDetector) -> None:
        self.server.set_overload_filter(self.filter, detector)
        address = await self.server.listen("127.0.0.1", 0)
        for peer in self.peers:
            peer.setblocking(False)
            await self.scheduler.loop.sock_connect(peer, address)

    async def answers(self, peer: socket.socket, count: int) -> list[RemotingCommand]:
        receiver = FrameDecoder()
        found: list[RemotingCommand] = []
        while len(found) < count:
            data = await self.scheduler.loop.sock_recv(peer, 65536)
            assert data
            found += receiver.receive(data)
        return found


async def start_site(
    scheduler: SkewedScheduler, handler: EchoHandler, detector: StallDetector
) -> Site:
    site = Site(scheduler, handler)
    await site.start(detector)
    return site


def frame(opaque: int, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(10, opaque, 0, body=body))


def test_requests_that_arrive_during_a_long_commit_have_waited(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        detector = ManualDetector()
        site = await start_site(scheduler, handler, detector)
        server, (first, second) = site.server, site.peers
        for number, peer in enumerate((first, second)):
            peer.send(frame(number))
            await site.answers(peer, 1)
        complete, split = frame(10) + frame(11), frame(12)

        def long_commit() -> None:
            second.send(complete + split[:9])
            detector.check()
            assert server.turns.found is None, "the first check: the commit may have just started"
            detector.check()
            scheduler.skew_ms += 300
            second.send(split[9:] + frame(13))

        handler.before_end = long_commit
        first.send(frame(2))
        assert (await site.answers(first, 1))[0].code == 0
        found = await site.answers(second, 4)
        assert [(each.opaque, each.code) for each in found] == [(10, 2), (11, 2), (12, 0), (13, 0)]
        ((waited_ms, opaques),) = site.filter.calls
        assert 300 <= waited_ms < 3_000 and opaques == [10, 11]
        if handler.fast:
            assert site.feed.held == [True, False]
        second.send(frame(14))
        assert (await site.answers(second, 1))[0].code == 0
        await server.close()

    in_loop(main)


def test_a_mark_of_an_earlier_turn_is_dropped(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        detector = ManualDetector()
        site = await start_site(scheduler, handler, detector)
        server, first = site.server, site.peers[0]
        server.turns.found = (server.turns.number - 1, 0, [(Unmarked(), 1)])
        first.send(frame(1))
        assert (await site.answers(first, 1))[0].code == 0
        detector.check()
        detector.check()
        assert site.server.turns.found is None, "nothing is being committed"
        await server.close()

    in_loop(main)


def test_requests_left_after_a_full_buffer_have_waited(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        site = await start_site(scheduler, handler, ManualDetector())
        server, peer = site.server, site.peers[0]
        server.turns.buffer = memoryview(bytearray(4096))
        if handler.fast:
            site.feed.SIZE = 4096
        body = b"x" * 400

        def slow_handle(_channel: Channel, _commands: Sequence[RemotingCommand]) -> None:
            """Take long from the second call on: a loop may read a buffer more in a turn."""
            scheduler.skew_ms += 250 if handler.calls else 0

        def slow_end() -> None:
            scheduler.skew_ms += 250

        if handler.fast:
            handler.before_end = slow_end
        else:
            handler.before_handle = slow_handle
        peer.send(b"".join(frame(number, body) for number in range(40)))
        found = await site.answers(peer, 40)
        read_at_once = 4096 // len(frame(1, body))
        assert {each.code for each in found if each.opaque < read_at_once} == {0}
        assert sum(each.code == 2 for each in found) >= 40 - 3 * read_at_once
        assert max(site.filter.calls)[0] >= 250
        await server.close()

    in_loop(main)


def test_a_request_below_the_patience_is_handled_although_it_was_marked(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        detector = ManualDetector()
        site = await start_site(scheduler, handler, detector)
        server, (first, second) = site.server, site.peers
        second.send(frame(0))
        await site.answers(second, 1)

        def short_commit() -> None:
            second.send(frame(1) + frame(2, b"y" * 100_000))
            detector.check()
            detector.check()

        handler.before_end = short_commit
        first.send(frame(3))
        found = await site.answers(second, 2)
        assert [(each.opaque, each.code) for each in found] == [(1, 0), (2, 0)]
        await server.close()

    in_loop(main)


def test_a_commit_of_one_server_delays_the_other(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        detector = ManualDetector()
        site = await start_site(scheduler, handler, detector)
        other = await start_site(scheduler, handler, detector)
        first, second = site.peers[0], other.peers[0]
        second.send(frame(0))
        await other.answers(second, 1)

        def long_commit() -> None:
            second.send(frame(1))
            detector.check()
            detector.check()
            scheduler.skew_ms += 300
            second.send(frame(2))

        handler.before_end = long_commit
        first.send(frame(3))
        assert (await site.answers(first, 1))[0].code == 0
        found = await other.answers(second, 2)
        assert [(each.opaque, each.code) for each in found] == [(1, 2), (2, 0)]
        await site.server.close()
        await other.server.close()

    in_loop(main)


def test_one_thread_watches_both_servers_and_ends_with_the_first(
    in_loop: InLoop, handler: EchoHandler
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        detector = StallDetector()
        servers = [handler.make_server(scheduler, ConnectionLimits()) for _ in range(2)]
        for server in servers:
            server.set_overload_filter(RecordingFilter(), detector)
            await server.listen("127.0.0.1", 0)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("stall watch") == 1
        for server in servers:
            await server.close()
            assert "stall watch" not in [thread.name for thread in threading.enumerate()]

    in_loop(main)
