"""The server of the fast path: plain TCP, one C call for all readable connections.

Each :class:`rmqpy.net.connection.RemotingConnection` has a :class:`FastTransport` instead of
asyncio's transport. A :class:`PollSet` watches the descriptors, and a :class:`Feed` receives and
answers; only frames that the feed hands back become commands. Without a poll set (no epoll, no C)
the loop watches each descriptor with ``add_reader``, with one call per connection. Limits,
deadlines, back-pressure and counters are those of the base class. TLS connections, and all
connections on a loop that cannot watch descriptors, are received by asyncio and use the same feed
(:mod:`rmqpy.net.server.feed_reader`).

Replies of the feed are sent at the end of the turn, after the commit, in the handler's
``turn_ended``. If a turn has nothing to commit, they are sent immediately, and the turn continues
for up to ``AGAIN_MS``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from attrs import define

from rmqpy.net.connection import ConnectionLimits, LoopTurns, RemotingConnection, ServedConnection
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.feed_api import FEED_BYTES, Feed, FeedStatus, PollSet
from rmqpy.net.server.feed_reader import FedConnection, FeedReader
from rmqpy.net.server.listener import watches_descriptors
from rmqpy.net.server.server import ListenerSecurity, RemotingServer
from rmqpy.remoting.channel import RequestHandler
from rmqpy.remoting.frame import LENGTH_BYTES
from rmqpy.remoting.frame_decoder import FrameDecoder

AGAIN_MS = 1
"""The age in ms up to which a turn that stores nothing polls the sockets again, because the
overhead of a turn exceeds the cost of a few pulls.
"""

logger = logging.getLogger(__name__)


class FastServer(RemotingServer):
    """A ``RemotingServer`` whose connections are read by a feed."""

    def __init__(
        self,
        handler: RequestHandler,
        scheduler: AsyncioScheduler,
        limits: ConnectionLimits,
        feed: Feed,
        security: ListenerSecurity = ListenerSecurity(),  # noqa: B008 - a frozen value
        *,
        own_sockets: bool | None = None,
        patient: bool = False,
    ) -> None:
        """Create the server.

        If ``own_sockets`` is False, asyncio accepts and receives; if it is None, only if the loop
        cannot watch descriptors. With ``patient``, a turn includes requests that arrive one loop
        turn later (``LoopTurns``).
        """
        super().__init__(handler, scheduler, limits, security)
        self.turns = LoopTurns(scheduler, self._turn_ended, patient=patient)
        self.feed = feed
        feed.core.frame_max = limits.max_frame - LENGTH_BYTES
        feed.core.out_share = limits.turn_reply_bytes
        self.loop = scheduler.loop
        self.now_ms = 0
        self.turn_open = False
        self.spare: list[bytearray] = []
        self.own_sockets = watches_descriptors(self.loop) if own_sockets is None else own_sockets
        self._ready = feed.ready
        self._ready_fd = -1
        self._transports: dict[int, FastTransport] = {}

    async def close(self) -> None:
        await super().close()
        if self._ready_fd >= 0:
            self.loop.remove_reader(self._ready_fd)
        self.feed.close()

    def open_turn(self) -> None:
        """Prepare for the first read of a turn."""
        self.turn_open = True
        self.now_ms = self._scheduler.monotonic_ms()
        self.turns.handled()
        self.feed.refresh()

    def end_turn_early(self) -> None:
        """Commit and send the replies now, because the feed's reply buffer is full."""
        self._handler.turn_ended()
        self.feed.refresh()

    def may_exceed_share(self, number: int) -> bool:
        """Return whether a connection may go on, because no other one waits."""
        ready = self._ready
        return (
            ready is not None
            and self._scheduler.monotonic_ms() - self.now_ms < AGAIN_MS
            and not ready.is_another_ready(number)
            and self.feed.renew_share()
        )

    def watch(self, transport: FastTransport, number: int) -> None:
        """Notify a transport when it is readable. Raises OSError."""
        if self._ready is None:
            self.loop.add_reader(transport.fd, transport.readable)
            return
        self._ready.watch(number, True)
        self._transports[number] = transport
        if self._ready_fd < 0:
            self._ready_fd = self._ready.fd
            self.loop.add_reader(self._ready_fd, self._readable)

    def unwatch(self, transport: FastTransport, number: int) -> None:
        """Stop watching a transport. Reads of the current turn still complete."""
        if self._ready is None:
            self.loop.remove_reader(transport.fd)
        else:
            self._ready.watch(number, False)

    def forget(self, number: int) -> None:
        """Remove a closed connection."""
        self._transports.pop(number, None)

    def exclude(self, number: int, apart: bool) -> None:
        """Set whether the transport itself performs the next read of a connection."""
        if self._ready is not None:
            self._ready.exclude(number, apart)

    def take_plain(self, sock: socket.socket) -> None:
        kind = RemotingConnection if self.sieve is None else FastConnection
        connection = kind(self, self.turns, FrameDecoder(self.limits.max_frame))
        try:
            transport = FastTransport(self, sock, connection)
            connection.connection_made(transport)
        except OSError as error:
            logger.debug("a connection ended before it was set up: %s", error)
            sock.close()
            return
        try:
            transport.start()
        except OSError as error:
            logger.warning("closing %s:%d: it cannot be watched: %s", *connection.peer, error)
            transport.abort()

    def _connection(self) -> RemotingConnection:
        """Return a connection whose bytes asyncio receives."""
        connection = FedConnection(self, self.turns, FrameDecoder(self.limits.max_frame))
        connection.reader = FeedReader(self, connection)
        return connection

    def _readable(self) -> None:
        """Handle readable watched connections."""
        ready = self._ready
        assert ready is not None
        if not self.turn_open or self.feed.needs_refresh:
            self.open_turn()
        begun_ms = self.now_ms
        more = self._receive_from_all(ready)
        while more and ready.flush_replies_early():
            if self._scheduler.monotonic_ms() - begun_ms >= AGAIN_MS:
                break
            more = self._receive_from_all(ready)

    def _receive_from_all(self, ready: PollSet) -> bool:
        """Receive once from each readable connection. Return False if there was none."""
        feed, transports = self.feed, self._transports
        status = ready.receive(feed.core, True)
        while status != FeedStatus.NONE_LEFT:
            transport = transports[ready.stopped_at]
            if status == FeedStatus.EXCLUDED:
                transport.readable()
            else:
                transport.received(status)
            if feed.needs_refresh:
                self.open_turn()
            status = ready.receive(feed.core, False)
        now_ms = self.now_ms
        seen_to = ready.drained()
        for number in seen_to:
            if number in transports:
                connection = transports[number].connection
                connection.last_traffic_ms = connection.last_read_ms = now_ms
        return bool(seen_to)

    def _turn_ended(self) -> None:
        self.turn_open = False
        self._handler.turn_ended()


