"""What a member says of the old log in front of its DLedger log: where it ends, and a digest.

The divided offset is a file boundary and says nothing about how many messages stand in front of it:
members whose last old files differ would set the same one. The mark is made when the log is first
joined: the offset behind the last old message, and the digest of what is valid in the last two
files. It is kept in ``rmqpy/old_log.json``, so that it stays what it was when old files expire, and
is made again when one of these files was written to since (``rmqpy upgrade`` removes it).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from attrs import define

from rmqpy.codec.chosen import scan_records
from rmqpy.codec.scan import StopReason
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFile, MappedFiles

OLD_LOG_NAME = "old_log.json"
MARKED_FILES = 2
"""Java's documentation compares as many; the upgrade's check compares all."""

_CHUNK = 1 << 20


@define(slots=True, frozen=True)
class OldLogMark:
    """``end``: behind the last old message, -1 where it cannot be told any more; ``digest`` ""
    then, else one of each marked file, the last file first, with commas between.
    """

    end: int = -1
    digest: str = ""


def old_log_mark(files: FileLayer, row: MappedFiles, divided_offset: int, own: str) -> OldLogMark:
    """The kept mark, or a new one; ``row`` may be empty when the old files have expired."""
    path = f"{own}/{OLD_LOG_NAME}"
    kept = _read(files, path)
    times = {file.path: files.mtime_ms(file.path) for file in row}
    if kept is not None and kept["divided_offset"] == divided_offset:
        if all(times.get(name, when) == when for name, when in kept["files"].items()):
            return OldLogMark(kept["end"], kept["digest"])
    if not row:
        return OldLogMark()
    marked = list(row)[-MARKED_FILES:]
    digests = [_digest(file, _valid_end(file)) for file in reversed(marked)]
    mark = OldLogMark(_valid_end(marked[-1]), ",".join(digests))
    value = {
        "divided_offset": divided_offset,
        "end": mark.end,
        "digest": mark.digest,
        "files": {file.path: times[file.path] for file in marked},
    }
    files.replace_bytes(path, json.dumps(value, indent=1).encode())
    return mark


def forget_old_log_mark(files: FileLayer, own: str) -> None:
    """The old files have been changed on purpose."""
    files.unlink(f"{own}/{OLD_LOG_NAME}")


def _digest(file: MappedFile, end: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    stop = end - file.first_offset
    for start in range(0, stop, _CHUNK):
        digest.update(file.view[start : min(start + _CHUNK, stop)])
    return digest.hexdigest()


def _valid_end(file: MappedFile) -> int:
    offset = file.first_offset
    while True:
        view = file.view[offset - file.first_offset :]
        scan = scan_records(view, offset, dledger=False, check_crc=False)
        offset = scan.end
        if scan.stop is not StopReason.LIMIT:
            return offset


def _read(files: FileLayer, path: str) -> dict[str, Any] | None:
    if not files.exists(path):
        return None
    try:
        value: dict[str, Any] = json.loads(files.read_bytes(path))
        known = isinstance(value["files"], dict) and isinstance(value["end"], int)
        return value if known and isinstance(value["digest"], str) else None
    except (ValueError, KeyError, TypeError):
        return None
