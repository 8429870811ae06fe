"""The file system of the operating system: pwrite, fdatasync, shared mappings, POSIX locks.

A mapping is created at first use and is read-only unless ``writable`` was used first: commit logs
are written with ``pwrite``, because the kernel zeroes every freshly touched page of a writable
mapping (half of the broker's time in measurements); consume queues and key index are written in
place, because their writes are small and scattered. Of the latter, the kernel reads only pages that
are accessed: with read-ahead, the first write to a queue reads its whole file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rmqpy.model.errors import StoreError
from rmqpy.model.files import MAPPINGS_MAX, DirectoryEntry, FileIdentity, UnitFolders
from rmqpy.store.files import lost_pages
from rmqpy.store.files.mapping import map_file, release_pages
from rmqpy.store.files.unit_folders import open_folder, unit_folders

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
LOCK_CONTENT = b"lock"
"""The content that the Java broker writes into the file that it locks."""

_sync_data = getattr(os, "fdatasync", os.fsync)
_allocate = getattr(os, "posix_fallocate", None)  # macOS has none
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_WRITEV_PARTS = os.sysconf("SC_IOV_MAX")


def physical_memory_bytes() -> int:
    """Return the size of this machine's memory in bytes, which determines the messages that count
    as being in memory.
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _mappings_max() -> int:
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # not Linux
        return MAPPINGS_MAX


