"""The remoting server: listening sockets, and one handler for the frames of all connections.

Several ports (a broker's main and fast port) share a server, a handler and a turn; the
``local_port`` of a channel distinguishes them.

Invariants: ``channel_closed`` of the handler is called exactly once for every channel whose frames
the handler has received or could have received; a connection beyond ``limits.max_connections``
never reaches the handler.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import define

from rmqpy.config.security import TlsMode
from rmqpy.model.errors import ConfigError, RemoteProtocolError
from rmqpy.net.connection import (
    ConnectionLimits,
    LoopTurns,
    RemotingConnection,
    ServedConnection,
    wait_for_aborted,
)
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.listener import open_sockets, watches_descriptors
from rmqpy.net.server.stall_detector import StallDetector
from rmqpy.net.tls import ServerTls, TlsContext, TlsSniffer, adopt
from rmqpy.remoting.channel import Channel, RequestHandler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame_decoder import FrameDecoder

logger = logging.getLogger(__name__)

LOG_PERIOD_MS = 60_000
"""The interval in ms at which a full server logs the number of rejected connections."""
FAULTS_LOGGED_MAX = 10
"""The number of protocol errors that are logged in that interval; all are counted."""
LISTEN_PORT = "listenPort (a broker also takes the port 2 below) or bindAddress"
"""The setting that an operator can change if a port of the server is not available."""


class Listener(Protocol):
    """The listening sockets that ``listen`` opens. ``asyncio.Server`` implements it."""

    @property
    def sockets(self) -> Sequence[Any]: ...

    def close(self) -> None: ...


def allow_all(_address: str) -> bool:
    """Return True, so that no address is rejected."""
    return True


@define(slots=True, eq=False, repr=False)
class ServerCounts:
    """Counters since the start, for runtime info and tests."""

    accepted: int = 0
    turned_away: int = 0
    refused: int = 0
    """The number of connections that were refused because of their address, or because they are
    plain where TLS is required.
    """
    faults: int = 0
    overdue: int = 0


def listen_fault(host: str, port: int, error: OSError, setting: str) -> ConfigError:
    """Return the error of a failed listen. Its reason is the text of the errno, not the loop's."""
    number = error.errno or 0
    reason = os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
    return ConfigError(
        f"cannot listen on {host}:{port}: {reason};"
        f" stop the process that uses the port, or change {setting}"
    )


class OverloadFilter(Protocol):
    """A filter that answers requests that have waited too long in place of the handler."""

    @property
    def patience_ms(self) -> int:
        """The waiting time in ms below which all requests are handled."""
        ...

    def sift(
        self, channel: Channel, commands: Sequence[RemotingCommand], waited_ms: int
    ) -> list[RemotingCommand]:
        """Answer the requests that have waited too long, and return the others."""
        ...


@define(slots=True, frozen=True, eq=False, repr=False)
class ListenerSecurity:
    """The admission rules of a listener: the addresses that it ``allows``, and its TLS. Without
    ``tls`` it accepts only plain connections.
    """

    tls: ServerTls | None = None
    allows: Callable[[str], bool] = allow_all


