"""The stage: complete files that wait in ``rmqpy/upgrade/stage`` until a plan puts them in place.

``rmqpy upgrade prepare`` fills it while the brokers run. A file on the stage counts only as long
as what was learned about it is valid (:mod:`rmqpy.audit.facts.learned`), its MD5 sum included: so
it is not read again when it is needed, and a file that has changed is not used.

================  ===================================================================
log/              files of the old log that the member lacks
twins/            files of the DLedger log as files of a classic log
NAME-derived/     consume queues and key index of the files in NAME
NAME-derived.json the offset up to which they were built, the files, and the sizes of their files
incoming          the file that is being written
================  ===================================================================
"""

from __future__ import annotations

import json
from typing import Any, Final

from attrs import define

from rmqpy.audit.facts.learned import Learned, open_learned
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.plan.node_context import NodeContext, range_digest

__all__ = ["LOG", "TWINS", "Stage", "known_digest", "learned_of"]

LOG: Final = "log"
TWINS: Final = "twins"


@define(slots=True, frozen=True)
class Stage:
    """One row of files on the stage of a directory: :data:`LOG` or :data:`TWINS`."""

    files: FileSystem
    root: str
    row: str

    @property
    def base(self) -> str:
        return f"{upgrade_work(self.root)}/stage"

    @property
    def folder(self) -> str:
        return f"{self.base}/{self.row}"

    @property
    def incoming(self) -> str:
        return f"{self.base}/incoming"

    @property
    def derived(self) -> str:
        """The folder of the consume queues and the key index."""
        return f"{self.base}/{self.row}-derived"

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def names(self) -> list[str]:
        return self.files.list_dir(self.folder)

    def note_derived(self, end: int, sums: dict[str, str], settings: StoreSettings) -> None:
        """Note that the queues lead to the messages before ``end`` in files with these MD5 sums."""
        raw = json.dumps({"end": end, "files": sums, "sizes": _derived_sizes(settings)}).encode()
        self.files.replace_bytes(f"{self.derived}.json", raw)

    def derived_end(self, sums: dict[str, str], settings: StoreSettings) -> int | None:
        """Return the offset up to which queues and index are built from the first of these files,
        in files of the sizes of ``settings``, or None if they are not. ``sums`` are MD5 sums by
        name.
        """
        try:
            found: dict[str, Any] = json.loads(self.files.read_bytes(f"{self.derived}.json"))
            names = sorted(sums)[: len(found["files"])]
            same = {name: sums[name] for name in names} == found["files"]
            same = same and found["sizes"] == _derived_sizes(settings)
            return int(found["end"]) if same and names else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def clear(self) -> None:
        """Remove the files of the row and what was derived from them."""
        self.files.remove_tree(self.folder)
        self.files.unlink(self.incoming)
        self.clear_derived()

    def clear_derived(self) -> None:
        self.files.unlink(f"{self.derived}.json")
        self.files.remove_tree(self.derived)


def _derived_sizes(settings: StoreSettings) -> list[int]:
    return [
        settings.mapped_file_size_consume_queue,
        settings.max_hash_slot_num,
        settings.max_index_num,
    ]


def learned_of(context: NodeContext) -> Learned | None:
    """Return what was learned about the directory of a node."""
    return open_learned(context.files, context.root, context.now_ms)


def known_digest(context: NodeContext, path: str) -> str:
    """Return the MD5 sum of a file, or ``absent``; read the file only if its sum is not known."""
    learned = learned_of(context)
    known = learned.known_md5(path) if learned is not None and context.files.exists(path) else None
    return range_digest(context.files, path) if known is None else known
