"""Every page of docs/ has one kind and a link in the index; diagrams match their sources."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("tutorials", "how-to", "reference", "explanation")
INDEX = DOCS / "README.md"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page != INDEX)
LINK = re.compile(r"\]\(([^)#\s]+)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
TEXTS = [*sorted(ROOT.glob("*.md")), INDEX, *PAGES, *sorted(ROOT.glob("*/README.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_is_of_one_kind(page: Path) -> None:
    assert page.relative_to(DOCS).parts[0] in KINDS, f"docs/ has the folders {', '.join(KINDS)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_is_linked_from_the_index(page: Path) -> None:
    linked = {(DOCS / target).resolve() for target in LINK.findall(INDEX.read_text("utf-8"))}
    assert page.resolve() in linked, f"docs/README.md does not link to {name_of(page)}"


def test_the_index_is_one_click_from_the_front_page() -> None:
    assert "docs/README.md" in LINK.findall((ROOT / "README.md").read_text("utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", dict.fromkeys(TEXTS), ids=name_of)
def test_every_anchor_leads_to_a_heading(page: Path) -> None:
    for target, anchor in ANCHOR.findall(page.read_text("utf-8")):
        if "://" not in target:
            file = (page.parent / target).resolve() if target else page
            assert anchor in anchors_of(file), f"{name_of(page)} links to {target}#{anchor}"


# -- Diagrams


def script(name: str) -> ModuleType:
    """Import and return a script of the folder of the diagrams."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "diagrams" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def renderer() -> ModuleType:
    """The script that renders the diagrams."""
    return script("render")


def test_the_states_of_live_changes_are_those_of_the_protocols() -> None:
    states = script("live_changes")
    written = (DOCS / "diagrams" / "live-changes.dot").read_text("utf-8")
    assert written == states.source(), "a protocol has changed; run: tox -e diagrams"


@pytest.mark.parametrize("source", sorted(DOCS.glob("diagrams/*.dot")), ids=name_of)
def test_every_diagram_is_rendered_from_its_source(source: Path, renderer: ModuleType) -> None:
    assert renderer.is_current(source), "the source has changed; run: tox -e diagrams"


def test_a_changed_source_is_noticed(tmp_path: Path, renderer: ModuleType) -> None:
    source = tmp_path / "divide.dot"
    source.write_bytes((DOCS / "diagrams" / "divide.dot").read_bytes())
    assert not renderer.is_current(source), "there is no picture"
    picture = (DOCS / "diagrams" / "divide.svg").read_bytes()
    source.with_suffix(".svg").write_bytes(picture)
    assert renderer.is_current(source)
    source.write_text(source.read_text("utf-8") + "// changed\n", encoding="utf-8")
    assert not renderer.is_current(source)


def test_every_diagram_has_a_source_and_is_shown() -> None:
    shown = "".join(page.read_text("utf-8") for page in TEXTS)
    for picture in DOCS.glob("diagrams/*.svg"):
        assert picture.with_suffix(".dot").exists()
        assert f"diagrams/{picture.name})" in shown, picture.name
