"""Copy a user's store, and find the settings with which its files were written."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import define

from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.units import index_sizes_of
from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.model.errors import StoreError
from rmqpy.store.files.file_copy import copy_sparse

LEDGER_PREFIX = "dledger-"
COPIED_SETTINGS = (
    "brokerClusterName",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageIndexEnable",
    "maxMessageSize",
    "messageDelayLevel",
    "enabledAppendPropCRC",
)
"""The settings of the master that decide how files are written and read."""
NEVER_CLEANED = {
    "fileReservedTime": "876000",
    "diskMaxUsedSpaceRatio": "95",
    "cleanFileForciblyEnable": "false",
}
"""Settings with which nothing on a copy expires."""


def copy_store(source: Path, target: Path) -> int:
    """Copy a classic store as :func:`copy_directory` does. Raise StoreError if it is none."""
    if not (source / "commitlog").is_dir():
        raise StoreError(
            str(source),
            "no directory commitlog",
            "a storePathRootDir of a broker",
            "pass the directory that contains commitlog, consumequeue and config",
        )
    if ledger_of(source) is not None:
        raise StoreError(
            str(source),
            "a store that already runs DLedger",
            "a classic store",
            "run its broker with rmqpy broker",
        )
    return copy_directory(source, target)


def copy_member(source: Path, target: Path, self_id: str) -> int:
    """Copy the store of a DLedger member as :func:`copy_directory` does, as that of ``self_id``.

    Raise StoreError if it has no entries.
    """
    ledger = ledger_of(source)
    if ledger is None:
        raise StoreError(
            str(source),
            "no directory dledger-SELFID with data",
            "the storePathRootDir of a member of a DLedger group",
            "pass the directory that contains dledger-SELFID, consumequeue and config",
        )
    copied = copy_directory(source, target)
    (target / ledger.name).rename(target / f"{LEDGER_PREFIX}{self_id}")
    return copied


def ledger_of(store: Path) -> Path | None:
    """Return the directory with the entries of a member, or None in a classic store."""
    found = sorted(data.parent.parent for data in store.glob(f"{LEDGER_PREFIX}*/data/*"))
    return found[0] if found else None


def copy_directory(source: Path, target: Path) -> int:
    """Copy a directory with holes and times; return the number of bytes that are not holes."""
    copied = 0
    for folder, _, names in os.walk(source):
        destination = target / Path(folder).relative_to(source)
        destination.mkdir(parents=True, exist_ok=True)
        for name in names:
            copied += copy_sparse(Path(folder) / name, destination / name)
    return copied


def detected_sizes(store: Path) -> dict[str, str]:
    """Return the settings that the files of a store show: log, queue, and index file sizes."""
    found: dict[str, str] = {}
    ledger = ledger_of(store)
    log = _first_file(store / "commitlog")
    if log is None and ledger is not None:
        log = _first_file(ledger / "data")
    if log is not None:
        found["mappedFileSizeCommitLog"] = str(log)
    for queue in sorted(store.glob("consumequeue/*/*")):
        size = _first_file(queue)
        if size is not None and size % QUEUE_UNIT_SIZE == 0:
            found["mappedFileSizeConsumeQueue"] = str(size)
            break
    index = _first_file(store / "index")
    sizes = index_sizes_of(index) if index is not None else None
    if sizes is not None:
        found["maxHashSlotNum"], found["maxIndexNum"] = map(str, sizes)
    return found


def copied_settings(store: Path, config: Path | None) -> dict[str, str]:
    """Return the settings for a broker on a copy of ``store``: those of its broker.conf that decide
    how files are written and read, or those that the files show.
    """
    if config is None:
        return {**detected_sizes(store), **NEVER_CLEANED}
    lines = parse_properties(decode_properties_bytes(config.read_bytes()))
    given = {line.key: line.value for line in lines if line.key in COPIED_SETTINGS}
    return {**given, **NEVER_CLEANED}


@define(slots=True, frozen=True)
class QueueOnDisk:
    topic: str
    queue_id: int


def queues_on_disk(store: Path) -> list[QueueOnDisk]:
    """Return every queue that has a directory, in order."""
    return [
        QueueOnDisk(path.parent.name, int(path.name))
        for path in sorted(store.glob("consumequeue/*/*"))
        if path.name.isdigit()
    ]


def _first_file(folder: Path) -> int | None:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file():
            return path.stat().st_size
    return None
