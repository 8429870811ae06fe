"""ConsumeQueue: the positions of one queue's messages in the commit log.

Unit (20 bytes): physical offset, record size, tags code. The unit of queue offset ``n`` is at byte
``20 * n`` of the queue, in files named by their first byte. A queue that does not start at 0 has
filler units (0, 0x7FFFFFFF, 0) before its first real one. The bytes after the last unit are zero.

Invariants: unit ``n`` belongs to the message whose QUEUEOFFSET is ``n``; physical offsets grow
along a queue; ``max_physical_offset`` is the end of the last unit's record; the size in a unit is
never 0, so 20 zero bytes were never written.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from rmqpy.codec.layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.units import QUEUE_UNIT, queue_filler
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem, UnitFolder
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.values import define
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles

SIZE_KEY = "mappedFileSizeConsumeQueue"
LOAD_CHECK_FILES = 3
"""The number of files, counted from the last, that are searched for gaps when a queue is loaded."""

END_STATE, MIN_STATE, MAX_PHYSICAL_STATE, WATCHED_STATE = range(4)
"""The fields of ``ConsumeQueue.state``: the first two count bytes; WATCHED_STATE is set while
arrivals in the queue must be reported to a listener.
"""
STATE_COUNT = 4

_SECTOR_BYTES = 512
"""The smallest unit in which a disk writes."""

_ZERO_UNIT = bytes(QUEUE_UNIT_SIZE)
_ZERO_STEP = 1 << 16
_NEW_STATE = bytes(8 * STATE_COUNT)


@define(slots=True, frozen=True)
class QueueSync:
    """A task that syncs the files of a queue with units, up to ``end``, that are not durable.

    ``removals`` is how often units had been removed when the task was taken.
    """

    queue: ConsumeQueue
    end: int
    parts: tuple[MappedFile, ...]
    removals: int

    def run(self) -> None:
        """Sync the files. Blocks; may run in a worker thread. The caller reports it with
        :meth:`ConsumeQueue.synced`.
        """
        for file in self.parts:
            file.sync()


class UsedQueues(Protocol):
    """What a queue reports its use to: :class:`rmqpy.store.queues.touched.TouchedQueues`."""

    def add(self, queue: ConsumeQueue, /) -> None:
        """Record that a queue is read or removed, and may be open now."""

    def note(self, queue: ConsumeQueue, /) -> None:
        """Record that a queue was changed without being open."""

    def add_written(self, queue: ConsumeQueue, /) -> bool:
        """Record that a queue is written. Return whether it may be open for that."""


class _Unlimited:
    """The use of a queue that is in no table."""

    def add(self, queue: ConsumeQueue, /) -> None: ...

    def note(self, queue: ConsumeQueue, /) -> None: ...

    def add_written(self, queue: ConsumeQueue, /) -> bool:
        return True


class ConsumeQueue:
    """One queue of one topic, whose units are written in place through a mapping. It adds itself to
    ``touched`` when it is read, changed, or removed.

    A store may have 200,000 of them, most of which are never used: ``segments`` are created when
    they are first needed.
    """

    __slots__ = (
        "_cleared",
        "_directory",
        "_dirty_from",
        "_file_count",
        "_file_size",
        "_files",
        "_first_file",
        "_gone_below",
        "_min_physical",
        "_name",
        "_open_segments",
        "_removals",
        "_touched",
        "began_again",
        "damaged",
        "hidden",
        "number",
        "state",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        file_size: int,
        touched: UsedQueues | None = None,
        number: int = 0,
    ) -> None:
        assert file_size % QUEUE_UNIT_SIZE == 0
        self.number = number
        """Any number that few other queues have (:class:`.touched.WalkedQueues`)."""
        self._touched: UsedQueues = _Unlimited() if touched is None else touched
        self._files = files
        self._directory = directory
        self._file_size = file_size
        self._name: tuple[str, int] | None = None
        self._open_segments: MappedFiles | None = None
        self._first_file = self._file_count = 0
        """The first byte of the first file and the number of files, before there are segments."""
        self.state = array("q", _NEW_STATE)
        """The numbers that the C core also reads and writes, indexed by ``END_STATE`` etc."""
        self._dirty_from = 0
        self._cleared = False
        """True if units were removed and their removal is not durable yet."""
        self._removals = 0
        """How often units were removed."""
        self._gone_below = 0
        """The last known start of the log."""
        self._min_physical: int | None = None
        """The physical offset in the unit of ``min_offset``; None if it is unknown."""
        self.began_again = False
        """True if files were removed since the attribute was last set to False."""
        self.hidden: tuple[tuple[int, int], ...] = ()
        """The queue offset and physical offset of messages whose queue offset was already taken, so
        that no reader of the queue sees them. The table reports and removes them.
        """
        self.damaged = False
        """True if units after the end were found at the start and must be dispatched again."""

    @property
    def _end(self) -> int:
        """The position after the last unit."""
        return self.state[END_STATE]

    @_end.setter
    def _end(self, position: int) -> None:
        self.state[END_STATE] = position

    @property
    def _min(self) -> int:
        return self.state[MIN_STATE]

    @_min.setter
    def _min(self, position: int) -> None:
        self.state[MIN_STATE] = position

    @property
    def max_physical_offset(self) -> PhysicalOffset:
        """The end of the last message in the log; 0 if there is none."""
        return PhysicalOffset(self.state[MAX_PHYSICAL_STATE])

    @max_physical_offset.setter
    def max_physical_offset(self, offset: PhysicalOffset) -> None:
        self.state[MAX_PHYSICAL_STATE] = offset

    @property
    def name(self) -> tuple[str, int]:
        """Topic and queue id."""
        if self._name is None:
            _, topic, queue_id = self._directory.rsplit("/", 2)
            self._name = topic, int(queue_id)
        return self._name

    @property
    def segments(self) -> MappedFiles:
        """The files of the queue."""
        found = self._open_segments
        if found is None:
            found = MappedFiles(self._files, (self._directory,), self._file_size, in_place=True)
            found.use(self._first_file, self._file_count)
            self._open_segments = found
        return found

    @property
    def begins_later(self) -> bool:
        """True if the first file is not that of queue offset 0."""
        files = self._open_segments
        return bool(self._first_file if files is None else files.min_offset)

    @property
    def is_open(self) -> bool:
        """True if the first or the last file is open."""
        files = self._open_segments
        return files is not None and bool(files) and (files.last.is_open or files.first.is_open)

    @property
    def max_offset(self) -> QueueOffset:
        """The queue offset of the next message."""
        return QueueOffset(self._end // QUEUE_UNIT_SIZE)

    @property
    def min_offset(self) -> QueueOffset:
        """The first queue offset whose message is still in the log."""
        return QueueOffset(self._min // QUEUE_UNIT_SIZE)

    @property
    def max_offset_in_file(self) -> int:
        """The number of units in a file."""
        return self._file_size // QUEUE_UNIT_SIZE

    def load(self) -> None:
        """Find the files and the end of the units; change nothing on disk. A gap before later units
        is the end as well: the units after it must be dispatched again.
        """
        self.segments.load(SIZE_KEY)
        self._end = self.segments.wrote_offset
        last_end = None
        for number in range(max(0, len(self.segments) - LOAD_CHECK_FILES), len(self.segments)):
            file = self.segments[number]
            data = file.file.read(0, _last_nonzero_end(file))
            used = _used_bytes(data)
            if number == 0:
                self._min_physical = _first_message(data, used)
            last_end = _last_message_end(data, used) or last_end
            if used < file.size:
                self._end = file.first_offset + used
                self.damaged = used < len(data) or number + 1 < len(self.segments)
                break
        self._min = self.segments.min_offset
        self._dirty_from = self._end
        if last_end is None:
            self._set_max_physical()
        else:
            self.max_physical_offset = PhysicalOffset(last_end)

    def use(self, folder: UnitFolder) -> None:
        """Use what was found in the folder of the queue instead of :meth:`load`."""
        _, first, count, end, first_physical, physical_end = folder
        self._first_file, self._file_count = first, count
        self._min_physical = None if first_physical < 0 else first_physical
        state = self.state
        state[END_STATE] = self._dirty_from = end
        state[MIN_STATE] = first
        state[MAX_PHYSICAL_STATE] = physical_end

    def finish_recovery(self) -> None:
        """Clear the bytes after the end, once the log has been accepted."""
        if self.damaged:  # Otherwise there are none.
            self._cut(self._end)

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Add the unit of one message. Return False if the queue already has it (dispatch may run
        twice), or has another message at its queue offset, which is then in ``hidden``.

        If the queue offset is beyond the end, the skipped units become filler, so that the position
        of a unit always matches the queue offset of its message (the Java broker appends at the end
        and lets them differ). Raises StoreError if it is more than a file beyond the end.
        """
        if physical_offset + size <= self.max_physical_offset:
            return False
        position = queue_offset * QUEUE_UNIT_SIZE
        if position < self._end:
            self.hidden += ((queue_offset, physical_offset),)
            return False
        if position > self._end:
            self._skip_to(position)
        self._write(position, QUEUE_UNIT.pack(physical_offset, size, tags_code))
        self._end = position + QUEUE_UNIT_SIZE
        self.max_physical_offset = PhysicalOffset(physical_offset + size)
        return True

    def put_run(self, queue_offset: int, units: bytes | memoryview) -> None:
        """Add the units of messages with consecutive queue offsets, at least one: all at once if
        they continue the queue, otherwise as :meth:`put` does.
        """
        position, state = queue_offset * QUEUE_UNIT_SIZE, self.state
        (physical_offset, _, _) = QUEUE_UNIT.unpack_from(units)
        if position == state[END_STATE] and physical_offset >= state[MAX_PHYSICAL_STATE]:
            self._write(position, units)
            state[END_STATE] = position + len(units)
            physical_offset, size, _ = QUEUE_UNIT.unpack_from(units, len(units) - QUEUE_UNIT_SIZE)
            state[MAX_PHYSICAL_STATE] = physical_offset + size
            return
        for number, unit in enumerate(QUEUE_UNIT.iter_unpack(units), queue_offset):
            self.put(number, *unit)

    def write_added(self, position: int, units: memoryview) -> None:
        """Write units to the file at ``position``, after the C core has added them to ``state``.
        Raises OSError.
        """
        self._touched.note(self)
        file = self.segments.find(position)
        assert file is not None, "the C core adds units to existing files only"
        was_open = file.is_open
        file.file.write(position - file.first_offset, units)
        if not was_open:
            file.close()

    def units(self, queue_offset: int, count: int) -> memoryview:
        """Return at most ``count`` encoded units from ``queue_offset``, all from one file; empty if
        there is none.
        """
        found = self._place_of(queue_offset, count)
        if found is None:
            return memoryview(b"")
        self._touched.add(self)
        file, start, stop = found
        return file.read(start, stop)

    def read_units(self, queue_offset: int, count: int) -> bytes:
        """Return what :meth:`units` does. The file is not mapped for that: a mapping costs more
        than a read, and its objects last until those of many other queues have replaced it.
        """
        found = self._place_of(queue_offset, count)
        if found is None:
            return b""
        file, start, stop = found
        if file.is_open:
            return bytes(file.read(start, stop))
        try:
            return file.file.read(start, stop - start)
        finally:
            file.close()

    def _place_of(self, queue_offset: int, count: int) -> tuple[MappedFile, int, int] | None:
        """Return the file of a unit, and the range of at most ``count`` units from it on."""
        position = queue_offset * QUEUE_UNIT_SIZE
        file = self.segments.find(position) if 0 <= position < self._end else None
        if file is None:
            return None
        start = position - file.first_offset
        stop = min(start + count * QUEUE_UNIT_SIZE, file.size, self._end - file.first_offset)
        return file, start, stop

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset, record size, tags code) of a unit, or None if it does not exist
        or is filler.
        """
        return _decoded(self.units(queue_offset, 1))

    def _peek(self, number: int) -> bytes:
        """Return an encoded unit without mapping its file, at the start; empty if there is none."""
        position = number * QUEUE_UNIT_SIZE
        file = self.segments.find(position) if 0 <= position < self._end else None
        if file is None:
            return b""
        return file.file.read(position - file.first_offset, QUEUE_UNIT_SIZE)

    def _peek_unit(self, number: int) -> tuple[int, int, int] | None:
        return _decoded(self._peek(number))

    def has_unit_of(self, physical_offset: int) -> bool:
        """Return whether the queue has a unit of the record at an offset."""
        if self.max_physical_offset <= physical_offset:
            return False
        first = self.segments.min_offset // QUEUE_UNIT_SIZE
        unit = self.unit(self._first_at_or_after(physical_offset, first))
        return unit is not None and unit[0] == physical_offset

    def next_file_start(self, queue_offset: int) -> QueueOffset:
        """Return the first queue offset of the file after that of ``queue_offset``."""
        per_file = self.max_offset_in_file
        return QueueOffset((queue_offset // per_file + 1) * per_file)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Raise ``min_offset`` to the first unit whose message is at or after
        ``log_min_offset``.
        """
        self._gone_below = log_min_offset
        if self._min_physical is not None and log_min_offset <= self._min_physical:
            return
        first = max(self._min, self.segments.min_offset) // QUEUE_UNIT_SIZE
        found = self._first_at_or_after(log_min_offset, first)
        self._min = found * QUEUE_UNIT_SIZE
        unit = self.unit(found)
        self._min_physical = None if unit is None else unit[0]

    def reset_to(self, log_min_offset: int) -> None:
        """Correct ``min_offset`` for a log that may start earlier than it did."""
        self._min = self.segments.min_offset
        self._min_physical = None
        self.correct_min_offset(log_min_offset)

    def pop_expired(self, log_min_offset: int) -> Iterator[MappedFile]:
        """Remove and yield the first files while all their units point below the log. The last file
        is always kept. A queue that was closed is closed again.
        """
        was_open = self.is_open
        self.correct_min_offset(log_min_offset)
        if not was_open:
            self.close()
        if self._open_segments is None and self._file_count <= 1:
            return
        while len(self.segments) > 1 and self.segments.first.end_offset <= self._min:
            yield self.segments.take_first()

    def truncate(self, log_end_offset: int) -> bool:
        """Drop the units of messages at or after ``log_end_offset``. Return True if there were
        any.
        """
        if self.max_physical_offset <= log_end_offset:
            return False
        first = self.segments.min_offset // QUEUE_UNIT_SIZE
        end = self._first_at_or_after(log_end_offset, first, self._peek_unit)
        while end > first and self._peek(end - 1) == _ZERO_UNIT:
            end -= 1  # Never written, or lost: its message is dispatched again as well.
        self._cut(end * QUEUE_UNIT_SIZE)
        return True

    def drop_unsynced(self, durable_to: int) -> None:
        """Drop the units of messages at or after ``durable_to``, after an unclean stop: dispatch
        writes them again. All units before them were synced.

        After a power failure each sector is old or new. A unit that crosses their boundary may be
        torn, and followed by complete ones.
        """
        last = int(self.max_offset) - 1
        if self.max_physical_offset <= durable_to and not self._crosses_sectors(last):
            return
        first = self.segments.min_offset // QUEUE_UNIT_SIZE
        end = self._first_at_or_after(durable_to, first, self._unit_in_one_sector)
        while end > first and self._may_be_lost(end - 1, durable_to):
            end -= 1
        if end < self.max_offset:
            self._cut(end * QUEUE_UNIT_SIZE)

    def cut_at(self, queue_offset: int) -> None:
        """Drop the units from ``queue_offset``, which are then dispatched again."""
        self._cut(max(queue_offset * QUEUE_UNIT_SIZE, self.segments.min_offset))
        self.damaged = True

    def mark_unsynced(self, durable_to: int) -> None:
        """Include the units of messages at or after ``durable_to`` in the next sync, and the last
        file (:meth:`mark_suspect`).
        """
        files = self._open_segments
        count = self._file_count if files is None else len(files)
        if count > 1 and self.max_physical_offset > durable_to:
            first = self.segments.min_offset // QUEUE_UNIT_SIZE
            end = self._first_at_or_after(durable_to, first, self._peek_unit)
            self._dirty_from = min(self._dirty_from, end * QUEUE_UNIT_SIZE)
        self.mark_suspect()

    def mark_suspect(self) -> None:
        """Include the last file in the next sync after an unclean stop: changes by the killed
        process (removed units, zeros) may only be in the page cache.
        """
        self._cleared = True
        self._removals += 1
        self._touched.note(self)
        files = self._open_segments
        if files is None:
            last = self._first_file + max(0, self._file_count - 1) * self._file_size
        elif files:
            last = files.last.first_offset
        else:
            return
        self._dirty_from = min(self._dirty_from, last)

    @property
    def is_durable(self) -> bool:
        """True if no unit was added or removed since the last sync."""
        return self._dirty_from >= self._end and not self._cleared

    def take_sync(self) -> QueueSync | None:
        """Return a task that makes all units durable, or None if they are durable."""
        start = self._dirty_from
        if self.is_durable:
            return None
        parts = (file for file in self.segments if file.end_offset > start)
        return QueueSync(self, self._end, tuple(parts), self._removals)

    def synced(self, sync: QueueSync) -> None:
        """Record that a sync was run without an error.

        If units were removed meanwhile, it may have written them before, and not the units that
        have taken their place since: the next sync covers all of it again.
        """
        if sync.removals != self._removals:
            return
        self._dirty_from = max(self._dirty_from, min(sync.end, self._end))
        self._cleared = False

    def destroy(self) -> None:
        """Remove all files."""
        self._touched.note(self)
        self._removals += 1
        while self.segments:
            self.segments.drop_last()
        self._end = self._min = self._dirty_from = 0
        self._min_physical = None
        self.max_physical_offset = PhysicalOffset(0)

    def close(self) -> None:
        """Close the files, which the next use opens again; what was written stays written."""
        if self._open_segments is not None:
            self._open_segments.close()

    def _unit_in_one_sector(self, number: int) -> tuple[int, int, int] | None:
        return None if self._crosses_sectors(number) else self._peek_unit(number)

    def _crosses_sectors(self, number: int) -> bool:
        """Return whether a unit begins in one sector of its file and ends in another."""
        position = number * QUEUE_UNIT_SIZE % self._file_size
        return position % _SECTOR_BYTES > _SECTOR_BYTES - QUEUE_UNIT_SIZE

    def _may_be_lost(self, number: int, durable_to: int) -> bool:
        """Return whether a unit was not written, or crosses sectors and is neither filler nor leads
        to a message after that of the unit before it and up to ``durable_to``.
        """
        unit = self._peek(number)
        if unit == _ZERO_UNIT or not self._crosses_sectors(number):
            return unit == _ZERO_UNIT
        offset, size, _ = QUEUE_UNIT.unpack_from(unit)
        if not _is_message(size):
            return (offset, size) != (0, QUEUE_FILLER_SIZE)
        before = self._peek_unit(number - 1)
        return offset + size > durable_to or (before is not None and offset < sum(before[:2]))

    def _first_at_or_after(
        self,
        physical_offset: int,
        first: int,
        unit_of: Callable[[int], tuple[int, int, int] | None] | None = None,
    ) -> int:
        """Return the number of the first real unit, from ``first``, whose message is at or after
        ``physical_offset``; the end if there is none. ``unit_of`` returns a unit, or None to leave
        it out of the search.

        Fillers have no order: the binary search may end after some of them, so a linear search
        continues backwards over them and the units before. At most one file of fillers is
        contiguous.
        """
        unit_of = unit_of or self.unit
        low, high = first, int(self.max_offset)
        while low < high:
            middle = (low + high) // 2
            unit = unit_of(middle)
            if unit is None or unit[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        found = low
        while low > first:
            low -= 1
            unit = unit_of(low)
            if unit is not None:
                if unit[0] < physical_offset:
                    break
                found = low
        return found

    def _write(self, position: int, data: bytes | memoryview) -> None:
        may_be_open = self._touched.add_written(self)
        rest = memoryview(data)
        while rest:
            file = self._file_for(position)
            start = position - file.first_offset
            count = min(len(rest), file.size - start)
            if may_be_open:
                file.reserve(start, start + count)
                file.file.writable[start : start + count] = rest[:count]
            else:  # Without a mapping, a full disk is an error of the write.
                file.file.write(start, rest[:count])
                file.close()
            position += count
            rest = rest[count:]

    def _file_for(self, position: int) -> MappedFile:
        file = self.segments.find(position)
        if file is None:
            file = self.segments.create(position - position % self.segments.file_size)
        return file

    def _skip_to(self, position: int) -> None:
        """Write filler up to ``position``. A queue without units starts in the file of
        ``position``.
        """
        if not self.segments:
            self._end = position - position % self.segments.file_size
            self._min = position
            self._dirty_from = self._end
            self._min_physical = None
        gap = (position - self._end) // QUEUE_UNIT_SIZE
        if gap > self.max_offset_in_file and self.max_physical_offset <= self._gone_below:
            # The messages of the queue, and later ones without units, have expired: start again.
            while self.segments:
                self.segments.drop_last()
            self.began_again = True
            self._skip_to(position)
            return
        if gap > self.max_offset_in_file:
            raise StoreError(
                self._directory,
                f"a message with queue offset {position // QUEUE_UNIT_SIZE} after"
                f" {self.max_offset} messages",
                "queue offsets without a gap larger than a consume queue file",
                "stop the broker and check the commit log: the message's QUEUEOFFSET is damaged, or"
                " the consume queue lost files; without the folder the queue is rebuilt",
            )
        self._write(self._end, queue_filler(gap))
        self._end = position

    def _cut(self, position: int) -> None:
        """Make ``position`` the end, and zero the bytes after it, so that they cannot reappear."""
        if not self.segments:
            return
        self._removals += 1
        if position <= self._min:
            self._min_physical = None
        count = len(self.segments)
        self.segments.cut(position)
        if len(self.segments) < count:
            self.segments.sync_directories()
        last = self.segments.last
        used = position - last.first_offset
        stale = _last_nonzero_end(last) if used < last.size else 0
        if stale > used:
            last.file.write(used, bytes(stale - used))
            self.mark_suspect()
        self._touched.note(self)
        self._end = position
        self._min = min(self._min, self._end)
        self._dirty_from = min(self._dirty_from, self._end)
        self._set_max_physical()

    def _set_max_physical(self) -> None:
        """Set ``max_physical_offset`` from the last real unit, after which there is at most one
        file of fillers.
        """
        self.max_physical_offset = PhysicalOffset(0)
        first = self.segments.min_offset // QUEUE_UNIT_SIZE
        for number in range(self.max_offset - 1, first - 1, -1):
            # Mostly it is the last one, for which no file needs to be mapped.
            is_last = number == self.max_offset - 1
            unit = self._peek_unit(number) if is_last else self.unit(number)
            if unit is not None:
                self.max_physical_offset = PhysicalOffset(unit[0] + unit[1])
                return


def _last_nonzero_end(file: MappedFile) -> int:
    """Return the end of the unit that contains the last byte that is not zero. Parts of the file
    that were never written are not read: a new file is a hole of 6 MB.
    """
    end = file.file.data_end(0)
    for start in range((end - 1) // _ZERO_STEP * _ZERO_STEP, -1, -_ZERO_STEP):
        chunk = file.file.read(start, min(end - start, _ZERO_STEP)).rstrip(b"\0")
        if chunk:
            return -(-(start + len(chunk)) // QUEUE_UNIT_SIZE) * QUEUE_UNIT_SIZE
    return 0


def _used_bytes(data: bytes) -> int:
    """Return the number of bytes before the first zero unit."""
    found = -1
    while (found := data.find(_ZERO_UNIT, found + 1)) >= 0:
        # 20 zero bytes that are not aligned to a unit belong to two units that are not zero.
        start = -(-found // QUEUE_UNIT_SIZE) * QUEUE_UNIT_SIZE
        if data[start : start + QUEUE_UNIT_SIZE] == _ZERO_UNIT:
            return start
        found = start
    return len(data)


def _first_message(data: bytes, used: int) -> int | None:
    """Return the physical offset in the first unit, or None if it has no message."""
    if not used:
        return None
    offset, size, _ = QUEUE_UNIT.unpack_from(data)
    return offset if _is_message(size) else None


def _last_message_end(data: bytes, used: int) -> int | None:
    """Return the end of the last message that a unit leads to, or None if there is none."""
    for position in range(used - QUEUE_UNIT_SIZE, -1, -QUEUE_UNIT_SIZE):
        offset, size, _ = QUEUE_UNIT.unpack_from(data, position)
        if _is_message(size):
            return int(offset + size)
    return None


def _decoded(unit: bytes | memoryview) -> tuple[int, int, int] | None:
    """Return the fields of an encoded unit, or None if it is empty or leads to no message."""
    if not unit:
        return None
    offset, size, tags_code = QUEUE_UNIT.unpack_from(unit)
    return (offset, size, tags_code) if _is_message(size) else None


def _is_message(size: int) -> bool:
    """Return whether a unit with this record size leads to a message, and is no filler."""
    return size > 0 and size != QUEUE_FILLER_SIZE
