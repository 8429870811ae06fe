"""The file layer: every byte that the store reads or writes goes through one of these objects.

``store.disk`` implements it on the operating system, ``testing`` in memory with crashes and faults.
Reading is by a read-only mapping of the whole file (``StoreFile.view``), writing by ``write``
(pwrite); both see the same bytes at once.
"""

from __future__ import annotations

from typing import Protocol


class StoreFile(Protocol):
    """One open file of fixed size."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """Read-only bytes of the whole file, following every write."""

    @property
    def writable(self) -> memoryview:
        """The same bytes, writable in place (consume queue and index units: many small scattered
        writes).
        """

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at ``position``; raises OSError."""

    def data_end(self, position: int) -> int:
        """Return an offset behind which there are only zeros, at least ``position``: found without
        reading what was never written.
        """

    def reserve(self, position: int, length: int) -> None:
        """Take room on the disk for bytes that will be written in place; raises OSError when there
        is none. (A write in place that finds no room would end the process.)
        """

    def sync(self) -> None:
        """Return when all bytes written before are durable (fdatasync); the file's name is the
        directory's matter. May run in a worker thread; does nothing once the file is closed.
        """

    def close(self) -> None:
        """Release descriptor and mapping. Harmless twice."""


class FileLock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    """A directory tree. Paths are absolute texts with ``/``."""

    def open(self, path: str, *, size: int | None = None) -> StoreFile:
        """Open a file read-write; with ``size`` create it, sparse zeros of that many bytes, and its
        directories.
        """

    def open_readonly(self, path: str) -> StoreFile: ...

    def read_bytes(self, path: str) -> bytes:
        """Whole content; raises FileNotFoundError."""

    def replace_bytes(self, path: str, data: bytes) -> None:
        """Write, fsync, rename over, fsync the directory: afterwards the old or the new content is
        there, never less.
        """

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Sorted names; empty when there is no such directory."""

    def size_of(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Retention and searches by time go by it: who moves bytes about puts it back."""

    def make_dirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Give a file, or a directory with all in it, another name in the same file system."""

    def unlink(self, path: str) -> None:
        """Remove a file; harmless when it is not there."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, durably; harmless when it is not there."""

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable: creations and removals, and, where the
        directory itself is new, its own name.
        """

    def lock(self, path: str) -> FileLock:
        """Take the exclusive advisory lock on byte 0 (POSIX, as the Java broker does); raises
        StoreError when held.
        """

    def open_to_others(self, path: str) -> bool:
        """Return whether a file can be read or written by users beside its owner and group."""

    def disk_usage(self, path: str) -> tuple[int, int]:
        """(total, free) bytes of the file system that holds ``path``, as far as this process may
        use it: what is kept for root is in neither, as for ``df`` and Java.
        """
