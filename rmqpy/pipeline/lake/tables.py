"""What the kinds of tables have in common: an append that records its position in the same commit.

A position is kept per broker name, because several brokers can share a table. It consists of the
offset from which the next append reads and of the last row that was appended, by which the next
append recognises the store again. A commit is refused if another process has committed for the same
broker since the table was opened, so no row is appended twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define

from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "IDENTITY",
    "LakeTable",
    "Position",
    "TableConflictError",
    "check_columns",
]

IDENTITY: Final = ("topic", "queueId", "queueOffset", "storeTimestamp", "size")
"""The columns by which the last appended row is recognised in the store."""


class TableConflictError(RmqError):
    """Another process has appended to the table since it was opened; nothing was committed."""

    retriable = True

    def __init__(self, target: str) -> None:
        super().__init__(
            f"{target}: another process has committed to the table meanwhile, and nothing was"
            " appended in this commit; run the command again, and only one at a time"
        )


@define(slots=True, frozen=True)
class Position:
    """How far a broker's store has been appended.

    ``end`` is the physical offset from which the next append reads, ``last`` the physicalOffset of
    the last appended row.
    """

    end: int
    last: int


class LakeTable(Protocol):
    """A table that is open for appending."""

    @property
    def selection(self) -> str | None:
        """What the rows of the table are, as it was recorded at its creation; None if it is new."""
        ...

    def position(self, broker: str) -> Position | None:
        """Return how far the store of a broker has been appended, None before the first append."""
        ...

    def row(self, broker: str, physical_offset: int) -> Mapping[str, Any] | None:
        """Return the columns IDENTITY of a row, or None if the table does not have it."""
        ...

    def append(self, rows: pyarrow.Table, broker: str, position: Position) -> None:
        """Commit ``rows`` (at least one) and the position together.

        The first append creates the table. Raise TableConflictError if another process has
        committed for the same broker, RmqError if the table has other columns.
        """
        ...

    def close(self) -> None: ...


def check_columns(target: str, found: pyarrow.Schema, expected: pyarrow.Schema) -> None:
    """Raise RmqError unless a table has exactly the expected columns."""
    if missing := [name for name in expected.names if name not in found.names]:
        raise RmqError(
            f"{target}: found a table without the columns {', '.join(missing)}, expected one that"
            " rmqpy pipeline append has created; name a new table"
        )
    if foreign := [name for name in found.names if name not in expected.names]:
        raise RmqError(
            f"{target}: found a table with the further columns {', '.join(foreign)}, expected"
            " those of this command; use the same --body-schema as before, or a new table"
        )
