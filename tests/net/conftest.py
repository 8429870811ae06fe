"""A loop, an echoing handler and a client socket for the tests of this folder."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

DEADLINE_S = 20


class SkewedScheduler(AsyncioScheduler):
    """A monotonic clock that a test can set forward; timers keep real time."""

    skew_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.skew_ms


class EchoHandler:
    """Answers each request at the end of the turn with its own body; code 999 is never answered."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.turns = 0
        self.channels: list[Channel] = []
        self.closed: list[Channel] = []
        self.answer_body: bytes | None = None
        self.fail_on: int | None = None
        self._replies: list[tuple[Channel, bytes]] = []

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
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

    def turn_ended(self) -> None:
        self.turns += 1
        replies, self._replies = self._replies, []
        for channel, frame in replies:
            channel.write(frame)

    def channel_closed(self, channel: Channel) -> None:
        self.closed.append(channel)


@pytest.fixture
def handler() -> EchoHandler:
    return EchoHandler()


@pytest.fixture(params=["off", "on"], ids=["asyncio", "uvloop"])
def in_loop(
    request: pytest.FixtureRequest,
) -> Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None]:
    """Runs ``main(scheduler)`` on each kind of loop, with a deadline."""
    if request.param == "on" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")

    def run_test(main: Callable[[SkewedScheduler], Coroutine[Any, Any, None]]) -> None:
        async def whole(_: AsyncioScheduler) -> None:
            scheduler = SkewedScheduler()
            async with asyncio.timeout(DEADLINE_S):
                await main(scheduler)
            await scheduler.close()

        run(whole, uvloop=request.param)

    return run_test
