"""MappedFiles: segments of one fixed size, each named by the offset of its first byte (Java
MappedFile, MappedFileQueue).

Names are the offset in 20 decimal digits. Invariants: consecutive names differ by exactly
``file_size``; every file has exactly that length; the directory contains nothing else (like the
Java broker, this one refuses to start with a stray file). The only exception is a last file of
length 0: its creation was interrupted, and it is ignored.

``storePathCommitLog`` may name several directories: file number ``k = offset / file_size`` is
created in directory number ``k mod n``, and all of them are searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem, StoreFile
from rmqpy.store.files import lost_pages

NAME_DIGITS = 20
RESERVED_MIN, RESERVED_MAX = 8 * 1024, 256 * 1024
"""The sizes in which disk space is reserved for files that are written in place; they grow with the
file.
"""


def file_name(offset: int) -> str:
    """Return the name of the file whose first byte is at ``offset``."""
    return f"{offset:0{NAME_DIGITS}d}"


class MappedFile:
    """One segment; ``wrote_position`` is the end of its valid bytes. It is opened at first use."""

    __slots__ = (
        "_file",
        "_files",
        "_in_place",
        "_name_durable",
        "end_offset",
        "first_offset",
        "path",
        "reserved_position",
        "size",
        "wrote_position",
    )

    def __init__(
        self,
        files: FileSystem,
        path: str,
        first_offset: int,
        size: int,
        *,
        in_place: bool = False,
    ) -> None:
        self._files = files
        self._in_place = in_place
        self._file: StoreFile | None = None
        self._name_durable = False
        self.path = path
        self.first_offset = first_offset
        self.size = size
        self.end_offset = first_offset + size
        """The offset after the last byte of the file: the first of the next file."""
        self.wrote_position = 0
        self.reserved_position = 0
        """The position up to which bytes may be written in place (:meth:`reserve`)."""

    @property
    def file(self) -> StoreFile:
        """The open file."""
        if self._file is None:
            self._open(None)
        assert self._file is not None
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def view(self) -> memoryview:
        """The whole file, mapped for reading."""
        return (self._file or self.file).view

    def release(self, end: int) -> None:
        """Announce that the bytes before position ``end`` are not needed for now."""
        if self._file is not None:
            self._file.release(0, end)

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes of the file. Raises LostPagesError if the disk cannot deliver them."""
        data = self.view[start:stop]
        lost_pages.check_read(self.path, data, start)
        return data

    def sync(self) -> None:
        """Make the bytes of the file durable, and its name, because the process that created it may
        have been killed. May run in a worker thread; does nothing if the file was removed in the
        meantime.
        """
        file = self._file
        if file is not None:
            file.sync()
        if file is None or self._file is not file:  # closed, perhaps before the sync could begin
            try:  # The bytes of a closed file may only be in the page cache.
                closed = self._files.open(self.path)
            except FileNotFoundError:
                return
            try:
                closed.sync()
            finally:
                closed.close()
        if not self._name_durable:
            self._files.sync_dir(self.path.rpartition("/")[0])
            self._name_durable = True

    def reserve(self, start: int, end: int) -> None:
        """Reserve disk space for writes in place from ``start`` to ``end``, and some more. Raises
        OSError.
        """
        if end <= self.reserved_position:
            return
        end = min(end + max(RESERVED_MIN, min(end, RESERVED_MAX)), self.size)
        start = max(start, self.reserved_position)
        self.file.reserve(start, end - start)
        self.reserved_position = end

    def create(self) -> None:
        """Create the file in its full size, as sparse zeros."""
        self._open(self.size)

    def _open(self, size: int | None) -> None:
        self._file = self._files.open(self.path, size=size)
        if self._in_place:
            self._file.use_in_place()

    def close(self) -> None:
        file, self._file = self._file, None  # before it is closed: a sync may be under way
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        return f"MappedFile({self.path}, wrote {self.wrote_position})"


class BrokenFileSequenceError(StoreError):
    """Raised for a segment of a wrong length (``length``) or a gap between two segments (``length``
    is None).
    """

    length: int | None = None


