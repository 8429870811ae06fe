"""MD5 of files: of the whole file, as ``md5sum`` prints it, and of its valid part.

Two log files with equal content need not be equal byte for byte: after the filler that closes a
file, or after the last record of the newest file, Java leaves old bytes. The ``valid`` bytes are
those up to the end of the last record, plus the 8 bytes of the filler if the file is closed: where
these differ, the logs differ.
"""

from __future__ import annotations

import hashlib

from rmqpy.model.files import FileSystem, StoreFile
from rmqpy.model.values import define

__all__ = ["FilePart", "FileSums", "file_md5s"]

CHUNK = 1 << 20
_ZEROS = memoryview(bytes(CHUNK))


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
    """Compute both sums in one pass. The hole at the end of a log's last file, of which every page
    would have to be mapped, is not read.
    """
    md5 = hashlib.md5(usedforsecurity=False)
    file = files.open_readonly(part.path)
    try:
        valid = file.size if part.valid is None else min(part.valid, file.size)
        data_end = min(file.data_end(0), file.size)
        _update(md5, file, (0, valid), data_end)
        valid_md5 = md5.hexdigest()
        _update(md5, file, (valid, file.size), data_end)
    finally:
        file.close()
    return FileSums(md5.hexdigest(), valid_md5)


def _update(md5: hashlib._Hash, file: StoreFile, span: tuple[int, int], data_end: int) -> None:
    """Add the bytes of a range; from ``data_end`` on they are zeros."""
    begin, end = span
    in_data = max(begin, min(end, data_end))
    for start in range(begin, in_data, CHUNK):
        stop = min(start + CHUNK, in_data)
        md5.update(file.view[start:stop])
        file.release(start, stop)
    for start in range(in_data, end, CHUNK):
        md5.update(_ZEROS[: end - start])
