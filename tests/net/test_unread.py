"""How long requests have waited: behind a commit that takes its time, and behind a full buffer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from harness.net import EchoHandler, SkewedScheduler

from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.server.stall_detector import StallDetector
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


class Sieve:
    """Keeps every request out that has waited for ``patience_ms``, and notes who asked."""

    patience_ms = 200

    def __init__(self):
        self.asked = []

    def sift(self, channel, commands, waited_ms, turn):
        self.asked.append((waited_ms, [command.opaque for command in commands]))
        if waited_ms < self.patience_ms:
            return commands
        for command in commands:
            channel.write(encode_command(RemotingCommand.response_to(command, 2, "too old")))
        return []


def frame(opaque, body=b""):
    return encode_command(RemotingCommand(10, opaque, 0, body=body))


async def answers(loop, peer, count):
    receiver, found = FrameDecoder(), []
    while len(found) < count:
        data = await loop.sock_recv(peer, 65536)
        assert data
        found += receiver.receive(data)
    return found


class LookedAt(StallDetector):
    """The test itself looks."""

    def start(self):
        pass


async def served(scheduler, handler, watch):
    """A server whose requests are sifted."""
    server = handler.make_server(scheduler, ConnectionLimits())
    server.set_overload_filter(Sieve(), watch)
    address = await server.listen("127.0.0.1", 0)
    peers = []
    for _ in range(2):
        peer = socket.socket()
        peer.setblocking(False)
        await scheduler.loop.sock_connect(peer, address)
        peers.append(peer)
    return server, peers


def test_what_came_during_a_long_commit_has_waited(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        watch = LookedAt()
        server, (first, second) = await served(scheduler, handler, watch)
        for number, peer in enumerate((first, second)):
            peer.send(frame(number))
            await answers(scheduler.loop, peer, 1)
        whole, cut = frame(10) + frame(11), frame(12)

        def long_commit():
            second.send(whole + cut[:9])
            watch.check()
            assert server.turns.found is None, "the first look: it may have just begun"
            watch.check()
            scheduler.skew_ms += 300
            second.send(cut[9:] + frame(13))

        handler.before_end = long_commit
        first.send(frame(2))
        assert (await answers(scheduler.loop, first, 1))[0].code == 0
        found = await answers(scheduler.loop, second, 4)
        assert [(each.opaque, each.code) for each in found] == [(10, 2), (11, 2), (12, 0), (13, 0)]
        ((waited_ms, asked),) = server.sieve.asked
        assert 300 <= waited_ms < 3_000 and asked == [10, 11]
        if handler.fast:
            assert server.feed.held == [True, False]
        second.send(frame(14))
        assert (await answers(scheduler.loop, second, 1))[0].code == 0
        await server.close()

    in_loop(main)


def test_a_look_that_comes_late_marks_nothing(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        watch = LookedAt()
        server, (first, _) = await served(scheduler, handler, watch)
        server.turns.found = (server.turns.number - 1, 0, [(object(), 1)])
        first.send(frame(1))
        assert (await answers(scheduler.loop, first, 1))[0].code == 0
        watch.check()
        watch.check()
        assert server.turns.found is None, "nothing is being committed"
        await server.close()

    in_loop(main)


def test_what_is_left_behind_a_full_buffer_has_waited(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        server, (peer, _) = await served(scheduler, handler, LookedAt())
        server.turns.buffer = memoryview(bytearray(4096))
        if handler.fast:
            server.feed.SIZE = 4096
        body = b"x" * 400
        handle = handler.handle

        def slow_handle(channel, commands):
            """A loop may read a buffer more before the turn ends."""
            scheduler.skew_ms += 250 if handler.calls else 0
            return handle(channel, commands)

        def slow_end():
            scheduler.skew_ms += 250

        if handler.fast:
            handler.before_end = slow_end
        else:
            handler.handle = slow_handle
        peer.send(b"".join(frame(number, body) for number in range(40)))
        found = await answers(scheduler.loop, peer, 40)
        read_at_once = 4096 // len(frame(1, body))
        assert {each.code for each in found if each.opaque < read_at_once} == {0}
        assert sum(each.code == 2 for each in found) >= 40 - 3 * read_at_once
        assert max(server.sieve.asked)[0] >= 250
        await server.close()

    in_loop(main)


def test_a_young_request_is_handled_whatever_was_marked(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        watch = LookedAt()
        server, (first, second) = await served(scheduler, handler, watch)
        second.send(frame(0))
        await answers(scheduler.loop, second, 1)

        def short_commit():
            second.send(frame(1) + frame(2, b"y" * 100_000))
            watch.check()
            watch.check()

        handler.before_end = short_commit
        first.send(frame(3))
        found = await answers(scheduler.loop, second, 2)
        assert [(each.opaque, each.code) for each in found] == [(1, 0), (2, 0)]
        await server.close()

    in_loop(main)


def test_a_commit_of_one_server_keeps_the_other_waiting_too(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        watch = LookedAt()
        server, (first, _) = await served(scheduler, handler, watch)
        other, (second, _) = await served(scheduler, handler, watch)
        second.send(frame(0))
        await answers(scheduler.loop, second, 1)

        def long_commit():
            second.send(frame(1))
            watch.check()
            watch.check()
            scheduler.skew_ms += 300
            second.send(frame(2))

        handler.before_end = long_commit
        first.send(frame(3))
        assert (await answers(scheduler.loop, first, 1))[0].code == 0
        found = await answers(scheduler.loop, second, 2)
        assert [(each.opaque, each.code) for each in found] == [(1, 2), (2, 0)]
        await server.close()
        await other.close()

    in_loop(main)


def test_one_thread_watches_both_servers_and_ends_with_the_first(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        watch = StallDetector()
        servers = [handler.make_server(scheduler, ConnectionLimits()) for _ in range(2)]
        for server in servers:
            server.set_overload_filter(Sieve(), watch)
            await server.listen("127.0.0.1", 0)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("stall watch") == 1
        for server in servers:
            await server.close()
            assert "stall watch" not in [thread.name for thread in threading.enumerate()]

    in_loop(main)