class MappedFiles:
    """The segments, in the order of their offsets."""

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[str],
        file_size: int,
        *,
        in_place: bool = False,
    ) -> None:
        """``in_place`` announces that the files are used in place
        (:meth:`rmqpy.model.files.StoreFile.use_in_place`).
        """
        assert directories and file_size > 0
        self._files = files
        self._in_place = in_place
        self._directories = tuple(sorted(directories))
        self.file_size = file_size
        self._files_in_order: list[MappedFile] = []
        self.changes = 0
        """The number of additions and removals of files."""

    def load(self, size_key: str) -> None:
        """Find the files; all bytes of each count as written until recovery finds the end.

        Raises StoreError for a stray entry, BrokenFileSequenceError for a wrong length
        (``size_key`` is the setting of the correct one) or a gap between two files. Changes nothing
        on disk.
        """
        found: list[tuple[int, str]] = []
        for directory in self._directories:
            for name in self._files.list_dir(directory):
                found.append((_offset_of(directory, name), f"{directory}/{name}"))
        found.sort()
        row = []
        for number, (offset, path) in enumerate(found, 1):
            if self._files.is_dir(path):
                raise StoreError(path, "a directory", "a file", "move it elsewhere")
            size = self._files.size_of(path)
            if size or number < len(found):
                row.append(self._checked(offset, path, size, size_key))
        for before, file in pairwise(row):
            if file.first_offset != before.end_offset:
                raise BrokenFileSequenceError(
                    file.path,
                    f"a file that starts at {file.first_offset} right after one that ends at"
                    f" {before.end_offset}",
                    f"the file {file_name(before.end_offset)} between them",
                    "restore the missing file from a backup or a replica, or move the files on one"
                    " side of the gap away",
                )
        self._files_in_order = row
        self.changes += 1

    def use(self, first_offset: int, count: int) -> None:
        """Have ``count`` files from ``first_offset`` on, which were found and checked before."""
        assert not self._files_in_order
        for offset in range(first_offset, first_offset + count * self.file_size, self.file_size):
            file = self._at(offset)
            file.wrote_position = self.file_size
            self._files_in_order.append(file)
        self.changes += 1

    def _at(self, offset: int) -> MappedFile:
        """Return a file that begins at ``offset``, in the directory of its number."""
        number = offset // self.file_size
        directory = self._directories[number % len(self._directories)]
        path = f"{directory}/{file_name(offset)}"
        return MappedFile(self._files, path, offset, self.file_size, in_place=self._in_place)

    def _checked(self, offset: int, path: str, size: int, size_key: str) -> MappedFile:
        if size != self.file_size:
            fault = BrokenFileSequenceError(
                path,
                f"a length of {size} bytes",
                f"{self.file_size} bytes as {size_key} says",
                f"set {size_key}={size} if the whole store was written so, else restore the file",
            )
            fault.length = size
            raise fault
        if offset % self.file_size:
            raise StoreError(
                path,
                f"a file that starts at {offset}",
                f"a start that is a multiple of the file size {self.file_size}",
                "restore the file under the name that it had",
            )
        file = MappedFile(self._files, path, offset, size, in_place=self._in_place)
        file.wrote_position = size
        return file

    def __bool__(self) -> bool:
        return bool(self._files_in_order)

    def __len__(self) -> int:
        return len(self._files_in_order)

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self._files_in_order)

    def __getitem__(self, number: int) -> MappedFile:
        return self._files_in_order[number]

    @property
    def first(self) -> MappedFile:
        return self._files_in_order[0]

    @property
    def last(self) -> MappedFile:
        return self._files_in_order[-1]

    @property
    def min_offset(self) -> int:
        """The offset of the first byte; 0 if there is no file."""
        return self._files_in_order[0].first_offset if self._files_in_order else 0

    @property
    def wrote_offset(self) -> int:
        """The offset after the last valid byte; 0 if there is no file."""
        return (
            self._files_in_order[-1].first_offset + self._files_in_order[-1].wrote_position
            if self._files_in_order
            else 0
        )

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at ``offset``, or None."""
        if not self._files_in_order:
            return None
        number = (offset - self._files_in_order[0].first_offset) // self.file_size
        return self._files_in_order[number] if 0 <= number < len(self._files_in_order) else None

    def create(self, first_offset: int) -> MappedFile:
        """Create the file that starts at ``first_offset``, which must be the end of the last
        file.
        """
        assert not self._files_in_order or first_offset == self._files_in_order[-1].end_offset
        file = self._at(first_offset)
        file.create()
        self._files_in_order.append(file)
        self.changes += 1
        return file

    def cut(self, offset: int) -> None:
        """Make ``offset`` the end: remove later files and lower the write position.

        The first file stays even if it becomes empty: its name is the start of the sequence.
        """
        assert not self._files_in_order or offset >= self._files_in_order[0].first_offset, (
            "a cut before the start"
        )
        while len(self._files_in_order) > 1 and self._files_in_order[-1].first_offset >= offset:
            self.drop_last()
        if self._files_in_order:
            last = self._files_in_order[-1]
            last.wrote_position = min(last.wrote_position, offset - last.first_offset)

    def drop_last(self) -> None:
        """Remove the last file, also from the disk."""
        file = self._files_in_order.pop()
        self.changes += 1
        file.close()
        self._files.unlink(file.path)

    def take_first(self) -> MappedFile:
        """Remove the first file from the sequence and return it; it remains open, and on the
        disk.
        """
        self.changes += 1
        return self._files_in_order.pop(0)

    def sync_directories(self) -> None:
        """Make creations and removals durable."""
        for directory in self._directories:
            if self._files.is_dir(directory):
                self._files.sync_dir(directory)

    def close(self) -> None:
        for file in self._files_in_order:
            file.close()


def _offset_of(directory: str, name: str) -> int:
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
        raise StoreError(
            f"{directory}/{name}",
            "a foreign entry",
            f"only files named by {NAME_DIGITS} digits in this directory",
            "move it elsewhere; the Java broker would not start on it either",
        )
    return int(name)
