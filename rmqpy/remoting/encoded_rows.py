"""EncodedRows: the rows of a large table, each encoded once, so that writing the whole table after
the change of one row costs little.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from rmqpy.remoting.body import Body
from rmqpy.remoting.fastjson import EncodedValue, dumps_member

_ROW_DEPTH = 2


@define(slots=True, eq=False, repr=False)
class EncodedRows:
    """The encoded rows of one table, a member of an object: of a config file (``pretty``), or of a
    body.

    Invariant: a row is encoded again if its object is another one, so rows must not be modified.
    """

    pretty: bool = True
    _rows: dict[str, tuple[Body, str]] = field(factory=dict, init=False)

    def encode(self, table: Mapping[str, Body]) -> EncodedValue:
        """Return ``table`` as ``dumps`` writes it."""
        depth = _ROW_DEPTH if self.pretty else None
        known, rows = self._rows, {}
        for name, body in table.items():
            row = known.get(name)
            if row is None or row[0] is not body:
                row = body, dumps_member(name, body.to_json(), depth)
            rows[name] = row
        self._rows = rows
        end = "\n\t}" if self.pretty else "}"
        if not rows:
            return EncodedValue("{}")
        return EncodedValue("{" + ",".join([text for _, text in rows.values()]) + end)
