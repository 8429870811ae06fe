"""Read all consume queues of a store as one sum (:mod:`rmqpy.codec.tally.pooled`).

A queue counts from the first message that the log still has. The result does not depend on how the
queues are divided into batches, which can be read anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from attrs import field

from rmqpy.audit.scan.directory import LogFile, QueueFolder, StoreDirectory
from rmqpy.audit.scan.queue_units import QueueBounds, map_file
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.tally.backend import folder_pool, pool_units, queue_digest
from rmqpy.codec.tally.kernel import QueueTally, Tally
from rmqpy.codec.tally.pooled import OFFSET_MAX, PooledUnits
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.files import FileSystem
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.model.values import define

__all__ = ["LOOK_AHEAD_BYTES", "Map", "PooledQueues", "pool_folders", "pool_queues"]

LOOK_AHEAD_BYTES: Final = 4096
"""The number of bytes after the last unit that must be zero."""
BATCH_QUEUES: Final = 256
BATCH_TOPICS: Final = 64
READ_BYTES_MAX: Final = 64 << 10
"""The size up to which reading a file costs less than mapping it."""
HEADS: Final = 2 * LOOK_AHEAD_BYTES, READ_BYTES_MAX
"""How much of a larger file is read first: with many queues, most files have a few units at their
start, and the system would read 128 KiB of each that is mapped.
"""
_ZEROS: Final = bytes(LOOK_AHEAD_BYTES)
_MASK64: Final = (1 << 64) - 1

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Applies a function to items, possibly elsewhere, and yields the results in order."""


@define(slots=True)
class PooledQueues:
    """The units of some queues: their ``count`` and ``sum``.

    ``bounds`` are those of every queue, in the order of the directory. ``certain`` is False if a
    queue has other units than those of ascending messages. ``file_size`` is set by
    :func:`pool_folders` only: the size that all files have.
    """

    count: int = 0
    sum: int = 0
    bounds: list[QueueBounds] = field(factory=list)
    certain: bool = True
    file_size: int = 0

    def add(self, other: PooledQueues) -> None:
        self.count += other.count
        self.sum = (self.sum + other.sum) & _MASK64
        self.bounds += other.bounds
        self.certain = self.certain and other.certain

    def explains(self, tallies: Iterable[Tally]) -> bool:
        """Return whether these are exactly the units that the messages of the log must have."""
        found = [*tallies]
        total = sum(tally.pooled_sum for tally in found) & _MASK64
        count = sum(tally.pooled_count for tally in found)
        return (
            self.certain
            and not any(tally.pooled_without for tally in found)
            and (count, total) == (self.count, self.sum)
        )

    @property
    def queue_count(self) -> int:
        """The number of queues that have messages in the log."""
        return sum(each.max_offset > each.min_offset for each in self.bounds)

    def as_tallies(self) -> dict[tuple[bytes, int], QueueTally]:
        """Return the queues as the log must have them, if the sums are equal."""
        found = {}
        for each in self.bounds:
            if each.max_offset == each.min_offset:
                continue
            name = each.topic.encode("utf-8", "surrogateescape")
            count = each.max_offset - each.min_offset
            found[name, each.queue_id] = QueueTally(
                topic=name,
                queue_id=each.queue_id,
                count=count,
                first_queue_offset=each.min_offset,
                last_queue_offset=each.max_offset - 1,
                next_queue_offset=each.max_offset,
                right_units=count,
            )
        return found


def pool_queues(
    files: FileSystem, directory: StoreDirectory, map_batches: Map, low: int, high: int | None
) -> PooledQueues:
    """Return the units of all queues that lead to messages from ``low`` to before ``high``.

    ``high`` is the confirmed end of a running broker.
    """
    queues = directory.queues
    batches = [queues[at : at + BATCH_QUEUES] for at in range(0, len(queues), BATCH_QUEUES)]
    total = PooledQueues()
    for found in map_batches(PoolTask(files, low, high), batches):
        total.add(found)
        if not total.certain:
            break
    return total


