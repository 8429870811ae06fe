"""The interfaces of the file layer, through which the store reads and writes every byte.

``store.files.disk`` implements them on the operating system, ``testing`` in memory with crashes and
faults. A file is read through a read-only mapping of the whole file (``StoreFile.view``) and
written with ``write`` (pwrite); a write is visible in the mapping immediately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

FileIdentity = tuple[int, int, int, int]
"""(inode, length, time of the last write, time of the last change of the file or its metadata).
The times are in ns. Whoever changes a file can set the first of them, and not the second.
"""


UnitFolder = tuple[int, int, int, int, int, int]
"""A folder with the files of a consume queue: (its number, first byte of the first file, number of
files, end of the units, physical offset in the first unit, end of the last message in the log).

The first byte and the end are positions in the queue. The physical offset is -1 if the first file
was not read, or does not begin with a message; the end in the log is 0 if there is no message.
"""
NumberAndSum = tuple[int, int]
"""The number of units, and their sum as :class:`rmqpy.codec.tally.pooled.PooledUnits` has it."""


class UnitFolders(NamedTuple):
    """What was found in a folder of consume queues."""

    queues: Sequence[UnitFolder] = ()
    """In no order."""
    is_complete: bool = False
    """True if ``queues`` has all folders."""
    units: NumberAndSum | None = None
    """Those of messages from ``low`` on; None if they are not those of ascending messages without a
    gap, or if files that were not read may have some of them.
    """


class FileSlices(Protocol):
    """The bytes of a file, of which only the slices that are taken are read. A memoryview is one.

    A slice has no step. Taking it raises StoreError or NetworkError if the bytes cannot be read.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> memoryview: ...


class StoreFile(Protocol):
    """An open file of fixed size."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview:
        """The bytes of the whole file, read-only. Every write is visible in them."""

    def release(self, begin: int, end: int) -> None:
        """Announce that the bytes of ``view`` in ``[begin, end)`` are not needed for now: they take
        no memory of the process until they are read again.
        """

    def read(self, position: int, length: int) -> bytes:
        """Return bytes without mapping the file, which is cheaper if it is read only once. Raises
        StoreError if the disk cannot deliver them.
        """

    @property
    def writable(self) -> memoryview:
        """The bytes of the whole file, writable in place, for the many small and scattered writes
        of consume queue and index units.
        """

    def use_in_place(self) -> None:
        """Announce that the file is one of many, and is read and written through its mappings at
        scattered places. The system then reads no pages ahead, and no descriptor is kept.
        """

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at ``position``. Raises OSError."""

    def data_end(self, position: int) -> int:
        """Return a position from which on the file contains only zeros, at least ``position``.

        Parts of the file that were never written are not read.
        """

    def reserve(self, position: int, length: int) -> None:
        """Allocate disk space for ``length`` bytes that will be written in place. Raises OSError if
        the disk is full, because a write in place to a full disk would kill the process (SIGBUS).
        """

    def sync(self) -> None:
        """Make all bytes written so far durable (fdatasync); the name of the file is made durable
        by ``FileSystem.sync_dir``. May run in a worker thread. Does nothing if the file is closed
        or removed.
        """

    def close(self) -> None:
        """Release descriptor and mapping. May be called twice."""


class FileLock(Protocol):
    def release(self) -> None: ...


class DirectoryEntry(NamedTuple):
    """A name in a directory. A symbolic link counts as what it leads to.

    Size and time are those of a file; 0 for a directory.
    """

    name: str
    is_dir: bool
    size: int
    mtime_ms: int


MAPPINGS_MAX: Final = 1 << 20
"""The number of mappings of a process where the system names no limit."""


class FileSystem(Protocol):
    """A directory tree. Paths are absolute, as strings with ``/``."""

    @property
    def mappings_max(self) -> int:
        """The number of mappings that the system allows a process."""

    def open(self, path: str, *, size: int | None = None) -> StoreFile:
        """Open a file for reading and writing. With ``size``, create it as a sparse file of that
        many zero bytes, together with its directories.
        """

    def open_readonly(self, path: str) -> StoreFile: ...

    def open_part(self, path: str, begin: int, end: int) -> StoreFile:
        """Open a file of which only the bytes from ``begin`` to before ``end`` are needed. It may
        end there, and have anything before ``begin``. Raises FileNotFoundError.
        """

    def open_slices(self, path: str) -> FileSlices:
        """Open a file of which few bytes will be read, at scattered places. It needs no closing.
        Raises FileNotFoundError.
        """

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a file. Raises FileNotFoundError."""

    def read_head(self, path: str, length: int) -> bytes:
        """Return the first ``length`` bytes of a file that has as many, and read nothing ahead: the
        cheapest look into one of many files. Raises FileNotFoundError, and StoreError if the disk
        cannot deliver them.
        """

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        """Replace the content of a file, with all ``parts`` in order, atomically and durably: after
        a crash it has either the old or the new content. (Write a temporary file, fsync, rename,
        fsync the directory.)
        """

    def resolve(self, path: str) -> str:
        """Return the absolute path without symbolic links, ``.`` and ``..``; it need not exist."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in a directory, or an empty list if it does not exist."""

    def list_entries(self, path: str) -> list[DirectoryEntry]:
        """Return what a directory contains, sorted by name; nothing if it does not exist."""

    def unit_folders(
        self,
        directory: str,
        topics: Sequence[str],
        file_size: int,
        files_read: int,
        low: int | None,
    ) -> Iterator[UnitFolders]:
        """Read the last ``files_read`` files of each consume queue of some topics, whose folders
        are in ``directory``, and yield what was found for each topic, without ``units`` if ``low``
        is None. Anything that is not as usual is left out, to be examined by the caller; a file
        system may leave out all.
        """

    def open_folder(self, path: str) -> int:
        """Return a descriptor of a folder, to be closed by the caller; -1 if it does not exist or
        is none of the operating system.
        """

    def size_of(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def identity(self, path: str) -> FileIdentity:
        """Return what changes whenever the content of a file does. Raises FileNotFoundError."""

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set the modification time, which retention and searches by time depend on. Code that
        copies or rewrites a file must restore it.
        """

    def make_dirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory tree within the same file system."""

    def unlink(self, path: str) -> None:
        """Remove a file if it exists."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree durably if it exists."""

    def sync_dir(self, path: str) -> None:
        """Make creations and removals in this directory durable, and the name of the directory
        itself if it is new.
        """

    def sync_all(self, path: str) -> bool:
        """Make everything durable that was written to the file system of ``path``, or return False
        if the operating system has no call for that. With many files it is far cheaper than to sync
        each. May run in a worker thread. Raises OSError.
        """

    def lock(self, path: str) -> FileLock:
        """Take the exclusive advisory lock on byte 0 of a file (POSIX, as the Java broker does).
        Raises StoreError if another process holds it.
        """

    def open_to_others(self, path: str) -> bool:
        """Return whether users other than a file's owner and group can read or write it."""

    def device_of(self, path: str) -> int:
        """Return a number that all paths of one file system have; the path need not exist."""

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Return (total, free) bytes of the file system that contains ``path``. Neither includes
        the blocks reserved for root, as in ``df`` and Java.
        """

    def free_inodes(self, path: str) -> int | None:
        """Return how many files can still be created on the file system that contains ``path``, or
        None if it has no limit of its own.
        """
