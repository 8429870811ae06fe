"""Outgoing requests: one connection per address, answers matched by opaque.

States of a link::

    state       request does            leaves by
    (none)      opens one: connecting   -
    connecting  queues its frame        connected -> open; failure or timeout -> none, all fail
    open        writes its frame        closed by either side -> none, all pending requests fail

Invariants: ``done`` is called exactly once for every request, never during ``request``; an answer
counts only on the link on which the request was sent; at most ``limits.pending_requests`` requests
are pending.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, field

from rmqpy.config.loading import RemotingSettings
from rmqpy.model.errors import (
    ConnectFailedError,
    ConnectionLostError,
    NetworkError,
    RemoteProtocolError,
    RequestRejectedError,
    RequestTimeoutError,
    RmqError,
)
from rmqpy.model.values import define
from rmqpy.net.connection import (
    ConnectionLimits,
    LoopTurns,
    RemotingConnection,
    wait_for_aborted,
)
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.tls import TlsContext
from rmqpy.remoting.channel import Reply, RequestHandler
from rmqpy.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rmqpy.remoting.frame import encode_head
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.known_headers import KnownHeaders
from rmqpy.remoting.request_template import Request, TemplatedRequest, command_of

if TYPE_CHECKING:
    from rmqpy.acl.signature import Credentials

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class ClientLimits:
    """The limits of a client: ``pending_requests`` limits the response table, ``links`` the number
    of connections.

    With ``close_socket_if_timeout``, an ``invoke`` that times out closes its connection (Java
    ``com.rocketmq.remoting.client.closeSocketIfTimeout``); a callback request closes it only if
    nothing has been received since the request was sent.
    """

    connect_timeout_ms: int = 3_000
    pending_requests: int = 65_535
    links: int = 4_096
    close_socket_if_timeout: bool = True
    connection: ConnectionLimits = ConnectionLimits()

    @classmethod
    def from_settings(cls, settings: RemotingSettings) -> ClientLimits:
        """Return the limits of outgoing connections from the settings of a broker."""
        idle_close_ms = settings.client_channel_max_idle_time_seconds * 1000
        return cls(
            connect_timeout_ms=settings.connect_timeout_millis,
            close_socket_if_timeout=settings.client_close_socket_if_timeout,
            connection=ConnectionLimits(idle_close_ms=idle_close_ms),
        )


@define(slots=True, eq=False, repr=False)
class OutgoingConnection(RemotingConnection):
    """A connection to a server. It reads even while the server does not: a server may wait until
    its replies are read before it reads on.
    """

    drained: asyncio.Event = field(factory=asyncio.Event)
    """Set when ``congested`` ends."""

    def pause_writing(self) -> None:
        self.drained.clear()
        super().pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.drained.set()

    def use_budget(self, nbytes: int) -> None:
        """Count a read that fills the buffer. After any other, a loop does not read from this
        connection again in the same turn, and nothing of it is left to hold back.
        """
        if nbytes == len(self.turns.buffer):
            super().use_budget(nbytes)

    def _may_read(self) -> bool:
        return not self._budget_used


@define(slots=True, eq=False, repr=False)
class ServerLink:
    """The connection to one address, open or connecting."""

    address: str
    connection: OutgoingConnection | None = None
    waiting: list[bytes] = field(factory=list)
    pending: dict[int, Pending] = field(factory=dict)
    watch: asyncio.TimerHandle | None = None
    """The timer that fires at ``watch_ms`` and fails overdue requests; there is one for all of
    them.
    """

    watch_ms: int = 0
    one_by_one: bool = False
    """True if the last answer came alone, when no other request was pending. The next request then
    does not wait for others of its turn.
    """


@define(slots=True, eq=False, repr=False)
class Pending(ABC):
    """A request without an answer."""

    timeout_ms: int
    close_on_timeout: bool
    sent_ms: int = 0

    @property
    def deadline_ms(self) -> int:
        return self.sent_ms + self.timeout_ms

    @abstractmethod
    def done(self, response: RemotingCommand | None, fault: RmqError | None) -> None:
        """Pass on the response, or why there is none; called once."""


@define(slots=True, eq=False, repr=False)
class _CallbackRequest(Pending):
    callback: Reply = field(kw_only=True)

    def done(self, response: RemotingCommand | None, fault: RmqError | None) -> None:
        self.callback(response, fault)


@define(slots=True, eq=False, repr=False)
class _AwaitedRequest(Pending):
    """A request whose response one task awaits: at once, later, or never.

    A response resumes the task at once, within the read that completes it. A Future of asyncio
    resumes it in the next turn of the loop, after another poll of all sockets, which costs as much
    as all else that the client does to receive a response.
    """

    _loop: asyncio.AbstractEventLoop = field(kw_only=True)
    _asyncio_future_blocking: bool = field(default=False, init=False)
    """Marks the class as compatible with a Future of asyncio, and an object as awaited."""
    _wake: Callable[[Any], object] | None = field(default=None, init=False)
    _context: Context | None = field(default=None, init=False)
    _response: RemotingCommand | None = field(default=None, init=False)
    _fault: BaseException | None = field(default=None, init=False)

    def done(self, response: RemotingCommand | None, fault: RmqError | None) -> None:
        wake = self._wake
        if wake is None:
            if self._fault is None:  # It is not awaited yet. Otherwise its task was cancelled.
                self._response, self._fault = response, fault
            return
        self._response, self._fault = response, fault
        if fault is not None:
            self._wake_later()
            return
        self._wake = None
        assert self._context is not None
        try:
            self._context.run(wake, self)
        except RuntimeError:  # Another task runs: nothing of this one has run yet.
            self._loop.call_soon(wake, self, context=self._context)
        except (SystemExit, KeyboardInterrupt) as stop:
            # It is for the loop: uvloop would treat it as an error of the connection that reads.
            self._loop.call_soon(_raise, stop)

    # -- the protocol of asyncio.Future, as far as a task uses it

    def __await__(self) -> Generator[Any, None, RemotingCommand]:
        if self._response is None and self._fault is None:
            self._asyncio_future_blocking = True
            yield self
        response = self.result()
        assert response is not None
        return response

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context) -> None:
        self._wake, self._context = wake, context

    def cancel(self, msg: object = None) -> bool:
        if self._wake is None:
            return False
        self._fault = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._wake_later()
        return True

    def result(self) -> RemotingCommand | None:
        fault, self._fault = self._fault, None
        if fault is None:
            return self._response
        try:
            raise fault
        finally:
            del fault  # Its traceback refers to this frame.

    def _wake_later(self) -> None:
        assert self._wake is not None
        self._loop.call_soon(self._wake, self, context=self._context)
        self._wake = None


def _raise(stop: BaseException) -> None:
    raise stop


class RemotingClient:
    """The implementation of ``remoting.channel.Network``, with coroutines for the same operations.

    ``handler`` receives the requests that peers send on these connections.
    """

    def __init__(
        self,
        scheduler: AsyncioScheduler,
        limits: ClientLimits = ClientLimits(),  # noqa: B008 - a frozen value
        credentials: Credentials | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self.handler: RequestHandler | None = None
        self.credentials = credentials
        """The credentials that sign every request; None means that requests are not signed."""
        self._tls = tls
        self.limits = limits.connection
        self.turns = LoopTurns(scheduler, self._turn_ended)
        self.faults = 0
        self._scheduler = scheduler
        self._client_limits = limits
        self._links: dict[str, ServerLink] = {}
        self._by_connection: dict[RemotingConnection, ServerLink] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._opaque = -1
        self._closing = False
        self._all_gone = asyncio.Event()
        self._sweep_timer: asyncio.TimerHandle | None = None

    # -- Network

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        self._request(address, command, pieces, _CallbackRequest(timeout_ms, False, callback=done))

    def oneway(self, address: str, command: RemotingCommand) -> None:
        try:
            link, frame = self._link(address), self._frame(command, FLAG_ONEWAY, ())
            self._send(link, frame, self._scheduler.monotonic_ms())
        except (NetworkError, RequestRejectedError) as fault:
            logger.warning("oneway request %d to %s: %s", command.code, address, fault)

    # -- the same for coroutines

    async def invoke(
        self, address: str, request: Request, timeout_ms: int = 3_000
    ) -> RemotingCommand:
        """Return the response, which may have any code. A server that does not read is waited for.
        Raises NetworkError.
        """
        link = self._links.get(address)
        connection = link.connection if link is not None else None
        if connection is not None and self._is_behind(connection):
            timeout_ms = await self._drained(address, connection, timeout_ms)
        return await self._awaited(address, request, timeout_ms)

    def invoke_ahead(
        self, address: str, request: Request, timeout_ms: int
    ) -> Awaitable[RemotingCommand] | None:
        """Send a request whose response may be awaited later, once, or never. Return None, and send
        nothing, without an open connection whose server reads.
        """
        connection = self._open_connection(address)
        if connection is None or self._is_behind(connection):
            return None
        return self._awaited(address, request, timeout_ms)

    async def invoke_oneway(self, address: str, request: Request, timeout_ms: int = 3_000) -> None:
        """Send like ``oneway``, but return once the frame is queued on a connection. A server that
        does not read is waited for. Raises NetworkError.
        """
        link = self._link(address)
        if link.connection is None:
            await self._connected(link)
        elif self._is_behind(link.connection):
            await self._drained(address, link.connection, timeout_ms)
            link = self._link(address)
        frame = self._frame(request, FLAG_ONEWAY, ())
        self._send(link, frame, self._scheduler.monotonic_ms())

    async def close(self) -> None:
        """Fail pending requests, flush queued frames and close all connections."""
        self._closing = True
        for task in list(self._connecting):
            task.cancel()
        for link in list(self._links.values()):
            self._drop(link, NetworkError(f"the request to {link.address} was aborted: closing"))
        self._all_gone.clear()
        if self._by_connection:
            try:
                async with asyncio.timeout(self.limits.linger_ms / 1000):
                    await self._all_gone.wait()
            except TimeoutError:
                for connection in list(self._by_connection):
                    connection.abort()
                await wait_for_aborted(self._all_gone, self._by_connection)
        if self._connecting:
            await asyncio.wait(self._connecting)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    @property
    def pending(self) -> int:
        return self._pending

    def is_open(self, address: str) -> bool:
        """Return whether a request to ``address`` would use a connection that is open already."""
        return self._open_connection(address) is not None

    def is_congested(self, address: str) -> bool:
        """Return whether requests to ``address`` wait until the server has read earlier ones."""
        connection = self._open_connection(address)
        return connection is not None and self._is_behind(connection)

    @property
    def connected_addresses(self) -> list[str]:
        return [link.address for link in self._links.values() if link.connection is not None]

    def sweep(self) -> None:
        """Close idle and dead connections. A timer calls it every ``limits.sweep_ms``."""
        now_ms = self._scheduler.monotonic_ms()
        # Connecting has a limit of its own.
        for connection in [each for each in self._by_connection if each.opened]:
            reason = connection.overdue(now_ms)
            if reason is not None:
                logger.info("closing %s:%d: %s", *connection.peer, reason)
                connection.abort()

    # -- ConnectionOwner

    def connected(self, connection: RemotingConnection) -> None:
        if self._sweep_timer is None:
            self._plan_sweep()
        link = self._by_connection.get(connection)  # None: abandoned at the last moment
        assert isinstance(connection, OutgoingConnection)
        if link is None or self._closing or self._links.get(link.address) is not link:
            connection.abort()
            return
        link.connection = connection
        waiting, link.waiting = link.waiting, []
        for frame in waiting:
            connection.write(frame)

    def received(self, connection: RemotingConnection, commands: list[RemotingCommand]) -> None:
        requests: list[RemotingCommand] = []
        link = self._by_connection[connection]
        link.one_by_one = len(commands) == 1 == len(link.pending)
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                pending = link.pending.pop(command.opaque, None)
                if pending is not None:
                    self._finish(pending, command, None)
                else:
                    logger.info(
                        "ignored a response of %s:%d to no request, opaque %d",
                        *connection.peer,
                        command.opaque,
                    )
            else:
                requests.append(command)
        if requests:
            self._serve(connection, requests)

    def faulted(self, connection: RemotingConnection, fault: RemoteProtocolError) -> None:
        self.faults += 1
        logger.warning("closing %s:%d: %s", *connection.peer, fault)

    def lost(self, connection: RemotingConnection) -> None:
        link = self._by_connection.pop(connection, None)
        if not self._by_connection:
            self._all_gone.set()
        if link is None:
            return
        self._fail(link, ConnectionLostError(f"the connection to {link.address} was closed"))
        if self.handler is not None and connection.opened:
            self.handler.channel_closed(connection)

    # -- requests and answers

    def _awaited(self, address: str, request: Request, timeout_ms: int) -> _AwaitedRequest:
        pending = _AwaitedRequest(
            timeout_ms,
            self._client_limits.close_socket_if_timeout,
            loop=self._scheduler.loop,
        )
        self._request(address, request, (), pending)
        return pending

    def _request(
        self, address: str, request: Request, pieces: Sequence[bytes], pending: Pending
    ) -> None:
        try:
            if self._pending >= self._client_limits.pending_requests:
                raise NetworkError(
                    f"request to {address}: the limit of {self._pending} pending requests is"
                    " reached"
                )
            frame = self._frame(request, 0, pieces)
            opaque = self._opaque
            link = self._link(address)
            pending.sent_ms = now_ms = self._scheduler.monotonic_ms()
            self._send(link, frame, now_ms, at_once=link.one_by_one and not link.pending)
        except (NetworkError, RequestRejectedError) as error:
            fault = error
            self._scheduler.call_soon(lambda: pending.done(None, fault))
            return
        assert opaque not in link.pending, opaque
        link.pending[opaque] = pending
        self._pending += 1
        if link.watch is None or now_ms + pending.timeout_ms < link.watch_ms:
            self._watch(link, pending.timeout_ms)

    def _frame(self, request: Request, flag: int, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Return the frame as one piece, or as its head and the pieces of its body."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        if isinstance(request, TemplatedRequest) and self.credentials is None:
            assert not pieces, "a templated request has its body"
            body = request.body
            return (request.template.head(request.values, len(body), self._opaque, flag) + body,)
        command = command_of(request)
        flag |= command.flag & ~(FLAG_RESPONSE | FLAG_ONEWAY)
        if self.credentials is not None:
            if pieces:  # the signature covers the whole body
                command, pieces = evolve(command, body=b"".join(pieces)), ()
            command = self.credentials.signed(command)
        if pieces:
            return (encode_head(command, sum(map(len, pieces)), self._opaque, flag), *pieces)
        body = command.body
        return (encode_head(command, len(body), self._opaque, flag) + body,)

    def _watch(self, link: ServerLink, delay_ms: int) -> None:
        """Schedule a check for overdue requests in ``delay_ms``."""
        if link.watch is not None:
            link.watch.cancel()
        link.watch_ms = self._scheduler.monotonic_ms() + delay_ms
        link.watch = self._scheduler.call_later(delay_ms, partial(self._expire_requests, link))

    def _expire_requests(self, link: ServerLink) -> None:
        link.watch = None
        now_ms = self._scheduler.monotonic_ms()
        late = [
            (each.deadline_ms, opaque)
            for opaque, each in link.pending.items()
            if each.deadline_ms <= now_ms
        ]
        for _deadline_ms, opaque in sorted(late):
            self._on_timeout(link, opaque)
        if link.pending and link.watch is None:
            next_ms = min(each.deadline_ms for each in link.pending.values())
            self._watch(link, max(1, next_ms - now_ms))

    def _on_timeout(self, link: ServerLink, opaque: int) -> None:
        pending = link.pending.pop(opaque, None)
        if pending is None:  # the link was dropped because of an earlier answer
            return
        connection = link.connection
        text = f"{link.address} did not answer within {pending.timeout_ms} ms"
        self._finish(pending, None, RequestTimeoutError(text))
        if connection is None or not self._client_limits.close_socket_if_timeout:
            return
        silent = connection.last_read_ms <= pending.sent_ms
        if pending.close_on_timeout or silent:
            lost = ConnectionLostError(f"the connection to {link.address} was closed: {text}")
            self._drop(link, lost)

    def _fail(self, link: ServerLink, fault: NetworkError) -> None:
        """Remove a closed link and fail every request that waits on it."""
        if self._links.get(link.address) is link:
            del self._links[link.address]
        pending, link.pending = link.pending, {}
        if link.watch is not None:
            link.watch.cancel()
            link.watch = None
        if link.waiting:
            logger.info("%d frames to %s were not sent: %s", len(link.waiting), link.address, fault)
            link.waiting = []
        for each in pending.values():
            self._finish(each, None, fault)

    def _drop(self, link: ServerLink, fault: NetworkError) -> None:
        """Close a link that may be open. Must not be called during ``request``, because it calls
        ``done`` immediately.
        """
        if link.connection is not None:
            link.connection.close()
        self._fail(link, fault)

    def _finish(
        self, pending: Pending, response: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        self._pending -= 1
        try:
            pending.done(response, fault)
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self._scheduler.failure_log.report("the callback of a request", error)

    # -- links

    def _link(self, address: str) -> ServerLink:
        """Return the link to ``address``, connecting or open."""
        if self._closing:
            raise NetworkError(f"request to {address}: the client is closed")
        link = self._links.get(address)
        if link is not None and link.connection is not None and link.connection.closed:
            link = None
        if link is not None:
            return link
        if len(self._links) >= self._client_limits.links:
            raise NetworkError(
                f"request to {address}: the limit of {len(self._links)} connections is reached"
            )
        host, port = parse_address(address)
        link = ServerLink(address)
        self._links[address] = link
        task = self._scheduler.loop.create_task(self._connect(link, host, port))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return link

    async def _connect(self, link: ServerLink, host: str, port: int) -> None:
        timeout_ms = self._client_limits.connect_timeout_ms
        receiver = FrameDecoder(self.limits.max_frame, KnownHeaders().decode_command)
        connection = OutgoingConnection(self, self.turns, receiver)
        self._by_connection[connection] = link
        usable = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._scheduler.loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=self._tls.current() if self._tls is not None else None,
                )
                usable = True
        except TimeoutError:
            late = f"connect to {link.address}: no answer within {timeout_ms} ms"
            self._fail(link, ConnectFailedError(late))
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be looked up
            reason = _reason(error)
            self._fail(link, ConnectFailedError(f"connect to {link.address}: {reason}"))
        finally:
            if not usable:  # the connection may be open; uvloop then never reports its end
                connection.abort()
                self.lost(connection)

    async def _connected(self, link: ServerLink) -> None:
        """Wait until the link is connected. Raises NetworkError if connecting has failed."""
        while link.connection is None:
            if self._links.get(link.address) is not link:
                raise ConnectFailedError(f"connect to {link.address} failed")
            await asyncio.wait(set(self._connecting), return_when=asyncio.FIRST_COMPLETED)

    def _open_connection(self, address: str) -> OutgoingConnection | None:
        link = self._links.get(address)
        if link is None or link.connection is None or link.connection.closed:
            return None
        return link.connection

    def _is_behind(self, connection: OutgoingConnection) -> bool:
        return connection.congested or connection.is_behind(self.limits.high_water)

    async def _drained(self, address: str, connection: OutgoingConnection, timeout_ms: int) -> int:
        """Wait until the server has read what waits for it, or the connection is closed. Return the
        time that is left, in ms. Raises NetworkError after ``timeout_ms``.
        """
        start_ms = self._scheduler.monotonic_ms()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not connection.closed and self._is_behind(connection):
                    if connection.congested:
                        await connection.drained.wait()
                    else:  # uvloop reports it at the end of its turn.
                        await asyncio.sleep(0)
        except TimeoutError:
            raise _unread(address, connection) from None
        return max(1, timeout_ms - (self._scheduler.monotonic_ms() - start_ms))

    def _send(
        self, link: ServerLink, frame: Sequence[bytes], now_ms: int, *, at_once: bool = False
    ) -> None:
        connection = link.connection
        if connection is not None:
            if at_once:
                connection.write_pieces(frame, now_ms)
                return
            if connection.is_behind(self.limits.high_water):
                raise _unread(link.address, connection)
            if len(frame) == 1:
                connection.write(frame[0])
            else:
                connection.write_pieces(frame, now_ms)
        elif len(link.waiting) < self._client_limits.pending_requests:
            link.waiting.append(b"".join(frame))
        else:
            raise NetworkError(
                f"request to {link.address}: not connected yet and too many requests are waiting"
            )

    def _serve(self, connection: RemotingConnection, requests: list[RemotingCommand]) -> None:
        if self.handler is None:
            logger.info(
                "ignored %d requests from %s:%d: no handler is set", len(requests), *connection.peer
            )
            return
        self.turns.handled()
        try:
            self.handler.handle(connection, requests)
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self._scheduler.failure_log.report("the handler of incoming requests", error)

    def _turn_ended(self) -> None:
        if self.handler is not None:
            self.handler.turn_ended()

    def _plan_sweep(self) -> None:
        def sweep_again() -> None:
            self._plan_sweep()
            self.sweep()

        self._sweep_timer = self._scheduler.call_later(self.limits.sweep_ms, sweep_again)


def _unread(address: str, connection: RemotingConnection) -> NetworkError:
    return NetworkError(
        f"request to {address}: it does not read, {connection.pending_bytes} bytes are waiting for"
        " it"
    )


def parse_address(address: str) -> tuple[str, int]:
    """Return ``host:port`` or ``[v6]:port`` as (host, port). Raises NetworkError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise NetworkError(f"{address!r} is not an address of the form host:port")
    return host, int(port)


def _reason(error: Exception) -> str:
    """Return why a connection could not be made, in the words of the system: asyncio's texts have
    the error number and a tuple in them.
    """
    if isinstance(error, ConnectionError) or type(error) is OSError:
        return os.strerror(error.errno) if error.errno else str(error)
    return str(error)
