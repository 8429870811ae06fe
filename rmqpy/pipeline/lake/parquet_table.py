"""A folder of Parquet files with a manifest.

A commit renames a file to ``<broker>-<first offset>.parquet``, and then replaces
``_manifest.json``. After a crash between the two, the next append finds a file that the manifest
does not list, and removes it. A reader that lists the folder itself sees each row at most once at
any time. ``_lock`` keeps a second process away.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from glob import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from attrs import asdict, define, field

from rmqpy.model.errors import RmqError
from rmqpy.pipeline.lake.tables import IDENTITY, Position, TableConflictError, check_columns

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ParquetTable"]

MANIFEST: Final = "_manifest.json"
LOCK: Final = "_lock"
TEMPORARY: Final = "_temporary.parquet"
SUCCESS: Final = "_SUCCESS"
VERSION: Final = 1


@define(slots=True)
class _Manifest:
    version: int
    selection: str
    positions: dict[str, Position] = field(factory=dict)
    files: list[dict[str, Any]] = field(factory=list)

    @classmethod
    def parse(cls, text: str) -> _Manifest:
        """Raise KeyError, TypeError or ValueError if it is not a manifest of this version."""
        data = json.loads(text)
        if data["version"] != VERSION:
            raise ValueError("version")
        positions = {name: Position(**each) for name, each in data["positions"].items()}
        return cls(VERSION, data["selection"], positions, data["files"])

    def text(self) -> str:
        rows = sum(file["rows"] for file in self.files)
        return json.dumps({"rows": rows, **asdict(self)}, indent=1) + "\n"


class ParquetTable:
    """The table in ``folder``, which is created; ``write`` writes one Parquet file.

    Raise RmqError if the folder has something else, TableConflictError if another process appends.
    """

    def __init__(
        self, folder: str, selection: str, write: Callable[[pyarrow.Table, IO[bytes]], None]
    ) -> None:
        self._folder = Path(folder)
        self._write = write
        self._cleaned: set[str] = set()
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / LOCK).exists() and any(self._folder.iterdir()):
            raise RmqError(
                f"{folder}: found a folder with other files, expected an empty one or a table of"
                " rmqpy pipeline append; name another folder"
            )
        self._lock = open(self._folder / LOCK, "ab")  # noqa: SIM115 (held until close)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_new = not (self._folder / MANIFEST).exists()
            self._manifest = _Manifest(VERSION, selection) if self._is_new else self._read()
        except BlockingIOError:
            self._lock.close()
            raise TableConflictError(folder) from None
        except BaseException:
            self._lock.close()
            raise

    @property
    def selection(self) -> str | None:
        return None if self._is_new else self._manifest.selection

    def position(self, broker: str) -> Position | None:
        return self._manifest.positions.get(broker)

    def row(self, broker: str, physical_offset: int) -> Mapping[str, Any] | None:
        from pyarrow import parquet

        for file in reversed(self._manifest.files):
            if file["broker"] == broker and file["begin"] <= physical_offset < file["end"]:
                found = parquet.read_table(
                    self._folder / file["name"],
                    columns=list(IDENTITY),
                    filters=[("physicalOffset", "=", physical_offset)],
                ).to_pylist()
                return found[0] if found else None
        return None

    def append(self, rows: pyarrow.Table, broker: str, position: Position) -> None:
        from pyarrow import parquet

        if self._manifest.files:
            newest = self._folder / self._manifest.files[-1]["name"]
            check_columns(str(self._folder), parquet.read_schema(newest), rows.schema)
        self._remove_unlisted(broker)
        begin = rows["physicalOffset"][0].as_py()
        name = f"{quote(broker, safe='')}-{begin:020d}.parquet"
        temporary = self._folder / TEMPORARY
        with open(temporary, "wb") as file:
            self._write(rows, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._folder / name)
        self._manifest.files.append(
            {
                "name": name,
                "broker": broker,
                "begin": begin,
                "end": position.end,
                "rows": len(rows),
            }
        )
        self._manifest.positions[broker] = position
        self._replace(MANIFEST, self._manifest.text())
        if self._is_new:
            self._replace(SUCCESS, "")
            self._is_new = False

    def close(self) -> None:
        self._lock.close()

    def _read(self) -> _Manifest:
        path = self._folder / MANIFEST
        try:
            return _Manifest.parse(path.read_text(encoding="utf-8"))
        except (KeyError, TypeError, ValueError):
            raise RmqError(
                f"{path}: found no manifest of rmqpy pipeline append (an export cannot be"
                " continued); name another folder"
            ) from None

    def _remove_unlisted(self, broker: str) -> None:
        """Remove the file of a commit of this broker that was interrupted before its manifest."""
        if broker in self._cleaned:
            return
        listed = {file["name"] for file in self._manifest.files}
        for path in self._folder.glob(f"{escape(quote(broker, safe=''))}-{'[0-9]' * 20}.parquet"):
            if path.name not in listed:
                path.unlink()
        self._cleaned.add(broker)

    def _replace(self, name: str, text: str) -> None:
        temporary = self._folder / f"{name}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
