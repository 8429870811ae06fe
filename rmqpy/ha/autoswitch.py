"""The frames of AutoSwitchHA, the replication of a controller group of RocketMQ 5.x, big-endian.

Slave to master:

=========  =====  ========================================================================
frame      bytes  fields
=========  =====  ========================================================================
handshake  16     i32 state 1, i16 syncFromLastFile, i16 asyncLearner, i64 brokerId
report     12     i32 state 2, i64 end of the slave's log; the first one is a request, and
                  0 in it requests the log from its first byte
=========  =====  ========================================================================

Master to slave:

=========  =====  ========================================================================
frame      bytes  fields
=========  =====  ========================================================================
handshake  20+12n i32 state 1, i32 12 n, i64 end of the log, i32 last epoch, then n times i32
                  epoch, i64 start offset; n is at most 1000
transfer   36+n   i32 state 2, i32 n, i64 offset of the first byte, i32 epoch, i64 its start
                  offset, i64 confirm offset, then n bytes of the log, of one epoch and one
                  file; n = 0 is a heartbeat
=========  =====  ========================================================================

Source: AutoSwitchHAClient and AutoSwitchHAConnection of 5.3.3. The invariants are those of
:mod:`rmqpy.ha.frames`: the result does not depend on how the stream is split, and a receiver keeps
at most one unfinished frame.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import Final

from attrs import define

from rmqpy.codec.epochs import Epoch
from rmqpy.ha.frames import OFFSET_MAX, RECEIVE_BUFFER_SIZE, TransferFrame
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

STATE_HANDSHAKE: Final = 1
STATE_TRANSFER: Final = 2
EPOCHS_MAX: Final = 1000
"""The epochs for which a Java master has room in a handshake."""

_HEAD: Final = Struct(">ii")
_SLAVE_HANDSHAKE: Final = Struct(">ihhq")
_SLAVE_REPORT: Final = Struct(">iq")
_MASTER_HANDSHAKE: Final = Struct(">iiqi")
_EPOCH: Final = Struct(">iq")
_TRANSFER: Final = Struct(">iiqiqq")
_BODY_MAX: Final = RECEIVE_BUFFER_SIZE - _TRANSFER.size
NO_OFFSET: Final = -1
"""The offset in a heartbeat of a master that has not begun to transfer."""


@define(slots=True, frozen=True)
class MasterEpochs:
    """The handshake of a master: the end of its log, and its epochs, which ascend."""

    end: int
    epochs: tuple[Epoch, ...]


@define(slots=True, frozen=True)
class EpochTransfer:
    """Bytes of the log that belong to ``epoch``, or a heartbeat."""

    frame: TransferFrame
    epoch: Epoch
    confirm_offset: int


def encode_slave_handshake(broker_id: int, *, learner: bool) -> bytes:
    """Return the first frame of a slave, or of a learner, which is never elected."""
    return _SLAVE_HANDSHAKE.pack(STATE_HANDSHAKE, 0, int(learner), broker_id)


def encode_slave_report(offset: int) -> bytes:
    return _SLAVE_REPORT.pack(STATE_TRANSFER, offset)


class AutoSwitchReceiver:
    """The receiver of a slave or learner: bytes in, the frames of a master out."""

    __slots__ = ("_fault", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._fault: str | None = None

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of the unfinished frame."""
        return len(self._pending)

    def receive(self, data: bytes | bytearray | memoryview) -> list[MasterEpochs | EpochTransfer]:
        """Return the frames that ``data`` completes, in order.

        Raises RemoteProtocolError for an invalid frame, in this and every later call. The frames
        before it in the same ``data`` are lost.
        """
        if self._fault is not None:
            raise RemoteProtocolError(self._fault)
        self._pending += data
        frames: list[MasterEpochs | EpochTransfer] = []
        position = 0
        try:
            with memoryview(self._pending) as view:
                while (cut := _cut(view[position:])) is not None:
                    frame, size = cut
                    frames.append(frame)
                    position += size
        except RemoteProtocolError as fault:
            self._fault = str(fault)
            self._pending = bytearray()
            raise
        del self._pending[:position]
        return frames


def _cut(view: memoryview) -> tuple[MasterEpochs | EpochTransfer, int] | None:
    """Return the first frame and its size, or None if it is not complete."""
    if len(view) < _HEAD.size:
        return None
    state, size = _HEAD.unpack_from(view)
    if state == STATE_HANDSHAKE:
        if size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size:
            raise RemoteProtocolError(
                f"the master sends a handshake with {size} bytes of epochs: expected a multiple of"
                f" {_EPOCH.size} up to {EPOCHS_MAX * _EPOCH.size}"
            )
        whole = _MASTER_HANDSHAKE.size + size
        return (_epochs(view, size), whole) if len(view) >= whole else None
    if state != STATE_TRANSFER:
        raise RemoteProtocolError(
            f"the master sends a frame of state {state}: expected a handshake ({STATE_HANDSHAKE})"
            f" or a transfer ({STATE_TRANSFER}); is it the master of a controller group?"
        )
    if not 0 <= size <= _BODY_MAX:
        raise RemoteProtocolError(
            f"the master sends a transfer of {size} bytes: expected 0 to {_BODY_MAX}"
        )
    whole = _TRANSFER.size + size
    return (_transfer(view, size), whole) if len(view) >= whole else None


def _epochs(view: memoryview, size: int) -> MasterEpochs:
    _, _, end, _ = _MASTER_HANDSHAKE.unpack_from(view)
    body = view[_MASTER_HANDSHAKE.size : _MASTER_HANDSHAKE.size + size]
    epochs = tuple(Epoch(number, start) for number, start in _EPOCH.iter_unpack(body))
    for one, two in pairwise(epochs):
        if two.number <= one.number or two.start_offset < one.start_offset:
            raise RemoteProtocolError(f"the master sends epoch {two} after {one}")
    if not 0 <= end <= OFFSET_MAX or any(each.start_offset < 0 for each in epochs):
        raise RemoteProtocolError(f"the master sends the end {end} and epochs from {epochs[:1]}")
    return MasterEpochs(end, epochs)


def _transfer(view: memoryview, size: int) -> EpochTransfer:
    _, _, offset, epoch, start, confirmed = _TRANSFER.unpack_from(view)
    if not (0 if size else NO_OFFSET) <= offset <= OFFSET_MAX - size or start < 0:
        raise RemoteProtocolError(
            f"the master sends {size} bytes at the invalid offset {offset}, of an epoch from"
            f" {start}"
        )
    body = bytes(view[_TRANSFER.size : _TRANSFER.size + size])
    frame = TransferFrame(PhysicalOffset(max(offset, 0)), body)
    return EpochTransfer(frame, Epoch(epoch, start), confirmed)
