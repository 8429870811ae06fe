"""The two frames of classic replication, big-endian; the wire has nothing else, not even a
greeting.

Report, slave to master:

======  =====  ==========================================
offset  bytes  field
======  =====  ==========================================
0       8      end of the slave's log
======  =====  ==========================================

Transfer, master to slave:

======  =====  ==========================================
offset  bytes  field
======  =====  ==========================================
0       8      physical offset of the first byte
8       4      n, number of bytes; 0 is a heartbeat
12      n      bytes of the log, unchanged
======  =====  ==========================================

Invariants: the split of the stream makes no difference; a receiver keeps at most one unfinished
frame; an offset is never negative and a body ends within 63 bits.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from attrs import define

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

REPORT_SIZE: Final = 8
HEADER_SIZE: Final = 12

RECEIVE_BUFFER_SIZE: Final = 4 << 20
"""READ_MAX_BUFFER_SIZE of a Java slave: a frame that does not fit never becomes complete."""

BODY_MAX: Final = RECEIVE_BUFFER_SIZE - HEADER_SIZE

OFFSET_MAX: Final = (1 << 63) - 1

_REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")


@define(slots=True, frozen=True)
class TransferFrame:
    """Bytes of the master's log; none in a heartbeat, whose offset is that of the next bytes."""

    offset: PhysicalOffset
    body: bytes = b""

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.offset + len(self.body))

    @property
    def is_heartbeat(self) -> bool:
        return not self.body


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_transfer(offset: int, body: bytes | memoryview = b"") -> bytes:
    assert len(body) <= BODY_MAX, len(body)
    return b"".join((_HEADER.pack(offset, len(body)), body))


class ReportReceiver:
    """The master's half: bytes in, the newest report out."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def receive(self, data: bytes | bytearray | memoryview) -> PhysicalOffset | None:
        """Return the last complete report that has arrived; earlier ones are superseded unread.

        Raises RemoteProtocolError for an impossible report.
        """
        pending = self._pending + data
        whole = len(pending) - len(pending) % REPORT_SIZE
        self._pending = bytes(pending[whole:])
        if not whole:
            return None
        (offset,) = _REPORT.unpack_from(pending, whole - REPORT_SIZE)
        if offset < 0:
            raise RemoteProtocolError(f"a slave reports the offset {offset}")
        return PhysicalOffset(offset)


class TransferReceiver:
    """The slave's half: bytes in, transfers out."""

    __slots__ = ("_fault", "_needed", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._needed = HEADER_SIZE
        self._fault: str | None = None  # only the text: an exception would keep its frames alive

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of the unfinished frame."""
        return len(self._pending)

    def receive(self, data: bytes | bytearray | memoryview) -> list[TransferFrame]:
        """Return the transfers that ``data`` completes, in order.

        Raises RemoteProtocolError for an impossible size or offset, in this and every later call;
        the frames before it in the same ``data`` are sent again on the next connection.
        """
        if self._fault is not None:
            raise RemoteProtocolError(self._fault)
        self._pending += data
        if len(self._pending) < self._needed:
            return []
        try:
            with memoryview(self._pending) as view:
                transfers, used = self._cut(view)
        except RemoteProtocolError as fault:
            self._fault = str(fault)
            self._pending = bytearray()
            raise
        del self._pending[:used]
        return transfers

    def _cut(self, view: memoryview) -> tuple[list[TransferFrame], int]:
        transfers: list[TransferFrame] = []
        position = 0
        while True:
            self._needed = HEADER_SIZE
            if len(view) - position < HEADER_SIZE:
                return transfers, position
            offset, size = _HEADER.unpack_from(view, position)
            _check(offset, size)
            self._needed = HEADER_SIZE + size
            end = position + self._needed
            if end > len(view):
                return transfers, position
            body = bytes(view[position + HEADER_SIZE : end])
            transfers.append(TransferFrame(PhysicalOffset(offset), body))
            position = end


def _check(offset: int, size: int) -> None:
    if not 0 <= size <= BODY_MAX:
        raise RemoteProtocolError(
            f"a master sends {size} bytes at {offset}: allowed are 0 to {BODY_MAX}"
        )
    if not 0 <= offset <= OFFSET_MAX - size:
        raise RemoteProtocolError(f"a master sends {size} bytes at the impossible offset {offset}")
