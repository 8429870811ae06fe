"""The reader that passes the bytes of a connection through a feed, however they are received.

=======  ==========================================  =============================
mode     when                                        reader
=======  ==========================================  =============================
fast     the frames fit into the feed's buffer       the feed
partial  the start of a frame is kept                the feed, after these bytes
large    a frame larger than the feed's buffer       the connection's own receiver
=======  ==========================================  =============================

:class:`rmqpy.net.server.feed_server.FastTransport` drives it with a plain socket,
:class:`FedConnection` with bytes that an asyncio transport has received (TLS, and loops that cannot
watch descriptors).

Invariants: frames reach feed and handler in the order of arrival; no bytes are fed after the
connection has closed, or while its requests wait for the next turn or for the peer to read.
"""

from __future__ import annotations

from typing import Protocol

from attrs import define

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.net.connection import RemotingConnection
from rmqpy.net.server.feed_api import FEED_BYTES, Feed, FeedChannel, FeedStatus
from rmqpy.remoting.frame import LENGTH_BYTES, WORD_BYTES, decode_command, is_head_whole


class FeedOwner(Protocol):
    """The part of the server that the connections of a feed use."""

    feed: Feed
    now_ms: int
    turn_open: bool

    def open_turn(self) -> None:
        """Prepare for the first read of a turn, or the first read after the state became stale."""

    def end_turn_early(self) -> None:
        """Commit and send the replies now, because the feed's reply buffer is full."""


@define(slots=True, eq=False, repr=False)
class FeedReader:
    """The reader of a connection. ``number`` is its number in the feed, negative if it has none."""

    owner: FeedOwner
    connection: RemotingConnection
    number: int = -1
    rest: bytes = b""
    """The bytes that wait for more bytes, for the next turn, or until the peer reads."""
    large: bool = False

    def attach(self, channel: FeedChannel, fd: int) -> None:
        self.number = self.owner.feed.attach(channel, fd)

    def detach(self) -> None:
        """Detach from the feed when the connection ends. Safe to call twice."""
        self.rest = b""
        if self.number >= 0:
            self.owner.feed.detach(self.number)
            self.number = -1

    def open_turn(self) -> None:
        owner = self.owner
        if not owner.turn_open or owner.feed.needs_refresh:
            owner.open_turn()

    def take(self, data: memoryview) -> None:
        """Process received bytes."""
        feed, connection = self.owner.feed, self.connection
        while len(data) and self.number >= 0 and not connection.closed:
            if connection.postponing:
                self.rest += data
                return
            if self.rest and not feed.unread(self.rest):
                self.begin_large()
            if self.large:
                self.take_large(data)
                return
            piece = data[: FEED_BYTES - len(self.rest)]
            data = data[len(piece) :]
            feed.feed(piece, len(self.rest))
            self.rest = b""
            self.resume(feed.resume(self.number))

    def take_again(self) -> None:
        """Process the bytes that were kept when requests were postponed."""
        rest, self.rest = self.rest, b""
        if rest:
            self.open_turn()
            self.take(memoryview(rest))

    def resume(self, status: int) -> None:
        """Continue until the buffer is used up. ``status`` is the last status of the feed."""
        feed, connection = self.owner.feed, self.connection
        while status > FeedStatus.PARTIAL:
            if status == FeedStatus.FALLBACK:
                self._fall_back()
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            elif status == FeedStatus.OUT_FULL:
                self.owner.end_turn_early()
            elif status == FeedStatus.OUT_SHARE:
                connection.wait_for_turn()
            else:
                assert status == FeedStatus.BAD_FRAME, status
                self._receive(feed.rest()[: LENGTH_BYTES + WORD_BYTES])
                assert connection.closed, "the receiver accepts a frame that the feed refused"
            if self.number < 0 or connection.closed:
                return
            if connection.postponing or status == FeedStatus.OUT_SHARE:  # the remaining bytes wait
                status = FeedStatus.PARTIAL if feed.rest() else FeedStatus.DONE
                break
            status = feed.resume(self.number)
        self._keep_rest(status)

    def begin_large(self) -> None:
        """Pass the start of a large frame, whose length may be invalid, to the connection's
        receiver.
        """
        rest, self.rest = self.rest, b""
        self.large = True
        self._receive(rest)

    def take_large(self, data: memoryview) -> None:
        feed, connection = self.owner.feed, self.connection
        feed.before_fallback()
        connection.take_in(data)
        feed.after_fallback(())
        self.large = connection.receiver.pending_bytes > 0

    def _receive(self, data: bytes) -> None:
        """Pass the start of a frame to the connection's receiver."""
        try:
            self.connection.receiver.receive(data)
        except RemoteProtocolError as fault:
            self._fault(fault)

    def _fall_back(self) -> None:
        feed, connection = self.owner.feed, self.connection
        commands = []
        try:
            for frame in feed.unhandled_frames():
                commands.append(decode_command(frame))
        except RemoteProtocolError as fault:
            self._fault(fault)
            return
        feed.before_fallback()
        connection.owner.received(connection, commands)
        feed.after_fallback(commands)

    def _keep_rest(self, status: int) -> None:
        connection, feed = self.connection, self.owner.feed
        if status == FeedStatus.DONE:
            connection.partial_since_ms = None
            return
        if feed.advanced or connection.partial_since_ms is None:
            connection.partial_since_ms = self.owner.now_ms
        self.rest = feed.rest()
        connection.partial_head = not is_head_whole(self.rest)

    def _fault(self, fault: RemoteProtocolError) -> None:
        self.connection.owner.faulted(self.connection, fault)
        self.connection.close()


@define(slots=True, eq=False, repr=False)
class FedConnection(RemotingConnection):
    """A connection of a feed with a transport of asyncio; implements ``FeedChannel``."""

    reader: FeedReader | None = None

    # -- FeedChannel

    def unsent(self, data: bytes) -> None:
        self.write(data)

    def send_failed(self, code: int) -> None:
        raise AssertionError(f"the feed does not send on this connection: {code}")

    # -- asyncio.BufferedProtocol and LoopTurns

    def buffer_updated(self, nbytes: int) -> None:
        reader = self.reader
        if self.closed or reader is None:
            return
        reader.open_turn()
        if reader.number < 0:
            reader.attach(self, -1)
        self.last_traffic_ms = self.last_read_ms = reader.owner.now_ms
        self.use_budget(nbytes)
        reader.take(self.turns.buffer[:nbytes])

    def turn_over(self) -> None:
        super().turn_over()
        if self.reader is not None and not self.postponing:
            self.reader.take_again()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.reader is not None and self.reader.rest:
            self.turns.held(self)

    def close(self) -> None:
        reader = self.reader
        if reader is not None and reader.number >= 0:
            reader.owner.feed.flush_now(reader.number)
            reader.detach()
        super().close()

    def abort(self) -> None:
        if self.reader is not None:
            self.reader.detach()
        super().abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.reader is not None:
            self.reader.detach()
        super().connection_lost(exc)
