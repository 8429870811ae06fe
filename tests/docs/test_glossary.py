"""The glossary names existing code, and every class with a counterpart in Java."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .test_references import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "glossary.md"
CODE = ROOT / "rmqpy"
ROW = re.compile(r"^\| (?P<java>[^|]+) \| (?P<ours>[^|]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE)
HEADS = ("Java", "term", "---")
DOTTED = re.compile(r"`(rmqpy(?:\.\w+)+)`")
JAVA_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*(?:\.[A-Z]\w+)?")
COUNTERPART = re.compile(r"\bJava(?:: |'s | )((?:[A-Z]\w*(?:, )?)+)")
WIRE = ("rmqpy.remoting.headers", "rmqpy.remoting.bodies")


def section(text: str, name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


def rows(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (Java's classes, dotted names of rmqpy) of each row of a table."""
    for row in ROW.finditer(text):
        if not row["java"].startswith(HEADS):
            yield row["java"].split(", "), DOTTED.findall(row["ours"])


def wire_names(text: str, package: str) -> list[str]:
    """Return the classes that the page lists for a package, without the package itself."""
    found = re.search(rf"^`{package}`: (.*?)\.\n\n", text, re.MULTILINE | re.DOTALL)
    assert found is not None, package
    return re.findall(r"`(\w+)`", found[1])


def faults(text: str) -> list[str]:
    """Return the errors in the tables of Java's classes."""
    found = []
    counts: Counter[str] = Counter()
    for java, ours in rows(section(text, "Java's classes")):
        counts.update(java)
        found += [f"not a class of Java: {name}" for name in java if not JAVA_CLASS.fullmatch(name)]
        if not ours:
            found.append(f"no name in rmqpy: {java}")
        for name in ours:
            try:
                resolve(name)
            except (AttributeError, LookupError):
                found.append(f"does not exist: {name}")
    return found + [f"listed twice: {name}" for name, count in counts.items() if count > 1]


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Return the dotted name and the definition of each public class of the package."""
    found = []
    for path in sorted(CODE.glob("**/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.append((f"{module}.{node.name}", node))
    return found


def claimed(docstring: str) -> set[str]:
    """Return the classes of Java that a docstring names, which have at least two words."""
    lists = COUNTERPART.findall(" ".join(docstring.split()))
    names = {name for each in lists for name in each.split(", ")}
    return {name for name in names if re.fullmatch(r"(?:[A-Z]+[a-z0-9]+){2,}", name)}


def test_every_row_of_a_class_is_valid() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert faults(text) == []
    assert sum(1 for _ in rows(section(text, "Java's classes"))) > 100


def test_every_own_term_leads_to_code() -> None:
    terms = list(rows(section(PAGE.read_text(encoding="utf-8"), "rmqpy's terms")))
    names = [name for _, ours in terms for name in ours]
    assert all(ours for _, ours in terms) and len(names) >= len(terms) > 10
    for name in names:
        assert resolve(name) is not None


@pytest.mark.parametrize("package", WIRE)
def test_every_header_and_body_is_listed(package: str) -> None:
    listed = wire_names(PAGE.read_text(encoding="utf-8"), package)
    defined = [name.rpartition(".")[2] for name, _ in classes() if name.startswith(f"{package}.")]
    assert sorted(listed) == sorted(defined)


def test_every_class_that_names_its_counterpart_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = {name for java, _ in rows(section(text, "Java's classes")) for name in java}
    listed |= {name for package in WIRE for name in wire_names(text, package)}
    missing = {
        f"{ours}: {name}"
        for ours, node in classes()
        for name in claimed(ast.get_docstring(node) or "")
        if name not in listed
    }
    assert missing == set()


def test_a_class_with_the_name_of_a_class_of_java_is_in_its_row() -> None:
    table = dict[str, list[str]]()
    for java, ours in rows(section(PAGE.read_text(encoding="utf-8"), "Java's classes")):
        table |= dict.fromkeys(java, ours)
    wrong = [
        name
        for name, _ in classes()
        if name not in table.get(name.rpartition(".")[2], [name]) and not name.startswith(WIRE)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| NoSuchThing | `rmqpy.store.no_such_module` | nothing |", "does not exist"),
        ("| NoSuchThing | `rmqpy.store.message_store.Nothing` | nothing |", "does not exist"),
        ("| NoSuchThing | nothing | nothing |", "no name in rmqpy"),
        ("| CommitLog | `rmqpy.store.message_store.MessageStore` | again |", "listed twice"),
        (
            "| commitLog | `rmqpy.store.message_store.MessageStore` | a term |",
            "not a class of Java",
        ),
    ],
)
def test_a_planted_wrong_row_is_found(row: str, fault: str) -> None:
    text = PAGE.read_text(encoding="utf-8").replace("### DLedger\n", f"{row}\n\n### DLedger\n")
    assert [found for found in faults(text) if found.startswith(fault)] != []


def test_a_counterpart_in_a_docstring_is_read() -> None:
    assert claimed("Routes (Java: MQFaultStrategy, RouteInfoManager).") == {
        "MQFaultStrategy",
        "RouteInfoManager",
    }
    assert claimed("Java's PullResult, and a Java Runtime.") == {"PullResult"}
