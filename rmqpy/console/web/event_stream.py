"""Server-sent events: a tick after each poll, upon which pages request their live part again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from aiohttp import web
from attrs import define, field

from rmqpy.console.collecting.collector import Collector
from rmqpy.console.web.guard import HEADERS, SEND_SECONDS
from rmqpy.net.bounded_http import expect

__all__ = ["EventStream", "send_events"]

STREAMS_MAX: Final = 128


@define(slots=True)
class EventStream:
    """``/events``."""

    collector: Collector
    _open_count: int = field(default=0, init=False)

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/events", self.events)]

    async def events(self, request: web.Request) -> web.StreamResponse:
        return await self.send(request, self._ticks())

    async def send(
        self, request: web.Request, events: AsyncIterator[tuple[str, str]]
    ) -> web.StreamResponse:
        """Send events to a page, unless too many pages receive events already."""
        if self._open_count >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(
                text=f"found {STREAMS_MAX} pages with live data, expected fewer; close some"
            )
        self._open_count += 1
        try:
            return await send_events(request, events)
        finally:
            self._open_count -= 1

    async def _ticks(self) -> AsyncIterator[tuple[str, str]]:
        while True:
            await self.collector.changed()
            yield "tick", str(self.collector.moment.time_ms)


async def send_events(
    request: web.Request, events: AsyncIterator[tuple[str, str]]
) -> web.StreamResponse:
    """Send events, each a name and its data, until they or the connection end.

    A client that takes too long to read one is disconnected.
    """
    response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store"})
    response.content_type = "text/event-stream"
    response.force_close()
    await response.prepare(request)
    try:
        async for name, data in events:
            expect(request, SEND_SECONDS)
            lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
            await response.write(f"event: {name}\n{lines}\n".encode())
            expect(request, None)
    except (ConnectionResetError, asyncio.CancelledError):
        pass
    return response
