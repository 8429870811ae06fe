"""A new folder that exists as long as the process that uses it, also after kill -9.

Invariant: a folder is locked (flock) by the process that uses it, from before it contains a file
until it is removed. What a killed process has left is not locked, and the next process that creates
a folder of the same kind removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable

from attrs import define


@define(slots=True, frozen=True, eq=False, repr=False)
class LockedFolder:
    """A folder that no other process uses."""

    path: str
    _fd: int

    @classmethod
    def create(
        cls, place: str, prefix: str, removed: Callable[[str], None] = lambda _path: None
    ) -> LockedFolder:
        """Create a folder in ``place`` whose name begins with ``prefix``, after those that killed
        processes of this user have left there are removed; ``removed`` is called with each.

        Raises OSError if ``place`` does not allow it.
        """
        _remove_abandoned(place, prefix, removed)
        while True:
            path = tempfile.mkdtemp(prefix=prefix, dir=place)
            fd = _lock(path)
            if fd is not None:
                return cls(path, fd)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _lock(path: str) -> int | None:
    """Lock a folder and return its descriptor, or None if another process holds it, or it is not
    there any more: another start may have taken it for an abandoned one.
    """
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    return None


def _remove_abandoned(place: str, prefix: str, removed: Callable[[str], None]) -> None:
    """Remove the folders of this user that no process has locked."""
    for entry in list(os.scandir(place)):
        with contextlib.suppress(OSError):
            if not entry.name.startswith(prefix) or entry.stat().st_uid != os.getuid():
                continue
            fd = _lock(entry.path)
            if fd is not None:
                LockedFolder(entry.path, fd).remove()
                removed(entry.path)
