"""What a command found out: a value for programs, and the text that mqadmin would print.

Columns are those of mqadmin 4.9.7, widths and titles included: operators have scripts that cut them
out. ``java_time`` and ``java_float`` write what Java writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from attrs import define

from rmqpy.remoting.body import Body


@define(slots=True, frozen=True)
class CommandResult:
    """``data`` is made of plain values and typed bodies; ``says_no``: exit code 2."""

    data: object
    text: str
    says_no: bool = False

    def as_json(self) -> str:
        """One line of strict JSON."""
        return json.dumps(_json_value(self.data), ensure_ascii=False)


@define(slots=True, frozen=True)
class Column:
    """``width`` below 0 aligns to the left, as in Java's ``%-20s``; 0 is as wide as it is."""

    title: str
    width: int

    def cell(self, value: object) -> str:
        text = str(value)
        return text.ljust(-self.width) if self.width < 0 else text.rjust(self.width)


@define(slots=True, frozen=True)
class OutputTable:
    """Columns with what stands between two of them: one separator, or one for each gap."""

    columns: Sequence[Column]
    separators: Sequence[str] = ("  ",)

    def text(self, rows: Iterable[Sequence[object]]) -> str:
        """Titles and rows, a line each."""
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
    """``yyyy-MM-dd HH:mm:ss,SSS`` in local time, as Java's tools print times."""
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
    """JSON has text keys only: an object as key is written as its JSON."""
    plain = _json_value(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
