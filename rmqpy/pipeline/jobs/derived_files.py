"""Build consume queues and index files from the packed ranges. A work unit is an index file or some
queues: small queues share one, because a task and a sync cost more than a queue.

Everything is written below ``<folder>/<a unique name>`` and synced, and then the driver renames it.
So a worker that dies, or a second attempt, leaves only files that are never used.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import uuid4

from attrs import define, field

from rmqpy.audit.scan.directory import LogSegments
from rmqpy.audit.scan.queue_units import map_file
from rmqpy.codec import layout
from rmqpy.codec.backend import content_end
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.packing import KEY
from rmqpy.codec.units import QUEUE_UNIT, IndexHeader, index_file_size
from rmqpy.store.files.disk import FILE_MODE, OsFileSystem, sync_file_system
from rmqpy.store.index.index_file import IndexFile
from rmqpy.store.queues.consume_queue import ConsumeQueue

__all__ = [
    "BuiltFile",
    "ByteRange",
    "FileContent",
    "FileTask",
    "IndexFileUnit",
    "QueueBatch",
    "QueueFileUnit",
    "content_of",
]

CHUNK_UNITS: Final = 1 << 16
NS_PER_MS: Final = 1_000_000
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")


@define(slots=True, frozen=True)
class ByteRange:
    """``count`` keys at ``position`` of the file of a range."""

    path: str
    position: int
    count: int


SPAN: Final = 4
"""The numbers of a span: that of the range, position in its file, number of units, and queue offset
of the first one.
"""


class QueueFileUnit(NamedTuple):
    """One queue. ``spans`` has :data:`SPAN` numbers for each, in the order of the log.

    A tuple, because there may be 50,000, and other values take longer to pickle.
    """

    topic: str
    queue_id: int
    spans: list[int]

    @property
    def units(self) -> int:
        """The number of units."""
        return sum(self.spans[2::SPAN])

    def path_of(self, path: str) -> str:
        """Return the path below ``consumequeue`` of a file of the queue."""
        return f"{self.topic}/{self.queue_id}/{path.rpartition('/')[2]}"

    @property
    def is_plain(self) -> bool:
        """Whether the queue starts at 0 and has no gap, so that its files are just its units."""
        expected = 0
        for count, first in zip(self.spans[2::SPAN], self.spans[3::SPAN], strict=True):
            if first != expected:
                return False
            expected += count
        return True


@define(slots=True, frozen=True)
class QueueBatch:
    """The queues of one work unit, sorted by topic, and the length of their files.

    ``paths`` has the files of the ranges by their numbers.
    """

    queues: tuple[QueueFileUnit, ...]
    file_size: int
    paths: tuple[str, ...]

    @property
    def units(self) -> int:
        """The number of units of all queues."""
        return sum(queue.units for queue in self.queues)

    def by_topic(self) -> Iterator[tuple[str, list[QueueFileUnit]]]:
        """Yield (topic, its queues in this batch)."""
        for topic, queues in groupby(self.queues, attrgetter("topic")):
            yield topic, list(queues)


@define(slots=True, frozen=True, kw_only=True)
class IndexFileUnit:
    """Index file ``number``. ``before`` locates the last entry of the previous index file."""

    number: int
    spans: tuple[ByteRange, ...]
    before: ByteRange | None
    slot_count: int
    entry_count: int


FileContent = tuple[str, int, str]
"""A queue file: its path below ``consumequeue``, its size, and the md5 of its bytes without the
zeros at its end, as a plan to install it needs it: nothing has to be read again.
"""


def content_of(path: str, size: int, data: bytes | bytearray | memoryview) -> FileContent:
    """Return the content of a file that begins with ``data`` and has only zeros after it."""
    end = content_end(memoryview(data))
    digest = hashlib.md5(memoryview(data)[:end], usedforsecurity=False)
    return path, size, digest.hexdigest()


@define(slots=True, frozen=True, kw_only=True)
class BuiltFile:
    """The built folder ``path`` (with a folder for each topic of a batch, named by its number) or
    file of the index.

    ``items`` is the number of units or keys. ``contents`` has the queue files. ``begin_ms`` is the
    store time of an index file's first entry.
    """

    path: str
    items: int
    contents: tuple[FileContent, ...] = ()
    begin_ms: int = 0


@define(slots=True, frozen=True, kw_only=True)
class FileTask:
    """Builds one file, in this process or on a worker; store times are read from ``logs``."""

    folder: str
    logs: tuple[LogSegments, ...]
    _views: dict[str, memoryview] = field(factory=dict, init=False, eq=False)
    """The files that were read, each mapped once on each worker."""

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "logs": self.logs, "_views": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __call__(self, unit: QueueBatch | IndexFileUnit) -> BuiltFile:
        path = f"{self.folder}/{uuid4().hex}"
        if isinstance(unit, IndexFileUnit):
            return _build_index(unit, path)
        os.mkdir(path)
        contents: list[FileContent] = []
        for number, (_, queues) in enumerate(unit.by_topic()):
            os.mkdir(f"{path}/{number}")
            for queue in queues:
                folder = f"{path}/{number}/{queue.queue_id}"
                os.mkdir(folder)
                is_plain = queue.is_plain and unit.file_size % QUEUE_UNIT_SIZE == 0
                build = self._write_files if is_plain else self._build_queue
                contents += build(unit, queue, folder)
        sync_file_system(path)
        return BuiltFile(path=path, items=unit.units, contents=tuple(contents))

    def _write_files(
        self, batch: QueueBatch, unit: QueueFileUnit, path: str
    ) -> Iterator[FileContent]:
        """Write the files of a plain queue: their units, then zeros."""
        size, first, waiting = batch.file_size, 0, bytearray()
        for _, units in self._unit_chunks(batch, unit):
            waiting += units
            while len(waiting) >= size:
                file = f"{path}/{first:020d}"
                yield self._write_file(unit.path_of(file), file, waiting[:size], size)
                del waiting[:size]
                first += size
        if waiting:
            file = f"{path}/{first:020d}"
            yield self._write_file(unit.path_of(file), file, waiting, size)

    def _write_file(self, name: str, path: str, units: bytearray, size: int) -> FileContent:
        stored_ms = self._stored_ms(QUEUE_UNIT.unpack_from(units, len(units) - QUEUE_UNIT_SIZE)[0])
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        try:
            written = os.write(descriptor, units)
            while written < len(units):  # The disk is full, and says so now, or it was a signal.
                written += os.write(descriptor, memoryview(units)[written:])
            os.ftruncate(descriptor, size)
            if stored_ms is not None:
                os.utime(descriptor, ns=(stored_ms * NS_PER_MS, stored_ms * NS_PER_MS))
        finally:
            os.close(descriptor)
        return content_of(name, size, units)

    def _view(self, path: str, *, scattered: bool) -> memoryview:
        if path not in self._views:
            self._views[path] = map_file(OsFileSystem(), path, scattered=scattered)
        return self._views[path]

    def _unit_chunks(
        self, batch: QueueBatch, unit: QueueFileUnit
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield (queue offset of the first unit, units) of a queue, in the order of the log."""
        numbers = iter(unit.spans)
        for number, position, units, first in zip(numbers, numbers, numbers, numbers, strict=True):
            view = self._view(batch.paths[number], scattered=False)
            for done in range(0, units, CHUNK_UNITS):
                count = min(CHUNK_UNITS, units - done)
                start = position + done * QUEUE_UNIT_SIZE
                yield first + done, view[start : start + count * QUEUE_UNIT_SIZE]

    def _build_queue(
        self, batch: QueueBatch, unit: QueueFileUnit, path: str
    ) -> Iterator[FileContent]:
        """Write the files of a queue with gaps, as the broker fills them."""
        files = OsFileSystem()
        queue = ConsumeQueue(files, path, batch.file_size)
        try:
            for first, units in self._unit_chunks(batch, unit):
                queue.put_run(first, units)
            ends = [(file.path, _last_unit(file.view)) for file in queue.segments]
            for file in queue.segments:
                yield content_of(unit.path_of(file.path), file.size, file.view)
        finally:
            queue.close()
        for name, offset in ends:
            stored_ms = self._stored_ms(offset)
            if stored_ms is not None:
                files.set_mtime_ms(name, stored_ms)

    def _stored_ms(self, offset: int) -> int | None:
        """Return the store time of the message at a physical offset, or None.

        A queue file's modification time is set to it, because Java searches for a time by these.
        """
        for log in self.logs:
            file = log.file_at(offset)
            if file is None:
                continue
            view, position = self._view(file.path, scattered=True), offset - file.first_offset
            if position + layout.RECORD_SIZE_MIN > len(view):
                return None
            (stored_at,) = LONG.unpack_from(view, position + layout.PHYSICAL_OFFSET_POSITION)
            if stored_at != offset:
                return None
            (flags,) = INT.unpack_from(view, position + layout.SYS_FLAG_POSITION)
            place = position + layout.STORE_TIMESTAMP_POSITIONS[flags & layout.HOSTS_V6]
            return int(LONG.unpack_from(view, place)[0])
        return None


