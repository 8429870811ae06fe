"""The functions behind the site: navigation, links out of docs/, and llms.txt (docs/site)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/site/pages.py, which is no package."""
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    monkeypatch.delitem(sys.modules, "pages", raising=False)
    return importlib.import_module("pages")


def paths_in(tree: object) -> list[str]:
    """Return the paths of a navigation, in its order."""
    if isinstance(tree, str):
        return [tree]
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [path for each in below for path in paths_in(each)]


def test_the_navigation_has_every_page_once(pages: ModuleType) -> None:
    found = paths_in(pages.navigation(INDEX))
    written = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    notebooks = [
        pages.page_path(path.relative_to(DOCS).as_posix()) for path in DOCS.rglob("*.ipynb")
    ]
    inside = [path for path in found if not path.startswith("repository/")]
    assert sorted(inside) == sorted([*written, *notebooks])
    assert [path for path in found if path not in inside] == [
        f"repository/{name}" for name in pages.PROJECT
    ]


def test_llms_txt_has_every_page_with_its_address(pages: ModuleType) -> None:
    text = pages.llms_text(INDEX)
    assert text.startswith("# rmqpy\n\n> ")
    assert "- [Run a broker](tutorials/run-a-broker.html): a name server" in text
    assert "- [Command line](reference/cli.html): every command and option (generated)\n" in text
    assert "- [Look into a store](tutorials/look-into-a-store.html): a notebook" in text
    kinds = [line for line in text.splitlines() if line.startswith("## ")]
    assert kinds == [f"## {kind}" for kind in pages.KINDS]
    listed = sum(len(entries) for entries in pages.index(INDEX).values())
    assert text.count("\n- [") == listed > 60


@pytest.mark.parametrize(
    ("text", "page", "file", "expected"),
    [
        ("[a](../../rmqpy/codec/layout.py)", "reference/x.md", "docs/reference/x.md",
         "[a](../repository/rmqpy/codec/layout.py.md)"),
        ("[a](docs/how-to/faq.md#disk-and-start)", "repository/CONTRIBUTING.md", "CONTRIBUTING.md",
         "[a](../how-to/faq.md#disk-and-start)"),
        ("[a](../bench/README.md)", "README.md", "docs/README.md",
         "[a](repository/bench/README.md)"),
        ("![a](docs/plots/store-map.svg)", "repository/README.md", "README.md",
         "![a](../plots/store-map.svg)"),
        ("[a](look-into-a-store.ipynb)", "tutorials/x.md", "docs/tutorials/x.md",
         "[a](look-into-a-store.md)"),
        ("[a](https://example.org/x.md) [b](#here)", "x.md", "docs/x.md",
         "[a](https://example.org/x.md) [b](#here)"),
        ("```text\n[a](../../x.py)\n```", "how-to/x.md", "docs/how-to/x.md",
         "```text\n[a](../../x.py)\n```"),
        ("```walk send-classic\na  b\n```", "explanation/x.md", "docs/explanation/x.md",
         "```text title=\"send-classic\"\na  b\n```"),
    ],
)  # fmt: skip
def test_links_are_those_of_the_site(
    text: str, page: str, file: str, expected: str, pages: ModuleType
) -> None:
    assert pages.moved(text, page, file) == expected


def test_every_linked_file_of_the_repository_becomes_a_page(pages: ModuleType) -> None:
    found = pages.linked_files(ROOT)
    assert "rmqpy/codec/layout.py" in found and "bench/profile.md" in found
    for name in found:
        assert (ROOT / name).exists(), name
    assert all(not name.startswith("docs/") for name in found)


def test_a_source_file_is_shown_and_not_searched(pages: ModuleType) -> None:
    text = pages.source_page(ROOT, "rmqpy/codec/layout.py")
    assert "exclude: true" in text and "# rmqpy/codec/layout.py\n" in text
    assert (ROOT / "rmqpy/codec/layout.py").read_text(encoding="utf-8").rstrip() in text


def test_a_notebook_becomes_a_page(pages: ModuleType) -> None:
    text = pages.notebook_page((DOCS / "tutorials/look-into-a-store.ipynb").read_text("utf-8"))
    assert text.startswith("# Look into a store")
    assert "```python\n" in text and "nbformat" not in text
