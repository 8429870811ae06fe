"""Small files that are replaced as a whole: configuration tables, ``checkpoint`` and ``currterm``
of DLedger.

Replacing keeps the previous content as ``X.bak``, then writes, syncs, renames and syncs the folder;
reading takes ``X`` and, when that is missing, empty or unreadable, ``X.bak`` (the Java broker's
rule, with the syncs that it leaves out).
"""

from __future__ import annotations

from collections.abc import Callable

from rmqpy.model.errors import StoreFault
from rmqpy.store.files import FileLayer

BACKUP_SUFFIX = ".bak"


def replace_with_backup(files: FileLayer, path: str, data: bytes) -> None:
    """Afterwards ``path`` holds ``data`` and ``path.bak`` what it held before; never neither."""
    if files.exists(path):
        previous = files.read_bytes(path)
        if previous == data:
            return
        if previous:
            files.replace_bytes(path + BACKUP_SUFFIX, previous)
    files.replace_bytes(path, data)


def read_with_backup(
    files: FileLayer, path: str, readable: Callable[[bytes], bool]
) -> bytes | None:
    """The content of ``path`` or of its backup; None when neither exists.

    Raises StoreFault when there is content, but none that is ``readable``.
    """
    unreadable = None
    for name in (path, path + BACKUP_SUFFIX):
        if not files.exists(name):
            continue
        raw = files.read_bytes(name)
        if not raw:
            continue
        if readable(raw):
            return raw
        unreadable = unreadable or name
    if unreadable is not None:
        raise StoreFault(
            unreadable,
            "content that cannot be read, and no readable backup beside it",
            "the text that the broker wrote",
            "restore it from a backup or a replica, or remove it and"
            f" {path}{BACKUP_SUFFIX} to start without",
        )
    return None
