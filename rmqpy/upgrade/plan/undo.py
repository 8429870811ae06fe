"""Undo records: the bytes that an operation is about to overwrite, durable before it starts.

A record is a JSON line (path, time of the file, kind), then for each range its position and length
(8 + 4 bytes, big-endian) and the bytes; the last 16 bytes are the md5 of all before them. An
incomplete record was never used, because its operation had not started.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem

_RANGE = struct.Struct(">qi")
_DIGEST_SIZE = 16


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
    if files.exists(path):
        body = _head(path, "whole", files.mtime_ms(path)) + files.read_bytes(path)
    else:
        body = _head(path, "none", 0)
    _save(files, undo_path, body)


def restore(files: FileSystem, undo_path: str) -> None:
    """Put back the bytes and the file's time. Do nothing without a record. Safe to repeat.

    Raise StoreError for a damaged record.
    """
    if not files.exists(undo_path):
        return
    raw = files.read_bytes(undo_path)
    body = memoryview(raw)[:-_DIGEST_SIZE]
    if hashlib.md5(body, usedforsecurity=False).digest() != raw[-_DIGEST_SIZE:]:
        raise StoreError(undo_path, "a damaged undo record", "its md5", "restore it from a backup")
    line_end = raw.index(b"\n")
    head = json.loads(raw[:line_end])
    path, mtime_ms, rest = head["path"], head["mtime_ms"], body[line_end + 1 :]
    if head["kind"] == "none":
        files.unlink(path)
        files.sync_dir(path.rpartition("/")[0])
        return
    if head["kind"] == "whole":
        files.replace_bytes(path, bytes(rest))
    else:
        _write_ranges(files, path, rest)
    files.set_mtime_ms(path, mtime_ms)


def _write_ranges(files: FileSystem, path: str, rest: memoryview) -> None:
    file = files.open(path)
    try:
        while rest:
            position, length = _RANGE.unpack_from(rest)
            end = _RANGE.size + length
            file.write(position, rest[_RANGE.size : end])
            rest = rest[end:]
        file.sync()
    finally:
        file.close()


def _head(path: str, kind: str, mtime_ms: int) -> bytes:
    return json.dumps({"path": path, "kind": kind, "mtime_ms": mtime_ms}).encode() + b"\n"


def _save(files: FileSystem, undo_path: str, body: bytes) -> None:
    files.replace_bytes(undo_path, body + hashlib.md5(body, usedforsecurity=False).digest())
