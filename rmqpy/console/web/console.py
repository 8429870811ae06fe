"""The application: the routes of all screens, and the server around it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web
from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.migration_runner import MigrationRunner
from rmqpy.console.collecting.readers import ClusterReaders
from rmqpy.console.web.changes.changes import Changes
from rmqpy.console.web.changes.group_changes import GroupChangePages
from rmqpy.console.web.changes.leader_changes import LeaderChangePages
from rmqpy.console.web.changes.login_pages import LoginPages
from rmqpy.console.web.changes.migration_changes import MigrationChangePages
from rmqpy.console.web.changes.send_pages import SendPages
from rmqpy.console.web.event_stream import EventStream
from rmqpy.console.web.guard import Guard, Listening
from rmqpy.console.web.pages.entrance import EntrancePages
from rmqpy.console.web.pages.group_pages import GroupPages
from rmqpy.console.web.pages.map_pages import MapPages
from rmqpy.console.web.pages.migration_pages import MigrationPages
from rmqpy.console.web.pages.overview_pages import OverviewPages
from rmqpy.console.web.pages.replication_pages import ReplicationPages
from rmqpy.console.web.pages.topic_pages import TopicPages
from rmqpy.console.web.rendering import ASSETS, Renderer
from rmqpy.console.web.sessions import SessionTable
from rmqpy.model.clock import Clock
from rmqpy.model.names import TOOLS_GROUP
from rmqpy.net.bounded_http import bounded_server, url_of
from rmqpy.net.service_manager import announced

__all__ = ["ConsoleOptions", "application", "serve_console"]

CONNECTIONS_MAX: Final = 256
BODY_BYTES_MAX: Final = 6 << 20
"""A form with a test message of 4 MiB, with room for its encoding."""
ASSET_AGE_SECONDS: Final = 3600


class Screen(Protocol):
    """A group of pages."""

    def routes(self) -> Sequence[web.RouteDef]: ...


@define(slots=True, frozen=True, kw_only=True)
class ConsoleOptions:
    """What a console shows and who may do what with it."""

    cluster: ClientSettings
    listening: Listening
    allow_writes: bool = False
    group: Path | None = None
    """The folder of the ``group.toml`` of a migration that is shown."""


def application(readers: ClusterReaders, options: ConsoleOptions, clock: Clock) -> web.Application:
    """Return the application; the caller runs its readers."""
    collector, topics, groups = readers.collector, readers.topics, readers.groups
    listening = options.listening
    sessions = SessionTable(clock)
    render = Renderer(
        sessions,
        writes=options.allow_writes,
        secure=listening.certificate is not None,
        has_migration=options.group is not None,
    )
    guard = Guard(listening, sessions, render.refusal)
    runner = MigrationRunner(options.group, clock) if options.group is not None else None
    streams = EventStream(collector)
    screens: list[Screen] = [
        EntrancePages(guard, sessions, render),
        OverviewPages(collector, groups, readers.logs, render),
        streams,
        MapPages(collector, readers.logs, runner, render),
        TopicPages(topics, streams, render),
        GroupPages(groups, topics, render),
        ReplicationPages(collector, readers.elections, readers.controllers, render),
    ]
    if runner is not None:
        screens.append(MigrationPages(runner, clock, render))
    if options.allow_writes:
        changes = Changes(options.cluster, render)
        screens += [
            LoginPages(collector, options.cluster, sessions, render),
            SendPages(changes),
            GroupChangePages(groups, changes),
            LeaderChangePages(collector, changes),
        ]
        if runner is not None:
            screens.append(MigrationChangePages(runner, changes))
    app = web.Application(middlewares=[guard.middleware()], client_max_size=BODY_BYTES_MAX)
    app.router.add_static("/static/", ASSETS)
    for screen in screens:
        app.router.add_routes(screen.routes())
    return app


def serve_console(options: ConsoleOptions, ready: Callable[[str], None]) -> None:
    """Serve until interrupted or SIGTERM; call ``ready`` with the URL once the console listens."""
    options.listening.check()
    asyncio.run(_serve(options, ready))


async def _serve(options: ConsoleOptions, ready: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    instance = await ClientInstance.open(options.cluster)
    admin = Admin(instance, options.cluster.name_servers)
    collector = Collector(admin, instance.clock)
    listening, tls = options.listening, options.listening.tls()
    try:
        async with PullConsumer(TOOLS_GROUP, instance=instance) as consumer:
            readers = ClusterReaders.of(collector, consumer)
            async with readers.running():
                app = application(readers, options, instance.clock)
                runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
                await runner.setup()
                address = listening.host, listening.port
                server = await bounded_server(runner, address, tls, CONNECTIONS_MAX)
                url = url_of(server, is_tls=tls is not None)
                try:
                    ready(url)
                    with announced(f"console at {url}"):
                        await stopped.wait()
                finally:
                    server.close()
                    await runner.cleanup()
    finally:
        await instance.close()
