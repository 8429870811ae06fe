"""A store elsewhere as a file system that can only be read.

The files are listed once. A file that is mapped is fetched in blocks, several at a time, into an
unnamed temporary file of this machine, in which blocks of zeros take no space; from there it is
mapped like any other file. Copies that were not used for a while are given up when together they
are larger than a limit; one that is still mapped keeps its bytes until the mapping ends. So memory
holds a few blocks, and the disk a few files, however large the store is, and every byte is fetched
once unless a file is needed again much later.

Of a file of which only slices are needed (:meth:`RemoteFileSystem.open_slices`), the small blocks
around them are fetched. They are kept in memory up to a limit.

The result describes the store as it was listed: :meth:`RemoteFileSystem.check_unchanged` lists the
files again and refuses if one of them differs. A file of several blocks, and one of which slices
are read, is refused at once if it was replaced while they were fetched.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final
from zlib import crc32

from attrs import define, field

from rmqpy.audit.remote.byte_ranges import ByteRanges, ListedFile
from rmqpy.model.errors import StoreError
from rmqpy.model.files import (
    MAPPINGS_MAX,
    DirectoryEntry,
    FileIdentity,
    FileLock,
    StoreFile,
    UnitFolders,
)
from rmqpy.store.files.disk import DiskFile

__all__ = ["RemoteFileSystem"]

BLOCK_BYTES: Final = 4 << 20
FETCHES_AT_ONCE: Final = 8
"""The number of blocks that are fetched at a time, and so the limit of what memory holds."""
COPIES_BYTES: Final = 2 << 30
COPIES_MAX: Final = 64
"""The limits of the copies that are kept although nobody may need them any more."""
SLICE_BLOCK_BYTES: Final = 16 << 10
"""The unit in which slices are fetched: a lookup needs a few hundred bytes at each place."""
SLICES_BYTES: Final = 32 << 20
"""The limit of the blocks in memory."""
AHEAD_BLOCKS: Final = BLOCK_BYTES // SLICE_BLOCK_BYTES
"""The number of blocks that are fetched at a time if slices follow each other."""
ZEROS: Final = bytes(64 << 10)
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class CopiedFile(DiskFile):
    """The copy of a file. It has no name under which it could be opened again."""

    __slots__ = ()

    def use_in_place(self) -> None:
        """Do nothing: all of it is on this machine, and the descriptor must stay."""


@define(slots=True, frozen=True)
class RemoteSlices:
    """A file of which slices are fetched (implements :class:`rmqpy.model.files.FileSlices`)."""

    files: RemoteFileSystem
    listed: ListedFile

    def __len__(self) -> int:
        return self.listed.size

    def __getitem__(self, place: slice, /) -> memoryview:
        start, end, step = place.indices(self.listed.size)
        assert step == 1, "a slice without a step"
        return self.files.read_slice(self.listed, start, end) if start < end else memoryview(b"")


@define(slots=True)
class _Copy:
    fetching: threading.Lock = field(factory=threading.Lock)
    fd: int = -1
    size: int = 0


class RemoteFileSystem:
    """The files of a store elsewhere (implements :class:`rmqpy.model.files.FileSystem`).

    Paths start with the URI of the store. Whatever would change a file raises OSError (EROFS).
    """

    mappings_max: Final = MAPPINGS_MAX

    def __init__(self, source: ByteRanges, copies_bytes: int = COPIES_BYTES) -> None:
        """List the files. Raise StoreError if the store has none."""
        self._begin(source, copies_bytes, _by_path(source.listed()))
        if not self._listed:
            raise StoreError(
                source.root,
                "nothing of this name",
                "a store",
                "check the URI, and the endpoint and credentials of its driver",
            )

    def _begin(self, source: ByteRanges, copies_bytes: int, listed: dict[str, ListedFile]) -> None:
        self.source = source
        self.fetched_bytes = 0
        """How many bytes of content were fetched so far."""
        self._copies_bytes = copies_bytes
        self._listed = listed
        self._folders: dict[str, dict[str, DirectoryEntry]] = {source.root: {}}
        for each in listed.values():
            self._add(each)
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._ahead: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        # A worker of Spark has many of these, one after the other.
        weakref.finalize(self, _close_copies, self._copies)
        self._pool = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="rmqpy-fetch")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: the place, and the files as they were listed here."""
        return {
            "source": self.source,
            "copies_bytes": self._copies_bytes,
            "listed": self._listed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(**state)

    def _add(self, listed: ListedFile) -> None:
        """Add an entry to its folder, and the folders that lead to it."""
        path = f"{self.source.root}/{listed.path}"
        size = 0 if listed.is_folder else listed.size
        entry = DirectoryEntry(_name(path), listed.is_folder, size, listed.mtime_ms)
        if listed.is_folder:
            self._folders.setdefault(path, {})
        while path != self.source.root:
            path = path.rpartition("/")[0]
            is_new = path not in self._folders
            self._folders.setdefault(path, {})[entry.name] = entry
            if not is_new:
                return
            entry = DirectoryEntry(_name(path), True, 0, 0)

    def check_unchanged(self) -> None:
        """List the files again. Raise StoreError if one has changed since they were listed."""
        now = _by_path(self.source.listed())
        changed = sorted(
            path
            for path in now.keys() | self._listed.keys()
            if now.get(path) != self._listed.get(path)
        )
        if changed:
            raise self._changed(changed[0], len(changed))

    def _changed(self, path: str, count: int = 1) -> StoreError:
        more = "" if count == 1 else f", like {count - 1} others,"
        return StoreError(
            f"{self.source.root}/{path}",
            f"a file that{more} changed while it was read",
            "a store to which nobody writes",
            "end what writes to it, and run the command again",
        )

    # ------------------------------------------------------------------ names

    def _entry(self, path: str) -> ListedFile:
        found = self._listed.get(self._relative(path))
        if found is None or found.is_folder:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.source.root}/")

    def resolve(self, path: str) -> str:
        return path

    def exists(self, path: str) -> bool:
        return path in self._folders or self._relative(path) in self._listed

    def is_dir(self, path: str) -> bool:
        return path in self._folders

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def list_entries(self, path: str) -> list[DirectoryEntry]:
        return sorted(self._folders.get(path, {}).values())

    def unit_folders(
        self,
        directory: str,
        topics: Sequence[str],
        file_size: int,
        files_read: int,
        low: int | None,
    ) -> Iterator[UnitFolders]:
        return iter([UnitFolders()] * len(topics))

    def open_folder(self, path: str) -> int:
        return -1

    def size_of(self, path: str) -> int:
        return self._entry(path).size

    def mtime_ms(self, path: str) -> int:
        return self._entry(path).mtime_ms

    def identity(self, path: str) -> FileIdentity:
        found = self._entry(path)
        return crc32(found.version.encode()), found.size, found.mtime_ms * 1_000_000, 0

    def open_to_others(self, path: str) -> bool:
        return False  # Who may read it is not known here.

    # ------------------------------------------------------------------ content

    def read_bytes(self, path: str) -> bytes:
        found = self._entry(path)
        return self._block(found, 0, found.size) if found.size else b""

    def read_head(self, path: str, length: int) -> bytes:
        file = self.open_readonly(path)  # The copy is kept for those who need more of it.
        try:
            return file.read(0, length)
        finally:
            file.close()

    def open_readonly(self, path: str) -> StoreFile:
        found = self._entry(path)
        with self._lock:
            copy = self._copies.setdefault(path, _Copy())
            self._copies.move_to_end(path)
        with copy.fetching:
            if copy.fd < 0:
                copy.fd, copy.size = self._fetch(found, 0, found.size)
            file = CopiedFile(path, os.dup(copy.fd), found.size, True)
        self._give_up_copies()
        return file

    def open_part(self, path: str, begin: int, end: int) -> StoreFile:
        found = self._entry(path)
        with self._lock:
            is_copied = path in self._copies
        if is_copied or end - begin >= found.size:
            return self.open_readonly(path)
        fd, _ = self._fetch(found, begin // BLOCK_BYTES * BLOCK_BYTES, end)
        return CopiedFile(path, fd, end, True)

    def open_slices(self, path: str) -> RemoteSlices:
        return RemoteSlices(self, self._entry(path))

    def read_slice(self, listed: ListedFile, start: int, end: int) -> memoryview:
        """Return bytes of a file from memory, and fetch the blocks that are missing there.

        A long slice is one of a copy. Raise StoreError if the file has changed since it was listed.
        """
        if end - start > BLOCK_BYTES:
            file = self.open_readonly(f"{self.source.root}/{listed.path}")
            view = file.view[start:end]
            file.close()
            return view
        numbers = range(start // SLICE_BLOCK_BYTES, -(-end // SLICE_BLOCK_BYTES))
        found = self._blocks_in_memory(listed.path, numbers)
        missing = [number for number in numbers if number not in found]
        if missing:
            stop = max(missing[-1] + 1, missing[0] + self._blocks_ahead(listed.path, missing[0]))
            found |= self._fetch_blocks(listed, missing[0], stop)
        data = b"".join(found[number] for number in numbers)
        at = start - numbers.start * SLICE_BLOCK_BYTES
        return memoryview(data)[at : at + end - start]

    def _blocks_in_memory(self, path: str, numbers: range) -> dict[int, bytes]:
        with self._lock:
            found = {
                each: self._blocks[path, each] for each in numbers if (path, each) in self._blocks
            }
            for number in found:
                self._blocks.move_to_end((path, number))
        return found

    def _blocks_ahead(self, path: str, number: int) -> int:
        """Return how many blocks to fetch from one on: twice as many as the last time, if it is not
        far after those.
        """
        with self._lock:
            end, count = self._ahead.get(path, (number, 0))
            count = min(2 * count, AHEAD_BLOCKS) if count and 0 <= number - end <= count else 1
            self._ahead[path] = number + count, count
        return count

    def _fetch_blocks(self, listed: ListedFile, first: int, stop: int) -> dict[int, bytes]:
        begin = first * SLICE_BLOCK_BYTES
        data = self._block(listed, begin, min(stop * SLICE_BLOCK_BYTES, listed.size))
        if self.source.current(listed.path) != listed:
            raise self._changed(listed.path)
        found = {
            first + at // SLICE_BLOCK_BYTES: data[at : at + SLICE_BLOCK_BYTES]
            for at in range(0, len(data), SLICE_BLOCK_BYTES)
        }
        with self._lock:
            for number, block in found.items():
                self._blocks[listed.path, number] = block
            while len(self._blocks) > SLICES_BYTES // SLICE_BLOCK_BYTES:
                self._blocks.popitem(last=False)
        return found

    def _give_up_copies(self) -> None:
        """Close the copies that were not used for the longest time, as far as the limits ask."""
        with self._lock:
            total = sum(copy.size for copy in self._copies.values())
            while len(self._copies) > 1 and (
                total > self._copies_bytes or len(self._copies) > COPIES_MAX
            ):
                copy = next(iter(self._copies.values()))
                if not copy.fetching.acquire(blocking=False):
                    return  # A thread has just asked for it.
                self._copies.popitem(last=False)
                total -= copy.size
                fd, copy.fd = copy.fd, -1
                copy.fetching.release()
                if fd >= 0:
                    os.close(fd)

    def _fetch(self, listed: ListedFile, begin: int, end: int) -> tuple[int, int]:
        """Return the descriptor of a copy of the bytes from ``begin`` to before ``end``, at their
        places, and how many bytes it has without zeros.

        Raise StoreError if the file has changed, or the disk of this machine is full.
        """
        folder = tempfile.gettempdir()
        fd = -1
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                fd = os.dup(file.fileno())
            os.ftruncate(fd, end)
            content = self._fetch_into(fd, listed, range(begin, end, BLOCK_BYTES))
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, OSError) and error.errno in FULL:
                raise StoreError(
                    folder,
                    f"no space for a copy of {end - begin} bytes",
                    "room for the files that are being read",
                    "free space there, or set TMPDIR to a folder with more",
                ) from None
            raise
        return fd, content

    def _fetch_into(self, fd: int, listed: ListedFile, blocks: range) -> int:
        def fetch(start: int) -> int:
            block = self._block(listed, start, min(start + BLOCK_BYTES, blocks.stop))
            return _write_content(fd, block, start)

        futures = [self._pool.submit(fetch, start) for start in blocks]
        try:
            content = sum(future.result() for future in futures)
        finally:
            for future in futures:
                future.cancel()
            wait(futures)  # They write to the descriptor.
        is_one_answer = len(blocks) == 1 and blocks.stop - blocks.start == listed.size
        if not is_one_answer and self.source.current(listed.path) != listed:
            raise self._changed(listed.path)
        return content

    def _block(self, listed: ListedFile, start: int, end: int) -> bytes:
        """Return bytes of a file. Raise StoreError if there are fewer."""
        data = self.source.read(listed.path, start, end)
        if len(data) != end - start:
            raise StoreError(
                f"{self.source.root}/{listed.path}",
                f"{len(data)} bytes from {start} on",
                f"{end - start}",
                "the answer was cut off, or the file was replaced: run the command again",
            )
        with self._lock:
            self.fetched_bytes += len(data)
        return data

    # ------------------------------------------------------------------ nothing is changed

    def open(self, path: str, *, size: int | None = None) -> StoreFile:
        raise _read_only(path)

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        raise _read_only(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        raise _read_only(path)

    def make_dirs(self, path: str) -> None:
        raise _read_only(path)

    def rename(self, old: str, new: str) -> None:
        raise _read_only(old)

    def unlink(self, path: str) -> None:
        raise _read_only(path)

    def remove_tree(self, path: str) -> None:
        raise _read_only(path)

    def sync_dir(self, path: str) -> None:
        raise _read_only(path)

    def sync_all(self, path: str) -> bool:
        raise _read_only(path)

    def lock(self, path: str) -> FileLock:
        raise _read_only(path)

    def device_of(self, path: str) -> int:
        raise _read_only(path)

    def disk_usage(self, path: str) -> tuple[int, int]:
        raise _read_only(path)

    def free_inodes(self, path: str) -> int | None:
        raise _read_only(path)


def _close_copies(copies: Mapping[str, _Copy]) -> None:
    for copy in copies.values():
        if copy.fd >= 0:
            os.close(copy.fd)


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def _by_path(listed: Iterable[ListedFile]) -> dict[str, ListedFile]:
    return {each.path: each for each in listed}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _write_content(fd: int, block: bytes, start: int) -> int:
    """Write a block to its place, without its zeros. Return the number of written bytes."""
    written = 0
    for at in range(0, len(block), len(ZEROS)):
        piece = block[at : at + len(ZEROS)]
        if piece != ZEROS[: len(piece)]:
            written += os.pwrite(fd, piece, start + at)
    return written
