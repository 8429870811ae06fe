"""Snapshots of a store: clones where the file system has them, else links and copies.

A closed file of the log is never written again, by no broker and no step of an upgrade, so that a
hard link to it is safe. Everything else is copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rmqpy.store.files.file_copy import clone, copy_sparse

LEFT_OUT: Final = frozenset(("lock", "abort"))


def snapshot(source: Path, target: Path) -> None:
    """Make ``target`` an independent store with the content of ``source``, which nobody writes."""
    linked = set(closed_files(source))
    for folder, _, names in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            path = Path(folder) / name
            if Path(folder) == source and name in LEFT_OUT:
                continue
            if clone(path, place / name):
                continue
            if path in linked:
                os.link(path, place / name)
            else:
                copy_sparse(path, place / name)


def closed_files(store: Path) -> Iterator[Path]:
    """Yield the files of the log before the last one."""
    folder = store / "commitlog"
    yield from sorted(folder.iterdir())[:-1] if folder.is_dir() else ()


def copied_bytes(store: Path) -> int:
    """Return the bytes of the files that a snapshot copies where it cannot clone."""
    linked = set(closed_files(store))
    paths = (Path(folder) / name for folder, _, names in os.walk(store) for name in names)
    return sum(path.stat().st_blocks * 512 for path in paths if path not in linked)
