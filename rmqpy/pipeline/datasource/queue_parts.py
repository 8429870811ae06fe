"""Divide the messages to read from live queues into tasks.

A task costs some 25 ms of CPU, in which several thousand messages are read. Therefore large ranges
are tasks of their own, and small ones share a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import define

from rmqpy.pipeline.datasource.live_reader import QueueRange
from rmqpy.pipeline.datasource.stream_offsets import Position

__all__ = ["PartSizes", "queue_parts"]

PACKED_OFFSETS: Final = 8192
"""The number of offsets up to which ranges share a task."""


@define(slots=True, frozen=True, kw_only=True)
class PartSizes:
    """The limits of tasks: at most ``count_max`` offsets in each, and at least ``parts_min`` tasks
    if there are as many offsets.
    """

    count_max: int | None = None
    parts_min: int | None = None

    def limits(self, total: int) -> tuple[int, int]:
        """Return the offsets (of a range, of ranges that share a task) for ``total`` offsets."""
        largest = self.count_max or max(total, 1)
        if self.parts_min is not None:
            largest = max(min(largest, total // self.parts_min), 1)
        return largest, min(PACKED_OFFSETS, largest)


def queue_parts(
    begin: Position, end: Position, sizes: PartSizes
) -> Iterator[tuple[QueueRange, ...]]:
    """Yield the ranges of each task."""
    total = sum(end[queue] - begin[queue] for queue in end if end[queue] > begin[queue])
    largest, shared = sizes.limits(total)
    ranges = (
        QueueRange(queue, start, min(start + largest, end[queue]))
        for queue in sorted(end)
        for start in range(begin[queue], end[queue], largest)
    )
    yield from _packed(ranges, shared)


def _packed(ranges: Iterable[QueueRange], count: int) -> Iterator[tuple[QueueRange, ...]]:
    part: list[QueueRange] = []
    size = 0
    for each in ranges:
        own = each.end - each.begin
        if part and size + own > count:
            yield tuple(part)
            part, size = [], 0
        part.append(each)
        size += own
    if part:
        yield tuple(part)
