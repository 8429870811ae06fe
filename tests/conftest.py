"""Fixtures of all tests; harness.golden describes the golden stores that they return."""

from __future__ import annotations

import json
import logging
import lzma
import os
import re
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from harness.golden import (
    CLEAN_NODES,
    GOLDEN,
    GOLDEN_NODES,
    SHELL_BLOCK,
    TLS,
    TOLD_NODES,
    UPGRADE_PAGE,
    extract,
    node_folder,
)
from harness.memory import Memory

# The time of an example depends on the machine, so there is no deadline.
hypothesis.settings.register_profile("rmqpy", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
# CI judges a change, so it draws the same examples for the same tests; "search" looks for new ones.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("RMQPY_HYPOTHESIS", "rmqpy"))


MEMORY = Memory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Leave neither memory nor handlers of the root logger, which commands replace, to the next."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    result = yield
    root.handlers[:] = handlers
    root.setLevel(level)
    MEMORY.free_if_much_is_left()
    return result


@pytest.fixture(scope="session")
def tls_folder() -> Path:
    """Return the folder of certificates and keys (tests/tls/README.md)."""
    return TLS


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a golden store's name to its folder, which is shared and read-only."""
    base = tmp_path_factory.mktemp("golden")

    @cache
    def extracted(name: str) -> Path:
        return extract(name, base)

    return extracted


@pytest.fixture
def golden_copy(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function from a golden store's name to a copy for this test."""

    @cache
    def copied(name: str) -> Path:
        return extract(name, tmp_path)

    return copied


@pytest.fixture
def store_of(golden: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return a function from a node to its read-only store folder.

    A node is "A-classic-clean-v497" or "C-upgraded-v497/n0".
    """
    return lambda name: node_folder(golden, name)


@pytest.fixture
def copy_of(golden_copy: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return a function from a node to a copy of its store folder for this test."""
    return lambda name: node_folder(golden_copy, name)


@pytest.fixture(params=TOLD_NODES)
def told_node(request: pytest.FixtureRequest) -> str:
    """Return a node whose messages are in the manifest; the test runs for each of them."""
    name: str = request.param
    return name


@pytest.fixture(params=CLEAN_NODES)
def clean_node(request: pytest.FixtureRequest) -> str:
    """Return a node without damage; the test runs for each of them."""
    name: str = request.param
    return name


@pytest.fixture(params=GOLDEN_NODES)
def golden_node(request: pytest.FixtureRequest) -> str:
    """Return a node; the test runs for each of them."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def manifest() -> Callable[[str], dict[str, Any]]:
    """Return a function from a golden store's name to its manifest.

    The manifest has the configuration, the files with md5, the queues, and every message.
    """

    @cache
    def loaded(name: str) -> dict[str, Any]:
        text = lzma.decompress((GOLDEN / f"{name}.json.xz").read_bytes())
        content: dict[str, Any] = json.loads(text)
        return content

    return loaded


@pytest.fixture(scope="session")
def upgrade_commands() -> Callable[[str], list[tuple[str, int]]]:
    """Return the command lines of a part of docs/how-to/upgrade-a-group.md, with exit codes."""

    def commands(part: str) -> list[tuple[str, int]]:
        text = UPGRADE_PAGE.read_text(encoding="utf-8")
        section = text.split(f"## {part}\n", 1)[1].split("\n## ", 1)[0]
        found = []
        for block in SHELL_BLOCK.findall(section):
            for line in block.replace("\\\n", " ").splitlines():
                command, _, comment = line.partition("  # ")
                code = re.search(r"exit code (\d)", comment)
                found.append((command.strip(), int(code[1]) if code else 0))
        return found

    return commands
