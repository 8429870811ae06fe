"""Which timer messages of a store wait (:mod:`rmqpy.codec.timers` has the format of the files).

A message waits if its slot has not been delivered, or if it is in the timer topic and not in the
wheel yet. The wheel on disk may lack units that were written after its last flush: Java finds them
in the timer log at the next start, and so does this reader. For an empty or missing wheel it reads
the whole timer log. A message that another one has taken back does not wait.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Final

from attrs import field

from rmqpy.codec.properties import PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY
from rmqpy.codec.timers import (
    DEFAULT_PRECISION_MS,
    SLOT_SIZE,
    TIMER_UNIT_SIZE,
    TimerCheck,
    TimerSlot,
    TimerUnit,
    decode_slots,
    decode_timer_check,
    decode_timer_unit,
)
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.model.values import define
from rmqpy.store.unread.raw_log import RawFiles, RawLog, numbered_files

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TAKES_BACK: Final = "TIMER_DEL_UNIQKEY"
"""The property with the unique key of the message that this one takes back."""
SLOT: Final = "TIMER_OUT_MS"
"""The property with the begin of the slot of a message, which Java adds."""
NEXT_MAX: Final = 3

_PAGE: Final = 4096 // SLOT_SIZE * SLOT_SIZE


@define(slots=True)
class WaitingTimers:
    """What waits, by the own topic of the messages. ``unread`` counts messages whose unit or record
    is not there, ``next`` has the times and offsets of those that are due first.
    """

    topics: dict[str, int] = field(factory=dict)
    unread: int = 0
    next: list[tuple[int, int]] = field(factory=list)

    @property
    def count(self) -> int:
        return sum(self.topics.values()) + self.unread

    def add(self, topic: str | None, slot_ms: int, offset: int) -> None:
        """Count a message, which is delivered at the end of its slot."""
        if topic is None:
            self.unread += 1
            return
        self.topics[topic] = self.topics.get(topic, 0) + 1
        insort(self.next, (slot_ms + DEFAULT_PRECISION_MS, offset))
        del self.next[NEXT_MAX:]


def count_timers_ahead(files: FileSystem, root: str, log_end: int) -> int:
    """Return how many units at the end of the timer log lead to records after ``log_end``.

    Units follow the order of the log, so counting backwards from the last one ends at the first
    whose record is there.
    """
    parts = numbered_files(files, f"{root}/timerlog")
    timer_log = RawFiles(files, parts)
    count = 0
    for first, path in reversed(parts):
        whole = files.size_of(path) // TIMER_UNIT_SIZE
        for number in range(_written_units(files, path, whole) - 1, -1, -1):
            unit = decode_timer_unit(
                timer_log.read(first + number * TIMER_UNIT_SIZE, TIMER_UNIT_SIZE)
            )
            if unit is None:  # The filler of the file.
                continue
            if unit.physical_offset + unit.size <= log_end:
                return count
            count += 1
    return count


def _written_units(files: FileSystem, path: str, whole: int) -> int:
    """Return the number of units up to the last byte of a file that is not zero."""
    file = files.open_readonly(path)
    try:
        return min(whole, -(-file.data_end(0) // TIMER_UNIT_SIZE))
    finally:
        file.close()


@define(slots=True)
class TimerReader:
    """Reads the timers of one store. ``set_apart`` are prefixes of topics whose messages are not
    counted, but kept in ``apart``: POP keeps its own records in the wheel.
    """

    log: RawLog
    set_apart: str
    apart: list[StoredMessage] = field(factory=list, init=False)
    _check: TimerCheck = field(init=False)
    _timer_log: RawFiles = field(init=False)
    _names: dict[int, str] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        files, root = self.log.files, self.log.paths.root
        path = f"{root}/config/timercheck"
        self._check = decode_timer_check(files.read_bytes(path) if files.exists(path) else b"")
        self._timer_log = RawFiles(files, numbered_files(files, f"{root}/timerlog"))

    @property
    def wheel(self) -> str:
        return f"{self.log.paths.root}/timerwheel"

    def in_wheel(self) -> WaitingTimers:
        """Return what is in the wheel, or in the timer log and found there at the next start."""
        waiting = WaitingTimers()
        chains: dict[int, dict[int, TimerUnit]] = {}
        is_empty = True
        for slot in self._slots():
            is_empty = False
            if self._unit(slot.last) is None:
                if slot.ticks * DEFAULT_PRECISION_MS >= self._check.read_to_ms:
                    waiting.unread += max(slot.number, 0)
                continue
            for _, unit in self._chain(slot):
                if unit.slot_ms < self._check.read_to_ms:
                    break
                chains.setdefault(unit.slot_ms, {})[unit.physical_offset] = unit
        for unit in self._units_from(0 if is_empty else self._check.flushed_to):
            if unit.slot_ms >= self._check.read_to_ms:
                chains.setdefault(unit.slot_ms, {})[unit.physical_offset] = unit
        for slot_ms, chain in chains.items():
            self._add(waiting, slot_ms, list(chain.values()))
        return waiting

    def broken_slots(self) -> Iterator[int]:
        """Yield the due time, in ticks, of each slot that waits, and whose units in the timer log
        are not those that it counts, or lead to no record of the log.

        Of a slot whose last unit is in a file that was removed, everything has been delivered.
        """
        begin = self._timer_log.parts[0][0] if self._timer_log.parts else 0
        for slot in self._slots():
            chain = list(self._chain(slot))
            units = [unit for _, unit in chain]
            if units and units[0].slot_ms < self._check.read_to_ms:
                continue
            if not units:
                is_broken = slot.last >= begin and slot.number > 0
            else:
                is_broken = (
                    (chain[-1][0], units[-1].previous) != (slot.first, -1)
                    or slot.number != sum(-1 if unit.takes_back else 1 for unit in units)
                    or len({unit.slot_ms for unit in units}) > 1
                    or not all(map(self._has_record, units))
                )
            if is_broken:
                yield slot.ticks

    def before_wheel(self) -> WaitingTimers:
        """Return what is in the queue of the timer topic only."""
        waiting = WaitingTimers()
        for message in self.log.messages(TIMER_TOPIC, 0, self._check.taken):
            topic = message.properties.get(PROPERTY_REAL_TOPIC) if message is not None else None
            if message is not None and topic is not None and topic.startswith(self.set_apart):
                self.apart.append(message)
            elif message is None:
                waiting.unread += 1
            elif TAKES_BACK not in message.properties:
                waiting.add(topic, _slot_ms(message), message.physical_offset)
        return waiting

    def _slots(self) -> Iterator[TimerSlot]:
        files = self.log.files
        if not files.exists(self.wheel) or files.size_of(self.wheel) < SLOT_SIZE:
            return
        file = files.open_readonly(self.wheel)
        try:
            view = file.view
            end = min(file.data_end(0) + _PAGE, len(view))
            empty = bytes(_PAGE)
            for start in range(0, end, _PAGE):
                page = bytes(view[start : start + _PAGE])
                if page != empty[: len(page)]:
                    yield from decode_slots(page)
            view.release()
        finally:
            file.close()

    def _chain(self, slot: TimerSlot) -> Iterator[tuple[int, TimerUnit]]:
        """Yield (position, unit) of a slot, the last one first, as far as they lead back."""
        position, unit = slot.last, self._unit(slot.last)
        while unit is not None:
            yield position, unit
            if unit.previous >= position:
                return
            position, unit = unit.previous, self._unit(unit.previous)

    def _has_record(self, unit: TimerUnit) -> bool:
        """Return whether the record is there, or has expired."""
        offset = unit.physical_offset
        return 0 <= offset < self.log.begin or self.log.has_record(offset, unit.size)

    def _unit(self, position: int) -> TimerUnit | None:
        if position < 0:
            return None
        return decode_timer_unit(self._timer_log.read(position, TIMER_UNIT_SIZE))

    def _units_from(self, position: int) -> Iterator[TimerUnit]:
        """Yield the units of the timer log from a position on."""
        starts = [first for first, _ in self._timer_log.parts if first > position]
        while True:
            unit = self._unit(position)
            if unit is not None:
                yield unit
                position += TIMER_UNIT_SIZE
            elif starts:
                position = starts.pop(0)  # The rest of a file is a filler.
            else:
                return

    def _add(self, waiting: WaitingTimers, slot_ms: int, units: list[TimerUnit]) -> None:
        """Count the units of one slot, without those that are taken back in it."""
        taken_back: set[str | None] = set()
        for unit in units:
            if unit.takes_back:
                message = self.log.record(unit.physical_offset)
                if message is not None:
                    taken_back.add(message.properties.get(TAKES_BACK))
        for unit in units:
            if unit.takes_back:
                continue
            topic = self._topic_of(unit)
            if topic is not None and topic.startswith(self.set_apart):
                message = self.log.record(unit.physical_offset)
                if message is not None:
                    self.apart.append(message)
                continue
            if taken_back:
                message = self.log.record(unit.physical_offset)
                if message is not None and message.properties.get(PROPERTY_UNIQ_KEY) in taken_back:
                    continue
            waiting.add(topic, slot_ms, unit.physical_offset)

    def _topic_of(self, unit: TimerUnit) -> str | None:
        """Return a message's own topic; only the first record of a topic is read. Return None if
        the record is not in the log: it may have been cut off after the unit was written.
        """
        if not self.log.has_record(unit.physical_offset, unit.size):
            return None
        name = self._names.get(unit.topic_hash)
        if name is None:
            message = self.log.record(unit.physical_offset)
            name = message.properties.get(PROPERTY_REAL_TOPIC) if message is not None else None
            if name is not None:
                self._names[unit.topic_hash] = name
        return name


def _slot_ms(message: StoredMessage) -> int:
    text = message.properties.get(SLOT, "")
    return int(text) if text.isdecimal() else 0
