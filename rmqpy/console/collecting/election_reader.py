"""The election records of a group's members."""

from __future__ import annotations

import asyncio
from typing import Final

from rmqpy.admin.elections import SeenEvent, events_of
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.model.errors import RmqError
from rmqpy.remoting.fastjson import loads

__all__ = ["ElectionReader"]

FRESH_MS: Final = 4_000


class ElectionReader:
    """Reads records through the collector's connections; all viewers share the answers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._shared = SharedAnswers(collector.clock)

    async def events(self, name: str) -> list[SeenEvent]:
        """Return what the members of a group have recorded. A member of Java's has no record."""
        members = [
            each.address
            for each in self._collector.moment.of_name(name)
            if each.status is not None and not each.fault
        ]
        found = await asyncio.gather(*(self._of(address) for address in members))
        return [event for events in found for event in events]

    async def _of(self, address: str) -> list[SeenEvent]:
        async def ask() -> list[SeenEvent]:
            try:
                return events_of(loads(await self._collector.admin.elections(address)))
            except RmqError:
                return []

        return await self._shared.get(address, FRESH_MS, ask)
