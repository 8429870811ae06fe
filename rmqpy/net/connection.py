"""A TCP connection as a ``remoting.channel.Channel``, for servers and clients.

States of a connection::

    state     enters by                          reads  writes  leaves by
    open      connection_made                    yes    yes     close, abort, peer, fault
    held      turn budget used, or peer does     no     yes     next turn, or peer has read
              not read its replies, or
              requests are postponed
    closing   close(), fault of the peer         no     flush   connection_lost, linger deadline
    lost      connection_lost                    no     no      -

Writes are collected and passed to the kernel at the end of the loop turn (:class:`LoopTurns`),
after the commit of the handler, so that all replies of a turn to one peer take one system call.

Invariants: ``closed`` never becomes False again; each ``connected`` is followed by exactly one
``lost``; the bytes that wait for peers are limited (:mod:`rmqpy.net.unsent`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Protocol, cast

from attrs import field

from rmqpy.config.loading import ServerSettings
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.values import define
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.unsent import UnsentBytes
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME
from rmqpy.remoting.frame_decoder import FrameDecoder

READ_SIZE = 128 * 1024
"""The default size of one read. All connections of an owner share the buffer."""

logger = logging.getLogger(__name__)

ABORTED_S = 5.0
FLUSH_AT = 256 * 1024
"""The size from which collected replies are passed to the transport before the turn ends."""


@define(slots=True, frozen=True)
class ConnectionLimits:
    """The limits of every connection. Times are in ms, sizes in bytes.

    ``idle_close_ms``: the time without traffic in either direction after which a connection is
    closed.
    ``head_deadline_ms`` and ``frame_deadline_ms``: the maximum age of a frame whose header is
    incomplete and of one whose body is incomplete, after which its sender is disconnected.
    ``read_bytes``: the maximum size of one read.
    ``turn_bytes``: the maximum size of all reads from one peer in a loop turn.
    ``turn_reply_bytes``: the size of the replies of the fast path to one peer in a loop turn, after
    which its further requests wait for the next one.
    ``high_water``/``low_water``: if more than the first is waiting for a peer, nothing is read from
    it, and no received request of it is handled, until less than the second is waiting.
    ``pending_bytes``/``pending_bytes_all``: a peer for which more is waiting is disconnected; if
    more than the second is waiting for all peers, those with the most are.
    ``backlog``: the number of connections that may wait to be accepted.
    ``linger_ms``: the time after ``close`` in which queued bytes are still sent.
    """

    max_frame: int = MAX_FRAME
    idle_close_ms: int = 120_000
    head_deadline_ms: int = 20_000
    frame_deadline_ms: int = 60_000
    turn_bytes: int = 256 * 1024
    turn_reply_bytes: int = 512 * 1024
    read_bytes: int = READ_SIZE
    high_water: int = 1024 * 1024
    low_water: int = 256 * 1024
    pending_bytes: int = 64 * 1024 * 1024
    pending_bytes_all: int = 256 * 1024 * 1024
    linger_ms: int = 5_000
    backlog: int = 1024
    max_connections: int = 20_000

    @classmethod
    def from_settings(cls, settings: ServerSettings) -> ConnectionLimits:
        """Return the limits from the settings of a server."""
        return cls(
            idle_close_ms=settings.server_channel_max_idle_time_seconds * 1000,
            backlog=settings.server_socket_backlog,
            head_deadline_ms=settings.frame_header_timeout_millis,
            frame_deadline_ms=settings.frame_timeout_millis,
            max_connections=settings.max_connections,
        )

    @property
    def sweep_ms(self) -> int:
        """The interval of deadline checks: a quarter of the shortest deadline, within 10 … 5000."""
        deadlines = (self.frame_deadline_ms, self.head_deadline_ms, self.linger_ms)
        shortest = min(self.idle_close_ms, *deadlines)
        return max(10, min(5_000, shortest // 4))


class ConnectionOwner(Protocol):
    """The receiver of a connection's events."""

    @property
    def limits(self) -> ConnectionLimits: ...

    @property
    def turns(self) -> LoopTurns: ...

    def connected(self, connection: RemotingConnection) -> None: ...

    def received(self, connection: RemotingConnection, commands: list[RemotingCommand]) -> None:
        """Handle all complete frames of one read. There is at least one."""
        ...

    def faulted(self, connection: RemotingConnection, fault: RemoteProtocolError) -> None:
        """Handle a protocol error of the peer. The connection is about to be closed."""

    def lost(self, connection: RemotingConnection) -> None: ...


