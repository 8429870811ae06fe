"""Count the messages of each topic that were stored in each interval of a time span."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from attrs import define

from rmqpy.audit.checks.messages import MessageSelection, MessageWalk, file_view
from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.audit.scan.ranges import RANGE_BYTES, WorkRange, split_log
from rmqpy.codec.hashes import java_text
from rmqpy.model.files import FileSystem

__all__ = ["BIN_COUNT", "TimeTask", "count_over_time"]

BIN_COUNT: Final = 120

Counts = Counter[tuple[str, int]]
"""Numbers of messages by topic and interval."""
Run = Callable[["TimeTask", Iterable[WorkRange]], Iterable[Counts]]
"""A function that executes all ranges and yields the results."""


@define(slots=True, frozen=True)
class TimeTask:
    """Counts the messages of one range, in this process or on a worker.

    Times are in ms; a time outside the span counts in the first or the last interval.
    """

    first_ms: int
    last_ms: int
    files: FileSystem

    def __call__(self, work: WorkRange) -> Counts:
        file = LogFile(work.path, work.first_offset, work.file_size, mtime_ms=0)
        view = file_view(self.files, file, work.framing, work.limit)
        begin = MessageWalk(view, MessageSelection()).skip(work.start - work.first_offset)
        stop = min(work.stop - work.first_offset, len(view.view))
        counts: Counter[tuple[bytes, int]] = Counter()
        for scan, _, count in MessageWalk(view, MessageSelection()).scans(begin, stop):
            parts = map(self._part, scan.store_timestamp_ms[:count])
            counts.update(zip(scan.topic[:count], parts, strict=True))
        named: Counts = Counter()
        for (topic, part), count in counts.items():
            named[java_text(topic), part] += count
        return named

    def _part(self, time_ms: int) -> int:
        span = max(self.last_ms - self.first_ms + 1, 1)
        return min(max((time_ms - self.first_ms) * BIN_COUNT // span, 0), BIN_COUNT - 1)


def run_here(task: TimeTask, ranges: Iterable[WorkRange]) -> Iterator[Any]:
    """Execute the ranges one after the other in this process."""
    return map(task, ranges)


def count_over_time(
    directory: StoreDirectory, task: TimeTask, limit: int | None = None, run: Run = run_here
) -> Counts:
    """Return the counts of all messages of a store before the offset ``limit``."""
    ranges = [
        work
        for log in directory.logs
        for work in split_log(log, directory.root, RANGE_BYTES, limit)
    ]
    total: Counts = Counter()
    for counts in run(task, ranges):
        total.update(counts)
    return total
