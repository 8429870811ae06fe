"""The sockets of classic replication: accepting slaves (:mod:`rmqpy.ha.link`), and connecting to a
master (:mod:`rmqpy.ha.follower`).

:class:`HaServer` streams the log to every slave and maintains the watermark ``replicated``: the
offset that as many slaves have reached as ``slaves_needed`` returns. Everybody can connect and
report, so only a connection of an address that belongs to the group is one of a slave; others may
receive the log, but what they report acknowledges nothing. :func:`dial` opens a connection to a
master; its caller decides when, and to which master.

Invariants: at most ``ROOM_BYTES`` wait for one slave, less if more slaves share
``ROOM_BYTES_ALL``; a loop turn sends all slaves together about ``turn_bytes``, and the rest in the
next turns, in the order in which they had their last turn; at most ``SLAVES_MAX`` connections are
open; ``ended`` of a dialled connection is called exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from attrs import field

from rmqpy.ha.follower import FollowerLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.ha.link import LinkSettings, LogRange, MasterLink
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.listener import open_sockets
from rmqpy.net.server.server import Listener, ListenerSecurity, allow_all, listen_fault
from rmqpy.net.tls import TlsContext, adopt
from rmqpy.store.files.watermark import Watermark

ROOM_BYTES: Final = 1 << 20
ROOM_BYTES_ALL: Final = 8 << 20
SLAVES_MAX: Final = 64
"""The maximum number of open connections. Housekeeping closes those that never report."""
TICK_MS: Final = 500
CONNECT_TIMEOUT_MS: Final = 5_000

logger = logging.getLogger(__name__)


class StreamedLog(Protocol):
    """The log that a master streams, up to ``confirm_offset``. ``written`` announces new bytes."""

    @property
    def written(self) -> Watermark: ...

    @property
    def min_offset(self) -> PhysicalOffset: ...

    @property
    def confirm_offset(self) -> PhysicalOffset: ...

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None: ...


@define(slots=True, frozen=True)
class SlaveView:
    """A slave as its master sees it. It has all bytes below ``acknowledged``, if it ``counts`` as
    one of the group.
    """

    address: str
    connected_ms: int
    acknowledged: int
    sent: int
    counts: bool = True


class HaServer:
    """The replication port of a master. Await ``listen`` once, and ``close`` at the end.

    ``knows`` returns whether an address belongs to a slave of the group; call ``count_again`` when
    its answers have changed. ``slaves_needed`` returns how many slaves must have an offset that
    ``replicated`` reaches; 0, if nobody waits, counts as one. ``turn_bytes`` limits what a loop
    turn reads from the log.
    """

    def __init__(
        self,
        log: StreamedLog,
        settings: LinkSettings,
        scheduler: AsyncioScheduler,
        security: ListenerSecurity = ListenerSecurity(),  # noqa: B008 - a frozen value
        knows: Callable[[str], bool] = allow_all,
        slaves_needed: Callable[[], int] = lambda: 1,
        turn_bytes: int = ROOM_BYTES_ALL,
    ) -> None:
        self.log = log
        self.knows = knows
        self.slaves_needed = slaves_needed
        self.turn_bytes = turn_bytes
        self.security = security
        self.settings = settings
        self.scheduler = scheduler
        self.replicated = Watermark("replicated")
        self.turned_away = 0
        self.last_refused = ""
        """The last connection that was closed because of an invalid report, and the reason."""
        self._server: Listener | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._slaves: set[_Slave] = set()
        self._due: dict[_Slave, None] = {}
        """The slaves that may have something to receive, in the order of their turns."""
        self._is_subscribed = False
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def slaves(self) -> list[SlaveView]:
        """The peers that have reported, sorted by address."""
        views = [slave.view for slave in self._slaves if slave.link.next_offset is not None]
        return sorted(views, key=lambda view: view.address)

    def count_at(self, offset: int) -> int:
        """Return how many slaves of the group have reported an end of their log of at least
        ``offset``.
        """
        count = 0
        for slave in self._slaves:
            if slave.counts and slave.link.next_offset is not None:
                count += (slave.link.acknowledged_offset or 0) >= offset
        return count

    @property
    def is_connected(self) -> bool:
        """True if a peer is connected, a slave of the group or not."""
        return bool(self._slaves)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on the address and return it. Raises ConfigError if it cannot be bound."""
        try:
            self._server = await self._open(host, port)
        except OSError as error:
            setting = "listenPort (the slaves' port is the one above)"
            raise listen_fault(host, port, error, setting) from error
        self._tick()
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def _open(self, host: str, port: int) -> Listener:
        loop = self.scheduler.loop
        if self.security.tls is None:
            return await loop.create_server(lambda: _Slave(self), host, port, reuse_address=True)
        return await open_sockets(loop, (host, port), SLAVES_MAX, self._accepted)

    def _accepted(self, sock: socket.socket) -> None:
        """Handle a connection on a port that accepts only TLS."""
        tls = self.security.tls
        assert tls is not None
        if len(self._handshakes) >= SLAVES_MAX:
            self.turned_away += 1
            sock.close()
            return

        async def attach() -> None:
            await adopt(lambda: _Slave(self), sock, tls.context)

        task = self.scheduler.loop.create_task(attach())
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def close(self) -> None:
        """Stop listening and disconnect all slaves, which then try to reconnect."""
        self.stop("this broker is stopping")

    def stop(self, reason: str) -> None:
        """Stop listening and disconnect all slaves, for the given reason."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._handshakes):
            task.cancel()
        self.disconnect(reason)

    def disconnect(self, reason: str) -> None:
        """Disconnect all slaves, which then look for their master again."""
        for slave in list(self._slaves):
            slave.abort(reason)

    @property
    def room_bytes(self) -> int:
        """The number of bytes that may wait for each slave."""
        return min(ROOM_BYTES, ROOM_BYTES_ALL // max(1, len(self._slaves)))

    def range(self) -> LogRange:
        return LogRange(self.log.min_offset, self.log.confirm_offset)

    def enter(self, slave: _Slave) -> bool:
        """Add a slave. Return False if there are too many."""
        if len(self._slaves) >= SLAVES_MAX or self._server is None:
            self.turned_away += 1
            return False
        for other in self._slaves:
            if other.host == slave.host:
                other.is_alive = False
        self._slaves.add(slave)
        if not self._is_subscribed:
            self._is_subscribed = True
            self.log.written.subscribe(self._grown)
        return True

    def count_again(self) -> None:
        """Let connections count that turn out to be those of slaves."""
        for slave in list(self._slaves):
            slave.count()
        self.acknowledge()

    def acknowledge(self) -> None:
        """Advance ``replicated`` to the offset that as many slaves have as are needed."""
        needed = self.slaves_needed() or 1
        offsets = [
            slave.link.acknowledged_offset or 0
            for slave in self._slaves
            if slave.counts and (slave.is_alive or needed == 1)
        ]
        offsets.sort()
        if len(offsets) >= needed:
            self.replicated.advance(offsets[-needed])

    def note_refused(self, address: str, reason: str) -> None:
        """Record that a connection is closed because of an invalid report."""
        self.last_refused = f"{address}: {reason}"

    def leave(self, slave: _Slave) -> None:
        self._slaves.discard(slave)
        self._due.pop(slave, None)
        self.acknowledge()

    def plan(self, slaves: Iterable[_Slave]) -> None:
        """Continue with these slaves in the next loop turns."""
        self._due.update(dict.fromkeys(slaves))
        if self._due and not self._planned:
            self._planned = True
            self.scheduler.call_soon(self._pump)

    def _grown(self, _end: int) -> None:
        self.plan(self._slaves)

    def _pump(self) -> None:
        self._planned = False
        left_bytes = self.turn_bytes
        for slave in list(self._due):
            if left_bytes <= 0:
                break
            self._due.pop(slave, None)
            left_bytes -= slave.pump(left_bytes)
        self.plan(())

    def _tick(self) -> None:
        self._timer = self.scheduler.call_later(TICK_MS, self._tick)
        now_ms = self.scheduler.monotonic_ms()
        for slave in list(self._slaves):
            slave.link.tick(now_ms)
        self.count_again()
        self.plan(self._slaves)


class _Slave(asyncio.Protocol):
    """The connection of one slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._scheduler = server.scheduler
        self._transport: asyncio.Transport | None = None
        self._room_bytes = 0
        self._address = "?"
        self.host = ""
        self.counts = False
        """Whether this is a slave of the group. A slave remains one until its connection ends."""
        self.is_alive = True
        """Whether it has sent anything since the last connection from its address. A slave that has
        come back must not count twice, with a connection whose end has not been noticed.
        """
        self._connected_ms = self._scheduler.monotonic_ms()
        self.link = MasterLink(server.settings, server.range(), server.log.read, self._connected_ms)

    @property
    def view(self) -> SlaveView:
        return SlaveView(
            self._address,
            self._scheduler.monotonic_ms() - self._connected_ms,
            self.link.acknowledged_offset or 0,
            self.link.next_offset or 0,
            self.counts,
        )

    def count(self) -> None:
        """Let the reports of this connection count if it is one of a slave."""
        self.counts = self.counts or self._server.knows(self.host)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = _peer_of(self._transport)
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._server.security.allows(self.host) or not self._server.enter(self):
            self._transport.abort()
            return
        self.count()
        logger.info("slave %s connected", self._address)

    def data_received(self, data: bytes) -> None:
        self.is_alive = True
        self.link.receive(data, self._scheduler.monotonic_ms())
        self.pump(0)
        self._server.plan((self,))

    def resume_writing(self) -> None:
        self._server.plan((self,))

    def connection_lost(self, _error: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._server.leave(self)
            logger.info("slave %s disconnected%s", self._address, _because(self.link.closed))

    def pump(self, max_bytes: int) -> int:
        """Carry out the actions of the link once, and return the number of bytes sent, about
        ``max_bytes`` at most. What remains is planned for a later turn.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        room_bytes = self._server.room_bytes
        if room_bytes != self._room_bytes:
            self._room_bytes = room_bytes
            transport.set_write_buffer_limits(high=room_bytes, low=room_bytes // 2)
        free_bytes = min(room_bytes - transport.get_write_buffer_size(), max_bytes)
        self.link.log_grown(self._server.range(), self._scheduler.monotonic_ms())
        try:
            ready = self.link.take_ready(max(0, free_bytes))
        except StoreError as error:
            self.abort(str(error))
            return 0
        if ready is None:
            return 0
        if ready.send:
            transport.writelines(ready.send)
        if ready.acknowledged is not None and self.counts:
            self._server.acknowledge()
        if ready.close is not None:
            self._server.note_refused(self._address, ready.close)
            self.abort(ready.close)
        elif (self.link.next_offset or 0) < self._server.log.confirm_offset:
            self._server.plan((self,))
        return sum(map(len, ready.send))

    def abort(self, reason: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            logger.warning("slave %s: connection closed: %s", self._address, reason)
            self._transport.abort()


# ------------------------------------------------------------------------------------ the slave


class HaClientHandler(Protocol):
    """The caller of :func:`dial`, which creates the link, stores the bytes, and is notified of the
    end of the connection.
    """

    def connected(self, now_ms: int) -> FollowerLink:
        """Return the link for a connection that has just been opened."""

    def store(self, transfer: TransferFrame) -> None:
        """Append bytes that continue the log. Raises StoreError if that is impossible."""

    def ended(self, link: FollowerLink | None, reason: str) -> None:
        """Handle the end of the connection, or its failure to open (``link`` is None)."""


class HaConnection(Protocol):
    """A connection to a master, open or being opened."""

    def close(self) -> None:
        """Close the connection without calling ``ended``. Safe to call twice."""


def dial(
    address: tuple[str, int],
    follower: HaClientHandler,
    scheduler: AsyncioScheduler,
    tls: TlsContext | None = None,
    bytes_per_second: Callable[[], float] = lambda: 0,
) -> HaConnection:
    """Connect to a master's HA port. ``bytes_per_second`` returns the limit of what is read, which
    may change; 0: no limit.
    """
    return _Connector(address, follower, scheduler, tls, bytes_per_second)


class _Connector:
    def __init__(
        self,
        address: tuple[str, int],
        follower: HaClientHandler,
        scheduler: AsyncioScheduler,
        tls: TlsContext | None,
        bytes_per_second: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._tls = tls
        self._ended = False
        self._master = _Master(follower, scheduler, self._end, bytes_per_second)
        self._follower = follower
        self._task = scheduler.loop.create_task(self._connect(address))

    def close(self) -> None:
        self._ended = True
        self._task.cancel()
        self._master.close()

    async def _connect(self, address: tuple[str, int]) -> None:
        host, port = address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                tls = self._tls.current() if self._tls is not None else None
                await self._scheduler.loop.create_connection(
                    lambda: self._master, host, port, ssl=tls
                )
        except TimeoutError:
            self._end(None, f"{host}:{port} does not answer within {CONNECT_TIMEOUT_MS} ms")
        except OSError as error:
            self._end(None, f"{host}:{port} cannot be reached: {error.strerror or error}")

    def _end(self, link: FollowerLink | None, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._follower.ended(link, reason)


@define(slots=True, eq=False, repr=False)
class _Master(asyncio.Protocol):
    """The protocol of the connection to the master."""

    follower: HaClientHandler
    scheduler: AsyncioScheduler
    end: Callable[[FollowerLink | None, str], None]
    bytes_per_second: Callable[[], float]
    _due_ms: float = field(default=0.0, init=False)
    """When the bytes read so far are due at the rate."""
    _transport: asyncio.Transport | None = field(default=None, init=False)
    _link: FollowerLink | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _reason: str | None = field(default=None, init=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._link = self.follower.connected(self.scheduler.monotonic_ms())
        self._carry_out()
        self._timer = self.scheduler.call_later(TICK_MS, self._tick)

    def data_received(self, data: bytes) -> None:
        if self._link is not None and self._reason is None:
            self._link.receive(data, self.scheduler.monotonic_ms())
            self._carry_out()
            if rate := self.bytes_per_second():
                self._slow_down(len(data), rate)

    def _slow_down(self, count: int, rate: float) -> None:
        """Stop reading until ``count`` bytes are due."""
        now_ms = self.scheduler.monotonic_ms()
        self._due_ms = max(self._due_ms, now_ms) + 1000 * count / rate
        delay_ms = int(self._due_ms - now_ms)
        transport = self._transport
        if transport is not None and delay_ms and not transport.is_closing():
            transport.pause_reading()
            self.scheduler.call_later(delay_ms, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        reason = self._reason or (str(error) if error else "the master has closed the connection")
        self.end(self._link, reason)

    def close(self) -> None:
        self._stop("closed by this broker")

    def _tick(self) -> None:
        self._timer = self.scheduler.call_later(TICK_MS, self._tick)
        if self._link is not None and self._reason is None:
            self._link.tick(self.scheduler.monotonic_ms())
            self._carry_out()

    def _carry_out(self) -> None:
        link = self._link
        assert link is not None
        while self._reason is None and (ready := link.take_ready()) is not None:
            self._store(link, ready.append)
            if self._reason is None and ready.send and self._transport is not None:
                self._transport.write(ready.send)
            if ready.close is not None:
                self._stop(ready.close)

    def _store(self, link: FollowerLink, transfers: Iterable[TransferFrame]) -> None:
        for transfer in transfers:
            try:
                self.follower.store(transfer)
            except StoreError as fault:
                self._stop(str(fault))
                return
            link.stored(transfer.end, self.scheduler.monotonic_ms())

    def _stop(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()


def _peer_of(transport: asyncio.Transport) -> str:
    host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
