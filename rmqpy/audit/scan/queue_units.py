"""The consume queues of a store as they are on disk: their bounds and their units.

The units of a queue end after the last byte that is not zero. Units (0, 0x7FFFFFFF, 0) at the start
are fillers of a queue that did not start at 0. Units whose message is older than the log's first
file are obsolete: the queue's minimum is the first unit after them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from rmqpy.audit.scan.directory import LogSegments, QueueFolder, StoreDirectory
from rmqpy.codec.backend import content_end
from rmqpy.codec.layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.tally.kernel import UnitFiles, UnitRow
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.model.values import define

__all__ = [
    "QueueBounds",
    "QueueUnits",
    "each_unit",
    "map_file",
    "map_units",
    "open_units",
    "read_ends",
    "unit_at",
    "units_within",
]

QueueUnit = tuple[int, int, int]
"""(physical offset, record size, tags code)."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()

V = TypeVar("V", bound=FileSlices)


@define(slots=True, frozen=True, kw_only=True)
class QueueBounds:
    """The range of a queue: queue offsets from ``min_offset`` to before ``max_offset`` have units.

    ``end_physical`` is the end of the last unit's message.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    end_physical: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


def map_file(files: FileSystem, path: str, *, scattered: bool = False) -> memoryview:
    """Return the bytes of a file without keeping it open: the mapping lives as long as the view.

    With ``scattered``, the system reads no pages ahead: a look at one page of a mapped file may
    read megabytes otherwise.
    """
    file = files.open_readonly(path)
    if scattered:
        file.use_in_place()
    view = file.view
    file.close()
    return view


def map_units(
    files: FileSystem, segments: LogSegments, any_tags: bool = False, *, scattered: bool = False
) -> UnitRow | None:
    """Map all segments of a queue or index, or return None if there are none.

    ``scattered`` means that few of the units will be read.
    """
    return _open_units(lambda path: map_file(files, path, scattered=scattered), segments, any_tags)


def open_units(files: FileSystem, segments: LogSegments) -> UnitFiles[FileSlices] | None:
    """Open all segments of a queue to read few of its units. Return None if there are none."""
    return _open_units(files.open_slices, segments, any_tags=False)


def _open_units(
    opened: Callable[[str], V], segments: LogSegments, any_tags: bool
) -> UnitFiles[V] | None:
    if not segments:
        return None
    size = segments.file_size
    views: list[V | None] = [None] * ((segments.end_offset - segments.first_offset) // size)
    for file in segments.files:
        number, remainder = divmod(file.first_offset - segments.first_offset, size)
        if not remainder and file.size == size and number < len(views):
            views[number] = opened(file.path)
    return UnitFiles(tuple(views), segments.first_offset, size, any_tags)


class QueueUnits:
    """The units of all queues of a store, mapped on first use. Thread-safe.

    ``scattered`` means that few of them will be read.
    """

    def __init__(
        self, files: FileSystem, directory: StoreDirectory, *, scattered: bool = False
    ) -> None:
        self._files = files
        self._scattered = scattered
        self._folders = {
            (queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id): queue
            for queue in directory.queues
        }
        self._units: dict[tuple[bytes, int], UnitRow | None] = {}
        self._lock = threading.Lock()

    def __call__(self, topic: bytes, queue_id: int) -> UnitRow | None:
        key = topic, queue_id
        with self._lock:
            if key not in self._units:
                folder = self._folders.get(key)
                self._units[key] = self._map(folder, topic) if folder else None
            return self._units[key]

    def _map(self, folder: QueueFolder, topic: bytes) -> UnitRow | None:
        any_tags = topic == _SCHEDULE_TOPIC
        return map_units(self._files, folder.segments, any_tags, scattered=self._scattered)


def read_ends(
    queue: QueueFolder,
    units: UnitFiles[V] | None,
    log_begin: int,
    limit: int | None = None,
    *,
    thorough: bool = False,
) -> QueueBounds:
    """Return the bounds of a queue.

    ``log_begin`` is the first offset of the log; units of messages at or after ``limit`` are
    ignored. ``thorough`` also searches for units after a hole of zeros.
    """
    first, end = _written(units, thorough) if units else (0, 0)
    if units and limit is not None:
        end = _first_at(units, first, end, limit)
    low = _first_at(units, first, end, log_begin) if units else first
    last = unit_at(units, end - 1) if units and end > low else None
    return QueueBounds(
        topic=queue.topic,
        queue_id=queue.queue_id,
        min_offset=low,
        max_offset=end,
        end_physical=last[0] + last[1] if last else 0,
    )


def unit_at(units: UnitFiles[V], queue_offset: int) -> QueueUnit | None:
    raw = units.read(queue_offset * QUEUE_UNIT_SIZE, QUEUE_UNIT_SIZE)
    if raw is None:
        return None
    offset, size, tags_code = QUEUE_UNIT.unpack(raw)
    return offset, size, tags_code


def each_unit(units: UnitFiles[V], first: int, end: int) -> Iterator[tuple[int, QueueUnit]]:
    """Yield (queue offset, unit) of all units in the range, including zeros and fillers."""
    for queue_offset in range(first, end):
        unit = unit_at(units, queue_offset)
        if unit is not None:
            yield queue_offset, unit


def units_within(units: UnitRow, begin: int, end: int) -> Iterator[tuple[int, QueueUnit]]:
    """Yield (queue offset, unit) of messages from physical offset ``begin`` to before ``end``."""
    first, last = _written(units, thorough=False)
    for queue_offset, unit in each_unit(units, _first_at(units, first, last, begin), last):
        if unit[0] >= end:
            return
        if unit[0] >= begin and unit[1] > 0:
            yield queue_offset, unit


def _written(units: UnitFiles[V], thorough: bool) -> tuple[int, int]:
    """Return (first queue offset with a message's unit, queue offset after the last unit)."""
    begin = units.first // QUEUE_UNIT_SIZE
    end = begin
    for number in range(len(units.views) - 1, -1, -1):
        view = units.views[number]
        stop = 0 if view is None else content_end(view[:]) if thorough else _units_end(view)
        if stop:
            position = units.first + number * units.file_size + stop
            end = -(-position // QUEUE_UNIT_SIZE)
            break
    first = begin
    while first < end:
        unit = unit_at(units, first)
        if unit is not None and unit[1] != QUEUE_FILLER_SIZE:
            break
        first += 1
    return first, end


def _units_end(view: FileSlices) -> int:
    """Return the position after the last unit, by a binary search that expects no hole before it.

    Files are mostly zeros, and reading all of them takes longer than reading the log.
    """
    low, high = 0, len(view) // QUEUE_UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        position = middle * QUEUE_UNIT_SIZE
        if any(view[position : position + QUEUE_UNIT_SIZE]):
            low = middle + 1
        else:
            high = middle
    return low * QUEUE_UNIT_SIZE


def _first_at(units: UnitFiles[V], first: int, end: int, offset: int) -> int:
    """Return the first queue offset whose message is at or after ``offset``."""
    while first < end:
        middle = (first + end) // 2
        unit = unit_at(units, middle)
        if unit is not None and unit[0] < offset:
            first = middle + 1
        else:
            end = middle
    return first
