"""Small files that are replaced as a whole: configuration tables, and ``checkpoint`` and
``currterm`` of DLedger.

Replacing keeps the previous content as ``X.bak``, then writes, syncs, renames, and syncs the
folder. Reading uses ``X`` or, if that is missing, empty or unreadable, ``X.bak`` (as in the Java
broker, which omits the syncs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.files import FileSystem

T = TypeVar("T")

BACKUP_SUFFIX = ".bak"


def write_atomically(files: FileSystem, path: str, data: bytes) -> None:
    """Replace the content of ``path`` with ``data``, and keep the previous content in ``path.bak``.
    At any time at least one of the two is complete.
    """
    if files.exists(path):
        previous = files.read_bytes(path)
        if previous == data:
            return
        if previous:
            files.replace_bytes(path + BACKUP_SUFFIX, previous)
    files.replace_bytes(path, data)


def read_with_backup(files: FileSystem, path: str, decode: Callable[[bytes], T]) -> T | None:
    """Return the decoded content of ``path``, or of its backup if ``path`` is missing, empty or
    rejected by ``decode`` (an RmqError or ValueError). Return None if neither has content.

    Raises StoreError, with the first reason, if there is content but none that can be decoded.
    """
    fault: Exception | None = None
    for name in (path, path + BACKUP_SUFFIX):
        raw = files.read_bytes(name) if files.exists(name) else b""
        if raw:
            try:
                return decode(raw)
            except (RmqError, ValueError) as error:
                fault = fault or error
    if fault is None:
        return None
    raise StoreError(
        path,
        f"content that cannot be read ({fault}), and no readable {BACKUP_SUFFIX} of it",
        "the text that a broker writes there",
        f"repair one of the two files, or remove both ({path} and {path}{BACKUP_SUFFIX}) to start"
        " without",
    ) from fault
