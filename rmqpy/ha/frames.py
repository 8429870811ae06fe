"""The two frames of classic replication, big-endian. There is no handshake.

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

Invariants: the result does not depend on how the stream is split; a receiver keeps at most one
unfinished frame; an offset is never negative and a body ends below 2**63.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define

REPORT_SIZE: Final = 8
HEADER_SIZE: Final = 12

RECEIVE_BUFFER_SIZE: Final = 4 << 20
"""The receive buffer of a Java slave (READ_MAX_BUFFER_SIZE). A larger frame never becomes complete
there.
"""

BODY_MAX: Final = RECEIVE_BUFFER_SIZE - HEADER_SIZE

OFFSET_MAX: Final = (1 << 63) - 1

_REPORT: Final = Struct(">q")
_HEADER: Final = Struct(">qi")


@define(slots=True, frozen=True)
class TransferFrame:
    """Bytes of the master's log. A heartbeat has none; its offset is that of the next bytes."""

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
    """The receiver of a master: bytes in, the latest report out."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def receive(self, data: bytes | bytearray | memoryview) -> PhysicalOffset | None:
        """Return the last complete report, which supersedes the earlier ones, or None.

        Raises RemoteProtocolError if it is negative.
        """
        pending = self._pending + data
        whole = len(pending) - len(pending) % REPORT_SIZE
        self._pending = bytes(pending[whole:])
        if not whole:
            return None
        (offset,) = _REPORT.unpack_from(pending, whole - REPORT_SIZE)
        if offset < 0:
            raise RemoteProtocolError(f"the slave reports the invalid offset {offset}")
        return PhysicalOffset(offset)


class TransferReceiver:
    """The receiver of a slave: bytes in, transfers out."""

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

        Raises RemoteProtocolError for an invalid size or offset, in this and every later call. The
        frames before it in the same ``data`` are lost; the master sends them again on the next
        connection.
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
            f"the master sends {size} bytes at {offset}: expected 0 to {BODY_MAX}"
        )
    if not 0 <= offset <= OFFSET_MAX - size:
        raise RemoteProtocolError(f"the master sends {size} bytes at the invalid offset {offset}")
