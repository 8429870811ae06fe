"""Ranges of a store as pieces of work whose results are files: who has the range writes one.

The driver takes the results in the order of the log and proves that each range begins where the one
before ended; where it does not, the range is done once more from there, by the driver, and the file
of the wrong guess goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from attrs import define, field

from rmqpy.audit.checks.messages import MessageSelection, MessageWalk, file_view
from rmqpy.audit.scan.damage import FileView
from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.audit.scan.ranges import WorkRange, split_row
from rmqpy.codec.search import find_frames
from rmqpy.store.files.disk import OsFileSystem

__all__ = [
    "Chain",
    "OpenPiece",
    "PieceResult",
    "SkippedRange",
    "WorkUnit",
    "first_frame",
    "partition_store",
    "view_of",
]


@define(slots=True, frozen=True)
class SkippedRange:
    """Bytes of a log file that hold no message."""

    file: str
    offset: int
    size: int


@define(slots=True, frozen=True)
class WorkUnit:
    """``begin``: offset of the first frame, None where the range has to find it."""

    work: WorkRange
    begin: int | None = None


@define(slots=True, frozen=True, kw_only=True)
class PieceResult:
    """``begin`` and ``end`` are offsets; ``begin`` is -1 where no frame begins in the range.
    ``closed``: the log file has nothing behind ``end``. ``path``: the file that was written, None
    without any.
    """

    work: WorkRange
    begin: int
    end: int
    closed: bool
    path: str | None
    skipped: tuple[SkippedRange, ...]


class OpenPiece:
    """A range that is walked. ``places``: where its frames begin and where the walk stops, in the
    log file; None where no frame begins in it.
    """

    def __init__(self, piece: WorkUnit) -> None:
        work = self._work = piece.work
        file = view_of(work)
        base, stop = work.first_offset, min(work.stop - work.first_offset, len(file.view))
        begin = first_frame(file, work, stop) if piece.begin is None else piece.begin - base
        self.places = None if begin is None else (begin, stop)
        self._skipped: list[SkippedRange] = []
        self.walk = MessageWalk(
            file,
            MessageSelection(),
            lambda at, size: self._skipped.append(SkippedRange(work.file, at, size)),
        )

    def outcome(self, path: str | None) -> dict[str, Any]:
        """What every result says, once the walk is done."""
        base = self._work.first_offset
        return {
            "work": self._work,
            "begin": -1 if self.places is None else base + self.places[0],
            "end": base + self.walk.end,
            "closed": self.walk.closed,
            "path": path,
            "skipped": tuple(self._skipped),
        }


R = TypeVar("R", bound=PieceResult)


@define(slots=True)
class Chain(Generic[R]):
    """The proof. ``again``: do a piece here and now."""

    again: Callable[[WorkUnit], R]
    _expected: int = field(init=False, default=0)
    _closed: bool = field(init=False, default=False)

    def take(self, result: R) -> R | None:
        """The next range in order, as it really is; None when nothing of the log is in it."""
        work = result.work
        if work.is_first:
            self._expected, self._closed = work.first_offset, False
        if self._closed or self._expected >= work.stop:
            _remove(result)
            return None
        if result.begin != self._expected:
            _remove(result)
            result = self.again(WorkUnit(work, self._expected))
        self._expected, self._closed = result.end, result.closed
        return result


def _remove(result: PieceResult) -> None:
    if result.path is not None:
        os.unlink(result.path)


def partition_store(
    directory: StoreDirectory, range_bytes: int, limit: int | None
) -> tuple[list[WorkRange], list[SkippedRange]]:
    """The ranges of all logs in order, and the files that are left out: those of a wrong length."""
    works: list[WorkRange] = []
    left_out = []
    for row in directory.logs:
        works += split_row(row, directory.root, range_bytes, limit)
        left_out += [
            SkippedRange(directory.relative(file.path), file.first_offset, file.size)
            for file in row.files
            if file.size != row.file_size
        ]
    return works, left_out


def view_of(work: WorkRange) -> FileView:
    """The log file of a range."""
    log_file = LogFile(work.path, work.first_offset, work.file_size, mtime_ms=0)
    return file_view(OsFileSystem(), log_file, work.framing, work.limit)


def first_frame(file: FileView, work: WorkRange, stop: int) -> int | None:
    """Position of the first frame that begins in a range, by the range's own search."""
    if work.is_first:
        return 0
    start = work.start - work.first_offset
    frames = find_frames(file.view, work.first_offset, start, stop, dledger=file.dledger)
    return next(frames, None)
