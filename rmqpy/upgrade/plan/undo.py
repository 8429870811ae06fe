"""Undo records: the bytes that an operation is about to overwrite, durable before it starts.

A record is a JSON line (path, time of the file, kind); for the kind ``ranges`` the position, the
length (8 + 4 bytes, big-endian) and the bytes of each range follow. The last 16 bytes are the md5
of all before them. An incomplete record was never used, because its operation had not started.

=========  ========================================================================================
kind       restored by
=========  ========================================================================================
ranges     writing the bytes in place
kept       renaming the copy of the whole file, ``<record>.kept``, to the path
whole      the same with the bytes in the record (in directories of earlier versions)
none       removing the file: there was none
skipped    nothing: the operation had already been done when its turn came
=========  ========================================================================================

So nothing has to be allocated on the file system of the store to restore a file of it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any, Final

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.copying import copy_file

_RANGE = struct.Struct(">qi")
RANGE_BYTES: Final = _RANGE.size
"""What a range takes in a record besides its bytes."""

_DIGEST_SIZE = 16
KEPT: Final = ".kept"
"""The suffix of the copy of a whole file, next to its record."""


def save_ranges(
    files: FileSystem, undo_path: str, path: str, ranges: Sequence[tuple[int, int]]
) -> None:
    """Save the bytes of ``ranges``, which are pairs of position and length."""
    file = files.open_readonly(path)
    try:
        view = file.view
        parts: list[bytes | memoryview] = [_head(path, "ranges", files.mtime_ms(path))]
        for position, length in ranges:
            parts += [_RANGE.pack(position, length), view[position : position + length]]
        body = b"".join(parts)
        parts.clear()
        del view
    finally:
        file.close()
    _save(files, undo_path, body)


def save_whole(files: FileSystem, undo_path: str, path: str) -> None:
    """Save a small file, or the fact that it does not exist."""
    if not files.exists(path):
        _save(files, undo_path, _head(path, "none", 0))
        return
    copy_file(files, path, undo_path + KEPT)
    _save(files, undo_path, _head(path, "kept", files.mtime_ms(path)))


def save_skipped(files: FileSystem, undo_path: str) -> None:
    """Note that an operation had already been done before the plan."""
    _save(files, undo_path, _head("", "skipped", 0))


def is_skipped(files: FileSystem, undo_path: str) -> bool:
    return files.exists(undo_path) and _read(files, undo_path)[0]["kind"] == "skipped"


def restore(files: FileSystem, undo_path: str) -> None:
    """Put back the bytes and the file's time. Do nothing without a record. Safe to repeat.

    Raise StoreError for a damaged record.
    """
    if not files.exists(undo_path):
        return
    head, rest = _read(files, undo_path)
    path, mtime_ms = head["path"], head["mtime_ms"]
    match head["kind"]:
        case "skipped":
            return
        case "none":
            folder = path.rpartition("/")[0]
            if files.is_dir(folder):  # else its creation has failed
                files.unlink(path)
                files.sync_dir(folder)
            return
        case "kept":
            if files.exists(undo_path + KEPT):
                _put_back(files, undo_path + KEPT, path)
        case "whole":
            _replace(files, path, bytes(rest))
        case "ranges":
            _write_ranges(files, path, rest)
    files.set_mtime_ms(path, mtime_ms)


def space_to_restore(files: FileSystem, undo_path: str, path: str) -> list[tuple[str, int]]:
    """Return what :func:`restore` allocates for ``path``: a copy of a whole file on another file
    system is written in place, so only its growth counts.
    """
    kept = undo_path + KEPT
    if not files.exists(kept) or files.device_of(kept) == files.device_of(path):
        return []
    present = files.size_of(path) if files.exists(path) else 0
    return [(path, max(0, files.size_of(kept) - present))]


def _read(files: FileSystem, undo_path: str) -> tuple[dict[str, Any], memoryview]:
    """Return the head and the rest of a record. Raise StoreError if it is damaged."""
    raw = files.read_bytes(undo_path)
    body = memoryview(raw)[:-_DIGEST_SIZE]
    if hashlib.md5(body, usedforsecurity=False).digest() != raw[-_DIGEST_SIZE:]:
        raise StoreError(
            undo_path,
            "a damaged undo record",
            "its md5",
            "restore it from a backup; without it only the operations after it can be undone",
        )
    line_end = raw.index(b"\n")
    head: dict[str, Any] = json.loads(raw[:line_end])
    return head, body[line_end + 1 :]


def _put_back(files: FileSystem, kept: str, path: str) -> None:
    """Replace ``path`` by its copy, without allocating anything on a shared file system."""
    try:
        files.rename(kept, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _replace(files, path, files.read_bytes(kept))
        files.unlink(kept)
    files.sync_dir(path.rpartition("/")[0])


def _replace(files: FileSystem, path: str, data: bytes) -> None:
    """Replace a file atomically, or in place if the disk is full.

    An interruption in place is repaired by the next attempt, which has the same record.
    """
    try:
        files.replace_bytes(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file = files.open(path, size=len(data))
        try:
            file.write(0, data)
            file.sync()
        finally:
            file.close()


def _write_ranges(files: FileSystem, path: str, rest: memoryview) -> None:
    file = files.open(path)
    try:
        while rest:
            position, length = _RANGE.unpack_from(rest)
            end = _RANGE.size + length
            saved = rest[_RANGE.size : end]
            # What was a hole and still is one is not written: that would allocate space.
            if file.view[position : position + length] != saved:
                file.write(position, saved)
            rest = rest[end:]
        file.sync()
    finally:
        file.close()


def _head(path: str, kind: str, mtime_ms: int) -> bytes:
    return json.dumps({"path": path, "kind": kind, "mtime_ms": mtime_ms}).encode() + b"\n"


def _save(files: FileSystem, undo_path: str, body: bytes) -> None:
    files.replace_bytes(undo_path, body + hashlib.md5(body, usedforsecurity=False).digest())
