"""A Delta table, written by deltalake.

The positions are application transactions (``txn`` actions, as Spark's own streams use them): a
commit with one is refused if another commit with the same application ID came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqpy.model.errors import RmqError
from rmqpy.pipeline.lake.tables import IDENTITY, Position, TableConflictError, check_columns

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable as Opened

__all__ = ["DeltaTable"]

SELECTION: Final = "rmqpy.selection"
"""The key in the metadata of the column ``topic``; Delta refuses unknown properties of a table."""


class DeltaTable:
    """The table at a local path, or at a URI for which ``storage`` has deltalake's options."""

    def __init__(self, target: str, selection: str, storage: Mapping[str, str]) -> None:
        from deltalake import DeltaTable as Opened
        from deltalake.exceptions import DeltaError, TableNotFoundError

        self._target = target
        self._selection = selection
        self._storage = dict(storage)
        self._table: Opened | None
        try:
            self._table = Opened(target, storage_options=self._storage)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError, ValueError) as error:
            raise RmqError(f"{target}: deltalake cannot open the table: {error}") from None

    @property
    def selection(self) -> str | None:
        if self._table is None:
            return None
        columns = {column.name: column for column in self._table.schema().fields}
        found = columns["topic"].metadata.get(SELECTION) if "topic" in columns else None
        return "" if found is None else str(found)

    def position(self, broker: str) -> Position | None:
        if self._table is None:
            return None
        end = self._table.transaction_version(_application(broker, "end"))
        last = self._table.transaction_version(_application(broker, "last"))
        return None if end is None or last is None else Position(end, last)

    def row(self, broker: str, physical_offset: int) -> Mapping[str, Any] | None:
        import pyarrow.compute as pc

        if self._table is None:
            return None
        wanted = (pc.field("physicalOffset") == physical_offset) & (
            pc.field("brokerName") == broker
        )
        dataset = self._table.to_pyarrow_dataset()
        found = dataset.to_table(columns=list(IDENTITY), filter=wanted).to_pylist()
        return found[0] if found else None

    def append(self, rows: pyarrow.Table, broker: str, position: Position) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake import DeltaTable as Opened
        from deltalake.exceptions import CommitFailedError, DeltaError

        if self._table is not None:
            import pyarrow as pa

            check_columns(self._target, pa.schema(self._table.schema().to_arrow()), rows.schema)
        commit = CommitProperties(
            app_transactions=[
                Transaction(_application(broker, "end"), position.end),
                Transaction(_application(broker, "last"), position.last),
            ]
        )
        try:
            write_deltalake(
                self._table or self._target,
                self._marked(rows),
                mode="append" if self._table is not None else "error",
                storage_options=self._storage,
                commit_properties=commit,
            )
            if self._table is None:
                self._table = Opened(self._target, storage_options=self._storage)
            else:
                self._table.update_incremental()
        except CommitFailedError:
            raise TableConflictError(self._target) from None
        except (DeltaError, OSError, ValueError) as error:
            raise RmqError(f"{self._target}: deltalake cannot append: {error}") from None

    def close(self) -> None:
        """Do nothing: a Delta table holds nothing open."""

    def _marked(self, rows: pyarrow.Table) -> pyarrow.Table:
        if self._table is not None:
            return rows
        topic = rows.schema.field("topic").with_metadata({SELECTION: self._selection})
        return rows.cast(rows.schema.set(rows.schema.get_field_index("topic"), topic))


def _application(broker: str, what: str) -> str:
    return f"rmqpy/{broker}/{what}"
