"""A replication connection as seen from one that copies the master's log, as a state machine:
bytes and time in, :class:`SlaveReady` out. The other end is in :mod:`rmqpy.ha.link`.

::

    open ──► closed (reason)

It closes after ``housekeeping_interval_ms`` without a byte from the other end.

The caller has these duties. After each call, and whenever bytes can be sent, call ``take_ready``
and carry out its result in the order of its fields. Call ``stored`` as soon as the bytes that it
returned are in the log. A closed link returns no more actions.

Invariants: a link returns only bytes that continue the log, and reports only stored bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from attrs import field

from rmqpy.ha.frames import TransferFrame, TransferReceiver, encode_report
from rmqpy.ha.link import LinkSettings
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define

REDIAL_FIRST_MS: Final = 200
REDIAL_LONGEST_MS: Final = 1_500
REFUSED_FIRST_MS: Final = 1_000
REFUSED_LONGEST_MS: Final = 60_000


@define(slots=True, frozen=True)
class SlaveReady:
    """The actions for the caller of a :class:`FollowerLink`.

    ``append`` contains bytes that continue the log, each frame within one file; an empty log starts
    at the offset of the first.
    """

    append: tuple[TransferFrame, ...] = ()
    send: bytes = b""
    close: str | None = None


class FollowerLink(ABC):
    """The master as seen from one that copies its log: a slave, an observer, or a learner.

    ``first`` is what it sends first. A subclass adds what it receives to ``_append``, and raises
    RemoteProtocolError for what does not fit.
    """

    def __init__(self, settings: LinkSettings, now_ms: int, first: bytes) -> None:
        self._settings = settings
        self._now_ms = self._read_ms = self._reported_ms = now_ms
        self._append: list[TransferFrame] = []
        self._send = first
        self._close_reported = False
        self.was_of_use = False
        """True if bytes that the link has received were stored."""
        self.has_worked = False
        """True if the link has received a transfer or a heartbeat that fits."""
        self.does_not_fit = False
        """True if the link is closed because what the master has sent does not fit."""
        self.closed: str | None = None
        """The reason why this link is closed, or None."""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Process bytes from the master."""
        self._now_ms = now_ms
        if self.closed is not None:
            return
        self._read_ms = now_ms
        try:
            self._process(data)
        except RemoteProtocolError as fault:
            self.does_not_fit = True
            self._close(str(fault))

    def stored(self, end: PhysicalOffset, now_ms: int) -> None:
        """Record that the log now ends at ``end`` with bytes that this link has returned."""
        self._now_ms = now_ms
        self.was_of_use = True

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

    @abstractmethod
    def _process(self, data: bytes | bytearray | memoryview) -> None:
        """Process bytes of an open link."""

    @abstractmethod
    def _report_frame(self) -> bytes | None:
        """Return the report to send now; None if it is too early for one."""

    def _report(self) -> None:
        """Send a report, which supersedes an earlier one that was not sent yet."""
        report = self._report_frame() if self.closed is None else None
        if report is not None:
            self._send = report
            self._reported_ms = self._now_ms

    def _check_within_file(self, transfer: TransferFrame) -> None:
        """Raise RemoteProtocolError for bytes of more than one file."""
        settings = self._settings
        if transfer.end > settings.file_end(transfer.offset):
            raise RemoteProtocolError(
                f"the master sends {len(transfer.body)} bytes at {transfer.offset}, across the end"
                f" of a file of {settings.file_size} bytes: check that its mappedFileSizeCommitLog"
                " is the same"
            )

    def _close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason


class SlaveLink(FollowerLink):
    """The master as seen from a slave that has just connected.

    ::

        transfer          own log is empty               own log ends at E
        at E              -                              stored, reported
        at a file start   stored, reported               closed, unless it is E
        elsewhere         closed                         closed

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
        self._received_end = self._stored_end = end
        self._receiver = TransferReceiver()
        self._lacks_first_byte = begin_at == 0 and not end
        first_report = PhysicalOffset(1 if self._lacks_first_byte else end or begin_at or 0)
        self._only_report = first_report if observer else None
        super().__init__(settings, now_ms, encode_report(first_report))

    def stored(self, end: PhysicalOffset, now_ms: int) -> None:
        """Record the new end of the log, and report it."""
        assert self._stored_end < end <= self._received_end, (self._stored_end, end)
        super().stored(end, now_ms)
        self._stored_end = end
        if self._only_report is None:
            self._report()

    def _process(self, data: bytes | bytearray | memoryview) -> None:
        for received in self._receiver.receive(data):
            transfer = self._with_first_byte(received)
            self._check(transfer)
            self.has_worked = True
            if not transfer.is_heartbeat:
                self._append.append(transfer)
                self._received_end = transfer.end

    def _report_frame(self) -> bytes:
        return encode_report(self._stored_end if self._only_report is None else self._only_report)

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
        self._check_within_file(transfer)


@define(slots=True, eq=False, repr=False)
class ReconnectBackoff:
    """The delay before the next attempt to reach a master, less up to a quarter at random:

    ================================  ==========================================
    nobody answered, or a connection  200, 400, 800 ms, 1.5 s, from the start
    has ended                         after each link that has stored bytes: a
                                      master that is started is found within
                                      two seconds, however long it was down
    the master was refused, or the    1, 2, 4 … 60 s: an operator must act, and
    first that it sent does not fit   each attempt compares logs
    ================================  ==========================================

    ``below(n)`` returns a random number below n.
    """

    below: Callable[[int], int] = lambda _n: 0
    _delay_ms: int = field(default=0, init=False)
    _refused: bool = field(default=False, init=False)

    def after(self, link: FollowerLink | None) -> int:
        """Return the milliseconds until the next attempt. ``link`` is the closed link, or None if
        the connection failed.
        """
        if link is not None and link.does_not_fit and not link.has_worked:
            return self.after_refusal()
        if self._refused or (link is not None and link.was_of_use):
            self._refused = False
            self._delay_ms = 0
        return self._next(REDIAL_FIRST_MS, REDIAL_LONGEST_MS)

    def after_refusal(self) -> int:
        """Return the milliseconds until a master that may not be followed is checked again."""
        if not self._refused:
            self._refused = True
            self._delay_ms = 0
        return self._next(REFUSED_FIRST_MS, REFUSED_LONGEST_MS)

    def _next(self, first_ms: int, longest_ms: int) -> int:
        self._delay_ms = min(max(first_ms, self._delay_ms * 2), longest_ms)
        return self._delay_ms - self.below(self._delay_ms // 4)
