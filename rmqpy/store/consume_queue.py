"""ConsumeQueue: where the messages of one queue stand in the commit log.

Unit (20 bytes): physical offset, record size, tags code; the unit of queue offset ``n`` stands at byte ``20 * n`` of
the queue, in files named by their first byte. A queue that does not begin at 0 has filler units (0, 0x7FFFFFFF, 0) in
front of its first real one. The bytes behind the last unit are zero.

Invariants: unit ``n`` belongs to the message whose QUEUEOFFSET is ``n``; physical offsets grow along a queue;
``max_physical_offset`` is the end of the last unit's record.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.codec.layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.units import QUEUE_UNIT, queue_filler
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFile, MappedFiles

_ZERO_UNIT = bytes(QUEUE_UNIT_SIZE)
SIZE_KEY = "mappedFileSizeConsumeQueue"


class ConsumeQueue:
    """One queue of one topic. Units are written in place through a mapping and made durable by :meth:`sync`."""

    def __init__(self, files: FileLayer, directory: str, file_size: int) -> None:
        assert file_size % QUEUE_UNIT_SIZE == 0
        self._row = MappedFiles(files, (directory,), file_size)
        self._end = 0
        self._min = 0
        self._dirty_from = 0
        self.max_physical_offset = PhysicalOffset(0)

    @property
    def max_offset(self) -> QueueOffset:
        """Queue offset of the next message."""
        return QueueOffset(self._end // QUEUE_UNIT_SIZE)

    @property
    def min_offset(self) -> QueueOffset:
        """First queue offset whose message is still in the log."""
        return QueueOffset(self._min // QUEUE_UNIT_SIZE)

    @property
    def max_offset_in_file(self) -> int:
        """How many units a file holds."""
        return self._row.file_size // QUEUE_UNIT_SIZE

    def load(self) -> bool:
        """Find the files and the end of the units.

        Returns whether every unit is in place; when not (a zero unit before the last one), the queue ends at the hole
        and what follows has to be dispatched again.
        """
        self._row.load(SIZE_KEY)
        whole = True
        for number, file in enumerate(self._row):
            last = number == len(self._row) - 1
            used = _used_bytes(file.view, whole_file=not last)
            if used < file.size and not last:
                whole = False
            elif last and used < _last_nonzero_end(file.view):
                whole = False
            if not whole or last:
                self._cut_file(file, used)
                break
        self._end = self._row.wrote_offset
        self._min = self._row.min_offset
        self._dirty_from = self._end
        self._set_max_physical()
        return whole

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Add the unit of one message; False when the queue has it already (dispatch may run twice).

        A queue offset beyond the end leaves room: the skipped units become filler, so that a unit's place and its
        message's queue offset never part (the Java broker appends at the end and lets them differ).
        """
        if physical_offset + size <= self.max_physical_offset:
            return False
        position = queue_offset * QUEUE_UNIT_SIZE
        if position < self._end:
            return False
        if position > self._end:
            self._skip_to(position)
        self._write(position, QUEUE_UNIT.pack(physical_offset, size, tags_code))
        self._end = position + QUEUE_UNIT_SIZE
        self.max_physical_offset = PhysicalOffset(physical_offset + size)
        return True

    def put_run(self, queue_offset: int, units: bytes, physical_end: int) -> None:
        """Add consecutive units that continue the queue: the common case, a whole batch of dispatch at once."""
        position = queue_offset * QUEUE_UNIT_SIZE
        assert position == self._end, "a run must continue the queue"
        self._write(position, units)
        self._end = position + len(units)
        self.max_physical_offset = PhysicalOffset(physical_end)

    def continues(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether :meth:`put_run` may start with this message."""
        return queue_offset * QUEUE_UNIT_SIZE == self._end and physical_offset >= self.max_physical_offset

    def units(self, queue_offset: int, count: int) -> memoryview:
        """At most ``count`` units from ``queue_offset`` on, never beyond one file; empty when there is none."""
        position = queue_offset * QUEUE_UNIT_SIZE
        if not 0 <= position < self._end:
            return memoryview(b"")
        file = self._row.find(position)
        if file is None:
            return memoryview(b"")
        start = position - file.first_offset
        stop = min(start + count * QUEUE_UNIT_SIZE, file.size, self._end - file.first_offset)
        return file.view[start:stop]

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, record size, tags code); None when there is no such unit or it is filler."""
        view = self.units(queue_offset, 1)
        if not view:
            return None
        offset, size, tags_code = QUEUE_UNIT.unpack_from(view)
        return None if size == QUEUE_FILLER_SIZE else (offset, size, tags_code)

    def next_file_start(self, queue_offset: int) -> QueueOffset:
        """First queue offset of the file behind the one that would hold ``queue_offset``."""
        per_file = self.max_offset_in_file
        return QueueOffset((queue_offset // per_file + 1) * per_file)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Lift ``min_offset`` to the first unit whose message is at or behind ``log_min_offset``."""
        low, high = self._row.min_offset // QUEUE_UNIT_SIZE, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is None or unit[0] < log_min_offset:
                low = middle + 1
            else:
                high = QueueOffset(middle)
        self._min = low * QUEUE_UNIT_SIZE

    def expire(self, log_min_offset: int) -> int:
        """Remove leading files whose last unit points below the log; the last file always stays."""
        count = 0
        while len(self._row) > 1:
            first = self._row.first
            offset, _, _ = QUEUE_UNIT.unpack_from(first.view, first.size - QUEUE_UNIT_SIZE)
            if offset >= log_min_offset:
                break
            self._row.drop_first()
            count += 1
        self.correct_min_offset(log_min_offset)
        return count

    def truncate(self, log_end_offset: int) -> bool:
        """Drop the units of messages at or behind ``log_end_offset``; True when there were any."""
        if self.max_physical_offset <= log_end_offset:
            return False
        low, high = self._row.min_offset // QUEUE_UNIT_SIZE, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit[0] >= log_end_offset:
                high = QueueOffset(middle)
            else:
                low = middle + 1
        self._cut(low * QUEUE_UNIT_SIZE)
        return True

    def sync(self) -> None:
        """Make every unit durable. May run in a worker thread."""
        start, self._dirty_from = self._dirty_from, self._end
        for file in self._row:
            if file.end_offset > start:
                file.sync()

    @property
    def dirty_bytes(self) -> int:
        return self._end - self._dirty_from

    def destroy(self) -> None:
        while self._row:
            self._row.drop_last()
        self._end = self._min = self._dirty_from = 0
        self.max_physical_offset = PhysicalOffset(0)

    def close(self) -> None:
        self._row.close()

    def _write(self, position: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            file = self._file_for(position)
            start = position - file.first_offset
            count = min(len(rest), file.size - start)
            file.file.writable[start : start + count] = rest[:count]
            file.wrote_position = start + count
            position += count
            rest = rest[count:]

    def _file_for(self, position: int) -> MappedFile:
        file = self._row.find(position)
        if file is None:
            file = self._row.create(position - position % self._row.file_size)
        return file

    def _skip_to(self, position: int) -> None:
        """Fill up to ``position``; a queue without units starts in the file that holds it."""
        if not self._row:
            self._end = position - position % self._row.file_size
            self._min = position
        gap = (position - self._end) // QUEUE_UNIT_SIZE
        self._write(self._end, queue_filler(gap))

    def _cut(self, position: int) -> None:
        """Make ``position`` the end; what was behind it becomes zero, so that it cannot come back."""
        self._row.cut(position)
        if self._row and self._row.last.wrote_position < self._row.last.size:
            self._cut_file(self._row.last, self._row.last.wrote_position)
        self._end = position if self._row else 0
        self._min = min(self._min, self._end)
        self._dirty_from = min(self._dirty_from, self._end)
        self._set_max_physical()

    def _cut_file(self, file: MappedFile, used: int) -> None:
        self._row.cut(file.end_offset)
        file.wrote_position = used
        stale = _last_nonzero_end(file.view)
        if stale > used:
            file.file.writable[used:stale] = bytes(stale - used)

    def _set_max_physical(self) -> None:
        self.max_physical_offset = PhysicalOffset(0)
        for offset, size, _ in self._backwards():
            if size != QUEUE_FILLER_SIZE:
                self.max_physical_offset = PhysicalOffset(offset + size)
                break

    def _backwards(self) -> Iterator[tuple[int, int, int]]:
        for number in range(self.max_offset - 1, self._row.min_offset // QUEUE_UNIT_SIZE - 1, -1):
            view = self.units(number, 1)
            if not view:
                return
            yield QUEUE_UNIT.unpack_from(view)


def _last_nonzero_end(view: memoryview) -> int:
    """End of the unit that holds the last byte which is not zero."""
    step = 1 << 16
    for start in range((len(view) - 1) // step * step, -1, -step):
        chunk = bytes(view[start : start + step]).rstrip(b"\0")
        if chunk:
            end = start + len(chunk)
            return -(-end // QUEUE_UNIT_SIZE) * QUEUE_UNIT_SIZE
    return 0


def _used_bytes(view: memoryview, whole_file: bool) -> int:
    """Bytes of units before the first zero unit."""
    end = len(view) if whole_file else _last_nonzero_end(view)
    data = bytes(view[:end])
    place = -1
    while (place := data.find(_ZERO_UNIT, place + 1)) >= 0:
        # A size is never 0, so a run of 20 zero bytes that is not a unit of its own overlaps one that is.
        start = -(-place // QUEUE_UNIT_SIZE) * QUEUE_UNIT_SIZE
        if data[start : start + QUEUE_UNIT_SIZE] == _ZERO_UNIT:
            return start
    return end