def pool_folders(folder: str, low: int, map_batches: Map = map) -> PooledQueues | None:
    """Return the units of all queues below ``folder``, a path of this machine, that lead to
    messages from ``low`` on.

    None means that something there is not as usual, as a file that is no consume queue's, one of
    another size, or a unit that does not ascend, or that there is no C core: then list the files
    and call :func:`pool_queues`.
    """
    total = PooledQueues()
    try:
        topics = sorted(os.listdir(folder))
        batches = [topics[at : at + BATCH_TOPICS] for at in range(0, len(topics), BATCH_TOPICS)]
        for found in map_batches(partial(_pool_topics, folder, low), batches):
            sizes = {total.file_size, found.file_size} - {0} if found is not None else ()
            if found is None or len(sizes) > 1:
                return None
            total.add(found)
            total.file_size = max(sizes, default=0)
    except OSError:
        return None
    return total


def _pool_topics(folder: str, low: int, topics: Iterable[str]) -> PooledQueues | None:
    """Return the units of the queues of some topics, or None as :func:`pool_folders` does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pool = folder_pool(descriptor, low)
        if pool is None:
            return None
        names = []
        for topic in topics:
            count = pool.add(os.fsencode(topic), any_tags=topic == SCHEDULE_TOPIC)
            if count is None:
                return None
            names += [topic] * count
    finally:
        os.close(descriptor)
    bounds = [
        QueueBounds(topic=topic, queue_id=number, min_offset=low, max_offset=high, end_physical=end)
        for topic, (number, low, high, end) in zip(names, pool.rows(), strict=True)
    ]
    return PooledQueues(pool.count, pool.sum, bounds, file_size=pool.file_size)


@define(slots=True, frozen=True)
class PoolTask:
    """Reads a batch of queues, in this process or on a worker."""

    files: FileSystem
    low: int
    high: int | None

    def __call__(self, batch: tuple[QueueFolder, ...]) -> PooledQueues:
        found = PooledQueues()
        for queue in batch:
            topic = queue.topic.encode("utf-8", "surrogateescape")
            units = PooledUnits(
                queue=queue_digest(topic, queue.queue_id),
                any_tags=queue.topic == SCHEDULE_TOPIC,
                low=self.low,
                high=OFFSET_MAX if self.high is None else self.high,
            )
            found.bounds.append(self._read(queue, units))
            found.count += units.count
            found.sum = (found.sum + units.sum) & _MASK64
            found.certain = not units.irregular
            if units.irregular:
                break
        return found

    def _read(self, queue: QueueFolder, units: PooledUnits) -> QueueBounds:
        """Add the units of all files of a queue, and return its bounds."""
        segments = queue.segments
        size = segments.file_size
        end = segments.first_offset // QUEUE_UNIT_SIZE if segments else 0
        end_physical = 0
        ended = units.irregular = bool(
            size % QUEUE_UNIT_SIZE
            or segments.gaps()
            or any(file.size != size for file in segments.files)
        )
        for file in segments.files:
            if ended and self.high is not None:
                break
            view, position = memoryview(b""), 0
            for length in (*HEADS, file.size):
                view = self._head(file, length)
                if not ended:
                    number = (file.first_offset + position) // QUEUE_UNIT_SIZE
                    position += pool_units(view[position:], number, units)
                if len(view) == file.size or len(view) - position >= LOOK_AHEAD_BYTES:
                    break
            if not ended:
                ended = position < size
                end += position // QUEUE_UNIT_SIZE
            if position and units.count:
                offset, length, _ = QUEUE_UNIT.unpack_from(view, position - QUEUE_UNIT_SIZE)
                end_physical = offset + length
            following = bytes(view[position : position + LOOK_AHEAD_BYTES])
            if ended and self.high is None and following != _ZEROS[: len(following)]:
                units.irregular = True
        return QueueBounds(
            topic=queue.topic,
            queue_id=queue.queue_id,
            min_offset=units.first if units.count else end,
            max_offset=end,
            end_physical=end_physical,
        )

    def _head(self, file: LogFile, length: int) -> memoryview:
        """Return the first ``length`` bytes of a file, or all of a small one."""
        if file.size <= READ_BYTES_MAX:
            return memoryview(self.files.read_bytes(file.path))
        if length >= file.size:
            return map_file(self.files, file.path)
        return memoryview(self.files.read_head(file.path, length))
