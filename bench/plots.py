"""Draw the growth curves of the documentation from the committed results of ``growth.py``.

    python bench/plots.py          write docs/plots/growth-*.svg

Each picture shows one figure against the size of one table after the other, both on logarithmic
axes. The pictures depend on the results only, so a test can compare them without a tolerance.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from attrs import frozen

FOLDER: Final = Path(__file__).parent
PICTURES: Final = FOLDER.parent / "docs" / "plots"
WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 36, 44
COLOURS: Final = {
    "queues": "#1f6fb4",
    "groups": "#3a8f3a",
    "held": "#8a5bb0",
    "connections": "#a07a18",
    "backlog": "#606060",
}
NAMES: Final = {"held": "held pulls"}
SMALLEST: Final = ("queues", 10)
"""The point at which every table is small: all curves begin there."""

Figures = Mapping[str, Any]
Series = Mapping[str, Sequence[tuple[float, float]]]
"""The points (size, value) of each dimension."""


@frozen
class Plot:
    """One picture: its file, its title, the value of a point, and a goal, if there is one."""

    name: str
    title: str
    value: Callable[[Figures], float]
    goal: float | None = None


PLOTS: Final = (
    Plot(
        "growth-turns",
        "longest turn of the loop, ms of CPU time",
        lambda found: max(
            turns[0][0] for turns in (found["idle_turns_ms"], found["change_turns_ms"]) if turns
        ),
        goal=20.0,
    ),
    Plot("growth-start", "start, seconds of CPU time", lambda found: found["start_cpu_s"]),
    Plot("growth-memory", "anonymous memory, MiB", lambda found: found["anon_mib"]),
)


def results() -> Path:
    """Return the newest results of ``growth.py``."""
    return max((FOLDER / "results").glob("*-growth.json"))


def series(points: Sequence[Mapping[str, Any]], plot: Plot) -> Series:
    """Return the curves of a picture."""
    found: dict[str, set[tuple[float, float]]] = {}
    for point in points:
        if point["kind"] == "rmqpy":
            value = plot.value(point["figures"])
            found.setdefault(point["dimension"], set()).add((point["size"], value))
    dimension, smallest = SMALLEST
    begin = {place for place in found.get(dimension, ()) if place[0] == smallest}
    return {name: sorted(begin | curve) for name, curve in found.items()}


def picture(plot: Plot, content: Mapping[str, Any]) -> str:
    """Return the SVG of a plot of the results ``content``."""
    curves = series(content["points"], plot)
    values = [value for curve in curves.values() for _, value in curve]
    values += [plot.goal] if plot.goal is not None else []
    sizes = [size for curve in curves.values() for size, _ in curve]
    across, up = _axis(sizes, LEFT, WIDTH - RIGHT), _axis(values, HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 20, plot.title, "start", weight="bold"),
    ]
    for value in across.ticks:
        place = across.place(value)
        lines.append(_line(place, TOP, place, HEIGHT - BOTTOM, "#e0e0e0"))
        lines.append(_text(place, HEIGHT - BOTTOM + 16, f"{value:,.0f}", "middle"))
    for value in up.ticks:
        place = up.place(value)
        lines.append(_line(LEFT, place, WIDTH - RIGHT, place, "#e0e0e0"))
        lines.append(_text(LEFT - 6, place + 4, f"{value:g}", "end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(_text(middle, HEIGHT - 8, "number of queues, groups, or others", "middle"))
    if plot.goal is not None:
        place = up.place(plot.goal)
        lines.append(_line(LEFT, place, WIDTH - RIGHT, place, "#808080", dashed=True))
        lines.append(_text(LEFT + 6, place - 4, f"goal: {plot.goal:g}", "start"))
    for number, (name, curve) in enumerate(sorted(curves.items())):
        colour = COLOURS[name]
        places = [(across.place(size), up.place(value)) for size, value in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        label = _text(
            WIDTH - RIGHT + 12, TOP + 14 + 18 * number, NAMES.get(name, name), "start", fill=colour
        )
        lines.append(label)
    return "\n".join([*lines, "</svg>"]) + "\n"


@frozen
class _Axis:
    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]


def _axis(values: Sequence[float], begin: float, end: float) -> _Axis:
    low, high = math.log10(min(values)), math.log10(max(values))
    return _Axis(math.floor(low), max(math.ceil(high), math.floor(low) + 1), begin, end)


def _line(x: float, y: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def _text(
    x: float, y: float, text: str, anchor: str, *, weight: str = "normal", fill: str = "black"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' fill="{fill}">{escape(text)}</text>'
    )


def main() -> int:
    content = json.loads(results().read_text(encoding="utf-8"))
    for plot in PLOTS:
        path = PICTURES / f"{plot.name}.svg"
        path.write_text(picture(plot, content), encoding="utf-8")
        print(path.relative_to(FOLDER.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