@define(slots=True, eq=False, repr=False)
class FastConnection(ServedConnection):
    """A connection on a ``FastTransport`` whose unread bytes can be marked."""

    def marked(self, seen_ms: int, unread: int) -> None:
        super().marked(seen_ms, unread)
        if isinstance(self._transport, FastTransport):
            self._transport.choose_reader()


class FastTransport(asyncio.Transport):
    """The parts of ``asyncio.Transport`` that a ``RemotingConnection`` uses, on a plain socket;
    implements ``FeedChannel``.
    """

    __slots__ = (
        "_buffer",
        "_closing",
        "_core",
        "_high",
        "_loop",
        "_low",
        "_paused",
        "_reader",
        "_server",
        "_sock",
        "_watched",
        "_writing",
        "connection",
        "fd",
    )

    def __init__(
        self, server: FastServer, sock: socket.socket, connection: RemotingConnection
    ) -> None:
        super().__init__()
        self._server = server
        self._loop = server.loop
        self._sock = sock
        self.fd = sock.fileno()
        self.connection = connection
        self._core = server.feed.core
        self._reader = FeedReader(server, connection)
        self._buffer = bytearray()
        self._high = self._low = 0
        self._paused = self._watched = self._closing = self._writing = False

    def start(self) -> None:
        """Start reading, unless the connection was rejected."""
        if self._closing:
            return
        self._reader.attach(self, self.fd)
        self._watch()

    # -- Channel, for the replies of PendingReplies

    @property
    def peer(self) -> tuple[str, int]:
        return self.connection.peer

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def congested(self) -> bool:
        return self.connection.congested

    # -- FeedChannel

    def unsent(self, data: bytes) -> None:
        if not self._closing:
            self._buffer += data
            self._wait_until_writable()
            self.connection.count_unsent()

    def send_failed(self, code: int) -> None:
        self._end(OSError(code, "sending failed"))

    # -- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._sock
        try:
            if name == "peername":
                return self._sock.getpeername()
            if name == "sockname":
                return self._sock.getsockname()
        except OSError:
            return default
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None and low is not None
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``, or queue the part of it that the kernel does not accept."""
        if self._closing or not data:
            return
        if not self._buffer:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._buffer += data
        self._wait_until_writable()

    def pause_reading(self) -> None:
        self._paused = True
        self._unwatch()

    def resume_reading(self) -> None:
        """Handle the bytes that were kept, before this or another connection is read."""
        self._paused = False
        if self._reader.rest:
            self._reader.take_again()
            self.choose_reader()
        if not (self._paused or self._closing or self._watched):
            self._watch()

    def close(self) -> None:
        if self._closing:
            return
        if self._reader.number >= 0:
            self._server.feed.flush_now(self._reader.number)
        self._stop_reading()
        if not self._buffer:
            self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self._end(None)

    # -- reading

    def readable(self) -> None:
        """Receive from this connection."""
        server, reader, connection = self._server, self._reader, self.connection
        if not server.turn_open or server.feed.needs_refresh:
            server.open_turn()
        connection.last_traffic_ms = connection.last_read_ms = server.now_ms
        if connection.mark is not None:
            status = self._receive_marked(connection)
        elif reader.rest:
            status = self._receive_after_rest()
        elif reader.large is not None:
            status = self._receive_large()
        else:
            status = self._server.feed.receive(self._core, reader.number, 0)
        self.received(status)

    def received(self, status: int) -> None:
        """Handle the status that the feed has returned for this connection."""
        reader, connection = self._reader, self.connection
        if status >= FeedStatus.CLOSED:
            self._stop(status)
        elif status:
            full = self._server.feed.full
            reader.resume(status)
            if full and not self._closing:
                connection.mark_unread()
        elif connection.partial_since_ms is not None and reader.large is None:
            connection.partial_since_ms = None
        self.choose_reader()

    def choose_reader(self) -> None:
        """Choose the next receiver: this transport, or the poll set for all connections."""
        reader = self._reader
        if reader.number >= 0:
            large = reader.large is not None
            apart = bool(reader.rest) or large or self.connection.mark is not None
            self._server.exclude(reader.number, apart)

    def _receive_marked(self, connection: RemotingConnection) -> int:
        """Receive only the marked bytes. Requests that have waited too long leave the fast path."""
        server, reader, mark = self._server, self._reader, connection.mark
        assert mark is not None
        rest = reader.rest
        if reader.large is not None or (rest and not server.feed.unread(rest)):
            connection.mark = None  # the waiting time of a large frame is not measured
            return self._receive_after_rest() if rest else self._receive_large()
        try:
            data = self._sock.recv(min(mark.left, FEED_BYTES - len(rest)))
        except (BlockingIOError, InterruptedError):
            return FeedStatus.AGAIN
        except OSError as error:
            self._end(error)
            return FeedStatus.AGAIN
        if not data:
            return FeedStatus.CLOSED
        reader.rest = b""
        server.feed.feed(data, len(rest))
        waited_ms = connection.taken(len(data))
        if server.sieve is None or waited_ms < server.sieve.patience_ms:
            return server.feed.resume(reader.number)
        connection.waited_ms = waited_ms
        server.feed.pause(True)
        try:
            reader.resume(server.feed.resume(reader.number))
        finally:
            connection.waited_ms = 0
            server.feed.pause(False)
        return FeedStatus.AGAIN

    def _receive_after_rest(self) -> int:
        reader = self._reader
        rest = reader.rest
        if not self._server.feed.unread(rest):
            reader.begin_large()
            return FeedStatus.DONE if self._closing else self._receive_large()
        status = self._server.feed.receive(self._core, reader.number, len(rest))
        if status != FeedStatus.AGAIN:
            reader.rest = b""
        return status

    def _receive_large(self) -> int:
        large = self._reader.large
        if large is None:  # it was complete
            return FeedStatus.DONE
        try:
            with large.room() as room:
                count = self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return FeedStatus.DONE
        except OSError as error:
            self._end(error)
            return FeedStatus.DONE
        if not count:
            return FeedStatus.CLOSED
        self.connection.use_budget(count)
        large.count += count
        self._reader.continue_large()
        return FeedStatus.DONE

    def _watch(self) -> None:
        self._server.watch(self, self._reader.number)
        self._watched = True

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._server.unwatch(self, self._reader.number)

    def _stop(self, status: int) -> None:
        if status == FeedStatus.CLOSED:
            self._peer_ended()
        elif status == FeedStatus.FAILED:
            self._end(OSError(self._core.status_detail, "receiving failed"))

    def _peer_ended(self) -> None:
        """Handle the peer's end of stream. Pending replies are still sent."""
        self.connection.eof_received()
        self.close()

    # -- writing

    def _wait_until_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self.fd, self._writable)
            if self._reader.number >= 0:
                self._server.feed.set_write_pending(self._reader.number, True)
        if len(self._buffer) > self._high and not self.connection.congested:
            self.connection.pause_writing()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._buffer[:sent]
        if self.connection.congested and len(self._buffer) <= self._low:
            self.connection.resume_writing()
        if not self._buffer:
            self._stop_writing()
            if self._closing:
                self._lost(None)
            elif self._reader.number >= 0:
                self._server.feed.set_write_pending(self._reader.number, False)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)

    # -- the end

    def _stop_reading(self) -> None:
        self._closing = True
        if self._reader.number >= 0:
            self._unwatch()
            self._server.forget(self._reader.number)
            self._reader.detach()

    def _end(self, error: OSError | None) -> None:
        """End immediately and drop queued bytes."""
        if self.fd < 0:
            return
        if not self._closing:
            self._stop_reading()
        self._buffer.clear()
        self._stop_writing()
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        if self.fd < 0:
            return
        self._stop_writing()
        self.fd = -1
        self._sock.close()
        self.connection.connection_lost(error)
