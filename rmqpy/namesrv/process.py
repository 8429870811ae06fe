"""The name server as a process, or as a part of another process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attrs import define

from rmqpy.config.loading import LoadedNamesrvConfiguration, NamesrvConfiguration
from rmqpy.namesrv.server import NameServer
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.garbage import QuietCollection
from rmqpy.net.loop import AsyncioScheduler, run, stop_on_signals
from rmqpy.net.probes import open_status_pages
from rmqpy.net.server.server import ListenerSecurity, RemotingServer
from rmqpy.net.service_manager import announced
from rmqpy.net.tls import tls_of
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from rmqpy.net.status_pages import StatusPages

logger = logging.getLogger(__name__)


def run_namesrv(loaded: LoadedNamesrvConfiguration) -> None:
    """Run a name server until SIGTERM or SIGINT. Raises RmqError or OSError if it cannot start."""
    for note in loaded.notes:
        logger.warning("%s", note)
    run(lambda scheduler: _run_until_stopped(loaded, scheduler))


async def _run_until_stopped(
    loaded: LoadedNamesrvConfiguration, scheduler: AsyncioScheduler
) -> None:
    stopped = stop_on_signals()
    process = NamesrvProcess(loaded.configuration, scheduler, loaded.unknown)
    await process.start()
    print(f"ready: namesrv {process.address}", flush=True)
    collection = QuietCollection(scheduler, process.turn_number)
    collection.start()
    try:
        with announced(f"name server at {process.address}"):
            await stopped.wait()
    finally:
        collection.stop()
        await process.stop()


@define(eq=False, repr=False)
class NamesrvProbes:
    """The state of a name server for :mod:`rmqpy.net.probes`. It has no store: if it answers, a
    restart would not help.
    """

    state: str = "starting"

    def unhealthy(self) -> list[str]:
        return []

    def not_ready(self) -> list[str]:
        return [self.state] if self.state else []


class NamesrvProcess:
    """A running name server. :meth:`start` sets ``address``."""

    def __init__(
        self,
        configuration: NamesrvConfiguration,
        scheduler: AsyncioScheduler,
        unknown: dict[str, str] | None = None,
    ) -> None:
        self._configuration = configuration
        self.name_server = NameServer(configuration, scheduler, OsFileSystem(), unknown or {})
        limits = ConnectionLimits.from_settings(configuration.server)
        security = ListenerSecurity(tls_of(configuration.security).server)
        self._server = RemotingServer(self.name_server, scheduler, limits, security)
        self._probes = NamesrvProbes()
        self._pages: StatusPages | None = None
        self.address = ""

    def turn_number(self) -> int:
        """Return a number that changes when requests are handled."""
        return self._server.turns.number

    async def start(self) -> None:
        """Load the settings and listen. Raises StoreError if settings on disk cannot be read, and
        ConfigError if an access file is invalid or the port is not available.
        """
        where = self._configuration.server.metrics_listen_address
        self._pages = await open_status_pages(where, self._probes, metrics=False)
        try:
            self.name_server.start()
            host, port = await self._server.listen(
                self._configuration.bind_address, self._configuration.server.listen_port
            )
        except BaseException:
            self.name_server.stop()
            await self._close_pages()
            raise
        self._probes.state = ""
        self.address = f"{host}:{port}"
        logger.info("name server listens on %s", self.address)

    async def kill(self) -> None:
        """End as after kill -9: connections are closed without the replies that wait for them."""
        self.name_server.stop()
        self._server.abort_connections()
        await self.stop()

    async def stop(self) -> None:
        self._probes.state = "stopping"
        self.name_server.stop()
        await self._server.close()
        await self._close_pages()
        logger.info("name server stopped")

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.close()
