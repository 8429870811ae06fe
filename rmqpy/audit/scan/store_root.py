"""The one function that decides whether a directory is a store.

A store has a log folder: ``commitlog``, ``dledger-<self id>``, or the ones that the settings name,
with or without files. Every command that is given a directory calls :func:`check_store_root` before
it reads anything else, so that a wrong path is never reported as a store without damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqpy.audit.scan.directory import LEDGER_PREFIX, PATH_SEPARATOR, paths_below
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import NAME_DIGITS
from rmqpy.store.files.paths import own_folder
from rmqpy.store.upgrade_guard import journal_path

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

__all__ = ["check_store_root", "is_store_root"]

EXPECTED = "the storePathRootDir of a broker, with a folder commitlog or dledger-ID"
GIVE_ROOT = "give a broker's storePathRootDir"
NOT_CONTENT = frozenset(("lock", "lost+found"))
"""What a directory without content may contain, besides rmqpy's own folder."""
DERIVED = ("consumequeue", "index", "config")
STARTED = frozenset((*NOT_CONTENT, "abort", "checkpoint", "config", "consumequeue", "index"))
"""What a broker that has no message yet may have written."""
NO_DIRECTORY = "no directory"
EMPTY = "an empty directory"
WITHOUT_LOG = "the directory of a broker that has no log yet"
SEND_FIRST = "start the broker: a master has a log from its first message on, a slave copies one"
LISTED_MAX = 3


def is_store_root(files: FileSystem, root: str, settings: StoreSettings | None = None) -> bool:
    """Return whether ``root`` is a store, possibly one without messages."""
    log = paths_below(root, settings).commit_log
    if any(files.is_dir(folder) for folder in log.split(PATH_SEPARATOR)):
        return True
    names = _names(files, root)
    return any(name.startswith(LEDGER_PREFIX) and files.is_dir(f"{root}/{name}") for name in names)


def check_store_root(
    files: FileSystem,
    root: str,
    settings: StoreSettings | None = None,
    *,
    may_be_empty: bool = False,
) -> None:
    """Raise StoreError if ``root``, an absolute path, is not a store.

    With ``may_be_empty``, a member that is to be filled is accepted too: a directory without
    content, one in which a plan has begun, or that of a broker which has started and has no log
    yet. The last one needs ``settings``: without them the log may be somewhere else. Raise
    PermissionError if this user may not list it.
    """
    if is_store_root(files, root, settings):
        return
    names = _names(files, root)
    if not names and files.is_dir(root):
        files.list_dir(root)  # What may not be read is not called empty.
    is_started = settings is not None and _is_started(files, root, names)
    if may_be_empty and files.is_dir(root):
        if NOT_CONTENT.issuperset(_content(root, names)) or files.exists(journal_path(root)):
            return
        if is_started:
            return
    found, remedy = (WITHOUT_LOG, SEND_FIRST) if is_started else _described(files, root, names)
    expected = f"{EXPECTED}{', or an empty directory' if may_be_empty else ''}"
    if may_be_empty and found == NO_DIRECTORY:
        remedy += "; if this is a new member, create it"
    raise StoreError(root, found, expected, remedy)


def _content(root: str, names: list[str]) -> list[str]:
    return [name for name in names if f"{root}/{name}" != own_folder(root)]


def _is_started(files: FileSystem, root: str, names: list[str]) -> bool:
    """Return whether a broker has started here that has no log yet, and nothing made from one."""
    content = _content(root, names)
    return (
        not NOT_CONTENT.issuperset(content)
        and STARTED.issuperset(content)
        and not any(files.list_dir(f"{root}/{name}") for name in DERIVED[:2] if name in names)
    )


def _names(files: FileSystem, path: str) -> list[str]:
    """Return the names in a directory; none if it is a file or may not be read."""
    try:
        return files.list_dir(path)
    except OSError:
        return []


def _described(files: FileSystem, root: str, names: list[str]) -> tuple[str, str]:
    """Return what ``root`` is instead of a store, and the remedy."""
    parent = root.rpartition("/")[0]
    if not files.is_dir(root):
        what = "a file" if files.exists(root) else NO_DIRECTORY
        return what, f"{GIVE_ROOT}; if it is on another file system, mount that first"
    if files.exists(journal_path(root)):
        return (
            "a directory that a plan has begun to fill",
            f"finish it with rmqpy upgrade apply --resume {root}, or take it back with rmqpy"
            f" upgrade rollback {root}",
        )
    if NOT_CONTENT.issuperset(_content(root, names)):
        return EMPTY, f"{GIVE_ROOT}; if it is a mount point, mount its file system"
    stores = [name for name in names if is_store_root(files, f"{root}/{name}")]
    if stores:
        listed = ", ".join(stores[:LISTED_MAX]) + (" and more" if stores[LISTED_MAX:] else "")
        return f"a directory of stores ({listed})", f"give one of them, as {root}/{stores[0]}"
    while parent:
        if is_store_root(files, parent):
            return f"a part of the store {parent}", f"give {parent}"
        parent = parent.rpartition("/")[0]
    if any(len(name) == NAME_DIGITS and name.isdigit() for name in names):
        return "a folder of log or queue files", "give the store directory that contains it"
    if any(name in DERIVED for name in names):
        return "a store without its log", "pass -c broker.conf, which says where the log is"
    listed = ", ".join(names[:LISTED_MAX]) + (", ..." if names[LISTED_MAX:] else "")
    return f"a directory with other content ({listed})", GIVE_ROOT
