"""Small files that are replaced as a whole: configuration tables, and ``checkpoint`` and
``currterm`` of DLedger.

Replacing keeps the previous content as ``X.bak``, then writes, syncs, renames, and syncs the
folder. Reading uses ``X`` or, if that is missing, empty or unreadable, ``X.bak`` (as in the Java
broker, which omits the syncs). A reader that will write ``X`` moves an unreadable one away:
otherwise the next write would replace the good backup by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import BACKUP_SUFFIX, unused_name

T = TypeVar("T")

DAMAGED_SUFFIX = ".damaged"

logger = logging.getLogger(__name__)


def write_atomically(files: FileSystem, path: str, *parts: bytes) -> None:
    """Replace the content of ``path`` with ``parts``, and keep the previous content in
    ``path.bak``. At any time at least one of the two is complete.
    """
    if files.exists(path):
        previous = files.read_bytes(path)
        if _consists_of(previous, parts):
            return
        if previous:
            files.replace_bytes(path + BACKUP_SUFFIX, previous)
    files.replace_bytes(path, *parts)


def _consists_of(data: bytes, parts: Sequence[bytes]) -> bool:
    position = 0
    for part in parts:
        if not data.startswith(part, position):
            return False
        position += len(part)
    return position == len(data)


def read_with_backup(
    files: FileSystem, path: str, decode: Callable[[bytes], T], *, kept: str | None = None
) -> T | None:
    """Return the decoded content of ``path``, or of its backup if ``path`` is missing, empty or
    rejected by ``decode`` (an RmqError or ValueError). Return None if neither has content.

    If ``path`` was rejected, it is moved to ``kept``, or to that name with a number. Raises
    StoreError, with the first reason, if there is content but none that can be decoded.
    """
    fault: Exception | None = None
    for name in (path, path + BACKUP_SUFFIX):
        raw = files.read_bytes(name) if files.exists(name) else b""
        if not raw:
            continue
        try:
            found = decode(raw)
        except (RmqError, ValueError) as error:
            fault = fault or error
            continue
        if fault is not None and kept is not None:
            _move(files, path, unused_name(files, kept), fault)
        return found
    if fault is None:
        return None
    raise StoreError(
        path,
        f"content that cannot be read ({fault}), and no readable {BACKUP_SUFFIX} of it",
        "the text that a broker writes there",
        f"repair one of the two files, or remove both ({path} and {path}{BACKUP_SUFFIX}) to start"
        " without",
    ) from fault


def _move(files: FileSystem, path: str, kept: str, fault: Exception) -> None:
    """Keep an unreadable file as ``kept``. Until it is gone, every start finds it again."""
    files.replace_bytes(kept, files.read_bytes(path))
    files.unlink(path)
    files.sync_dir(path.rpartition("/")[0])
    logger.error(
        "%s cannot be read (%s): it is kept as %s, and its backup is used, in which the last"
        " change is missing",
        path,
        fault,
        kept,
    )
