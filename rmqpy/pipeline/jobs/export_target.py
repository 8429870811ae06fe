"""Where an export puts its files: a folder of this machine, or a place in an object store.

A folder gets a file under a temporary name in ``_temporary``, and the driver renames it once it is
proven. An object store has no rename, so there an executor puts the object under its final name,
which is that of its first frame. That is safe, because the content depends only on that frame, the
range, and the options: an attempt that is repeated replaces an object by an equal one, and an
object becomes visible when it is complete. What belongs to the export is what the manifest lists,
which is written last; the driver removes everything else before.

An export to an object store that was interrupted is continued by the same command. An object says
in its metadata of which range of which version of the log file it is; if that is still so, the
range is not read again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, Protocol
from uuid import uuid4

from attrs import define, field

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.audit.scan.ranges import WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.spark.work_units import SkippedRange, WorkUnit, remove_temporary

__all__ = ["MANIFEST", "SUCCESS", "ExportTarget", "FolderTarget", "ObjectTarget", "WrittenRange"]

TEMPORARY: Final = "_temporary"
MANIFEST: Final = "_manifest.json"
SUCCESS: Final = "_SUCCESS"
STARTED: Final = "_started.json"
"""The options of an export that has not ended, in an object store."""
RANGE_KEY: Final = b"rmqpy.range"
"""The key of an object's Parquet metadata that describes its range."""

WrittenRange = Mapping[str, Any]
"""The fields of an :class:`~rmqpy.pipeline.jobs.export.ExportedRange` without ``work``."""
Write = Callable[[IO[bytes], Callable[[], Mapping[bytes, bytes]]], int]
"""Writes a Parquet file with the metadata that the function returns at the end, and returns the
number of rows.
"""
Outcome = Callable[[], Mapping[str, Any]]
"""Returns the fields of a result without ``path`` and ``rows``, after the file is written."""