@define(slots=True, eq=False, repr=False)
class UnreadMark:
    """A record that ``left`` unread bytes were present at ``seen_ms``
    (:mod:`rmqpy.net.server.stall_detector`).
    """

    seen_ms: int
    left: int


class Markable(Protocol):
    """A connection whose unread bytes can be marked."""

    def marked(self, seen_ms: int, unread: int) -> None: ...


class LoopTurns:
    """The end of a loop turn: commit, then flush, then resume reading from held connections.

    The first read of a turn schedules a callback. The loop runs it after all reads of that turn and
    before the next ones, so ``turn_ended`` runs once for any number of connections. If ``patient``,
    it runs one loop turn later.
    """

    def __init__(
        self,
        scheduler: AsyncioScheduler,
        turn_ended: Callable[[], None],
        read_bytes: int = READ_SIZE,
        *,
        patient: bool = False,
    ) -> None:
        """Create the turns. Set ``patient`` if ``turn_ended`` costs more than polling the sockets
        again, so that requests that arrive together are handled together.
        """
        self.scheduler = scheduler
        self.number = 0
        self.buffer = memoryview(bytearray(read_bytes))
        self.unsent = UnsentBytes()
        self.committing = False
        """True while the loop runs ``turn_ended``."""
        self.found: tuple[int, int, Sequence[tuple[Markable, int]]] | None = None
        """The findings of the stall detector during a commit: the number of the turn, the time, and
        the number of unread bytes of each connection.
        """
        self._turn_ended = turn_ended
        self._patient = patient
        self._waited = False
        self._scheduled = False
        self._handled = False
        self._written: list[RemotingConnection] = []
        self._held: dict[RemotingConnection, None] = {}

    def handled(self) -> None:
        self._handled = True
        if not self._scheduled:
            self._schedule_end()

    def written(self, connection: RemotingConnection) -> None:
        self._written.append(connection)
        if not self._scheduled:
            self._schedule_end()

    def held(self, connection: RemotingConnection) -> None:
        self._held[connection] = None
        if not self._scheduled:
            self._schedule_end()

    def _schedule_end(self) -> None:
        self._scheduled = True
        self.scheduler.call_soon(self._end)

    def _end(self) -> None:
        if self._patient and self._handled and not self._waited:
            self._waited = True
            self.scheduler.call_soon(self._end)
            return
        self._waited = False
        self.number += 1
        if self._handled:
            self._handled = False
            self.committing = True
            self._guard(self._turn_ended)
            self.committing = False
            if self.found is not None:
                self._take_over_found()
        self._scheduled = False
        written, self._written = self._written, []
        # Those of which no request was handled in this turn come first in the next one.
        held, self._held = sorted(self._held, key=attrgetter("served")), {}
        for connection in written:
            self._guard(connection.flush)
        for connection in held:
            self._guard(connection.turn_over)

    def _take_over_found(self) -> None:
        assert self.found is not None
        (number, seen_ms, unread), self.found = self.found, None
        if number == self.number:
            for connection, count in unread:
                connection.marked(seen_ms, count)

    def _guard(self, step: Callable[[], None]) -> None:
        """Run one step. Its failure must not prevent the replies of other connections."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self.scheduler.failure_log.report("the end of a loop turn", error)


@define(slots=True, eq=False, repr=False)
class RemotingConnection(asyncio.BufferedProtocol):
    """A ``Channel``, created by the protocol factory of an owner, or directly for a client."""

    owner: ConnectionOwner
    turns: LoopTurns
    receiver: FrameDecoder
    peer: tuple[str, int] = ("", 0)
    local_port: int = 0
    opened: bool = False
    closed: bool = False
    congested: bool = False
    last_traffic_ms: int = 0
    last_read_ms: int = 0
    partial_since_ms: int | None = None
    partial_bytes: int = 0
    """The size of the unfinished frame so far."""
    partial_head: bool = False
    """True if the header of the unfinished frame is incomplete."""

    closing_since_ms: int | None = None
    mark: UnreadMark | None = None
    waited_ms: int = 0
    """The known waiting time of the frames that are being received."""
    _transport: asyncio.Transport | None = None
    _out: bytearray = field(factory=bytearray)
    _turn: int = -1
    _turn_bytes: int = 0
    _budget_used: bool = False
    _reading: bool = True
    _postponed: Sequence[RemotingCommand] = ()
    served: bool = False
    """True if requests that had waited were handled in the last turn."""
    _swept_bytes: int = 0

    # -- Channel

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        if not self._out:
            if len(data) >= FLUSH_AT and isinstance(data, bytes) and self._transport is not None:
                self._hand_over(data)
                return
            self.turns.written(self)
        self._out += data
        if len(self._out) >= FLUSH_AT:
            self.flush()

    def write_pieces(self, pieces: Sequence[bytes], now_ms: int) -> None:
        """Write a frame in pieces to the transport, after all bytes collected before."""
        if self.closed or self._transport is None:
            return
        if self._out:
            self.flush()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        self.last_traffic_ms = now_ms
        self.count_unsent()

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        self.closed = True
        self.closing_since_ms = self.turns.scheduler.monotonic_ms()
        if self._transport is not None:
            self._transport.close()

    def mark_unread(self) -> None:
        """Handle a read that has filled its buffer. Here the waiting time of the remainder is not
        measured; a :class:`~rmqpy.net.server.stall_detector.ServedConnection` overrides this.
        """

    def taken(self, nbytes: int) -> int:
        """Record that ``nbytes`` marked bytes were read. Return their waiting time in ms."""
        mark = self.mark
        assert mark is not None and nbytes <= mark.left
        mark.left -= nbytes
        if not mark.left:
            self.mark = None
        return self.turns.scheduler.monotonic_ms() - mark.seen_ms

    # -- owner and LoopTurns

    def abort(self) -> None:
        """Close immediately; queued bytes are dropped."""
        self.closed = True
        self._out = bytearray()
        if self._transport is not None:
            self._transport.abort()

    @property
    def state(self) -> str:
        """The peer, and what is known of the transport: for the log."""
        transport = self._transport
        kind = type(transport).__name__ if transport is not None else "no transport"
        ends = "closing" if transport is not None and transport.is_closing() else "open"
        return f"{self.peer[0]}:{self.peer[1]} ({kind}, {ends}, {self.pending_bytes} bytes unsent)"

    def flush(self) -> None:
        if not self._out or self._transport is None or self.closed:
            return
        out, self._out = self._out, bytearray()  # the transport may keep a reference to the buffer
        self._hand_over(out)

    def _hand_over(self, out: bytes | bytearray) -> None:
        assert self._transport is not None
        self._transport.write(out)
        self.last_traffic_ms = self.turns.scheduler.monotonic_ms()
        self.count_unsent()

    @property
    def postponing(self) -> bool:
        """True if requests of this connection wait for the next turn, or until the peer reads."""
        return bool(self._postponed) or self.congested

    def postpone(self, commands: Sequence[RemotingCommand]) -> None:
        """Pass ``commands`` to the owner in the next turn in which the peer reads its replies.
        Nothing is read before that.
        """
        self._postponed = commands
        self.turns.held(self)
        self._choose_reading()

    def turn_over(self) -> None:
        self._budget_used = False
        if not self.congested:
            postponed, self._postponed = self._postponed, ()
            if postponed and not self.closed:
                self.owner.received(self, list(postponed))
                self.served = len(self._postponed) < len(postponed)
        self._choose_reading()

    @property
    def pending_bytes(self) -> int:
        """The number of bytes written but not yet accepted by the kernel."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + len(self._out)

    def is_behind(self, limit: int) -> bool:
        """Return whether the kernel has not accepted ``limit`` bytes. Bytes that are being
        collected count after their flush.
        """
        transport = self._transport
        return not self._out and transport is not None and transport.get_write_buffer_size() > limit

    def overdue(self, now_ms: int) -> str | None:
        """Return the reason why this connection must be closed, or None. The owner's sweep calls
        it.
        """
        limits = self.owner.limits
        if self.closing_since_ms is not None:
            late = now_ms - self.closing_since_ms > limits.linger_ms
            return "the peer did not read the last bytes" if late else None
        waiting = self.pending_bytes
        if waiting != self._swept_bytes:  # a slow reader still reads
            self._swept_bytes = waiting
            self.last_traffic_ms = now_ms
        if now_ms - self.last_traffic_ms >= limits.idle_close_ms:
            return f"no traffic for {now_ms - self.last_traffic_ms} ms"
        if self.partial_since_ms is not None and self._reading:
            age_ms = now_ms - self.partial_since_ms
            if self.partial_head and age_ms >= limits.head_deadline_ms:
                return f"an unfinished frame without its header for {age_ms} ms"
            if age_ms >= limits.frame_deadline_ms:
                return f"an unfinished frame of {self.partial_bytes} bytes for {age_ms} ms"
        return None

    # -- UnsentPeer

    def count_unsent(self) -> None:
        """Count the bytes that the kernel has not accepted. Call after each write."""
        transport, unsent = self._transport, self.turns.unsent
        if self in unsent.waiting or (transport is not None and transport.get_write_buffer_size()):
            limits = self.owner.limits
            unsent.update(self, limits.pending_bytes, limits.pending_bytes_all)

    def transport_bytes(self) -> int:
        if self._transport is None or self.closed:
            return 0
        return self._transport.get_write_buffer_size()

    def disconnect_unread(self, waiting: int, waiting_for_all: int) -> None:
        fault = (
            f"the peer does not read: {waiting} bytes are waiting for it,"
            f" {waiting_for_all} for all peers"
        )
        self.owner.faulted(self, RemoteProtocolError(fault))
        self.abort()

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        limits = self.owner.limits
        transport.set_write_buffer_limits(limits.high_water, limits.low_water)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self.peer = (peer[0], peer[1]) if peer else ("", 0)  # None: already disconnected
        self.local_port = transport.get_extra_info("sockname")[1]
        self.last_traffic_ms = self.turns.scheduler.monotonic_ms()
        self.opened = True
        self.owner.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self.closed:
            self.use_budget(nbytes)
            self.take_in(self.turns.buffer[:nbytes])

    def take_in(self, data: memoryview) -> None:
        """Pass bytes to the receiver and the frames they complete to the owner."""
        now_ms = self.turns.scheduler.monotonic_ms()
        self.last_traffic_ms = self.last_read_ms = now_ms
        try:
            commands = self.receiver.receive(data)
        except RemoteProtocolError as fault:
            self.owner.faulted(self, fault)
            self.close()
            return
        if not self.receiver.pending_bytes:
            self.partial_since_ms = None
        else:
            if commands or self.partial_since_ms is None:
                self.partial_since_ms = now_ms
            self.partial_bytes = self.receiver.pending_bytes
            self.partial_head = not self.receiver.is_head_whole
        if commands:
            self.owner.received(self, commands)

    def use_budget(self, nbytes: int) -> None:
        """Count ``nbytes`` read. Beyond ``limits.turn_bytes`` reading stops until the next turn."""
        if self._turn != self.turns.number:
            self._turn = self.turns.number
            self._turn_bytes = 0
        self._turn_bytes += nbytes
        if self._turn_bytes >= self.owner.limits.turn_bytes:
            self.wait_for_turn()

    def wait_for_turn(self) -> None:
        """Read nothing more in this turn. Safe to call twice."""
        if not self._budget_used:
            self._budget_used = True
            self.turns.held(self)
            self._choose_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True
        self.turns.unsent.pauses += 1
        self._choose_reading()

    def resume_writing(self) -> None:
        self.congested = False
        self.count_unsent()
        if self._postponed:
            self.turns.held(self)
        self._choose_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        self._out = bytearray()
        self.turns.unsent.forget(self)
        self.owner.lost(self)

    # -- internal

    def _may_read(self) -> bool:
        return not (self._budget_used or self.congested or self._postponed)

    def _choose_reading(self) -> None:
        reading = self._may_read()
        if reading == self._reading or self.closed or self._transport is None:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


