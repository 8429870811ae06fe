"""Copies of files: clones where the file system has them, else copies that keep holes and times."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

FICLONE: Final = 0x40049409
"""The Linux request that lets a file share the blocks of another one."""
_NO_CLONE: Final = frozenset(
    (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
)
_COPY_CHUNK: Final = 1 << 20


def clone(source: Path, target: Path) -> bool:
    """Let ``target`` share the blocks of ``source``. Return False, and leave no file, if the file
    system cannot do that.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError as error:
            target.unlink()
            if error.errno not in _NO_CLONE:
                raise
            return False
    shutil.copystat(source, target)
    return True


def copy_sparse(
    source: Path, target: Path, advance: Callable[[int], None] = lambda count: None
) -> int:
    """Copy a file with its holes and times; return the number of bytes that are not holes.

    ``advance`` receives the number of bytes after each piece of at most 1 MiB. It may wait.
    """
    copied = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        status = os.fstat(reader.fileno())  # another file may take its name at any time
        writer.truncate(status.st_size)
        position = 0
        while position < status.st_size:
            data_start = _seek(reader.fileno(), position, os.SEEK_DATA, status.st_size)
            if data_start >= status.st_size:
                break
            data_end = _seek(reader.fileno(), data_start, os.SEEK_HOLE, status.st_size)
            reader.seek(data_start)
            writer.seek(data_start)
            while data_start < data_end:
                chunk = reader.read(min(_COPY_CHUNK, data_end - data_start))
                if not chunk:
                    break
                writer.write(chunk)
                data_start += len(chunk)
                copied += len(chunk)
                advance(len(chunk))
            position = data_end
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return copied


def _seek(descriptor: int, position: int, how: int, size: int) -> int:
    """Return the position of the next data or hole from ``position`` on, or the file's end."""
    try:
        return os.lseek(descriptor, position, how)
    except OSError:
        return size
