"""The one place that knows the terminal: colour, width, and characters that would control it.

Lines are plain text. On a terminal, rich colours what an operator looks for first and breaks long
lines at words, with a hanging indent. In a file or a pipe they are printed as they are, so that
programs and tests read the same text everywhere. ``NO_COLOR`` and ``TERM=dumb`` are honoured.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rmqpy.model.values import define

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["Rows", "console_of", "printable", "show"]

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}
_CONTROL |= {0x2028: "\\u2028", 0x2029: "\\u2029"}
"""The escapes of characters that would control the terminal or break a line."""

_STYLES = (
    (r"^READY\b.*|^\d+\. proven:|: clean$|\bEQUAL\b", "bold green"),
    (r"^NOT READY\b.*|^FINDING\b|^damage\b|\bdamage was found$|^ +failed: .*", "bold red"),
    (r"^note\b|^\d+\. possible:|^ +not run: |^not examined:", "yellow"),
    (r"^ +(?:->|next:) ?.*|^next: .*|\brmqpy [a-z]+ [a-z-]+\b", "cyan"),
    (r"^ +found: ", "dim"),
    (r"\[[a-z]+(?:-[a-z]+)+\]|\bhazard H\d+\b", "magenta"),
    (r"^\d+\. ", "bold"),
)
"""What is coloured: pattern and style, a later one over an earlier one."""

_CELL_STYLES = (
    (r"^(?:unreachable|damaged journal|half .*|flag is off, .*|stopped uncleanly)$", "bold red"),
    (r"^runs\b.*|^(?:leader|master)\b.*", "green"),
    (r" \(configured\)$|^never$", "dim"),
)
"""The same for the cells of tables."""

_LABEL = re.compile(r" *(?:\d+\. |-> |(?:found|next): +|note: )?")
NARROWEST = 40
"""The width below which lines are not broken."""


def printable(text: str) -> str:
    """Return a line without characters that would control the terminal: plans and surveys of other
    hosts contain names of their choice.
    """
    return text.translate(_CONTROL)


@define(slots=True, frozen=True)
class Rows:
    """A table: its head and its rows, all with as many cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def plain(self) -> Iterator[str]:
        """Yield the lines for a file or a pipe: columns as wide as their longest cell."""
        rows = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = zip(row, widths, strict=True)
            yield "  ".join(f"{text:<{width}}" for text, width in cells).rstrip()

    def narrowest(self) -> list[int]:
        """Return the widths below which a title or a word of a column would be broken."""
        return [
            max(len(title), *(len(word) for cell in cells for word in (*cell.split(), "")))
            for title, *cells in zip(self.head, *self.rows, strict=True)
        ]

    def fits(self, width: int) -> bool:
        return sum(self.narrowest()) + len(self.head) - 1 <= width

    def blocks(self) -> Iterator[str]:
        """Yield the lines for a terminal that is too narrow: each row as lines of its own."""
        for row in self.rows:
            (title, text), *others = zip(self.head, row, strict=True)
            yield f"{title} {text}"
            yield from (f"  {title}: {text}" for title, text in others)


def show(lines: Iterable[str | Rows], stream: TextIO | None = None) -> None:
    """Print lines and tables on stdout, or on ``stream``."""
    out = stream or sys.stdout
    console = console_of(out)
    for item in lines:
        if console is None:
            for line in [item] if isinstance(item, str) else item.plain():
                print(printable(line), file=out)
        elif isinstance(item, Rows) and item.fits(console.width):
            console.print(_table(item))
        else:
            for line in [item] if isinstance(item, str) else item.blocks():
                for part in _broken(_styled(printable(line)), console.width):
                    console.print(part, soft_wrap=True)


def _table(rows: Rows) -> Table:
    """Return a table whose long cells are broken at blanks."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for title, size in zip(rows.head, rows.narrowest(), strict=True):
        table.add_column(Text(printable(title)), overflow="fold", min_width=size)
    for row in rows.rows:
        cells = [Text(printable(cell)) for cell in row]
        for cell in cells:
            for pattern, style in _CELL_STYLES:
                cell.highlight_regex(pattern, style)
        table.add_row(*cells)
    return table


def console_of(stream: TextIO) -> Console | None:
    """Return the console of a terminal, or None for anything else, and for a dumb terminal."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    from rich.console import Console  # here because only terminals need it

    plain = bool(os.environ.get("NO_COLOR"))  # then no bold and no italics either
    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )


def _styled(line: str) -> Text:
    from rich.text import Text

    text = Text(line)
    for pattern, style in _STYLES:
        text.highlight_regex(pattern, style)
    return text


def _broken(text: Text, width: int) -> Iterator[Text]:
    """Yield a line in pieces that fit, broken at blanks; words that are too long stay whole."""
    from rich.text import Text

    plain = text.plain
    label = _LABEL.match(plain)
    indent = label.end() if label is not None else 0
    if len(plain) <= width or width < NARROWEST or indent > width // 2:
        yield text
        return
    start, lead = 0, 0
    while len(plain) - start > width - lead:
        room = start + width - lead
        blank = plain.rfind(" ", start + (indent if start == 0 else 0) + 1, room + 1)
        if blank < 0:
            blank = plain.find(" ", room)
        if blank < 0:
            break
        yield Text(" " * lead) + text[start:blank]
        start, lead = blank + 1, max(indent, 2)
    yield Text(" " * lead) + text[start:]
