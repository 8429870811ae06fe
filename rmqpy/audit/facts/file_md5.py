"""MD5 of files: of the whole file, as ``md5sum`` prints it, and of its valid part.

Two log files with equal content need not be equal byte for byte: after the filler that closes a
file, or after the last record of the newest file, Java leaves old bytes. The ``valid`` bytes are
those up to the end of the last record, plus the 8 bytes of the filler if the file is closed: where
these differ, the logs differ.
"""

from __future__ import annotations

import hashlib

from attrs import define

from rmqpy.audit.scan.queue_units import map_file
from rmqpy.model.files import FileSystem

__all__ = ["FilePart", "FileSums", "file_md5s"]

CHUNK = 1 << 20


@define(slots=True, frozen=True)
class FilePart:
    """A file whose first ``valid`` bytes are meaningful; None means all of them."""

    path: str
    valid: int | None = None


@define(slots=True, frozen=True)
class FileSums:
    """The MD5 sums of a file (``md5``) and of its valid part (``valid_md5``), in hex."""

    md5: str
    valid_md5: str


def file_md5s(files: FileSystem, part: FilePart) -> FileSums:
    """Compute both sums in one pass."""
    md5 = hashlib.md5(usedforsecurity=False)
    size = files.size_of(part.path)
    view = map_file(files, part.path) if size else memoryview(b"")
    valid = len(view) if part.valid is None else min(part.valid, len(view))
    for start in range(0, valid, CHUNK):
        md5.update(view[start : min(start + CHUNK, valid)])
    valid_md5 = md5.hexdigest()
    for start in range(valid, len(view), CHUNK):
        md5.update(view[start : start + CHUNK])
    return FileSums(md5.hexdigest(), valid_md5)
