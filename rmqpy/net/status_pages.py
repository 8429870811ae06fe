"""The pages of a server for other programs, as plain text over HTTP, without access control.

=============  ===================================================================================
``/health``    200, or 503 and the reasons why the process should be started again
``/ready``     200, or 503 and the reasons why clients should not be sent here
``/metrics``   the series for Prometheus; 503 before there are any, 404 on a server without series
=============  ===================================================================================

All of them are answered by the loop that serves the clients: no answer in time means that the loop
is blocked. The answers of the first two are computed from what is known, without I/O except one
``statvfs``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web
from attrs import define, field

from rmqpy.net.bounded_http import bounded_server

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CONNECTIONS_MAX: Final = 64
"""Of monitoring systems and health checks; more are closed."""

ProbeReasons = Callable[[], Sequence[str]]
"""Returns the reasons for the answer no; none if the answer is yes."""


@define(eq=False, repr=False)
class StatusPages:
    """The pages. ``metrics`` makes the page of that name once it is set."""

    unhealthy: ProbeReasons
    not_ready: ProbeReasons
    has_metrics: bool
    metrics: Callable[[], Awaitable[bytes]] | None = field(default=None, init=False)
    _runner: web.AppRunner | None = field(default=None, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)

    async def listen(self, host: str, port: int) -> str:
        """Serve the pages and return the address that is listened on. Raises OSError if the port
        is in use.
        """
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get("/ready", self._ready)
        if self.has_metrics:
            application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            self._server = await bounded_server(self._runner, (host, port), None, CONNECTIONS_MAX)
        except BaseException:
            await self._runner.cleanup()
            raise
        listening, actual = self._server.sockets[0].getsockname()[:2]
        return f"{listening}:{actual}"

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        return _answer("healthy", self.unhealthy())

    async def _ready(self, _request: web.Request) -> web.Response:
        return _answer("ready", self.not_ready())

    async def _metrics(self, _request: web.Request) -> web.Response:
        if self.metrics is None:
            return web.Response(text="starting\n", status=503)
        return web.Response(body=await self.metrics(), headers={"Content-Type": METRICS_TYPE})


def _answer(word: str, reasons: Sequence[str]) -> web.Response:
    lines = [f"not {word}: {reason}" for reason in reasons] or [word]
    return web.Response(text="\n".join(lines) + "\n", status=503 if reasons else 200)
