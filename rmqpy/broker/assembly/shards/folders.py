"""The folders of shards: which broker name each of them belongs to.

``rmqpy/broker-name`` in the store of a shard contains its name. It is written when the shard first
starts, and again never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rmqpy.broker.assembly.shards.plan import Shard
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder

_NAME_FILE: Final = "broker-name"
_DATA: Final = ("commitlog", "consumequeue", "dledger-")
"""The folders of a broker with messages, or the beginnings of their names."""


def claim_folders(files: FileSystem, root: str, shards: Sequence[Shard]) -> None:
    """Check the folders in ``root``, and note to whom those of ``shards`` belong.

    Raises ConfigError, before anything is written, if a folder belongs to another broker, if a
    shard with messages is not among ``shards``, or if ``root`` itself is the store of a broker.
    """
    if _has_data(files, root):
        raise ConfigError(
            f"{root} is the store of one broker, expected only folders of shards: set"
            " storePathRootDir to another directory for the shards; or stop that broker, and move"
            f" all that is in {root} to {shards[0].folder}, which makes it the first shard, with"
            f" the broker name {shards[0].name}"
        )
    for shard in shards:
        owner = _owner(files, shard.folder)
        if owner not in (None, shard.name):
            raise ConfigError(
                f"{shard.folder} belongs to the broker {owner}, expected {shard.name}: give the"
                f" folder the name {owner} back, or move it away"
            )
    for name, folder in _others(files, root, shards):
        raise ConfigError(
            f"{folder} contains messages of the shard {name}, expected only those of"
            f" {', '.join(shard.name for shard in shards)}: start that one, too, until its messages"
            " are consumed; then move the folder away"
        )
    for shard in shards:
        if _owner(files, shard.folder) is None:
            files.make_dirs(own_folder(shard.folder))
            files.replace_bytes(_name_file(shard.folder), f"{shard.name}\n".encode())


def _others(files: FileSystem, root: str, shards: Sequence[Shard]) -> Iterator[tuple[str, str]]:
    """Yield name and folder of each shard with a log that is not among ``shards``."""
    names = {shard.name for shard in shards}
    for each in sorted(files.list_dir(root)) if files.is_dir(root) else ():
        folder = f"{root}/{each}"
        owner = _owner(files, folder)
        if owner is not None and owner not in names and _has_data(files, folder):
            yield owner, folder


def _has_data(files: FileSystem, folder: str) -> bool:
    if not files.is_dir(folder):
        return False
    folders = [f"{folder}/{each}" for each in files.list_dir(folder) if each.startswith(_DATA)]
    return any(files.is_dir(each) and files.list_dir(each) for each in folders)


def _owner(files: FileSystem, folder: str) -> str | None:
    path = _name_file(folder)
    return files.read_bytes(path).decode("utf-8", "replace").strip() if files.exists(path) else None


def _name_file(folder: str) -> str:
    return f"{own_folder(folder)}/{_NAME_FILE}"
