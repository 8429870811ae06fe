"""The bytes of a log file and the end of its data: a log's last file is mostly a hole, which need
not be read.
"""

from __future__ import annotations

from attrs import define

from rmqpy.codec.backend import content_end
from rmqpy.model.files import FileSystem

__all__ = ["LogBytes", "map_log"]


@define(slots=True, frozen=True)
class LogBytes:
    """The bytes of a whole file; from ``data_end`` on there are only zeros."""

    view: memoryview
    data_end: int

    def head(self, length: int) -> LogBytes:
        """Return the first ``length`` bytes, or all if there are fewer."""
        view = self.view[: max(length, 0)]
        return LogBytes(view, min(self.data_end, len(view)))

    def to_content_end(self) -> LogBytes:
        """Return the same bytes with an exact ``data_end``.

        Zeros of preallocated space are not a hole, so the ``data_end`` of a mapped file includes
        them.
        """
        return LogBytes(self.view, self.content_end())

    def content_end(self, position: int = 0) -> int:
        """Return the position after the last byte that is not zero, at least ``position``."""
        return content_end(self.view[: self.data_end], position)


def map_log(files: FileSystem, path: str, *, scattered: bool = False) -> LogBytes:
    """Map a log file without keeping it open: the mapping lives as long as the view.

    With ``scattered``, the system reads no pages ahead.
    """
    file = files.open_readonly(path)
    if scattered:
        file.use_in_place()
    found = LogBytes(file.view, min(file.data_end(0), len(file.view)))
    file.close()
    return found
