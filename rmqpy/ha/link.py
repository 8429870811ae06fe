"""A replication connection as seen from the master, as a state machine: bytes and time in,
:class:`MasterReady` out. The other end is in :mod:`rmqpy.ha.follower`.

::

    waiting ──first report──► streaming ──┐
       └──────────────────────────────────┴──► closed (reason)

    report     waiting                               streaming
    0          start at the last file                (ignored as an acknowledgement)
    1..end     start there, acknowledged             acknowledged; closed if it was not sent yet
    > end      closed                                closed
    < begin    closed: those files no longer exist   (ignored)

It closes after ``housekeeping_interval_ms`` without a byte from the other end.

The caller has these duties. After each call, and whenever bytes can be sent, call ``take_ready``
and carry out its result in the order of its fields. A closed link returns no more actions.

Invariants: a master sends contiguously from its first offset, never beyond the end of the log and
never across a file boundary; ``acknowledged_offset`` never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from rmqpy.config.loading import StoreSettings
from rmqpy.ha.frames import (
    BODY_MAX,
    HEADER_SIZE,
    ReportReceiver,
    encode_transfer,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define

ReadLog = Callable[[PhysicalOffset, int], bytes | memoryview | None]
"""A function of offset and size that reads bytes of the log. It returns None if they no longer
exist.
"""

SEND_BYTES_DEFAULT: Final = 256 << 10


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
