"""Both ends of a replication connection as state machines: bytes and time in,
:class:`MasterReady` or :class:`SlaveReady` out.

Master::

    waiting ──first report──► streaming ──┐
       └──────────────────────────────────┴──► closed (reason)

    report     waiting                               streaming
    0          start at the last file                (ignored as an acknowledgement)
    1..end     start there, acknowledged             acknowledged; closed if it was not sent yet
    > end      closed                                closed
    < begin    closed: those files no longer exist   (ignored)

Slave::

    open ──► closed (reason)

    transfer          own log is empty               own log ends at E
    at E              -                              stored, reported
    at a file start   stored, reported               closed, unless it is E
    elsewhere         closed                         closed

Both close after ``housekeeping_interval_ms`` without a byte from the other end.

The caller has these duties. After each call, and whenever bytes can be sent, call ``take_ready``
and carry out its result in the order of its fields. Call ``stored`` of a slave's link as soon as
the bytes that it returned are in the log. A closed link returns no more actions.

Invariants: a master sends contiguously from its first offset, never beyond the end of the log and
never across a file boundary; a slave returns only bytes that continue its log, and reports only
stored bytes; ``acknowledged_offset`` never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, Self

from attrs import define, field

from rmqpy.config.loading import StoreSettings
from rmqpy.ha.frames import (
    BODY_MAX,
    HEADER_SIZE,
    ReportReceiver,
    TransferFrame,
    TransferReceiver,
    encode_report,
    encode_transfer,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

ReadLog = Callable[[PhysicalOffset, int], bytes | memoryview | None]
"""A function of offset and size that reads bytes of the log. It returns None if they no longer
exist.
"""

SEND_BYTES_DEFAULT: Final = 256 << 10

REDIAL_FIRST_MS: Final = 1_000
REDIAL_LONGEST_MS: Final = 60_000
REDIAL_KNOWN_FIRST_MS: Final = 200
REDIAL_KNOWN_LONGEST_MS: Final = 1_500


@define(slots=True, frozen=True, kw_only=True)
class LinkSettings:
    """The settings of both ends.

    ``file_size`` is mappedFileSizeCommitLog, which must be equal at both ends. The others are
    haTransferBatchSize, haSendHeartbeatInterval (heartbeats and reports) and
    haHousekeepingInterval.
    """

    file_size: int
    transfer_batch_size: int = 32 << 10
    heartbeat_interval_ms: int = 5_000
    housekeeping_interval_ms: int = 20_000

    @classmethod
    def from_settings(cls, store: StoreSettings) -> Self:
        """Return the settings of a broker's replication links."""
        return cls(
            file_size=store.mapped_file_size_commit_log,
            transfer_batch_size=store.ha_transfer_batch_size,
            heartbeat_interval_ms=store.ha_send_heartbeat_interval,
            housekeeping_interval_ms=store.ha_housekeeping_interval,
        )

    def __attrs_post_init__(self) -> None:
        assert self.file_size > 0 and self.transfer_batch_size > 0

    @property
    def body_max(self) -> int:
        """The maximum number of bytes in one frame."""
        return min(self.transfer_batch_size, BODY_MAX)

    def file_start(self, offset: int) -> PhysicalOffset:
        """Return the first offset of the file that contains ``offset``."""
        return PhysicalOffset(offset - offset % self.file_size)

    def file_end(self, offset: int) -> PhysicalOffset:
        """Return the offset after the file that contains ``offset``."""
        return PhysicalOffset(self.file_start(offset) + self.file_size)


@define(slots=True, frozen=True)
class LogRange:
    """The range of a master's log, from the start of its first file to the end of its readable
    part.
    """

    begin: PhysicalOffset
    end: PhysicalOffset


@define(slots=True, frozen=True)
class MasterReady:
    """The actions for the caller of a :class:`MasterLink`. The slave has all bytes below
    ``acknowledged``.
    """

    acknowledged: PhysicalOffset | None = None
    send: tuple[bytes, ...] = ()
    close: str | None = None


