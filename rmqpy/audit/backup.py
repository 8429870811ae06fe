"""A copy of the directory of a classic broker, which may run meanwhile.

The copy is what a power loss would leave if everything that was written before the copy began had
reached the disk, and the start of a broker on it is the recovery from one. That needs an order:

1. what says how much is durable (``checkpoint``, ``rmqpy/``), before anything that it speaks of;
2. tables, consume queues and key index;
3. the log, which then contains every message that a queue leads to.

The files of the log are copied from the first to the last. A record that was written after its
place was read is missing, and the recovery ends the log there; no message that was acknowledged
before the copy began can be affected. ``abort`` marks the copy of a running broker as one to
recover, and the note of the machine's boot, which would say that nothing was lost, is left out.

A member of a DLedger group is refused: a member that forgets entries and votes that it has promised
can make its group lose messages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import define

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.model.errors import StoreError
from rmqpy.store.files.boot_note import BOOT_NOTE_NAME
from rmqpy.store.files.file_copy import clone, copy_sparse
from rmqpy.store.files.paths import StorePaths

PARTIAL_SUFFIX: Final = ".partial"
"""The end of the name of a copy that is not complete."""
_FIRST: Final = ("checkpoint", "rmqpy")
_NOT_COPIED: Final = frozenset(("lock", "abort", f"rmqpy/{BOOT_NOTE_NAME}", "rmqpy/quarantine"))
"""Paths below the root."""


@define(frozen=True)
class Backup:
    """A finished copy. ``copied`` is the number of bytes that were written; clones write none."""

    files: int
    copied: int
    was_running: bool


def back_up(
    paths: StorePaths, target: Path, advance: Callable[[int], None] = lambda count: None
) -> Backup:
    """Copy the store to ``target``, which must not exist or be empty; ``advance`` receives the
    number of bytes after each piece of at most 1 MiB, and limits the rate if it waits. Clones are
    not reported.

    The copy has its name only once it is complete and durable. Raises StoreError for a directory
    that cannot be copied, and OSError if the disk is full.
    """
    root = Path(paths.root)
    _check(root, paths, target)
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    if partial.exists():
        shutil.rmtree(partial)  # of a copy that was interrupted
    was_running = _is_running(paths)
    count = copied = 0
    for place, source in _in_order(root, Path(paths.commit_log)):
        destination = partial / place
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not clone(source, destination):
                copied += copy_sparse(source, destination, advance)
        except FileNotFoundError:  # it has expired meanwhile
            destination.unlink(missing_ok=True)
            continue
        _sync(destination)
        count += 1
    _check_log(partial / "commitlog")
    was_running = was_running or _is_running(paths)
    if was_running:
        (partial / "abort").touch()
    for folder, _, _ in os.walk(partial):
        _sync(Path(folder))
    if target.exists():
        target.rmdir()  # it is empty
    partial.rename(target)
    _sync(target.parent)
    return Backup(count, copied, was_running)


def _check(root: Path, paths: StorePaths, target: Path) -> None:
    if any(root.glob("dledger-*/data/*")):
        raise StoreError(
            paths.root,
            "data of a DLedger log",
            "the store of a classic broker",
            "copy the directory of a classic slave of the group (haServeEntries), or a member with"
            " rmqpy upgrade leave --into DIR",
        )
    if target.resolve().is_relative_to(root.resolve()):
        raise StoreError(
            str(target),
            "a path inside of the store",
            "one outside of it",
            "give the copy another place",
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(
            str(target),
            "something that exists already",
            "a path that does not exist, or an empty directory",
            "give the copy another place, or remove what is there",
        )


def _is_running(paths: StorePaths) -> bool:
    return find_lock_owner(paths.lock) is not None or Path(paths.abort).exists()


def _in_order(root: Path, log: Path) -> Iterator[tuple[str, Path]]:
    """Yield the place in the copy and the path of each file, the files of the log last."""
    for name in _FIRST:
        yield from _below(root, root / name)
    names = sorted(entry.name for entry in root.iterdir() if root / entry.name != log)
    for name in names:
        if name not in _FIRST and name != "commitlog":
            yield from _below(root, root / name)
    for path in _entries(log):
        yield f"commitlog/{path.name}", path


def _below(root: Path, path: Path) -> Iterator[tuple[str, Path]]:
    place = path.relative_to(root).as_posix()
    if place in _NOT_COPIED or place.endswith(("-temp", ".tmp")):
        return
    if path.is_dir():
        for entry in _entries(path):
            yield from _below(root, entry)
    elif path.is_file():
        yield place, path


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:  # a topic that was deleted
        return ()


def _check_log(folder: Path) -> None:
    """Raise StoreError if files of the log have expired in the middle of the copy."""
    files = _entries(folder)
    ends = [int(path.name) + path.stat().st_size for path in files]
    for end, path in zip(ends, files[1:], strict=False):
        if int(path.name) != end:
            raise StoreError(
                str(path),
                f"no file of the log from {end} on",
                "files without a gap",
                "the broker has removed a file meanwhile: repeat the copy",
            )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
