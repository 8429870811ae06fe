"""A store map as SVG, and as a page of its own. It needs no script; each shape has a title.

Shapes have classes instead of colours, so that the stylesheet around them decides
(:data:`MAP_STYLE` for a page of its own).
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from rmqpy.audit.picture.layout import LABEL, WIDTH, MapLayout, MapRow, MapShape

__all__ = ["LEGEND", "MAP_SHAPES", "MAP_STYLE", "map_image", "map_page", "map_svg"]

ROW_HEIGHT: Final = 46
FILE_HEIGHT: Final = 18
LANE_HEIGHT: Final = 8
LEGEND_HEIGHT: Final = 18
NAME_CHARACTERS_MAX: Final = 28

LEGEND: Final = (
    ("classic", "classic log"),
    ("ledger", "DLedger log"),
    ("rest", "not written yet"),
    ("gone", "expired"),
    ("divide", "divide"),
    ("committed", "committed"),
    ("flushed", "flushed"),
    ("damage", "damage"),
    ("derived", "derived files"),
    ("tail", "tail"),
    ("equal", "equal blocks"),
    ("different", "different blocks"),
    ("missing", "not in all replicas"),
)
"""The kinds of shapes, in the order of the legend."""
LINES: Final = ("divide", "committed", "flushed")
CHARACTER_WIDTH: Final = 6.4

MAP_COLOURS: Final = """
:root{--bg:#fff;--fg:#1d2429;--dim:#59656e;--line:#d9dfe4;--classic:#4878a8;--ledger:#3f7f4b;
--bad:#b03a3a;--warn:#c98a1b;--tail:#7d5ba6;--missing:#c9ced3;--head:#f4f6f8}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#dde3e8;--dim:#98a4ae;--line:#2e363d;
--classic:#6a9bcb;--ledger:#6fb27b;--bad:#e07474;--warn:#e0b050;--tail:#b292da;--missing:#4b545c;
--head:#1c2227}}
"""
MAP_STYLE: Final = (
    MAP_COLOURS
    + """
body{font:14px/1.45 system-ui,"DejaVu Sans",sans-serif;margin:1.5em auto;max-width:1040px;
padding:0 1em;color:var(--fg);background:var(--bg)}
h1{font-size:1.4em}h2{font-size:1.05em;margin:1.4em 0 .3em}.note{color:var(--dim)}
.bad{color:var(--bad)}.good{color:var(--ledger)}
ul{margin:.2em 0;padding-left:1.3em}
"""
)
MAP_SHAPES: Final = """
.store-map{display:block;width:100%;height:auto;max-width:1200px}
.store-map text,.map-legend text{font:11px system-ui,"DejaVu Sans",sans-serif;fill:var(--fg)}
.store-map .dim{fill:var(--dim)}
.classic{fill:var(--classic)}.ledger{fill:var(--ledger)}.equal{fill:var(--ledger)}
.rest{fill:none;stroke:var(--line)}.gone{fill:none;stroke:var(--dim);stroke-dasharray:2 2}
.damage,.different{fill:var(--bad)}.derived{fill:var(--warn)}.tail{fill:var(--tail)}
.note-cell,.missing{fill:var(--missing)}
line.divide{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:4 2}
line.committed{stroke:var(--ledger);stroke-width:2}line.flushed{stroke:var(--dim);stroke-width:2}
.map-legend{width:100%;height:auto;max-width:1200px}
"""


def map_svg(layout: MapLayout) -> str:
    """Return the map as an ``svg`` element, and another one with its legend below."""
    shapes, height = _map(layout)
    return "\n".join(
        [
            f'<svg class="store-map" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' aria-label="Files of each replica by physical offset">',
            *shapes,
            "</svg>",
            f'<svg class="map-legend" viewBox="0 0 {WIDTH} {LEGEND_HEIGHT}" aria-hidden="true">',
            *_legend(layout),
            "</svg>",
        ]
    )


def map_image(layout: MapLayout) -> str:
    """Return the map and its legend as one SVG document, which needs no stylesheet around it."""
    shapes, height = _map(layout)
    total = height + LEGEND_HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="store-map" width="{WIDTH}"'
            f' height="{total}" viewBox="0 0 {WIDTH} {total}">',
            f"<style>{MAP_COLOURS}{MAP_SHAPES}</style>",
            f'<rect width="{WIDTH}" height="{total}" fill="var(--bg)"/>',
            *shapes,
            f'<g transform="translate(0 {height})">',
            *_legend(layout),
            "</g></svg>",
            "",
        ]
    )


def map_page(layout: MapLayout, title: str) -> str:
    """Return a self-contained page that loads nothing."""
    facts = []
    for row in layout.rows:
        facts.append(f"<h2>{escape(row.name)}</h2><ul>")
        facts += [f"<li>{escape(each)}</li>" for each in row.facts]
        facts.append("</ul>")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{MAP_STYLE}{MAP_SHAPES}</style></head>",
            f"<body><main><h1>{escape(title)}</h1>",
            f"<p>{escape(layout.verdict)}</p>" if layout.verdict else "",
            map_svg(layout),
            *facts,
            "</main></body></html>",
            "",
        ]
    )


def _map(layout: MapLayout) -> tuple[list[str], int]:
    """Return the shapes of the map, and its height."""
    parts: list[str] = []
    top = 2
    for row in layout.rows:
        parts += _row(row, top)
        top += ROW_HEIGHT
    if layout.agreement:
        parts.append(_text(0, top + 11, "equality", "dim"))
        parts += [_rect(shape, top + 2, LANE_HEIGHT + 4) for shape in layout.agreement]
        top += ROW_HEIGHT // 2
    for number, (x, offset) in enumerate(layout.ticks):
        anchor = "start" if number == 0 else "end" if number == 4 else "middle"
        parts.append(_text(x, top + 14, f"{offset:,}", "dim", anchor))
    return parts, top + 22


def _row(row: MapRow, top: int) -> Iterator[str]:
    yield _text(0, top + 13, _short(row.name), "")
    if row.expired:
        yield (
            f'<rect class="gone" x="{LABEL - 22}" y="{top}" width="18" height="{FILE_HEIGHT}">'
            f"<title>{escape(row.expired)}</title></rect>"
        )
    for shape in row.files:
        yield _rect(shape, top, FILE_HEIGHT)
    for shape in row.damage:
        yield _rect(shape, top + FILE_HEIGHT + 3, LANE_HEIGHT)
    for shape in row.marks:
        bottom = top + FILE_HEIGHT + (LANE_HEIGHT if shape.kind == "divide" else 3)
        yield (
            f'<line class="{shape.kind}" x1="{shape.x:.1f}" x2="{shape.x:.1f}" y1="{top - 2}"'
            f' y2="{bottom}"><title>{escape(shape.title)}</title></line>'
        )


def _rect(shape: MapShape, top: int, height: int) -> str:
    kind = "note-cell" if shape.kind == "note" else shape.kind
    return (
        f'<rect class="{kind}" x="{shape.x:.1f}" y="{top}" width="{shape.width:.1f}"'
        f' height="{height}"><title>{escape(shape.title)}</title></rect>'
    )


def _legend(layout: MapLayout) -> Iterator[str]:
    """Yield the kinds of shapes that are on the map."""
    present = {shape.kind for shape in layout.agreement}
    for row in layout.rows:
        shapes = (*row.files, *row.marks, *row.damage)
        present |= {shape.kind for shape in shapes} | ({"gone"} if row.expired else set())
    x = 1
    for kind, words in LEGEND:
        if kind in present:
            if kind in LINES:
                yield f'<line class="{kind}" x1="{x + 6}" x2="{x + 6}" y1="2" y2="15"/>'
            else:
                yield f'<rect class="{kind}" x="{x}" y="4" width="11" height="9"></rect>'
            yield _text(x + 15, 12, words, "dim")
            x += 30 + round(CHARACTER_WIDTH * len(words))


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(words: str) -> str:
    limit = NAME_CHARACTERS_MAX
    return words if len(words) <= limit else f"…{words[1 - limit :]}"
