"""The check that refuses to start a broker in a directory with an unfinished upgrade.

The journal is written by ``rmqpy.upgrade``. This module contains its path, and the states in which
the directory is neither the old store nor the new one.
"""

from __future__ import annotations

import json

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder

JOURNAL_NAME = "journal.json"
APPLYING = "applying"
ROLLING_BACK = "rolling_back"


def upgrade_work(root: str) -> str:
    """Return the directory in which the upgrade keeps its files."""
    return f"{own_folder(root)}/upgrade"


def journal_path(root: str) -> str:
    return f"{upgrade_work(root)}/{JOURNAL_NAME}"


def check_no_unfinished_upgrade(files: FileSystem, root: str) -> None:
    """Raise StoreError if a plan was started here and neither finished nor rolled back."""
    path = journal_path(root)
    if not files.exists(path):
        return
    try:
        state = json.loads(files.read_bytes(path))["state"]
    except (ValueError, KeyError, TypeError):
        state = "unreadable"
    if state in (APPLYING, ROLLING_BACK, "unreadable"):
        raise StoreError(
            path,
            f"an upgrade that is half done ({state})",
            "a directory that is either before or after it",
            "run rmqpy upgrade apply --resume to finish it, or rmqpy upgrade rollback",
        )