@define(slots=True, frozen=True)
class SlaveReady:
    """The actions for the caller of a :class:`SlaveLink`.

    ``append`` contains bytes that continue the log, each frame within one file; an empty log starts
    at the offset of the first.
    """

    append: tuple[TransferFrame, ...] = ()
    send: bytes = b""
    close: str | None = None


class FollowerLink(Protocol):
    """The master as seen from one that copies its log: a slave, an observer, or a learner."""

    @property
    def was_of_use(self) -> bool:
        """True if bytes that the link has received were stored."""

    @property
    def has_worked(self) -> bool:
        """True if the link has received a transfer or a heartbeat that fits."""

    @property
    def closed(self) -> str | None:
        """The reason why this link is closed, or None."""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None: ...

    def stored(self, end: PhysicalOffset, now_ms: int) -> None: ...

    def tick(self, now_ms: int) -> None: ...

    def take_ready(self) -> SlaveReady | None: ...


class MasterLink:
    """A slave as seen from its master. ``read`` must return bytes of the range that was passed
    last.
    """

    def __init__(self, settings: LinkSettings, log: LogRange, read: ReadLog, now_ms: int) -> None:
        self._settings = settings
        self._log = log
        self._read = read
        self._now_ms = self._read_ms = self._sent_ms = now_ms
        self._receiver = ReportReceiver()
        self._new_acknowledged: PhysicalOffset | None = None
        self._close_reported = False
        self.next_offset: PhysicalOffset | None = None
        """The next offset to send; None before the first report."""
        self.acknowledged_offset: PhysicalOffset | None = None
        self.closed: str | None = None
        """The reason why this link is closed, or None."""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Process bytes from the slave."""
        self._now_ms = now_ms
        if self.closed is not None:
            return
        self._read_ms = now_ms
        try:
            reported = self._receiver.receive(data)
        except RemoteProtocolError as fault:
            self._close(str(fault))
            return
        if reported is not None:
            self._take_report(reported)

    def log_grown(self, log: LogRange, now_ms: int) -> None:
        """Update the range of a log that has grown or lost its first files."""
        assert log.end >= self._log.end, "a log does not shrink while a link is open"
        self._now_ms = now_ms
        self._log = log

    def tick(self, now_ms: int) -> None:
        """Advance the time to ``now_ms``."""
        self._now_ms = now_ms
        silent_ms = now_ms - self._read_ms
        if silent_ms >= self._settings.housekeeping_interval_ms:
            self._close(f"the slave has been silent for {silent_ms} ms")

    def take_ready(self, max_bytes: int = SEND_BYTES_DEFAULT) -> MasterReady | None:
        """Return the next actions; None if there are none. A call sends at most about ``max_bytes``
        bytes; the next call sends more.
        """
        send = () if self.closed is not None else tuple(self._frames(max_bytes))
        acknowledged, self._new_acknowledged = self._new_acknowledged, None
        close = None if self._close_reported else self.closed
        self._close_reported = self.closed is not None
        ready = MasterReady(acknowledged, send, close)
        return None if ready == MasterReady() else ready

    def _take_report(self, reported: PhysicalOffset) -> None:
        log = self._log
        if reported > log.end:
            self._close(
                f"the slave's log ends at {reported}, after the end of ours ({log.end}): it"
                " contains data that this master never had"
            )
            return
        if self.next_offset is None:
            if 0 < reported < log.begin:
                self._close(
                    f"the slave's log ends at {reported}, ours begins at {log.begin}: the data"
                    " between them has expired; empty the store of the slave and restart it"
                )
                return
            self.next_offset = reported if reported else self._settings.file_start(log.end)
        elif reported > self.next_offset:
            self._close(
                f"the slave reports {reported}, but only bytes up to {self.next_offset} were sent"
            )
            return
        if reported > (self.acknowledged_offset or 0):
            self.acknowledged_offset = self._new_acknowledged = reported

    def _frames(self, max_bytes: int) -> list[bytes]:
        frames: list[bytes] = []
        offset = self.next_offset
        if offset is None:
            return frames
        settings, end = self._settings, self._log.end
        while max_bytes > 0 and offset < end:
            size = min(settings.body_max, end - offset, settings.file_end(offset) - offset)
            body = self._read(offset, size)
            if body is None:
                self._close(f"the log no longer has the offset {offset} that the slave needs next")
                break
            assert len(body) == size, (len(body), size)
            frames.append(encode_transfer(offset, body))
            offset = self.next_offset = PhysicalOffset(offset + size)
            max_bytes -= HEADER_SIZE + size
        idle_ms = self._now_ms - self._sent_ms
        if not frames and max_bytes > 0 and idle_ms >= settings.heartbeat_interval_ms:
            frames.append(encode_transfer(offset))
        if frames:
            self._sent_ms = self._now_ms
        return frames

    def _close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason


class SlaveLink:
    """The master as seen from a slave that has just connected.

    ``end`` is the end of the slave's log, 0 if it is empty. ``begin_at`` is the offset from which
    an empty slave requests the log (the start of one of the master's files), or None to request
    only the last file, which is the meaning of a report of 0. A slave can therefore not request a
    log that begins at 0 from its first byte. It requests the log from the second byte instead and
    adds the first, which is known: it is the highest byte of a record's size, 0 below 16 MiB.

    An ``observer`` reports its first offset again and again, whatever it has stored: a master
    takes every report for an acknowledgement, the first one included, so what an observer reports
    must be an offset that slaves have acknowledged.
    """

    def __init__(
        self,
        settings: LinkSettings,
        end: PhysicalOffset,
        now_ms: int,
        *,
        begin_at: PhysicalOffset | None = None,
        observer: bool = False,
    ) -> None:
        assert begin_at is None or begin_at % settings.file_size == 0, begin_at
        self._settings = settings
        self._received_end = self._stored_end = end
        self._now_ms = self._read_ms = self._reported_ms = now_ms
        self._receiver = TransferReceiver()
        self._append: list[TransferFrame] = []
        self._lacks_first_byte = begin_at == 0 and not end
        first_report = PhysicalOffset(1 if self._lacks_first_byte else end or begin_at or 0)
        self._only_report = first_report if observer else None
        self._send = encode_report(first_report)
        self._close_reported = False
        self.was_of_use = False
        """True if bytes that the link has received were stored."""
        self.has_worked = False
        """True if the link has received a transfer or a heartbeat that fits."""
        self.closed: str | None = None
        """The reason why this link is closed, or None."""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Process bytes from the master."""
        self._now_ms = now_ms
        if self.closed is not None:
            return
        self._read_ms = now_ms
        try:
            for received in self._receiver.receive(data):
                transfer = self._with_first_byte(received)
                self._check(transfer)
                self.has_worked = True
                if not transfer.is_heartbeat:
                    self._append.append(transfer)
                    self._received_end = transfer.end
        except RemoteProtocolError as fault:
            self._close(str(fault))

    def stored(self, end: PhysicalOffset, now_ms: int) -> None:
        """Record the new end of the log, which now contains bytes that this link has returned, and
        report it.
        """
        assert self._stored_end < end <= self._received_end, (self._stored_end, end)
        self._now_ms = now_ms
        self.was_of_use = True
        self._stored_end = end
        if self._only_report is None:
            self._report()

    def tick(self, now_ms: int) -> None:
        """Advance the time to ``now_ms``."""
        self._now_ms = now_ms
        silent_ms = now_ms - self._read_ms
        if silent_ms >= self._settings.housekeeping_interval_ms:
            self._close(f"the master has been silent for {silent_ms} ms")
        elif now_ms - self._reported_ms >= self._settings.heartbeat_interval_ms:
            self._report()

    def take_ready(self) -> SlaveReady | None:
        """Return the actions since the last call; None if there are none."""
        append, self._append = tuple(self._append), []
        send, self._send = (b"" if self.closed is not None else self._send), b""
        close = None if self._close_reported else self.closed
        self._close_reported = self.closed is not None
        ready = SlaveReady(append, send, close)
        return None if ready == SlaveReady() else ready

    def _with_first_byte(self, transfer: TransferFrame) -> TransferFrame:
        if transfer.offset != 1 or not self._lacks_first_byte or transfer.is_heartbeat:
            return transfer
        self._lacks_first_byte = False
        return TransferFrame(PhysicalOffset(0), b"\0" + transfer.body)

    def _check(self, transfer: TransferFrame) -> None:
        """Raise RemoteProtocolError for bytes that do not continue this log."""
        offset, own = transfer.offset, self._received_end
        if own and offset != own:
            raise RemoteProtocolError(
                f"the master continues at {offset}, our log ends at {own}: the two logs have"
                " diverged, or the master no longer has the data between them; nothing was changed"
            )
        start = self._settings.file_start(offset)
        if self._lacks_first_byte:
            if transfer.is_heartbeat and offset == 1:
                return
            raise RemoteProtocolError(
                f"the master begins at {offset}, but the log was requested from 0"
            )
        if not own and offset != start:
            raise RemoteProtocolError(
                f"the master begins at {offset}, which is not the start of a file of"
                f" {self._settings.file_size} bytes: check that its mappedFileSizeCommitLog is the"
                " same"
            )
        if transfer.end > start + self._settings.file_size:
            raise RemoteProtocolError(
                f"the master sends {len(transfer.body)} bytes at {offset}, across the end of a file"
                f" of {self._settings.file_size} bytes: check that its mappedFileSizeCommitLog is"
                " the same"
            )

    def _report(self) -> None:
        if self.closed is None:
            end = self._stored_end if self._only_report is None else self._only_report
            self._send = encode_report(end)  # supersedes an earlier report
            self._reported_ms = self._now_ms

    def _close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason


@define(slots=True, eq=False, repr=False)
class ReconnectBackoff:
    """The delay before the next attempt to reach a master, less up to a quarter at random:

    ===============================  ===========================================
    no link has worked yet, or a     1, 2, 4 … 60 s
    master was refused
    since a link has worked          200, 400, 800 ms, 1.5 s, from the start
                                     after each link that has stored bytes: a
                                     master that is restarted is found again
                                     within two seconds
    ===============================  ===========================================

    ``below(n)`` returns a random number below n.
    """

    below: Callable[[int], int] = lambda _n: 0
    _delay_ms: int = field(default=0, init=False)
    _known: bool = field(default=False, init=False)

    def after(self, link: FollowerLink | None) -> int:
        """Return the milliseconds until the next attempt. ``link`` is the closed link, or None if
        the connection failed.
        """
        if link is not None and link.has_worked and not self._known:
            self._known = True
            self._delay_ms = 0
        if link is not None and link.was_of_use:
            self._delay_ms = 0
        if self._known:
            return self._next(REDIAL_KNOWN_FIRST_MS, REDIAL_KNOWN_LONGEST_MS)
        return self._next(REDIAL_FIRST_MS, REDIAL_LONGEST_MS)

    def after_refusal(self) -> int:
        """Return the milliseconds until a master that may not be followed is checked again."""
        if self._known:
            self._known = False
            self._delay_ms = 0
        return self._next(REDIAL_FIRST_MS, REDIAL_LONGEST_MS)

    def _next(self, first_ms: int, longest_ms: int) -> int:
        self._delay_ms = min(max(first_ms, self._delay_ms * 2), longest_ms)
        return self._delay_ms - self.below(self._delay_ms // 4)