class RemotingServer:
    """A remoting server. Await ``listen`` once or more, and ``close`` at the end."""

    def __init__(
        self,
        handler: RequestHandler,
        scheduler: AsyncioScheduler,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - a frozen value
        security: ListenerSecurity = ListenerSecurity(),  # noqa: B008 - a frozen value
    ) -> None:
        self.limits = limits
        self.turns = LoopTurns(scheduler, handler.turn_ended, limits.read_bytes)
        self.counts = ServerCounts()
        self.sieve: OverloadFilter | None = None
        self._watch: StallDetector | None = None
        self.own_sockets = security.tls is not None or watches_descriptors(scheduler.loop)
        """True if this server accepts connections itself, False if asyncio does: uvloop accepts one
        in each turn, so that a new client would wait behind many others.
        """
        self._security = security
        self._undecided: set[TlsSniffer] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._handler = handler
        self._scheduler = scheduler
        self._listening: list[Listener] = []
        self._connections: set[RemotingConnection] = set()
        self._turned_away: set[RemotingConnection] = set()
        self._all_gone = asyncio.Event()
        self._full_logged_ms: int | None = None
        self._faults_since_ms = 0
        self._faults_in_period = 0
        self._closing = False
        self._sweep_timer: asyncio.TimerHandle | None = None

    def set_overload_filter(self, sieve: OverloadFilter, watch: StallDetector) -> None:
        """Pass requests and their waiting times to ``sieve``. Call before ``listen``.

        ``watch`` stops when the first of its servers closes.
        """
        self.sieve, self._watch = sieve, watch
        watch.add(self.turns, lambda: self._connections)

    async def listen(self, host: str, port: int, setting: str = LISTEN_PORT) -> tuple[str, int]:
        """Listen on ``host`` (an address or name) and ``port`` (0 for any free port).

        Returns the actual address. If it is not available, raises a ConfigError that recommends
        changing ``setting``.
        """
        assert not self._closing
        try:
            server = await self.open_listener(host, port)
        except OSError as error:
            raise listen_fault(host, port, error, setting) from error
        self._listening.append(server)
        if self._watch is not None:
            self._watch.start()
        if self._sweep_timer is None:
            self._plan_sweep()
        return _address(server.sockets[0].getsockname())

    async def open_listener(self, host: str, port: int) -> Listener:
        """Open listening sockets whose connections this server handles."""
        if self.own_sockets:
            return await open_sockets(
                self._scheduler.loop, (host, port), self.limits.backlog, self._accepted
            )
        return await self._scheduler.loop.create_server(
            self._connection, host, port, backlog=self.limits.backlog, reuse_address=True
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """All pairs of address and port on which the server listens."""
        return [
            _address(each.getsockname()) for server in self._listening for each in server.sockets
        ]

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Stop accepting, flush queued replies for up to ``limits.linger_ms``, and close all
        connections.
        """
        self._closing = True
        for server in self._listening:
            server.close()
        for undecided in list(self._undecided):
            undecided.close()
        self._undecided.clear()
        for task in list(self._handshakes):
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        self._all_gone.clear()
        if self._connections:
            try:
                async with asyncio.timeout(self.limits.linger_ms / 1000):
                    await self._all_gone.wait()
            except TimeoutError:
                logger.warning(
                    "aborting %d connections whose peers did not read the last bytes",
                    len(self._connections),
                )
                self.abort_connections()
                await wait_for_aborted(self._all_gone, self._connections)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._watch is not None:
            self._watch.stop()

    def abort_connections(self) -> None:
        """Close all connections immediately; queued replies are dropped."""
        for connection in list(self._connections):
            connection.abort()

    def sweep(self) -> None:
        """Close idle, overdue and dead connections. A timer calls it every ``limits.sweep_ms``."""
        now_ms = self._scheduler.monotonic_ms()
        for undecided in list(self._undecided):
            if now_ms - undecided.since_ms >= self.limits.idle_close_ms:
                self.counts.overdue += 1
                undecided.close()
                self._undecided.discard(undecided)
        for connection in list(self._connections):
            reason = connection.overdue(now_ms)
            if reason is not None:
                self.counts.overdue += 1
                logger.info("closing %s:%d: %s", *connection.peer, reason)
                connection.abort()

    # -- ConnectionOwner

    def connected(self, connection: RemotingConnection) -> None:
        if self._closing or len(self._connections) >= self.limits.max_connections:
            self._turn_away(connection)
            return
        if not self._security.allows(connection.peer[0]):
            self.counts.refused += 1
            self._turned_away.add(connection)
            connection.abort()
            return
        self.counts.accepted += 1
        self._connections.add(connection)

    def received(self, connection: RemotingConnection, commands: list[RemotingCommand]) -> None:
        self.turns.handled()
        try:
            if connection.waited_ms and self.sieve is not None:
                commands = self.sieve.sift(connection, commands, connection.waited_ms)
            rest = self._handler.handle(connection, commands)
            if rest:
                connection.postpone(rest)
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self._scheduler.failure_log.report("the request handler", error)
            connection.close()

    def faulted(self, connection: RemotingConnection, fault: RemoteProtocolError) -> None:
        self.counts.faults += 1
        now_ms = self._scheduler.monotonic_ms()
        if now_ms - self._faults_since_ms >= LOG_PERIOD_MS:
            self._faults_since_ms, self._faults_in_period = now_ms, 0
        self._faults_in_period += 1
        if self._faults_in_period <= FAULTS_LOGGED_MAX:
            logger.warning("closing %s:%d: %s", *connection.peer, fault)
        if self._faults_in_period == FAULTS_LOGGED_MAX:
            logger.warning(
                "%d protocol errors since the start; more are only counted for at most %d s",
                self.counts.faults,
                LOG_PERIOD_MS // 1000,
            )

    def lost(self, connection: RemotingConnection) -> None:
        if connection in self._turned_away:
            self._turned_away.discard(connection)
            return
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()
        try:
            self._handler.channel_closed(connection)
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self._scheduler.failure_log.report("the handler's channel_closed", error)

    # -- sockets that this server accepts

    def take_plain(self, sock: socket.socket) -> None:
        """Handle an accepted connection without TLS."""
        self._adopt(sock, self._connection, None)

    def tls_connection(self) -> RemotingConnection:
        """Return a new connection for a TLS transport."""
        return self._connection()

    def _accepted(self, sock: socket.socket) -> None:
        if self._security.tls is None:
            self.take_plain(sock)
        elif self._busy >= self.limits.max_connections:
            self.counts.turned_away += 1
            sock.close()
        else:
            now_ms = self._scheduler.monotonic_ms()
            undecided = TlsSniffer(
                sock, now_ms, self._scheduler.loop, self._decided, self._undecided.discard
            )
            self._undecided.add(undecided)
            undecided.start()

    @property
    def _busy(self) -> int:
        return len(self._connections) + len(self._undecided) + len(self._handshakes)

    def _decided(self, undecided: TlsSniffer, is_tls: bool) -> None:
        self._undecided.discard(undecided)
        tls = self._security.tls
        assert tls is not None
        if is_tls:
            self._adopt(undecided.sock, self.tls_connection, tls.context)
        elif tls.mode is TlsMode.ENFORCING:
            self.counts.refused += 1
            undecided.sock.close()
        else:
            self.take_plain(undecided.sock)

    def _adopt(
        self, sock: socket.socket, factory: Callable[[], RemotingConnection], tls: TlsContext | None
    ) -> None:
        async def attach() -> None:
            connection = factory()
            if not await adopt(lambda: connection, sock, tls):
                self.counts.faults += 1
                if not connection.opened:
                    self.lost(connection)

        task = self._scheduler.loop.create_task(attach())
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    # -- internal

    def _connection(self) -> RemotingConnection:
        receiver = FrameDecoder(self.limits.max_frame)
        if self.sieve is None:
            return RemotingConnection(self, self.turns, receiver)
        return ServedConnection(self, self.turns, receiver)

    def _turn_away(self, connection: RemotingConnection) -> None:
        self.counts.turned_away += 1
        self._turned_away.add(connection)
        connection.abort()
        now_ms = self._scheduler.monotonic_ms()
        if self._full_logged_ms is None or now_ms - self._full_logged_ms >= LOG_PERIOD_MS:
            self._full_logged_ms = now_ms
            logger.warning(
                "the limit of %d connections is reached: rejected %s:%d, %d since the start",
                len(self._connections),
                *connection.peer,
                self.counts.turned_away,
            )

    def _plan_sweep(self) -> None:
        def sweep_again() -> None:
            self._plan_sweep()
            self.sweep()

        self._sweep_timer = self._scheduler.call_later(self.limits.sweep_ms, sweep_again)


def _address(sockname: tuple[str, int]) -> tuple[str, int]:
    return (sockname[0], sockname[1])