@define(slots=True, eq=False, repr=False)
class ServedConnection(RemotingConnection):
    """A connection of a server whose bytes can be marked."""

    def unread_bytes(self) -> int:
        """Return the number of unread bytes in the kernel; 0 with TLS, where it says nothing about
        frames.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return 0
        try:
            return _recv_queue_bytes(transport.get_extra_info("socket").fileno())
        except OSError:
            return 0  # the connection has just been closed

    def mark_unread(self) -> None:
        """Mark the bytes that a read has left unread."""
        unread = self.unread_bytes()
        if unread:
            self.marked(self.turns.scheduler.monotonic_ms(), unread)

    def marked(self, seen_ms: int, unread: int) -> None:
        if self.mark is None:
            self.mark = UnreadMark(seen_ms, unread)

    # -- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self.turns.buffer
        return buffer if self.mark is None else buffer[: self.mark.left]

    def buffer_updated(self, nbytes: int) -> None:
        if self.mark is not None:
            self.waited_ms = self.taken(nbytes)
        super().buffer_updated(nbytes)
        self.waited_ms = 0
        if nbytes == len(self.turns.buffer) and not self.closed:
            self.mark_unread()


async def wait_for_aborted(
    all_gone: asyncio.Event, connections: Iterable[RemotingConnection]
) -> None:
    """Wait until aborted connections have ended, which takes one turn of the loop. A stop of the
    process does not depend on one that does not end.
    """
    try:
        async with asyncio.timeout(ABORTED_S):
            await all_gone.wait()
    except TimeoutError:
        states = "; ".join(connection.state for connection in connections)
        logger.error("leaving connections that did not end when aborted: %s", states)


def _recv_queue_bytes(fd: int) -> int:
    try:
        import fcntl
        import termios
    except ImportError:  # not Unix
        return 0
    count = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)