class ExportTarget(Protocol):
    """The place of an export. It can be pickled: executors call ``finished`` and ``write``."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise RmqError unless nothing is there, or an unfinished export with these options."""
        ...

    def start(self, options: Mapping[str, Any]) -> None:
        """Check, and prepare the place. Raise RmqError if it is in use or cannot be written."""
        ...

    def finished(self, unit: WorkUnit, files: FileSystem) -> WrittenRange | None:
        """Return what an interrupted export has written for a range, or None."""
        ...

    def write(
        self, work: WorkRange, begin: int, files: FileSystem, write: Write, outcome: Outcome
    ) -> tuple[str, int]:
        """Write the file of a range whose first frame is at ``begin``; return (path, rows)."""
        ...

    def remove(self, path: str) -> None:
        """Remove a written file that is not part of the export."""
        ...

    def place(self, work: WorkRange, path: str) -> str:
        """Put a proven file in its place, and return its name."""
        ...

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Remove everything that is not part of the export, and show that it is finished."""
        ...


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=2) + "\n"


@define(slots=True, frozen=True)
class FolderTarget:
    """A folder of this machine that does not exist or is empty."""

    folder: str

    def check(self, options: Mapping[str, Any]) -> None:
        target = Path(self.folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise RmqError(f"{target} is in use; name a folder that is empty or does not exist")

    def start(self, options: Mapping[str, Any]) -> None:
        self.check(options)
        Path(self.folder, TEMPORARY).mkdir(parents=True)

    def finished(self, unit: WorkUnit, files: FileSystem) -> None:
        return None

    def write(
        self, work: WorkRange, begin: int, files: FileSystem, write: Write, outcome: Outcome
    ) -> tuple[str, int]:
        path = f"{self.folder}/{TEMPORARY}/{uuid4().hex}"
        with open(path, "xb") as file:
            rows = write(file, dict)
            file.flush()
            os.fsync(file.fileno())
        return path, rows

    def remove(self, path: str) -> None:
        os.unlink(path)

    def place(self, work: WorkRange, path: str) -> str:
        name = f"{work.log.replace('/', '-')}-{work.start:020d}.parquet"
        os.rename(path, f"{self.folder}/{name}")
        return name

    def finish(self, manifest: Mapping[str, Any]) -> None:
        target = Path(self.folder)
        remove_temporary(target / TEMPORARY)
        _write_synced(target / MANIFEST, _manifest_text(manifest))
        _write_synced(target / SUCCESS, "")


def _write_synced(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@define(slots=True)
class ObjectTarget:
    """A place below the URI of ``store`` that has nothing, or an unfinished export."""

    store: ObjectStore
    _present: dict[str, int] = field(factory=dict, init=False)
    """The objects of an interrupted export, with the offsets of their first frames."""

    def check(self, options: Mapping[str, Any]) -> None:
        names = self.store.names()
        if not names:
            return
        if SUCCESS not in names and STARTED in names:
            started = json.loads(self.store.read_all(STARTED))
            if started == options:
                return
            raise RmqError(
                f"{self.store.root} has an unfinished export with other options"
                f" ({_difference(started, options)}); give the same ones to continue it, or another"
                " place"
            )
        raise RmqError(f"{self.store.root} is in use; name a place where nothing is")

    def start(self, options: Mapping[str, Any]) -> None:
        self.check(options)
        self.store.put_bytes(STARTED, json.dumps(options).encode())
        for name in self.store.names():
            offset = name.removesuffix(".parquet").rpartition("-")[2]
            if name.endswith(".parquet") and offset.isdecimal():
                self._present[name] = int(offset)

    def finished(self, unit: WorkUnit, files: FileSystem) -> WrittenRange | None:
        work, begin = unit.work, unit.begin
        for name, offset in self._present.items():
            if (
                work.start <= offset < work.stop
                and begin in (None, offset)
                and name == _object_name(work, offset)
            ):
                found = self._described(name)
                if found is not None and found.pop("of", None) == _version(work, files):
                    skipped = tuple(SkippedRange(*each) for each in found.pop("skipped"))
                    return {**found, "begin": offset, "skipped": skipped, "path": name}
        return None

    def _described(self, name: str) -> dict[str, Any] | None:
        """Return what the metadata of an object says, or None without."""
        from pyarrow import ArrowInvalid, parquet

        try:
            with self.store.opened_file(name) as file:
                metadata = parquet.ParquetFile(file).metadata
        except ArrowInvalid:  # a file system that shows incomplete files
            return None
        text = (metadata.metadata or {}).get(RANGE_KEY)
        return None if text is None else json.loads(text) | {"rows": metadata.num_rows}

    def write(
        self, work: WorkRange, begin: int, files: FileSystem, write: Write, outcome: Outcome
    ) -> tuple[str, int]:
        name, version = _object_name(work, begin), _version(work, files)

        def describe() -> Mapping[bytes, bytes]:
            found = outcome()
            about: dict[str, Any] = {"of": version, "end": found["end"], "closed": found["closed"]}
            about["skipped"] = [[each.file, each.offset, each.size] for each in found["skipped"]]
            return {RANGE_KEY: json.dumps(about).encode()}

        with tempfile.NamedTemporaryFile(prefix="rmqpy-export-") as file:
            rows = write(file.file, describe)
            file.flush()
            self.store.put_file(file.name, name)
        return name, rows

    def remove(self, path: str) -> None:
        self.store.remove(path)

    def place(self, work: WorkRange, path: str) -> str:
        return path

    def finish(self, manifest: Mapping[str, Any]) -> None:
        listed = {file["name"] for file in manifest["files"]}
        for name in self.store.names(parts=True):
            if name not in listed and name != STARTED:
                self.store.remove(name)
        self.store.put_bytes(MANIFEST, _manifest_text(manifest).encode())
        self.store.put_bytes(SUCCESS, b"")
        self.store.remove(STARTED)


def _object_name(work: WorkRange, begin: int) -> str:
    return f"{work.log.replace('/', '-')}-{begin:020d}.parquet"


def _version(work: WorkRange, files: FileSystem) -> list[Any]:
    """Return what a range of a log file is: the file as it is now, and the part of it."""
    return [*files.identity(work.path), work.start, work.stop, work.limit]


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    names = found.keys() | expected.keys()
    return ", ".join(sorted(each for each in names if found.get(each) != expected.get(each)))
