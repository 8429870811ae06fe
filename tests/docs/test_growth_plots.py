"""The growth curves match the committed results that they are drawn from."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/plots.py, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "plots", raising=False)
    return importlib.import_module("plots")


def test_pictures_are_drawn_from_the_newest_results(plots: ModuleType) -> None:
    content = json.loads(plots.results().read_text(encoding="utf-8"))
    page = (ROOT / "docs/reference/growth.md").read_text(encoding="utf-8")
    assert f"bench/results/{plots.results().name}" in page
    for plot in plots.PLOTS:
        path = plots.PICTURES / f"{plot.name}.svg"
        assert path.read_text(encoding="utf-8") == plots.picture(plot, content), plot.name
        assert f"../plots/{path.name}" in page


def test_every_measured_point_is_in_a_picture(plots: ModuleType) -> None:
    points = [
        {"kind": "rmqpy", "dimension": "queues", "size": size, "figures": {"anon_mib": value}}
        for size, value in ((10, 1.0), (1_000, 3.0), (100_000, 90.0))
    ]
    [plot] = [each for each in plots.PLOTS if each.name == "growth-memory"]
    picture = ElementTree.fromstring(plots.picture(plot, {"points": points}))
    heights = [float(circle.attrib["cy"]) for circle in picture.findall(".//{*}circle")]
    assert len(heights) == 3
    assert heights == sorted(heights, reverse=True)  # larger values are higher
