"""Every function, file, and link in the documents exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted(ROOT.glob("[bn]*/README.md")),
    *sorted(ROOT.glob("tests/**/README.md")),
    ROOT / "bench" / "profile.md",
]
DOTTED = re.compile(r"`(rmqpy(?:\.\w+)+)`")
FILE = re.compile(r"`((?:rmqpy|native|tests|bench|migrations|docs)/[\w/-]+\.(?:py|c|h|md))`")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def resolve(path: str) -> object:
    """Return the object at a dotted path: the longest importable module, then attributes."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise LookupError(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_dotted_name_exists(page: Path) -> None:
    for name in set(DOTTED.findall(page.read_text(encoding="utf-8"))):
        assert resolve(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_exists(page: Path) -> None:
    named = set(FILE.findall(page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        resolve("rmqpy.store.message_store.MessageStore.no_such_thing")
