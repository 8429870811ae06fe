"""The check that refuses to start a broker in a directory with an unfinished upgrade.

``rmqpy.upgrade`` writes the journal. This module has its place and its form, and the states in
which the directory is neither the old store nor the new one.

The journal is kept twice, in ``journal.json`` and ``journal.bak``. Each copy is one JSON object
with its own md5, padded with spaces to ``COPY_BYTES``, so that a copy is overwritten in place and
needs no space on a full disk. Writes alternate; the valid copy with the highest sequence number
counts. Format 1, of earlier versions, is ``journal.json`` alone, without md5 and padding.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.paths import own_folder

JOURNAL_NAME = "journal.json"
COPY_NAME = "journal.bak"
COPY_BYTES = 4096
JOURNAL_FORMAT = 2
APPLYING = "applying"
ROLLING_BACK = "rolling_back"


def upgrade_work(root: str) -> str:
    """Return the directory in which the upgrade keeps its files."""
    return f"{own_folder(root)}/upgrade"


def journal_path(root: str) -> str:
    return f"{upgrade_work(root)}/{JOURNAL_NAME}"


@define(slots=True, frozen=True)
class JournalCopy:
    """One copy of a journal: its content, or in ``damage`` why it has none."""

    path: str
    content: dict[str, Any] | None = None
    damage: str = ""

    @property
    def sequence(self) -> int:
        return -1 if self.content is None else int(self.content.get("sequence", 0))


def read_copies(files: FileSystem, work: str) -> list[JournalCopy]:
    """Return the copies of the journal in a folder, the one that counts first.

    Return an empty list if there is no journal.
    """
    copies = [_read_copy(files, f"{work}/{name}") for name in (JOURNAL_NAME, COPY_NAME)]
    if not any(files.exists(each.path) for each in copies):
        return []
    return sorted(copies, key=lambda each: -each.sequence)


def encode_copy(content: dict[str, Any]) -> bytes:
    """Return the bytes of a copy. Raise ValueError if the content does not fit."""
    content = {"format": JOURNAL_FORMAT, **content}
    raw = json.dumps({**content, "md5": _md5(content)}, indent=1).encode()
    if len(raw) > COPY_BYTES:
        raise ValueError(f"a journal of {len(raw)} bytes, expected at most {COPY_BYTES}")
    return raw.ljust(COPY_BYTES)


def check_no_unfinished_upgrade(files: FileSystem, root: str) -> None:
    """Raise StoreError if a plan was started here and neither finished nor rolled back."""
    copies = read_copies(files, upgrade_work(root))
    if not copies:
        return
    newest = copies[0]
    state = "unreadable" if newest.content is None else newest.content["state"]
    if state in (APPLYING, ROLLING_BACK, "unreadable"):
        raise StoreError(
            journal_path(root),
            f"an upgrade that is half done ({state})",
            "a directory that is either before or after it",
            f"run rmqpy upgrade apply --resume {root} to finish it, or rmqpy upgrade rollback"
            f" {root}",
        )


def _read_copy(files: FileSystem, path: str) -> JournalCopy:
    if not files.exists(path):
        return JournalCopy(path, damage="it is missing")
    try:
        content = json.loads(files.read_bytes(path))
        if not isinstance(content, dict) or not isinstance(content["state"], str):
            raise ValueError("it is not a journal")
        if content["format"] not in (1, JOURNAL_FORMAT):
            raise ValueError(f"it has format {content['format']}; use a newer rmqpy")
        if content["format"] == JOURNAL_FORMAT and content.pop("md5", None) != _md5(content):
            raise ValueError("its md5 does not match")
        return JournalCopy(path, content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        return JournalCopy(path, damage=text)


def _md5(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True).encode()
    return hashlib.md5(text, usedforsecurity=False).hexdigest()
