"""An Iceberg table, written by PyIceberg.

The positions are properties of the table, set in the transaction that appends the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.pipeline.lake.tables import IDENTITY, Position, TableConflictError, check_columns

if TYPE_CHECKING:
    import pyarrow
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["IcebergTable"]

SELECTION: Final = "rmqpy.selection"
RETRIES: Final = "commit.retry.num-retries"


class IcebergTable:
    """The table ``NAMESPACE.TABLE`` of a catalog.

    The catalog is PyIceberg's ``catalog`` of its configuration, with ``properties`` added.
    """

    def __init__(
        self, identifier: str, selection: str, catalog: str, properties: Mapping[str, str]
    ) -> None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        if identifier.count(".") < 1 or "" in identifier.split("."):
            raise ConfigError(
                f"found the table {identifier!r}, expected NAMESPACE.TABLE; correct --to"
            )
        self._identifier = identifier
        self._selection = selection
        self._table: Table | None
        try:
            self._catalog: Catalog = load_catalog(catalog, **properties)
            self._table = self._catalog.load_table(identifier)
        except NoSuchTableError:
            self._table = None
        except Exception as error:  # noqa: BLE001 (each catalog raises errors of its own library)
            raise RmqError(f"{identifier}: PyIceberg cannot open the table: {error}") from None

    @property
    def selection(self) -> str | None:
        return None if self._table is None else self._table.properties.get(SELECTION, "")

    def position(self, broker: str) -> Position | None:
        if self._table is None:
            return None
        end = self._table.properties.get(_property(broker, "end"))
        last = self._table.properties.get(_property(broker, "last"))
        return None if end is None or last is None else Position(int(end), int(last))

    def row(self, broker: str, physical_offset: int) -> Mapping[str, Any] | None:
        from pyiceberg.expressions import And, EqualTo

        if self._table is None:
            return None
        wanted = And(EqualTo("physicalOffset", physical_offset), EqualTo("brokerName", broker))
        scan = self._table.scan(row_filter=wanted, selected_fields=IDENTITY)
        found = scan.to_arrow().to_pylist()
        return found[0] if found else None

    def append(self, rows: pyarrow.Table, broker: str, position: Position) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        try:
            if self._table is None:
                self._table = self._create(rows.schema)
            table = self._table
            check_columns(self._identifier, table.schema().as_arrow(), rows.schema)
            # PyIceberg repeats an append that met another one, and so would append rows twice. It
            # reads the number of retries from this copy of the properties, which is not stored.
            table.metadata.properties[RETRIES] = "0"
            with table.transaction() as transaction:
                transaction.append(rows)
                transaction.set_properties(
                    {
                        _property(broker, "end"): str(position.end),
                        _property(broker, "last"): str(position.last),
                    }
                )
        except (CommitFailedException, TableAlreadyExistsError):
            raise TableConflictError(self._identifier) from None
        except RmqError:
            raise
        except Exception as error:  # noqa: BLE001 (as above)
            raise RmqError(f"{self._identifier}: PyIceberg cannot append: {error}") from None

    def close(self) -> None:
        self._catalog.close()

    def _create(self, schema: pyarrow.Schema) -> Table:
        namespace = self._identifier.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        return self._catalog.create_table(
            self._identifier, schema, properties={SELECTION: self._selection}
        )


def _property(broker: str, what: str) -> str:
    return f"rmqpy.{broker}.{what}"
