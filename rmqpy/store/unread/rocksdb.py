"""Recognises a RocksDB by its files. :mod:`.rocksdb_reader` reads its content."""

from __future__ import annotations

from typing import Final

from rmqpy.model.files import FileSystem

_MARK: Final = "CURRENT"
POP_FOLDER: Final = "kvStore"


def is_rocksdb(files: FileSystem, folder: str) -> bool:
    """Return whether a folder holds a RocksDB, which may be empty."""
    return files.exists(f"{folder}/{_MARK}")


def rocksdb_queues(files: FileSystem, root: str) -> list[str]:
    """Return the folders of a store whose RocksDB has consume queues."""
    folders = (f"{root}/{name}" for name in files.list_dir(root) if name != POP_FOLDER)
    return [folder for folder in folders if is_rocksdb(files, folder)]


def missing_manifest(files: FileSystem, folder: str) -> str:
    """Return the name of the manifest that ``CURRENT`` names and that is missing, or nothing."""
    name = files.read_bytes(f"{folder}/{_MARK}").decode("utf-8", "replace").strip()
    return "" if name and files.exists(f"{folder}/{name}") else name or "a manifest"


def has_rocksdb_data(files: FileSystem, folder: str) -> bool:
    """Return whether a folder holds a RocksDB with anything in its tables or in its log."""
    return is_rocksdb(files, folder) and any(
        name.endswith(".sst") or (name.endswith(".log") and files.size_of(f"{folder}/{name}") > 0)
        for name in files.list_dir(folder)
    )
