"""The lags of all groups, sampled in turn: the chart of a group does not begin when somebody first
looks at it.

A poll of the brokers (:mod:`rmqpy.console.collecting.collector`) is followed by a request per
broker for each of ``GROUPS_PER_POLL`` groups. With the default period, up to 60 groups have a
sample per minute, and of 2,000 each has one in 34 minutes, at the same cost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.group_reader import GroupReader

__all__ = ["LagSampler"]

GROUPS_PER_POLL: Final = 5
ROUND_MS: Final = 60_000
"""The time between two samples of a group, unless there are too many groups."""

logger = logging.getLogger(__name__)


class LagSampler:
    """Samples through a reader, which keeps the samples."""

    def __init__(self, collector: Collector, reader: GroupReader) -> None:
        self._collector = collector
        self._reader = reader
        self._waiting: deque[str] = deque()
        self._round_ms = -ROUND_MS

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sample after each poll, until the context ends."""
        task = asyncio.create_task(self._sample_forever(), name="rmqpy-console-lags")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample_forever(self) -> None:
        while True:
            await self._collector.changed()
            try:
                await self.sample()
            except Exception:
                logger.exception("the lags of groups could not be sampled")

    async def sample(self) -> None:
        """Sample the next groups; begin a new round if the last one is over, and old enough."""
        if not self._waiting:
            now_ms = self._collector.clock.monotonic_ms()
            if now_ms - self._round_ms < ROUND_MS:
                return
            self._round_ms = now_ms
            names = await self._reader.names()
            self._reader.forget_others(names)
            self._waiting.extend(names)
        count = min(GROUPS_PER_POLL, len(self._waiting))
        await self._reader.stats([self._waiting.popleft() for _ in range(count)])
