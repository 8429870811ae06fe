"""ClassicPrefix: the end and digests of the old log before the DLedger log of a member.

The divided offset is a file boundary and does not depend on the number of messages before it:
members whose last old files differ would use the same one. The mark is the offset after the last
old message and a digest of the valid part of each old file, the last file first. It starts with the
last ``MARKED_FILES`` when the log is first joined, before any vote, and grows backwards to the
whole old log, through tasks that may block (:meth:`ClassicPrefix.next_digest_task`). ``rmqpy
upgrade switch``, which has read all files, writes the complete mark (:func:`keep_mark`).

The mark is stored in ``rmqpy/old_log.json``, so that it does not change when old files expire. It
is computed again if one of these files was written to later (``rmqpy upgrade`` removes the mark).
The digest of a file is the BLAKE2b of the BLAKE2b digests of its 64 KiB blocks, as in a manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import field

from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import BLOCK_DIGEST_BYTES, BLOCK_SIZE
from rmqpy.codec.scan import StopReason
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.boot_note import BOOT_NOTE_NAME
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.recovery_point import RECOVERY_POINT_NAME

OLD_LOG_NAME = "old_log.json"
MARKED_FILES = 2
"""The number of digests that exist before the first vote; Java's documentation compares as many."""
READ_BYTES = 1 << 30
"""The bytes of old files that are read before the mark is stored again: one file of the default
size. Storing it syncs the disk, and many small files would do so many times.
"""


@define(slots=True, frozen=True)
class ClassicPrefixMark:
    """The mark of an old log. ``end`` is the offset after the last old message, or -1 if that is no
    longer known; ``digest`` is empty then. Otherwise ``digest`` contains one digest for each file
    that was read so far, the last file first, separated by commas.
    """

    end: int = -1
    digest: str = ""


@define(slots=True, frozen=True)
class FileDigest:
    """One old file: the offset after its last message, and the digest of the bytes before that."""

    name: str
    mtime_ms: int
    end: int
    digest: str


class PrefixHash:
    """The digest of a file that may still grow: complete blocks are hashed once."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=BLOCK_DIGEST_BYTES)
        self._position = 0

    @property
    def position(self) -> int:
        """The end of the blocks that were read."""
        return self._position

    def advance(self, view: memoryview, stop: int) -> None:
        """Read the complete blocks before ``stop``."""
        while self._position + BLOCK_SIZE <= stop:
            end = self._position + BLOCK_SIZE
            self._hash.update(_block_digest(view[self._position : end]))
            self._position = end

    def digest(self, view: memoryview, stop: int) -> str:
        """Return the digest (hex) of the bytes before ``stop``."""
        self.advance(view, stop)
        whole = self._hash.copy()
        if self._position < stop:
            whole.update(_block_digest(view[self._position : stop]))
        return whole.hexdigest()


def _block_digest(block: memoryview) -> bytes:
    return hashlib.blake2b(block, digest_size=BLOCK_DIGEST_BYTES).digest()


@define(slots=True, eq=False, repr=False)
class GrowingPrefix:
    """The mark of a classic log that is still written, and read ahead of its end: what is left to
    read when the end is known is what was written since :meth:`read_ahead`.
    """

    files: FileSystem
    own: str
    log: GrowingLog
    _hashes: dict[int, PrefixHash] = field(factory=dict, init=False)
    """The digests in progress by the first offset of the file."""
    _scanned: dict[int, int] = field(factory=dict, init=False)
    """The offset before which the records of a file were scanned, by the first offset of the file:
    the log is not searched for its end again when requests wait for that.
    """
    _last: list[FileDigest] = field(factory=list, init=False)

    def read_ahead(self, bytes_max: int) -> None:
        """Read at most so many bytes more of the last files of the log. Blocks."""
        for file in self._marked():
            stop, found = self._stop_of(file) - file.first_offset, self._hash_of(file)
            before = found.position
            found.advance(file.view, min(stop, before + bytes_max))
            bytes_max -= found.position - before

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that :meth:`read_ahead` can still read."""
        left = 0
        end = self.log.confirm_offset
        for file in self._marked():
            if end < file.end_offset or file.first_offset in self._scanned:
                stop = self._stop_of(file)
            else:
                stop = file.end_offset  # Only a thread may search for it.
            whole = (stop - file.first_offset) // BLOCK_SIZE * BLOCK_SIZE
            left += max(0, whole - self._hash_of(file).position)
        return left

    def mark(self) -> ClassicPrefixMark:
        """Return the mark of the log as it ends now."""
        self._last = []
        for file in reversed(self._marked()):
            stop = self._stop_of(file)
            digest = self._hash_of(file).digest(file.view, stop - file.first_offset)
            self._last.append(FileDigest(_name(file.path), 0, stop, digest))
        return _mark_of(self._last)

    def sealed(self, divided_offset: int) -> ClassicPrefix:
        """Return the last mark as that of the sealed log. It is stored later, by a task of its own:
        requests may wait for the log.
        """
        if not self._last:
            self.mark()
        folders = {_name(file.path): file.path for file in self.log.segments}
        times = {each.name: self.files.mtime_ms(folders[each.name]) for each in self._last}
        mark = _mark_of(self._last)
        unread = _unread(self.log.segments, mark)
        return ClassicPrefix(
            self.files, divided_offset, self.own, mark, times, unread, is_stored=False
        )

    def _marked(self) -> list[MappedFile]:
        """Return the last files that contain records."""
        end = self.log.confirm_offset
        return [file for file in self.log.segments if file.first_offset < end][-MARKED_FILES:]

    def _hash_of(self, file: MappedFile) -> PrefixHash:
        return self._hashes.setdefault(file.first_offset, PrefixHash())

    def _stop_of(self, file: MappedFile) -> int:
        stop: int = self.log.confirm_offset
        if stop >= file.end_offset:
            known = self._scanned.get(file.first_offset, file.first_offset)
            stop = _valid_end(file.view, file.first_offset, known)
        self._scanned[file.first_offset] = stop
        return stop


