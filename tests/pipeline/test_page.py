"""``rmqpy pipeline audit --html``: a self-contained page that shows the findings."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rmqpy.cli import main

VOID = {"meta"}
LOADING = ("src=", "href=", "url(", "@import", "<script", "<link", "<iframe")


class Shapes(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        names = {name.rstrip("_"): value for name, value in attributes.items()}
        named = [found for each, found in self.found if each == tag]
        return [found for found in named if names.items() <= found.items()]


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Return a function that audits stores and returns the exit code and the page."""

    def run(*stores: Path, engine: str = "local") -> tuple[int, str]:
        file = tmp_path / "audit.html"
        code = main(
            ["pipeline", "audit", *map(str, stores), "--html", str(file), "--engine", engine]
        )
        return code, file.read_text(encoding="utf-8")

    return run


def shapes(page: str) -> Shapes:
    parser = Shapes()
    parser.feed(page)
    return parser


def test_equal_replicas_are_shown_with_the_divide(
    store_of: Callable[[str], Path], audited: Callable[..., tuple[int, str]]
) -> None:
    code, page = audited(*(store_of(f"C-upgraded-v497/n{number}") for number in range(3)))
    found = shapes(page)
    assert code == 0 and not any(word in page for word in LOADING)
    assert [each["class"] for each in found.of("svg")] == ["store-map", "map-legend", "over-time"]
    assert len(found.of("line", class_="divide")) == 4, "one per replica, and the legend"
    assert found.of("rect", class_="equal") and not found.of("rect", class_="different")
    assert "messages of" in page and ">clean<" in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)


def test_damage_and_different_replicas_are_shown(
    store_of: Callable[[str], Path],
    copy_of: Callable[[str], Path],
    audited: Callable[..., tuple[int, str]],
) -> None:
    damaged = copy_of("C-upgraded-v497/n1")
    file = min((damaged / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[20480:24576] = bytes(4096)
    file.write_bytes(data)
    code, page = audited(store_of("C-upgraded-v497/n0"), damaged)
    found = shapes(page)
    assert code == 2 and "findings above note" in page
    assert found.of("rect", class_="damage") and found.of("rect", class_="different")
    assert "20,480" in page or "at offset" in page


def test_a_replica_that_is_behind_is_not_different(
    store_of: Callable[[str], Path], audited: Callable[..., tuple[int, str]]
) -> None:
    _, page = audited(*(store_of(f"B-lagging-slave-v497/{each}") for each in ("master", "slave")))
    found = shapes(page)
    assert found.of("rect", class_="missing") and not found.of("rect", class_="different")


def test_all_messages_are_counted_over_time(
    store_of: Callable[[str], Path], audited: Callable[..., tuple[int, str]]
) -> None:
    from rmqpy.audit.checks.messages import MessageSelection, each_message
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.store.files.disk import OsFileSystem

    store = store_of("A-classic-clean-v497")
    directory = read_directory(OsFileSystem(), str(store))
    count = sum(1 for _ in each_message(OsFileSystem(), directory, MessageSelection()))
    _, page = audited(store)
    counted = re.search(r"<p>([\d,]+) messages of (\d+) topics", page)
    assert counted is not None and int(counted[1].replace(",", "")) == count
    assert "equality" not in page, "a single store is not compared"


@pytest.mark.spark
def test_both_engines_draw_the_same(
    store_of: Callable[[str], Path], audited: Callable[..., tuple[int, str]], spark: object
) -> None:
    store = store_of("C-upgraded-v497/n0")
    assert audited(store, engine="spark") == audited(store)
