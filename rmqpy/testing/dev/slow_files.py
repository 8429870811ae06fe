"""A disk that needs some time for each sync, as a disk under load does."""

from __future__ import annotations

import threading

from rmqpy.store.files.disk import DiskFile, OsFileSystem


class SlowDisk:
    """The time that each sync takes, in seconds; :meth:`interrupt` ends the syncs that wait."""

    def __init__(self) -> None:
        self.sync_seconds = 0.0
        self._interrupted = threading.Event()

    def wait(self) -> None:
        """Let ``sync_seconds`` pass."""
        if self.sync_seconds > 0:
            self._interrupted.wait(self.sync_seconds)

    def interrupt(self) -> None:
        """End the syncs that are waiting, and wait no more."""
        self.sync_seconds = 0.0
        self._interrupted.set()
        self._interrupted = threading.Event()


class SlowFile(DiskFile):
    """A file on a slow disk."""

    __slots__ = ("_disk",)

    def __init__(self, path: str, fd: int, size: int, readonly: bool, disk: SlowDisk) -> None:
        super().__init__(path, fd, size, readonly)
        self._disk = disk

    def sync(self) -> None:
        self._disk.wait()
        super().sync()


class SlowFileSystem(OsFileSystem):
    """The real file system, whose log and queue files are on a slow disk."""

    def __init__(self, disk: SlowDisk) -> None:
        super().__init__()
        self._disk = disk

    def sync_all(self, path: str) -> bool:
        self._disk.wait()
        return super().sync_all(path)

    def _file(self, path: str, fd: int, size: int, *, readonly: bool) -> DiskFile:
        return SlowFile(path, fd, size, readonly, self._disk)
