"""Ranges of a store as work units; the result of each is a file that its executor writes.

The driver takes the results in the order of the log and proves that each range starts where the
previous one ended. If one does not, the driver executes the range again from there and removes the
file of the wrong guess.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

from rmqpy.audit.checks.messages import MessageSelection, MessageWalk
from rmqpy.audit.scan.damage import FileView
from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.log_bytes import AHEAD_BYTES, map_log, map_part
from rmqpy.audit.scan.ranges import WorkRange, split_log
from rmqpy.codec.search import find_frames
from rmqpy.model.files import FileSystem
from rmqpy.store.files.framing import Framing

__all__ = [
    "Chain",
    "OpenWorkUnit",
    "SkippedRange",
    "WorkUnit",
    "WorkUnitResult",
    "first_frame",
    "frame_before",
    "partition_store",
    "remove_temporary",
    "view_before",
    "view_of",
]


REMOVALS_MAX: Final = 10

SEARCH_BACK_BYTES: Final = 8 << 20
"""Twice the largest message that a broker accepts by default."""


@define(slots=True, frozen=True)
class SkippedRange:
    """Bytes of a log file that contain no message."""

    file: str
    offset: int
    size: int


@define(slots=True, frozen=True)
class WorkUnit:
    """One range; ``begin`` is the offset of its first frame, or None if the range must find it."""

    work: WorkRange
    begin: int | None = None


@define(slots=True, frozen=True, kw_only=True)
class WorkUnitResult:
    """The result of a work unit.

    ``begin`` and ``end`` are offsets; ``begin`` is -1 if no frame starts in the range. ``closed``
    means that the log file has no frame after ``end``. ``path`` is the written file, or None.
    """

    work: WorkRange
    begin: int
    end: int
    closed: bool
    path: str | None
    skipped: tuple[SkippedRange, ...]


class OpenWorkUnit:
    """A work unit in execution.

    ``places`` is (position in the log file of its first frame, position at which to stop), or None
    if no frame starts in the range.
    """

    def __init__(self, unit: WorkUnit, files: FileSystem) -> None:
        work = self._work = unit.work
        file = view_of(work, files)
        base, stop = work.first_offset, min(work.stop - work.first_offset, len(file.view))
        begin = first_frame(file, work, stop) if unit.begin is None else unit.begin - base
        self.places = None if begin is None else (begin, stop)
        self._skipped: list[SkippedRange] = []
        self.walk = MessageWalk(
            file,
            MessageSelection(),
            lambda at, size: self._skipped.append(SkippedRange(work.file, at, size)),
        )

    def outcome(self, path: str | None) -> dict[str, Any]:
        """Return the fields of :class:`WorkUnitResult`. Call this after ``walk`` is exhausted."""
        base = self._work.first_offset
        return {
            "work": self._work,
            "begin": -1 if self.places is None else base + self.places[0],
            "end": base + self.walk.end,
            "closed": self.walk.closed,
            "path": path,
            "skipped": tuple(self._skipped),
        }


R = TypeVar("R", bound=WorkUnitResult)


@define(slots=True)
class Chain(Generic[R]):
    """Proves that ranges join; ``rerun`` executes a work unit in this process, and ``remove``
    removes a written file.

    ``expected`` is the offset of the first frame, unless the first range starts its file.
    """

    rerun: Callable[[WorkUnit], R]
    _expected: int = 0
    _closed: bool = field(init=False, default=False)
    remove: Callable[[str], None] = field(default=os.unlink, kw_only=True)

    def take(self, result: R) -> R | None:
        """Return the result of the next range in order, or None if no frame starts in it.

        A result whose first frame was guessed wrong is replaced by that of ``rerun``.
        """
        work = result.work
        if work.is_first:
            self._expected, self._closed = work.first_offset, False
        if self._closed or self._expected >= work.stop:
            self._remove(result)
            return None
        if result.begin != self._expected:
            self._remove(result)
            result = self.rerun(WorkUnit(work, self._expected))
        self._expected, self._closed = result.end, result.closed
        return result

    def _remove(self, result: R) -> None:
        if result.path is not None:
            self.remove(result.path)


def partition_store(
    directory: StoreDirectory, range_bytes: int, limit: int | None
) -> tuple[list[WorkRange], list[SkippedRange]]:
    """Return (ranges of all logs in order, files that are excluded because of a wrong length)."""
    ranges: list[WorkRange] = []
    excluded = []
    for log in directory.logs:
        ranges += split_log(log, directory.root, range_bytes, limit)
        excluded += [
            SkippedRange(directory.relative(file.path), file.first_offset, file.size)
            for file in log.files
            if file.size != log.file_size
        ]
    return ranges, excluded


def view_of(work: WorkRange, files: FileSystem) -> FileView:
    """Return the view of the log file of a range, for a walk from the start of the range on."""
    return _view_from(work, files, work.start - work.first_offset)


def view_before(work: WorkRange, files: FileSystem) -> tuple[FileView, int]:
    """Return the view of the log file of a range, and the position of a frame from which a walk
    leads to the frames of the range (:func:`frame_before`), or of its end if no frame starts in it.
    """
    position = work.start - work.first_offset
    low = position - SEARCH_BACK_BYTES
    file = _view_from(work, files, low)
    before = frame_before(file, position)
    if not before and low > 0:
        if file.data.content_end(low) == low:  # It is in the part that was never written.
            return file, work.stop - work.first_offset
        file = _view_from(work, files, 0)
    return file, before


def _view_from(work: WorkRange, files: FileSystem, begin: int) -> FileView:
    """Return the view of the log file of a range; what is before ``begin`` must not be read."""
    dledger = work.framing is Framing.DLEDGER
    if work.limit is not None:
        data = map_log(files, work.path).head(work.limit - work.first_offset)
    else:
        end = work.stop - work.first_offset + AHEAD_BYTES
        data = map_part(files, work.path, max(begin, 0), end)
    return FileView(data, work.first_offset, work.file_size, dledger)


def frame_before(file: FileView, position: int) -> int:
    """Return the position of a frame from which a walk leads to the frames at ``position``: one
    that is found ``SEARCH_BACK_BYTES`` before it, otherwise the start of the file.

    A forged frame in the body of a message is harmless, because the walk from it leaves the body
    before ``position`` or meets no frame, unless the message is larger than ``SEARCH_BACK_BYTES``.
    """
    low = position - SEARCH_BACK_BYTES
    if low <= 0:
        return 0
    frames = find_frames(file.view, file.base_offset, low, position, dledger=file.dledger)
    return next(frames, 0)


def first_frame(file: FileView, work: WorkRange, stop: int) -> int | None:
    """Return the position of the first frame that starts in a range, found by a search."""
    if work.is_first:
        return 0
    start = work.start - work.first_offset
    frames = find_frames(file.view, work.first_offset, start, stop, dledger=file.dledger)
    return next(frames, None)


def remove_temporary(folder: Path) -> None:
    """Remove the folder with the files of executors, also while duplicates of tasks that have ended
    (speculation) still create files in it. Raises OSError.
    """
    for _ in range(REMOVALS_MAX - 1):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    shutil.rmtree(folder)
