"""MD5 of files: whole, as ``md5sum`` prints it, and of the part that means something.

Two equal log files need not be equal byte for byte: behind the filler that closes one, or behind
the last record of the newest, Java leaves what was there. ``valid`` bytes are those up to behind
the last record, with the 8 bytes of the filler where the file is closed: where these differ, the
logs do.
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
    """A file; its first ``valid`` bytes mean something, None: all."""

    path: str
    valid: int | None = None


@define(slots=True, frozen=True)
class FileSums:
    """``md5`` of the file, ``valid_md5`` of its valid part."""

    md5: str
    valid_md5: str


def file_md5s(files: FileSystem, part: FilePart) -> FileSums:
    """Both at the price of one."""
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
