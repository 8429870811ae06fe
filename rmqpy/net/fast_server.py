"""The server of the hot path: plain TCP, one C call per readable connection.

Instead of asyncio's transport a :class:`FastTransport` stands under each
:class:`rmqpy.net.channels.Connection`. It watches the descriptor with ``add_reader`` and lets a
:class:`Feed` receive and answer; only frames that the feed hands back become commands. Limits,
deadlines, back-pressure and counters are those of the ordinary server, because they are its code.
Connections behind TLS are read by the ordinary way, whose frames the feed hears of.

=======  ==========================================  =============================
mode     when                                        who reads
=======  ==========================================  =============================
fast     a buffer's worth of frames                  the feed
partial  the begin of a frame is kept                the feed, behind it
large    a frame larger than the feed's buffer       the connection's own receiver
=======  ==========================================  =============================

Replies of the feed leave at the end of the turn, behind the commit; the handler does that
(``turn_ended``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from rmqpy.model.errors import RemoteFault
from rmqpy.net.channels import READ_SIZE, Connection, ConnectionLimits, Turns
from rmqpy.net.feed import Feed, FeedStatus
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server import Doors, RemotingServer
from rmqpy.remoting.channel import RequestHandler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, WORD_BYTES, decode_command

LOG = logging.getLogger(__name__)


class FastServer(RemotingServer):
    """A ``RemotingServer`` whose connections are read by a feed."""

    def __init__(
        self,
        handler: RequestHandler,
        scheduler: AsyncioScheduler,
        limits: ConnectionLimits,
        feed: Feed,
        doors: Doors = Doors(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(handler, scheduler, limits, doors)
        self.turns = Turns(scheduler, self._turn_ended)
        self.feed = feed
        feed.core.frame_max = limits.max_frame - LENGTH_BYTES
        self.loop = scheduler.loop
        self.now_ms = 0
        self.turn_open = False
        self.own_sockets = True
        self._behind_tls: set[Connection] = set()

    async def close(self) -> None:
        await super().close()
        self.feed.close()

    def open_turn(self) -> None:
        """The first read of a turn."""
        self.turn_open = True
        self.now_ms = self._scheduler.monotonic_ms()
        self.turns.handled()
        self.feed.open_turn()

    def end_turn_early(self) -> None:
        """The feed has no room for more replies: commit and let them go now."""
        self._handler.turn_ended()
        self.feed.open_turn()

    def received(self, connection: Connection, commands: list[RemotingCommand]) -> None:
        if connection not in self._behind_tls:
            super().received(connection, commands)  # its transport asks the feed
            return
        self.feed.before_cold()
        super().received(connection, commands)
        self.feed.after_cold(commands)

    def lost(self, connection: Connection) -> None:
        self._behind_tls.discard(connection)
        super().lost(connection)

    def take_plain(self, sock: socket.socket) -> None:
        connection = self._connection()
        try:
            transport = FastTransport(self, sock, connection)
            connection.connection_made(transport)
        except OSError as error:
            LOG.debug("a connection ended before it began: %s", error)
            sock.close()
            return
        transport.start()

    def tls_connection(self) -> Connection:
        connection = self._connection()
        self._behind_tls.add(connection)
        return connection

    def _turn_ended(self) -> None:
        self.turn_open = False
        self._handler.turn_ended()


class FastTransport(asyncio.Transport):
    """Implements what a ``Connection`` uses of ``asyncio.Transport``, and ``HotChannel``."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_congested",
        "_connection",
        "_core",
        "_fd",
        "_high",
        "_large",
        "_loop",
        "_low",
        "_number",
        "_paused",
        "_receive",
        "_rest",
        "_server",
        "_sock",
        "_writing",
    )

    def __init__(self, server: FastServer, sock: socket.socket, connection: Connection) -> None:
        super().__init__()
        self._server = server
        self._loop = server.loop
        self._sock = sock
        self._fd = sock.fileno()
        self._connection = connection
        self._core = server.feed.core
        self._receive = server.feed.receive or self._receive_for_feed
        self._number = -1
        self._rest = b""
        self._large = False
        self._buffer = bytearray()
        self._high = self._low = 0
        self._congested = self._paused = self._closing = self._writing = False

    def start(self) -> None:
        """Begin to read, unless the connection was turned away."""
        if self._closing:
            return
        self._number = self._server.feed.attach(self, self._fd)
        self._loop.add_reader(self._fd, self._readable)

    # -- Channel, for the gate's replies

    @property
    def peer(self) -> tuple[str, int]:
        return self._connection.peer

    @property
    def closed(self) -> bool:
        return self._connection.closed

    # -- HotChannel

    def unsent(self, data: bytes) -> None:
        if not self._closing:
            self._buffer += data
            self._wait_until_writable()

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
        """Of the gate as a channel, of the connection as a transport: what does not leave waits."""
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
        if not self._paused and not self._closing:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)
            if self._rest:
                self._loop.call_soon(self._go_on_with_rest)

    def close(self) -> None:
        if self._closing:
            return
        if self._number >= 0:
            self._server.feed.flush_now(self._number)
        self._stop_reading()
        if not self._buffer:
            self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self._end(None)

    # -- reading

    def _readable(self) -> None:
        server = self._server
        self._open_turn()
        self._connection.last_traffic_ms = self._connection.last_read_ms = server.now_ms
        if self._rest:
            status = self._receive_behind()
        elif self._large:
            status = self._receive_large()
        else:
            status = self._receive(self._core, self._number, 0)
        if status:
            self._go_on(status)
        elif self._connection.partial_since_ms is not None and not self._large:
            self._connection.partial_since_ms = None

    def _open_turn(self) -> None:
        server = self._server
        if not server.turn_open or server.feed.stale:
            server.open_turn()

    def _receive_behind(self) -> int:
        rest = self._rest
        if not self._server.feed.put_front(rest):
            self._large = True
            self._rest = b""
            self._take_large(rest)
            return FeedStatus.DONE if self._closing else self._receive_large()
        status = self._receive(self._core, self._number, len(rest))
        if status != FeedStatus.AGAIN:
            self._rest = b""
        return status

    def _receive_for_feed(self, core: Any, number: int, have: int) -> int:
        """For a feed that has no sockets of its own."""
        try:
            data = self._sock.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return FeedStatus.AGAIN
        except OSError as error:
            core.wanted = error.errno
            return FeedStatus.FAILED
        if not data:
            return FeedStatus.CLOSED
        feed = self._server.feed
        feed.give(data, have)
        return feed.go_on(number)

    def _receive_large(self) -> int:
        buffer = self._server.turns.buffer
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return FeedStatus.DONE
        except OSError as error:
            self._end(error)
            return FeedStatus.DONE
        if not count:
            return FeedStatus.CLOSED
        self._server.feed.before_cold()
        self._connection.buffer_updated(count)
        self._server.feed.after_cold(())
        self._large = self._connection.receiver.pending_bytes > 0
        return FeedStatus.DONE

    def _take_large(self, rest: bytes) -> None:
        """Give the connection's receiver the begin of a frame; its length may be a fault."""
        try:
            self._connection.receiver.receive(rest)
        except RemoteFault as fault:
            self._fault(fault)

    def _go_on(self, status: int) -> None:
        """Whatever is not the common case, until the buffer is used up."""
        feed = self._server.feed
        while status > FeedStatus.PARTIAL:
            if status == FeedStatus.COLD:
                self._handle_cold()
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            elif status == FeedStatus.OUT_FULL:
                self._server.end_turn_early()
            else:
                self._stop(status)
                return
            if self._closing or self._connection.closed:
                return
            if self._connection.postponing:
                # What is left of the buffer waits with them.
                status = FeedStatus.PARTIAL if feed.rest() else FeedStatus.DONE
                break
            status = feed.go_on(self._number)
        self._keep_rest(status)

    def _go_on_with_rest(self) -> None:
        """What was left of a buffer when requests were postponed, without anything new."""
        rest, feed = self._rest, self._server.feed
        if self._paused or self._closing or not rest:
            return
        self._open_turn()
        if not feed.put_front(rest):
            return  # the begin of a large frame: more of it has to come
        self._rest = b""
        feed.give(b"", len(rest))
        self._go_on(FeedStatus(feed.go_on(self._number)))

    def _handle_cold(self) -> None:
        feed, connection = self._server.feed, self._connection
        commands = []
        try:
            for frame in feed.cold_frames():
                commands.append(decode_command(frame))
        except RemoteFault as fault:
            self._fault(fault)
            return
        feed.before_cold()
        connection.owner.received(connection, commands)
        feed.after_cold(commands)

    def _stop(self, status: int) -> None:
        if status == FeedStatus.CLOSED:
            self._peer_ended()
        elif status == FeedStatus.FAILED:
            self._end(OSError(self._core.wanted, "receiving failed"))
        elif status == FeedStatus.BAD_FRAME:
            self._take_large(self._server.feed.rest()[: LENGTH_BYTES + WORD_BYTES])
            assert self._closing, "the receiver takes what the feed refused"

    def _keep_rest(self, status: int) -> None:
        connection = self._connection
        if status == FeedStatus.DONE:
            connection.partial_since_ms = None
            return
        feed = self._server.feed
        if feed.advanced or connection.partial_since_ms is None:
            connection.partial_since_ms = self._server.now_ms
        self._rest = feed.rest()

    def _peer_ended(self) -> None:
        """The peer has closed its half; what we owe it still leaves."""
        self._connection.eof_received()
        self.close()

    def _fault(self, fault: RemoteFault) -> None:
        self._connection.owner.faulted(self._connection, fault)
        self._connection.close()

    # -- writing

    def _wait_until_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
            if self._number >= 0 and not self._closing:
                self._server.feed.set_queued(self._number, True)
        if len(self._buffer) > self._high and not self._congested:
            self._congested = True
            self._connection.pause_writing()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._buffer[:sent]
        if self._congested and len(self._buffer) <= self._low:
            self._congested = False
            self._connection.resume_writing()
        if not self._buffer:
            self._stop_writing()
            if self._closing:
                self._lost(None)
            elif self._number >= 0:
                self._server.feed.set_queued(self._number, False)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    # -- the end

    def _stop_reading(self) -> None:
        self._closing = True
        self._rest = b""
        if not self._paused and self._number >= 0:
            self._loop.remove_reader(self._fd)
        if self._number >= 0:
            self._server.feed.detach(self._number)

    def _end(self, error: OSError | None) -> None:
        """At once; what is queued is dropped."""
        if self._fd < 0:
            return
        if not self._closing:
            self._stop_reading()
        self._buffer.clear()
        self._stop_writing()
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        if self._fd < 0:
            return
        self._stop_writing()
        self._fd = -1
        self._sock.close()
        self._connection.connection_lost(error)
