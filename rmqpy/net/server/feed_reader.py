"""The reader that passes the bytes of a connection through a feed, however they are received.

=======  ==========================================  =============================
mode     when                                        reader
=======  ==========================================  =============================
fast     the frames fit into the feed's buffer       the feed
partial  the start of a frame is kept                the feed, after these bytes
large    a frame larger than the feed's buffer       a buffer of its own, then the feed
=======  ==========================================  =============================

:class:`rmqpy.net.server.feed_server.FastTransport` drives it with a plain socket,
:class:`FedConnection` with bytes that an asyncio transport has received (TLS, and loops that cannot
watch descriptors).

Invariants: frames reach feed and handler in the order of arrival; no bytes are fed after the
connection has closed, or while its requests wait for the next turn or for the peer to read.
"""

from __future__ import annotations

from typing import Final, Protocol

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
    spare: list[bytearray]
    """Buffers of large frames for the next ones: fresh memory costs more than what is copied to it.
    """

    def open_turn(self) -> None:
        """Prepare for the first read of a turn, or the first read after the state became stale."""

    def end_turn_early(self) -> None:
        """Commit and send the replies now, because the feed's reply buffer is full."""

    def may_exceed_share(self, number: int) -> bool:
        """Return whether this connection, which has its share of the turn, may go on."""
        ...


ZEROS: Final = memoryview(bytes(FEED_BYTES))
SPARE_COUNT_MAX: Final = 4
SPARE_BYTES_MAX: Final = 2 * 1024 * 1024


@define(slots=True, eq=False, repr=False)
class LargeFrame:
    """A frame of ``size`` bytes, of which ``count`` have arrived. Its buffer grows with them, so
    that memory depends on the bytes received, never on the length that a peer claims.
    """

    size: int
    buffer: bytearray
    count: int = 0

    @property
    def missing(self) -> int:
        return self.size - self.count

    def room(self) -> memoryview:
        """Return the place of the next bytes, at most ``FEED_BYTES``. Release it before the next
        call.
        """
        if self.count == len(self.buffer):
            self.buffer += ZEROS[: min(FEED_BYTES, self.missing)]
        end = min(self.size, self.count + FEED_BYTES)
        return memoryview(self.buffer)[self.count : end]

    def add(self, data: memoryview) -> int:
        """Add bytes from the start of ``data``, and return how many."""
        with self.room() as room:
            count = min(len(room), len(data))
            room[:count] = data[:count]
        self.count += count
        return count


@define(slots=True, eq=False, repr=False)
class FeedReader:
    """The reader of a connection. ``number`` is its number in the feed, negative if it has none."""

    owner: FeedOwner
    connection: RemotingConnection
    number: int = -1
    rest: bytes = b""
    """The bytes that wait for more bytes, for the next turn, or until the peer reads."""
    large: LargeFrame | None = None

    def attach(self, channel: FeedChannel, fd: int) -> None:
        self.number = self.owner.feed.attach(channel, fd)

    def detach(self) -> None:
        """Detach from the feed when the connection ends. Safe to call twice."""
        self.rest, self.large = b"", None
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
            elif self.large is not None:
                data = data[self.large.add(data) :]
                self.continue_large()
            else:
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
            has_share = False
            if status == FeedStatus.FALLBACK:
                self._fall_back()
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            elif status == FeedStatus.OUT_FULL:
                self.owner.end_turn_early()
            elif status == FeedStatus.OUT_SHARE:
                has_share = not self.owner.may_exceed_share(self.number)
                if has_share:
                    connection.served = feed.advanced
                    connection.wait_for_turn()
            else:
                assert status == FeedStatus.BAD_FRAME, status
                self._refuse(feed.rest()[: LENGTH_BYTES + WORD_BYTES])
            if self.number < 0 or connection.closed:
                return
            if connection.postponing or has_share:  # the remaining bytes wait
                status = FeedStatus.PARTIAL if feed.rest() else FeedStatus.DONE
                break
            status = feed.resume(self.number)
        self._keep_rest(status)

    def begin_large(self) -> None:
        """Continue the frame at the start of ``rest``, which is larger than the feed's buffer, in a
        buffer of its own.
        """
        rest, self.rest = memoryview(self.rest), b""
        spare = self.owner.spare
        size = int.from_bytes(rest[:LENGTH_BYTES]) + LENGTH_BYTES
        self.large = LargeFrame(size, spare.pop() if spare else bytearray())
        while len(rest) and self.large is not None:
            rest = rest[self.large.add(rest) :]
            self.continue_large()
        self.rest += rest

    def continue_large(self) -> None:
        """Pass the large frame to the feed, if it is complete."""
        large, connection = self.large, self.connection
        assert large is not None
        if large.missing:
            connection.partial_bytes = large.count
            if connection.partial_head:
                with memoryview(large.buffer)[: large.count] as begin:
                    connection.partial_head = not is_head_whole(begin)
            return
        self.large = None
        feed, spare = self.owner.feed, self.owner.spare
        feed.lend(memoryview(large.buffer)[: large.size])
        try:
            self.resume(feed.resume(self.number))
        finally:
            feed.lend(None)
        # A fault, and with it the frame, may still be referred to after its connection has closed.
        kept = len(spare) < SPARE_COUNT_MAX and len(large.buffer) <= SPARE_BYTES_MAX
        if kept and not connection.closed:
            spare.append(large.buffer)

    def _refuse(self, begin: bytes) -> None:
        """Close the connection for the frame that starts with ``begin``."""
        try:
            self.connection.receiver.receive(begin)
        except RemoteProtocolError as fault:
            self._fault(fault)
        assert self.connection.closed, "the receiver accepts a frame that the feed refused"

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
        connection.partial_bytes = len(self.rest)
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
