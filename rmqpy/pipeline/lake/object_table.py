"""A Parquet table in an object store, in which each object is one commit.

An object has the rows of a commit, and in its metadata the position after it, so both become
visible together. It is named ``<broker>-<offset>.parquet`` after the position from which the commit
continues, and is created only if there is none of this name: of two commits that continue from the
same position, one is refused. No object is replaced, and an interrupted commit leaves none.
``_table.json`` says which rows the table has.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from attrs import define

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.model.errors import RmqError
from rmqpy.pipeline.lake.tables import IDENTITY, Position, TableConflictError, check_columns

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ObjectTable"]

STATE: Final = "_table.json"
VERSION: Final = 1
END: Final = b"rmqpy.end"
LAST: Final = b"rmqpy.last"
COMMIT: Final = b"rmqpy.commit"
"""The keys of an object's Parquet metadata: the fields of its position, and a unique name of the
commit, by which a commit of which the answer was lost is recognised."""


@define(slots=True, frozen=True)
class _Commit:
    name: str
    position: Position
    schema: pyarrow.Schema
    commit: str


class ObjectTable:
    """The table below the URI of ``store``; ``write`` writes one Parquet file.

    Raise RmqError if something else is there.
    """

    def __init__(
        self,
        store: ObjectStore,
        selection: str,
        write: Callable[[pyarrow.Table, IO[bytes]], None],
    ) -> None:
        self._store = store
        self._write = write
        self._selection = selection
        self._checked = False
        names = store.names()
        self._is_new = STATE not in names
        if self._is_new and names:
            raise RmqError(
                f"{store.root}: found other files, expected none or a table of rmqpy pipeline"
                " append; name another place"
            )
        if not self._is_new:
            self._selection = self._recorded_selection()
        self._offsets: dict[str, list[int]] = {}
        """The offsets in the names of the objects by quoted broker name, ascending."""
        for name in sorted(names):
            broker, _, offset = name.removesuffix(".parquet").rpartition("-")
            if name.endswith(".parquet") and offset.isdecimal():
                self._offsets.setdefault(broker, []).append(int(offset))
        self._newest: dict[str, _Commit | None] = {}

    @property
    def selection(self) -> str | None:
        return None if self._is_new else self._selection

    def position(self, broker: str) -> Position | None:
        newest = self._newest_of(quote(broker, safe=""))
        return None if newest is None else newest.position

    def row(self, broker: str, physical_offset: int) -> Mapping[str, Any] | None:
        from pyarrow import parquet

        quoted = quote(broker, safe="")
        before = [each for each in self._offsets.get(quoted, ()) if each <= physical_offset]
        if not before:
            return None
        with self._store.opened_file(_name(quoted, before[-1])) as file:
            found = parquet.read_table(
                file, columns=list(IDENTITY), filters=[("physicalOffset", "=", physical_offset)]
            ).to_pylist()
        return found[0] if found else None

    def append(self, rows: pyarrow.Table, broker: str, position: Position) -> None:
        quoted = quote(broker, safe="")
        newest = self._newest_of(quoted)
        known = newest or next(map(self._newest_of, self._offsets), None)
        if known is not None:
            check_columns(self._store.root, known.schema, rows.schema)
        self._check_place()
        offset = 0 if newest is None else newest.position.end
        made = _Commit(_name(quoted, offset), position, rows.schema, uuid4().hex)
        about = {END: str(position.end), LAST: str(position.last), COMMIT: made.commit}
        with tempfile.NamedTemporaryFile(prefix="rmqpy-append-") as file:
            self._write(rows.replace_schema_metadata(about), file.file)
            file.flush()
            is_made = self._store.create_file(file.name, made.name)
        # The driver may have repeated a request that had been carried out.
        if not is_made and self._described(made.name).commit != made.commit:
            raise TableConflictError(self._store.root)
        self._offsets.setdefault(quoted, []).append(offset)
        self._newest[quoted] = made
        self._is_new = False

    def close(self) -> None:
        """Do nothing: the table holds nothing open."""

    def _recorded_selection(self) -> str:
        try:
            found = json.loads(self._store.read_all(STATE))
            if found["version"] != VERSION:
                raise ValueError("version")
            return str(found["selection"])
        except (KeyError, TypeError, ValueError):
            raise RmqError(
                f"{self._store.root}/{STATE}: found no description of a table by this version of"
                " rmqpy pipeline append; name another place"
            ) from None

    def _check_place(self) -> None:
        """Create ``_table.json``. Raise an error if that replaces what another process has created:
        then commits could do so, too.
        """
        if self._checked:
            return
        text = json.dumps({"version": VERSION, "selection": self._selection}) + "\n"
        with tempfile.NamedTemporaryFile(prefix="rmqpy-append-") as file:
            file.write(text.encode())
            file.flush()
            is_made = self._store.create_file(file.name, STATE)
            if self._is_new and not is_made:
                raise TableConflictError(self._store.root)
            if is_made and (not self._is_new or self._store.create_file(file.name, STATE)):
                raise RmqError(
                    f"{self._store.root}: found that its driver or server replaces an object that"
                    " exists, expected a refusal, which keeps two commands from appending the same"
                    " messages; use --table delta or --table iceberg"
                )
        self._checked = True

    def _newest_of(self, quoted: str) -> _Commit | None:
        if quoted not in self._newest:
            offsets = self._offsets.get(quoted)
            found = self._described(_name(quoted, offsets[-1])) if offsets else None
            self._newest[quoted] = found
        return self._newest[quoted]

    def _described(self, name: str) -> _Commit:
        """Read what the metadata of an object says. Raise RmqError if it is no commit."""
        from pyarrow import ArrowInvalid, parquet

        try:
            with self._store.opened_file(name) as file:
                opened = parquet.ParquetFile(file)
                about, schema = opened.metadata.metadata or {}, opened.schema_arrow
            position = Position(int(about[END]), int(about[LAST]))
            return _Commit(name, position, schema, about[COMMIT].decode())
        except (ArrowInvalid, KeyError, ValueError):
            raise RmqError(
                f"{self._store.root}/{name}: found no commit of rmqpy pipeline append, expected the"
                " newest rows of the table; remove the object if something else has written it, or"
                " name another place"
            ) from None


def _name(quoted: str, offset: int) -> str:
    return f"{quoted}-{offset:020d}.parquet"