class GrowingLog(Protocol):
    """The log that is read ahead, up to its confirm offset: what is staged after it may not be in
    the files yet.
    """

    @property
    def segments(self) -> MappedFiles: ...

    @property
    def confirm_offset(self) -> int: ...


@define(slots=True, eq=False, repr=False)
class ClassicPrefix:
    """The mark of one member, and the files that must still be read for it."""

    files: FileSystem
    divided_offset: int
    own: str
    mark: ClassicPrefixMark
    times: dict[str, int]
    """The modification times of the files that the mark covers, by name."""
    unread: list[tuple[str, int]] = field(factory=list)
    """The paths and first offsets of the other files; the next one to read is the last."""
    is_stored: bool = True
    """False if the mark is not on the disk: it would be computed again."""

    def next_digest_task(self) -> Callable[[], Sequence[FileDigest]] | None:
        """Return a task that reads the next files, about ``READ_BYTES`` of them, and stores the
        mark that includes them; None if the mark is complete. The task may block.
        """
        return self._read_next if self.unread or not self.is_stored else None

    def _read_next(self) -> Sequence[FileDigest]:
        found: list[FileDigest] = []
        left = READ_BYTES
        for path, first_offset in reversed(self.unread):
            try:
                found.append(_digest(self.files, path, first_offset))
            except (OSError, StoreError):
                if not found:
                    raise
                break
            left -= found[-1].end - first_offset
            if left <= 0:
                break
        _write(self.files, self.own, self.divided_offset, *self._with(found))
        return found

    def take(self, found: Sequence[FileDigest] | None) -> None:
        """Add the result of :meth:`next_digest_task`. None means that the next file no longer
        exists; the mark ends there.
        """
        self.is_stored = True
        if found is None:
            self.unread.clear()
            return
        del self.unread[len(self.unread) - len(found) :]
        self.mark, self.times = self._with(found)

    def _with(self, found: Sequence[FileDigest]) -> tuple[ClassicPrefixMark, dict[str, int]]:
        digest = ",".join((self.mark.digest, *(each.digest for each in found)))
        times = {each.name: each.mtime_ms for each in found}
        return ClassicPrefixMark(self.mark.end, digest), {**self.times, **times}


