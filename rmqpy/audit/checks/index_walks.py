"""The walk over the entries of a key index file as a unit of work, in this process or elsewhere."""

from __future__ import annotations

from typing import Final

from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.codec.tally.backend import walk_index
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define

__all__ = ["IndexTask", "IndexWalk"]

ONE_FILE: Final = 1 << 62
"""A size of log files with which all entries are summed together."""


@define(slots=True, frozen=True, kw_only=True)
class IndexWalk:
    """The walk over the entries before ``entry_end`` of a file; those of messages in ``span``
    count.
    """

    path: str
    slot_count: int
    entry_end: int
    span: tuple[int, int]


@define(slots=True, frozen=True)
class IndexTask:
    """Walks one file."""

    files: FileSystem

    def __call__(self, walk: IndexWalk) -> IndexSums:
        view = map_log(self.files, walk.path).view
        return walk_index(view, walk.slot_count, walk.entry_end, ONE_FILE, *walk.span)
