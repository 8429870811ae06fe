"""EncodedRows: the rows of a large table, each encoded once, so that writing the whole table after
the change of one row costs little.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from rmqpy.remoting.body import Body
from rmqpy.remoting.fastjson import EncodedValue, dumps_pretty_member

_ROW_DEPTH = 2


@define(slots=True, eq=False, repr=False)
class EncodedRows:
    """The encoded rows of one table, a member of the object that is a config file.

    Invariant: a row is encoded again if its object is another one, so rows must not be modified.
    """

    _rows: dict[str, tuple[Body, str]] = field(factory=dict, init=False)

    def encode(self, table: Mapping[str, Body]) -> EncodedValue:
        """Return ``table`` as ``dumps`` writes it in a ``pretty`` text."""
        known, rows = self._rows, {}
        for name, body in table.items():
            row = known.get(name)
            if row is None or row[0] is not body:
                row = body, dumps_pretty_member(name, body.to_json(), _ROW_DEPTH)
            rows[name] = row
        self._rows = rows
        if not rows:
            return EncodedValue("{}")
        return EncodedValue("{" + ",".join([text for _, text in rows.values()]) + "\n\t}")
