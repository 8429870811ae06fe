"""``http://metricsListenAddress/metrics``: :mod:`.metrics` over HTTP. Imports aiohttp, and is
itself imported only where that address is set.
"""

from __future__ import annotations

from aiohttp import web

from rmqpy.broker.assembly.metrics import CONTENT_TYPE, metrics_text
from rmqpy.broker.assembly.server import BrokerServer


class MetricsPage:
    """Serves until it is closed. There is no access control: whoever reaches the port may read."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> str:
        """Raises OSError for a port that is in use; returns where it listens."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        listening, actual = self._runner.addresses[0][:2]
        return f"{listening}:{actual}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = metrics_text(self._broker).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