def open_old_log(
    files: FileSystem, segments: MappedFiles, divided_offset: int, own: str
) -> ClassicPrefix:
    """Return the stored mark, or a new one of the last files. ``segments`` is empty if the old
    files have expired.
    """
    kept = _read(files, f"{own}/{OLD_LOG_NAME}")
    times = {_name(file.path): files.mtime_ms(file.path) for file in segments}
    if kept is not None and kept["divided_offset"] == divided_offset:
        if all(times.get(name, when) == when for name, when in kept["files"].items()):
            mark = ClassicPrefixMark(kept["end"], kept["digest"])
            return ClassicPrefix(
                files, divided_offset, own, mark, kept["files"], _unread(segments, mark)
            )
    if not segments:
        return ClassicPrefix(files, divided_offset, own, ClassicPrefixMark(), {})
    last = [
        _digest(files, file.path, file.first_offset)
        for file in reversed(list(segments)[-MARKED_FILES:])
    ]
    mark = keep_mark(files, own, divided_offset, last)
    seen = {file.name: file.mtime_ms for file in last}
    return ClassicPrefix(files, divided_offset, own, mark, seen, _unread(segments, mark))


def keep_mark(
    files: FileSystem, own: str, divided_offset: int, last_first: Sequence[FileDigest]
) -> ClassicPrefixMark:
    """Write the mark of these files, the last one first, and return it."""
    mark = _mark_of(last_first)
    times = {file.name: file.mtime_ms for file in last_first}
    _write(files, own, divided_offset, mark, times)
    return mark


def forget_log_marks(files: FileSystem, own: str) -> None:
    """Remove the stored mark, the recovery point and the note of the boot, because the files were
    changed on purpose.
    """
    files.unlink(f"{own}/{OLD_LOG_NAME}")
    files.unlink(f"{own}/{RECOVERY_POINT_NAME}")
    files.unlink(f"{own}/{BOOT_NOTE_NAME}")


def _digest(files: FileSystem, path: str, first_offset: int) -> FileDigest:
    mtime_ms = files.mtime_ms(path)
    file = files.open_readonly(path)
    try:
        end = _valid_end(file.view, first_offset, first_offset)
        digest = PrefixHash().digest(file.view, end - first_offset)
    finally:
        file.close()
    return FileDigest(_name(path), mtime_ms, end, digest)


def _mark_of(last_first: Sequence[FileDigest]) -> ClassicPrefixMark:
    return ClassicPrefixMark(last_first[0].end, ",".join(each.digest for each in last_first))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _valid_end(view: memoryview, first_offset: int, offset: int) -> int:
    """Return the end of the records of a file; one of them begins, or the last one ends, at
    ``offset``.
    """
    while True:
        scan = scan_records(view[offset - first_offset :], offset, dledger=False, check_crc=False)
        offset = scan.end
        if scan.stop is not StopReason.LIMIT:
            return offset


def _unread(segments: MappedFiles, mark: ClassicPrefixMark) -> list[tuple[str, int]]:
    seen = mark.digest.count(",") + 1
    return [(file.path, file.first_offset) for file in segments][: max(0, len(segments) - seen)]


def _write(
    files: FileSystem,
    own: str,
    divided_offset: int,
    mark: ClassicPrefixMark,
    times: Mapping[str, int],
) -> None:
    value = {
        "divided_offset": divided_offset,
        "end": mark.end,
        "digest": mark.digest,
        "files": dict(times),
    }
    files.replace_bytes(f"{own}/{OLD_LOG_NAME}", json.dumps(value, indent=1).encode())


def _read(files: FileSystem, path: str) -> dict[str, Any] | None:
    if not files.exists(path):
        return None
    try:
        value: dict[str, Any] = json.loads(files.read_bytes(path))
        known = isinstance(value["files"], dict) and isinstance(value["end"], int)
        return value if known and isinstance(value["digest"], str) else None
    except (ValueError, KeyError, TypeError):
        return None
