"""A scheduler, an echoing request handler and a feed without fast path, for tests/net."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import SimpleNamespace

import pytest

from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.feed_api import FeedChannel, FeedStatus, PollSet
from rmqpy.net.server.feed_server import FastServer
from rmqpy.net.server.server import ListenerSecurity, RemotingServer
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

DEADLINE_S = 20


class SkewedScheduler(AsyncioScheduler):
    """A scheduler whose monotonic clock a test can set forward; timers keep real time."""

    skew_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.skew_ms


InLoop = Callable[[Callable[[SkewedScheduler], Coroutine[object, object, None]]], None]
"""The fixture ``in_loop``: it runs ``main(scheduler)`` on each kind of loop, with a deadline."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition()`` is true; the deadline of ``in_loop`` bounds the wait."""
    while not condition():
        await asyncio.sleep(0.001)


class EchoHandler:
    """A handler that answers each request at the end of the turn with the request's own body.

    Code 999 is never answered.
    """

    fast = False
    in_set = False
    """Whether a fast server watches its connections in a poll set."""

    def make_server(
        self,
        scheduler: AsyncioScheduler,
        limits: ConnectionLimits,
        security: ListenerSecurity = ListenerSecurity(),  # noqa: B008 - a frozen value
    ) -> RemotingServer:
        if self.fast:
            feed = FallbackFeed(in_set=self.in_set)
            return FastServer(self, scheduler, limits, feed, security, patient=self.patient)
        return RemotingServer(self, scheduler, limits, security)

    def __init__(self) -> None:
        self.patient = False
        self.calls: list[list[int]] = []
        self.turns = 0
        self.channels: list[Channel] = []
        self.closed: list[Channel] = []
        self.answer_body: bytes | None = None
        self.fail_on: int | None = None
        self.at_once: int | None = None
        """How many requests of one call are handled in a turn; the others are postponed."""
        self.before_handle: Callable[[Channel, Sequence[RemotingCommand]], None] | None = None
        """Called before each call of ``handle`` is carried out."""
        self.before_end: Callable[[], None] | None = None
        """Called once, in the commit of a turn."""
        self._replies: list[tuple[Channel, bytes]] = []

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand]:
        if self.before_handle is not None:
            self.before_handle(channel, commands)
        rest = commands[self.at_once :] if self.at_once is not None else ()
        commands = commands[: self.at_once]
        self.calls.append([command.code for command in commands])
        if channel not in self.channels:
            self.channels.append(channel)
        for command in commands:
            if command.code == self.fail_on:
                raise ValueError("planted failure")
            if command.code == 999 or command.is_oneway:
                continue
            body = command.body if self.answer_body is None else self.answer_body
            response = RemotingCommand.response_to(command, body=body)
            self._replies.append((channel, encode_command(response)))
        return rest

    def turn_ended(self) -> None:
        self.turns += 1
        if self.before_end is not None:
            before_end, self.before_end = self.before_end, None
            before_end()
        replies, self._replies = self._replies, []
        for channel, frame in replies:
            channel.write(frame)

    def channel_closed(self, channel: Channel) -> None:
        self.closed.append(channel)


