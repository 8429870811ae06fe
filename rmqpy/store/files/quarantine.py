"""The bound of ``rmqpy/quarantine/``: a broker that loses power again and again, and starts without
an operator each time, must not fill the disk with what it has cut off.
"""

from __future__ import annotations

from typing import Final

from rmqpy.model.files import FileSystem
from rmqpy.model.text import format_bytes
from rmqpy.model.values import define

QUARANTINE_BYTES_MAX: Final = 1 << 30
"""The size of the folder above which the oldest pieces are removed. The newest one always stays."""


@define(slots=True, frozen=True, order=True)
class _Piece:
    """One file of the quarantine, or the directory of a consume queue."""

    mtime_ms: int
    name: str
    size: int


def bound_quarantine(files: FileSystem, folder: str) -> list[str]:
    """Remove the oldest pieces from the quarantine until it is within its bound. Return a sentence
    for each, for the log. Blocks; raises OSError.
    """
    pieces = sorted((_piece(files, folder, name) for name in files.list_dir(folder)), reverse=True)
    notes, total = [], 0
    for number, piece in enumerate(pieces):
        total += piece.size
        if not number or total <= QUARANTINE_BYTES_MAX:
            continue
        total -= piece.size
        path = f"{folder}/{piece.name}"
        if files.is_dir(path):
            files.remove_tree(path)
        else:
            files.unlink(path)
        notes.append(
            f"{path} ({format_bytes(piece.size)}) is not kept any longer: the quarantine is"
            f" limited to {format_bytes(QUARANTINE_BYTES_MAX)}"
        )
    if notes:
        files.sync_dir(folder)
    return notes


def _piece(files: FileSystem, folder: str, name: str) -> _Piece:
    path = f"{folder}/{name}"
    parts = [path]
    if files.is_dir(path):
        parts = [f"{path}/{part}" for part in files.list_dir(path)]
    sizes = sum(files.size_of(part) for part in parts)
    return _Piece(max((files.mtime_ms(part) for part in parts), default=0), name, sizes)
