"""The bytes of a log file and the end of its data: a log's last file is mostly a hole, which need
not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve

from rmqpy.codec import layout
from rmqpy.codec.backend import content_end
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.model.values import define

__all__ = ["AHEAD_BYTES", "LogBytes", "map_log", "map_part", "read_frame"]

AHEAD_BYTES: Final = 1 << 20
"""What is read after a range at first, for the end of its last frame, which is rarely longer."""
_HEAD_BYTES = 8
"""The first two fields of a frame: size and magic of a record, magic and size of an entry."""


@define(slots=True, frozen=True)
class LogBytes:
    """The bytes of a whole file; from ``data_end`` on there are only zeros.

    With ``rest`` they end before the file does, because more was not needed yet: it returns all.
    """

    view: memoryview
    data_end: int
    rest: Callable[[], LogBytes] | None = None

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


def map_part(files: FileSystem, path: str, begin: int, end: int) -> LogBytes:
    """Map a log file of which the bytes from ``begin`` on are needed, first those before ``end``.

    Whoever meets something else than a frame must look further ahead, and takes the ``rest``.
    """
    size = files.size_of(path)
    file = files.open_part(path, begin, min(end, size))
    view = file.view
    found = LogBytes(view, min(file.data_end(0), len(view)))
    file.close()
    return found if len(view) == size else evolve(found, rest=lambda: map_log(files, path))


def read_frame(file: FileSlices, position: int, *, dledger: bool) -> memoryview:
    """Return the bytes of the frame at ``position`` of a log file: a record, or an entry if
    ``dledger`` is set.

    They are its first 8 at most, unless these are the size of a frame in this file and its magic.
    """
    head = file[position : position + _HEAD_BYTES]
    if len(head) < _HEAD_BYTES:
        return head
    size, magic = int.from_bytes(head[:4]), int.from_bytes(head[4:])
    if dledger:
        size, magic = magic, size
    is_frame = magic == layout.ENTRY_MAGIC if dledger else magic in layout.TOPIC_LENGTH_SIZES
    end = position + size
    return file[position:end] if is_frame and end <= len(file) else head