def boot_id() -> str:
    """Return what identifies the time since this machine was started, or an empty string if the
    system does not say. Containers have that of their host.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            found = file.read().strip()
    except (OSError, ValueError):
        return ""
    return found if _BOOT_ID.fullmatch(found) else ""


class DiskFile:
    """An open file of fixed size (implements :class:`rmqpy.model.files.StoreFile`).

    A file that is used in place is only mapped: it has a descriptor until its first mapping, and
    after that only during each call that needs one.
    """

    __slots__ = (
        "_fd",
        "_in_place",
        "_is_closed",
        "_path",
        "_readonly",
        "_size",
        "_view",
        "_writable",
    )

    def __init__(self, path: str, fd: int, size: int, readonly: bool) -> None:
        self._path = path
        self._fd = fd
        self._size = size
        self._readonly = readonly
        self._in_place = False
        self._is_closed = False
        self._view: memoryview | None = None
        self._writable: memoryview | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = self._mapping(writable=False)
        return self._view

    @property
    def writable(self) -> memoryview:
        if self._writable is None:
            assert not self._readonly, "writable view of a file opened read-only"
            self._writable = self._mapping(writable=True)
            self._view = self._writable.toreadonly()
        return self._writable

    def release(self, begin: int, end: int) -> None:
        if self._view is not None and self._size:
            release_pages(self._view, begin, end)

    def read(self, position: int, length: int) -> bytes:
        with self._descriptor() as fd:
            if self._in_place:
                _read_nothing_ahead(fd)
            return _read_range(fd, self._path, position, position + length)

    def use_in_place(self) -> None:
        self._in_place = True

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        assert position + len(data) <= self._size, "write beyond the end of a file of fixed size"
        rest = memoryview(data)
        try:
            with self._descriptor() as fd:
                while rest:
                    count = os.pwrite(fd, rest, position)
                    rest = rest[count:]
                    position += count
        except OSError as error:
            error.filename = self._path
            raise

    def sync(self) -> None:
        if self._is_closed:
            return
        try:
            with self._descriptor() as fd:
                _sync_data(fd)
        except OSError as error:
            if self._is_closed or (self._fd < 0 and isinstance(error, FileNotFoundError)):
                return  # The file was removed in the meantime: nothing must become durable.
            error.filename = self._path
            raise

    def data_end(self, position: int) -> int:
        end = position
        with self._descriptor() as fd:
            try:
                while end < self._size:
                    end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: only a hole follows.
                    return self._size
        return end

    def reserve(self, position: int, length: int) -> None:
        if _allocate is None:
            return
        try:
            with self._descriptor() as fd:
                _allocate(fd, position, length)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                error.filename = self._path
                raise

    def close(self) -> None:
        """Close the file. A reader may still hold a view (a reply that is being sent); its mapping
        ends with the view.
        """
        self._is_closed = True
        self._view = self._writable = None
        self._drop_descriptor()

    def _drop_descriptor(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        known = self._fd
        if known >= 0:
            yield known
            return
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed")
        flags = os.O_RDONLY if self._readonly else os.O_RDWR
        fd = os.open(self._path, flags | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _mapping(self, *, writable: bool) -> memoryview:
        if self._size == 0:
            return memoryview(b"")
        try:
            with self._descriptor() as fd:
                view = map_file(fd, self._size, writable=writable, random=self._in_place)
        except OSError as error:
            error.filename = self._path
            raise
        lost_pages.guard(view, self._path, is_written=writable)
        if self._in_place:
            self._drop_descriptor()
        return view


class DiskLock:
    """An advisory lock held by an open descriptor (implements
    :class:`rmqpy.model.files.FileLock`).
    """

    def __init__(self, fd: int, identity: tuple[int, int], held: set[tuple[int, int]]) -> None:
        self._fd = fd
        self._identity = identity
        self._held = held
        held.add(identity)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._held.discard(self._identity)


def _write_all(fd: int, parts: Sequence[bytes]) -> None:
    for first in range(0, len(parts), _WRITEV_PARTS):
        rest = [memoryview(part) for part in parts[first : first + _WRITEV_PARTS]]
        while rest:
            written = os.writev(fd, rest)
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]


def _read_range(fd: int, path: str, position: int, end: int) -> bytes:
    parts = []
    while position < end:
        try:
            part = os.pread(fd, end - position, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            part = b""
        if not part:
            raise lost_pages.LostPagesError(
                lost_pages.LostRange(path, position, end, is_written=False)
            )
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _read_nothing_ahead(fd: int) -> None:
    if sys.platform == "linux":
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def sync_file_system(path: str) -> bool:
    """Sync everything that was written to the file system of ``path``: with thousands of new files,
    that is far cheaper than syncing each. Return whether it is durable: without the call of Linux,
    the system is only asked to write everything.
    """
    import ctypes  # few commands create thousands of files

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return False
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)
    return True


class OsFileSystem:
    """The real file system (implements :class:`rmqpy.model.files.FileSystem`)."""

    def __init__(self) -> None:
        # POSIX record locks do not exclude their own process; two stores in one process must not
        # share a directory.
        self.mappings_max = _mappings_max()
        self._locked: set[tuple[int, int]] = set()
        self._new_folders: set[str] = set()

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        if size is not None:
            self.make_dirs(os.path.dirname(path))
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if size is not None else 0)
        fd = os.open(path, flags, FILE_MODE)
        try:
            if size is None:
                size = os.fstat(fd).st_size
            elif os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return self._file(path, fd, size, readonly=False)

    def open_readonly(self, path: str) -> DiskFile:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._file(path, fd, os.fstat(fd).st_size, readonly=True)

    def open_part(self, path: str, begin: int, end: int) -> DiskFile:
        return self.open_readonly(path)

    def open_slices(self, path: str) -> memoryview:
        file = self.open_readonly(path)
        file.use_in_place()
        view = file.view
        file.close()
        return view

    def _file(self, path: str, fd: int, size: int, *, readonly: bool) -> DiskFile:
        return DiskFile(path, fd, size, readonly)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_head(self, path: str, length: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _read_nothing_ahead(fd)
            return _read_range(fd, path, 0, length)
        finally:
            os.close(fd)

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        self.make_dirs(os.path.dirname(path))
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            _write_all(fd, parts)
            os.fsync(fd)
        except OSError as error:
            error.filename = path
            with contextlib.suppress(OSError):  # A full disk needs the space.
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        os.rename(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def list_entries(self, path: str) -> list[DirectoryEntry]:
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            return []
        found = []
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        found.append(DirectoryEntry(entry.name, True, 0, 0))
                        continue
                    status = entry.stat()
                except FileNotFoundError:
                    if entry.is_symlink():  # of a disk that is not mounted, say
                        raise
                    continue  # It was renamed or deleted since it was listed.
                mtime_ms = status.st_mtime_ns // 1_000_000
                found.append(DirectoryEntry(entry.name, False, status.st_size, mtime_ms))
        return sorted(found)

    def unit_folders(
        self,
        directory: str,
        topics: Sequence[str],
        file_size: int,
        files_read: int,
        low: int | None,
    ) -> Iterator[UnitFolders]:
        return unit_folders(directory, topics, file_size, files_read, low)

    def open_folder(self, path: str) -> int:
        return open_folder(path)

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def identity(self, path: str) -> FileIdentity:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ms * 1_000_000))

    def make_dirs(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.makedirs(folder, DIRECTORY_MODE, exist_ok=True)
            self._new_folders.add(folder)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        if os.path.isdir(path):
            import shutil  # It imports three compression modules, and is rarely needed.

            try:
                shutil.rmtree(path)
            except OSError as error:
                error.filename = path  # it names the file relative to its folder
                raise
            self.sync_dir(os.path.dirname(path))

    def sync_dir(self, path: str) -> None:
        path = path or "."  # the folder of a path without one, as in rmqpy broker -c broker.conf
        while True:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            if path not in self._new_folders:
                return
            self._new_folders.discard(path)
            path = os.path.dirname(path) or "."

    def sync_all(self, path: str) -> bool:
        return sync_file_system(path)

    def lock(self, path: str) -> DiskLock:
        root = os.path.dirname(path)
        try:
            self.make_dirs(root)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StoreError(
                root,
                error.strerror or str(error),
                "a directory in which this user may write",
                "set storePathRootDir to one, or give it to this user",
            ) from error
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        try:
            if identity in self._locked:
                raise BlockingIOError("held by this process")
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise StoreError(
                path,
                "the lock held by another broker process",
                "a store directory that no broker is using",
                "stop that broker, or give this one its own storePathRootDir",
            ) from error
        with contextlib.suppress(OSError):  # On a full disk: nobody reads what Java writes there.
            os.pwrite(fd, LOCK_CONTENT, 0)
        return DiskLock(fd, identity, self._locked)

    def open_to_others(self, path: str) -> bool:
        return bool(os.stat(path).st_mode & stat.S_IRWXO)

    def device_of(self, path: str) -> int:
        while not os.path.exists(path):
            path = os.path.dirname(path)
        return os.stat(path).st_dev

    def disk_usage(self, path: str) -> tuple[int, int]:
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        usage = os.statvfs(path)
        used = usage.f_blocks - usage.f_bfree
        return (used + usage.f_bavail) * usage.f_frsize, usage.f_bavail * usage.f_frsize

    def free_inodes(self, path: str) -> int | None:
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        usage = os.statvfs(path)
        return usage.f_favail if usage.f_files else None
