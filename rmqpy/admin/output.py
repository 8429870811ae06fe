"""The result of a command: a value for programs, and the text that mqadmin would print.

The columns have the titles and widths of mqadmin 4.9.7, because operators' scripts parse them.
``java_time`` and ``java_bool`` write values in Java's form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from attrs import define

from rmqpy.remoting.body import Body


@define(slots=True, frozen=True)
class CommandResult:
    """The result of a command.

    ``data`` consists of plain values and typed bodies; ``says_no`` means exit code 2.
    """

    data: object
    text: str
    says_no: bool = False

    def as_json(self) -> str:
        """Return one line of strict JSON."""
        return json.dumps(_json_value(self.data), ensure_ascii=False)


@define(slots=True, frozen=True)
class Column:
    """A column; as in Java's ``%-20s``, a negative ``width`` aligns left; 0 means no padding."""

    title: str
    width: int

    def cell(self, value: object) -> str:
        text = str(value)
        return text.ljust(-self.width) if self.width < 0 else text.rjust(self.width)


@define(slots=True, frozen=True)
class OutputTable:
    """Columns and the separators between them: a single one, or one per gap."""

    columns: Sequence[Column]
    separators: Sequence[str] = ("  ",)

    def text(self, rows: Iterable[Sequence[object]]) -> str:
        """Return titles and rows, one per line."""
        lines = [self.line([column.title for column in self.columns])]
        lines += [self.line(row) for row in rows]
        return "\n".join(lines)

    def line(self, values: Sequence[object]) -> str:
        cells = [column.cell(value) for column, value in zip(self.columns, values, strict=True)]
        parts = [cells[0]]
        for number, cell in enumerate(cells[1:]):
            parts += [self.separators[min(number, len(self.separators) - 1)], cell]
        return "".join(parts)


def java_time(timestamp_ms: int, *, millis: bool = True) -> str:
    """Return ``yyyy-MM-dd HH:mm:ss,SSS`` in local time, as Java's tools print times."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text},{timestamp_ms % 1000:03d}" if millis else text


def java_bool(value: bool) -> str:
    return "true" if value else "false"


def _json_value(value: object) -> object:
    if isinstance(value, Body):
        return _json_value(value.to_json())
    if isinstance(value, dict):
        return {_key(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item) for item in value]
    return value


def _key(key: object) -> str:
    """Return an object key as its JSON, because JSON has only text keys."""
    plain = _json_value(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
