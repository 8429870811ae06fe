"""The files of the timer wheel of RocketMQ 5.x: ``timerwheel``, ``timerlog``, ``timercheck``.

A message with a delivery time is stored in the topic ``rmq_sys_wheel_timer`` first, with its own
topic as REAL_TOPIC. It is then taken from that topic's queue, and entered in the wheel. All numbers
are big-endian.

=============  =====  ============================================================================
timerwheel     bytes  one slot for each tick of twice seven days, by ``time / precision`` modulo
=============  =====  ============================================================================
time           8      due time / precision (ms; 1000 by default) of what the slot contains
first, last    8, 8   positions in the timer log of the first and the last unit, -1: none
number         4      units, less those that take another one back
magic          4
=============  =====  ============================================================================

=============  =====  ============================================================================
timerlog       bytes  one unit for each message; no unit crosses the end of a file
=============  =====  ============================================================================
size           4      52
previous       8      the unit before it in its slot, -1: none
magic          4      1, with 2: enters the wheel again when due, with 4: takes another one back
written, delay 8, 4   ms; the sum is the time of the slot
offset, size   8, 4   of the record in the log
topic hash     4      Java's hash of the message's own topic
reserved       8
=============  =====  ============================================================================

``timercheck`` begins with the time (ms) from which slots have not been delivered, the position up
to which the timer log was flushed before the wheel was, and the offset in the queue of the timer
topic from which messages are not in the wheel. A delivered slot keeps its content.

Source: TimerWheel, Slot, TimerLog, TimerCheckpoint, TimerMessageStore of 5.3.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rmqpy.model.values import define

SLOT_SIZE: Final = 32
TIMER_UNIT_SIZE: Final = 52
DEFAULT_PRECISION_MS: Final = 1000

_SLOT: Final = struct.Struct(">qqqii")
_UNIT: Final = struct.Struct(">iqiqiqii8x")
_CHECK: Final = struct.Struct(">qqq")
_KNOWN_MAGIC: Final = 0xF
_TAKES_BACK: Final = 4


@define(slots=True, frozen=True)
class TimerSlot:
    """One slot of the wheel. ``ticks`` is its time divided by the precision of the wheel."""

    ticks: int
    first: int
    last: int
    number: int


@define(slots=True, frozen=True)
class TimerUnit:
    """One unit of the timer log. ``slot_ms`` is when it is due, or enters the wheel again."""

    previous: int
    slot_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    takes_back: bool


@define(slots=True, frozen=True)
class TimerCheck:
    """How far the wheel has been delivered, flushed, and filled."""

    read_to_ms: int = 0
    flushed_to: int = 0
    taken: int = 0


def decode_slots(data: bytes) -> Iterator[TimerSlot]:
    """Yield the slots in ``data`` that were ever used; a rest that is no whole slot is ignored."""
    usable = len(data) - len(data) % SLOT_SIZE
    for ticks, first, last, number, _ in _SLOT.iter_unpack(memoryview(data)[:usable]):
        if ticks > 0:
            yield TimerSlot(ticks, first, last, number)


def decode_timer_unit(data: bytes) -> TimerUnit | None:
    """Decode one unit, or return None if the bytes are none: zeros, or the filler of a file."""
    if len(data) < TIMER_UNIT_SIZE:
        return None
    size, previous, magic, written, delay, offset, length, topic = _UNIT.unpack_from(data)
    if size != TIMER_UNIT_SIZE or magic | _KNOWN_MAGIC != _KNOWN_MAGIC:
        return None
    return TimerUnit(previous, written + delay, offset, length, topic, bool(magic & _TAKES_BACK))


def decode_timer_check(data: bytes) -> TimerCheck:
    """Decode a checkpoint; one that is too short counts as a new one, as in Java."""
    return TimerCheck(*_CHECK.unpack_from(data)) if len(data) >= _CHECK.size else TimerCheck()
