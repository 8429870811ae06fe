"""A producer that keeps sending while the group is switched, loses its leader, and goes back.

It records the acknowledged messages and the longest time without an acknowledgement.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from itertools import count
from types import TracebackType
from typing import Self

from attrs import define, field

from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text

LOAD_TOPIC = "DemoLoad"
PAUSE_SECONDS = 0.01
RATE_OF_ONE = 100
"""The messages a second up to which one sender suffices, which waits for each acknowledgement."""
RETRY_SECONDS = 0.1
TIMEOUT_MS = 1000
STALL_SECONDS_MAX = 120.0


@define(eq=False, repr=False)
class SendWorkload:
    """Sends up to ``per_second`` messages a second, each until it is acknowledged."""

    name_server: str
    per_second: float = RATE_OF_ONE
    prefix: str = "load"
    """Begins the key of each message."""
    acknowledged: list[str] = field(factory=list)
    """The keys of the acknowledged messages, in order."""
    attempts_failed: int = 0
    stall_s: float = STALL_SECONDS_MAX
    """How long :meth:`wait_for` waits for one acknowledgement, in s."""
    _last_s: float = 0.0
    _longest_s: float = 0.0
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send())
        try:
            await self.wait_for(20)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def wait_for(self, more: int) -> None:
        """Wait until ``more`` messages more are acknowledged.

        Raise RmqError if none is acknowledged for ``stall_s``, or the error that has ended the
        sender.
        """
        begin_s, before = time.monotonic(), len(self.acknowledged)
        stall_s = self.stall_s + 1 / self.per_second
        while len(self.acknowledged) < before + more:
            if self._task is not None and self._task.done():
                self._task.result()
            if time.monotonic() - max(begin_s, self._last_s) > stall_s:
                raise RmqError(
                    f"no send was acknowledged for {self.stall_s:g} s: found"
                    f" {len(self.acknowledged) - before} of {more} messages,"
                    f" {count_text(self.attempts_failed, 'attempt')} failed since the start"
                )
            await asyncio.sleep(PAUSE_SECONDS)

    def longest_gap_s(self) -> float:
        """Return the longest time in s without an acknowledgement since the last call."""
        longest = max(self._longest_s, time.monotonic() - self._last_s)
        self._longest_s = 0.0
        return longest

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _send(self) -> None:
        self._last_s = time.monotonic()
        numbers = count()
        async with Producer("demo_load", self.name_server) as producer:
            senders = math.ceil(self.per_second / RATE_OF_ONE)
            await asyncio.gather(
                *(self._send_some(producer, numbers, senders) for _ in range(senders))
            )

    async def _send_some(self, producer: Producer, numbers: Iterator[int], senders: int) -> None:
        """Send this sender's share, one message after the other."""
        pause_s = senders / self.per_second
        for number in numbers:
            key = f"{self.prefix}-{number}"
            message = Message(topic=LOAD_TOPIC, body=f"{key} of the demo".encode(), keys=key)
            sent_s = time.monotonic()
            while not await self._is_acknowledged(producer, message):
                await asyncio.sleep(RETRY_SECONDS)
            now_s = time.monotonic()
            self._longest_s = max(self._longest_s, now_s - self._last_s)
            self._last_s = now_s
            self.acknowledged.append(key)
            await asyncio.sleep(max(0.0, sent_s + pause_s - now_s))

    async def _is_acknowledged(self, producer: Producer, message: Message) -> bool:
        try:
            await producer.send(message, timeout_ms=TIMEOUT_MS)
        except RmqError:
            self.attempts_failed += 1
            return False
        return True