class FallbackFeed:
    """A ``rmqpy.net.server.feed_api.Feed`` that answers nothing, so that every frame falls back."""

    SIZE = 64 * 1024
    needs_refresh = False

    def __init__(self, *, in_set: bool = False) -> None:
        self._poll_set = FallbackPollSet(self) if in_set else None
        self.ready: PollSet | None = self._poll_set
        self.receive: Callable[[object, int, int], int] = self.receive_from
        self.core = SimpleNamespace(frame_max=0, wanted=0)
        self._data = b""
        self._unhandled: list[memoryview] = []
        self._position = 0
        self._fds: dict[int, int] = {}
        self._carried = b""
        self._received = 0
        self.held: list[bool] = []

    def refresh(self) -> None: ...

    def close(self) -> None:
        if self._poll_set is not None:
            self._poll_set.close()

    def set_write_pending(self, number: int, queued: bool) -> None:
        """Do nothing: only the connection itself sends."""

    def flush_now(self, number: int) -> None: ...

    def renew_share(self) -> bool:
        return False

    def before_fallback(self) -> None: ...

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None: ...

    def make_room(self, status: int) -> None: ...

    def attach(self, channel: FeedChannel, fd: int) -> int:
        number = max(self._fds, default=-1) + 1
        self._fds[number] = fd
        return number

    def detach(self, number: int) -> None:
        del self._fds[number]

    def has(self, number: int) -> bool:
        return number in self._fds

    def fd_of(self, number: int) -> int:
        return self._fds[number]

    def number_of(self, fd: int) -> int:
        return next(number for number, each in self._fds.items() if each == fd)

    def receive_from(self, core: object, number: int, have: int) -> int:
        try:
            data = os.read(self._fds[number], self.SIZE)
        except BlockingIOError:
            return FeedStatus.AGAIN
        except OSError as error:
            self.core.status_detail = error.errno
            return FeedStatus.FAILED
        if not data:
            return FeedStatus.CLOSED
        self.feed(data, have)
        return self.resume(number)

    def feed(self, data: bytes | memoryview, have: int = 0) -> None:
        self._data = self._carried[:have] + bytes(data)
        self._received = len(data)
        self._position = 0

    def lend(self, frame: memoryview | None) -> None:
        self._data = b"" if frame is None else bytes(frame)
        self._position = 0

    def resume(self, number: int) -> int:
        self._unhandled = []
        while len(self._data) - self._position >= 4 and len(self._unhandled) < 64:
            start = self._position + 4
            length = int.from_bytes(self._data[self._position : start])
            if not 4 <= length <= self.core.frame_max:
                return FeedStatus.FALLBACK if self._unhandled else FeedStatus.BAD_FRAME
            if len(self._data) - start < length:
                break
            self._unhandled.append(memoryview(self._data)[start : start + length])
            self._position = start + length
        if self._unhandled:
            return FeedStatus.FALLBACK
        return FeedStatus.PARTIAL if self.rest() else FeedStatus.DONE

    def unhandled_frames(self) -> list[memoryview]:
        return self._unhandled

    @property
    def advanced(self) -> bool:
        return self._position > 0

    @property
    def full(self) -> bool:
        return self._received == self.SIZE

    def pause(self, held: bool) -> None:
        self.held.append(held)

    def rest(self) -> bytes:
        return self._data[self._position :]

    def unread(self, data: bytes) -> bool:
        length = int.from_bytes(data[:4]) + 4 if len(data) >= 4 else 0
        self._carried = data
        return max(length, len(data)) < self.SIZE


class FallbackPollSet:
    """The ``rmqpy.net.server.feed_api.PollSet`` of a ``FallbackFeed``."""

    def __init__(self, feed: FallbackFeed) -> None:
        self._feed = feed
        self._epoll = select.epoll()
        self._apart: set[int] = set()
        self._found: list[int] = []
        self._next = 0
        self.fd = self._epoll.fileno()
        self.receive: Callable[[object, bool], int] = self.receive_from_all
        self.flush_replies_early: Callable[[], bool] = lambda: False

    def watch(self, number: int, wanted: bool) -> None:
        fd = self._feed.fd_of(number)
        if wanted:
            self._epoll.register(fd, select.EPOLLIN)
        else:
            self._epoll.unregister(fd)

    def exclude(self, number: int, apart: bool) -> None:
        (self._apart.add if apart else self._apart.discard)(number)

    def receive_from_all(self, core: object, begin: bool) -> int:
        if begin:
            self._next = 0
            self._found = [self._feed.number_of(fd) for fd, _ in self._epoll.poll(0)]
        while self._next < len(self._found):
            number = self._found[self._next]
            self._next += 1
            if not self._feed.has(number):
                continue
            status: int = FeedStatus.EXCLUDED
            if number not in self._apart:
                status = self._feed.receive_from(core, number, 0)
            if status != FeedStatus.DONE:
                return status
        return FeedStatus.NONE_LEFT

    def is_another_ready(self, number: int) -> bool:
        return True

    @property
    def stopped_at(self) -> int:
        return self._found[self._next - 1]

    def drained(self) -> list[int]:
        return self._found[: self._next]

    def close(self) -> None:
        self._epoll.close()


def server_kinds() -> Iterator[object]:
    """Yield ``(fast, in_set)`` of each kind of server."""
    yield pytest.param((False, False), id="plain")
    yield pytest.param((True, False), id="fast")
    missing = not hasattr(select, "epoll")
    yield pytest.param(
        (True, True), id="set", marks=pytest.mark.skipif(missing, reason="this system has no epoll")
    )