def _read(path: str, position: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(position)
        data = file.read(size)
    assert len(data) == size, f"{path} is shorter than it was written"
    return data


def _last_unit(view: memoryview) -> int:
    """Return the physical offset of the last unit in a queue file."""
    low, high = 0, len(view) // QUEUE_UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        if any(view[middle * QUEUE_UNIT_SIZE : (middle + 1) * QUEUE_UNIT_SIZE]):
            low = middle + 1
        else:
            high = middle
    return int(QUEUE_UNIT.unpack_from(view, max(low - 1, 0) * QUEUE_UNIT_SIZE)[0])


def _build_index(unit: IndexFileUnit, path: str) -> BuiltFile:
    size = index_file_size(unit.slot_count, unit.entry_count)
    opened = OsFileSystem().open(path, size=size)
    file = IndexFile(opened, unit.slot_count, unit.entry_count)
    try:
        if unit.before is not None:
            (keys,) = _key_chunks(unit.before)
            _, offset, stored_ms = KEY.unpack(keys)
            file.continue_from(IndexHeader(end_timestamp_ms=stored_ms, end_offset=offset))
        for span in unit.spans:
            for keys in _key_chunks(span):
                _put_keys(file, keys)
        file.sync()
        header = file.header
        items, begin_ms = header.index_count - 1, header.begin_timestamp_ms
    finally:
        file.close()
    return BuiltFile(path=path, items=items, begin_ms=begin_ms)


def _put_keys(file: IndexFile, keys: bytes) -> None:
    done = 0
    while done < len(keys):
        file.reserve()
        free = (file.reserved_entries - file.header.index_count) * KEY.size
        file.put_packed(keys[done : done + free])
        done += free


def _key_chunks(span: ByteRange) -> Iterator[bytes]:
    for done in range(0, span.count, CHUNK_UNITS):
        count = min(CHUNK_UNITS, span.count - done)
        yield _read(span.path, span.position + done * KEY.size, count * KEY.size)
