"""Fixtures for everybody: the golden stores, written by the Java broker (tests/golden/README.md).

``golden(name)`` is a folder to read, shared by the whole run; ``golden_copy(name)`` a private one
to write to; ``store_of`` and ``copy_of`` are the same for one node of it; ``manifest(name)`` is
what the Java broker said about it. A test that asks for ``told_node``, ``clean_node`` or
``golden_node`` runs for every such node. Files stay sparse: the index files of DLedger stores are
160 MiB each, nearly all of it holes. ``upgrade_commands(part)`` is what docs/upgrade.md tells an
operator to type.
"""

from __future__ import annotations

import json
import lzma
import re
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("rmqpy", deadline=None)
hypothesis.settings.load_profile("rmqpy")

GOLDEN = Path(__file__).parent / "golden"
TOLD_NODES = [
    "A-classic-clean-v497",
    "A-classic-clean-v533",
    "A-classic-killed-v497",
    "B-lagging-slave-v497/master",
    "B-lagging-slave-v497/slave",
    "B-master-slave-v497/master",
    "B-master-slave-v497/slave",
    *(f"C-upgraded-v497/n{number}" for number in range(3)),
    *(f"D-dledger-v497/n{number}" for number in range(3)),
]
"""Every node of which a Java consumer told its messages."""
CLEAN_NODES = [*TOLD_NODES, "X-gap_same_file-v497/n0"]
GOLDEN_NODES = [*CLEAN_NODES, "X-gap_same_file-v497/n1", "X-gap_same_file-v497/n2"]
"""The last two have queue offsets that were given twice."""
TLS = Path(__file__).parent / "tls"
UPGRADE_PAGE = Path(__file__).parents[1] / "docs" / "upgrade.md"
SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="session")
def tls_folder() -> Path:
    """Certificates and keys (tests/tls/README.md)."""
    return TLS


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a golden store -> its folder, extracted once; never write to it."""
    base = tmp_path_factory.mktemp("golden")

    @cache
    def extracted(name: str) -> Path:
        return _extract(name, base)

    return extracted


@pytest.fixture
def golden_copy(tmp_path: Path) -> Callable[[str], Path]:
    """Name of a golden store -> a fresh folder of this test alone."""

    @cache
    def copied(name: str) -> Path:
        return _extract(name, tmp_path)

    return copied


@pytest.fixture
def store_of(golden: Callable[[str], Path]) -> Callable[[str], Path]:
    """ "A-classic-clean-v497" or "C-upgraded-v497/n0" → that node's store folder; only to read."""
    return lambda name: _node(golden, name)


@pytest.fixture
def copy_of(golden_copy: Callable[[str], Path]) -> Callable[[str], Path]:
    """The same as a copy to write to."""
    return lambda name: _node(golden_copy, name)


@pytest.fixture(params=TOLD_NODES)
def told_node(request: pytest.FixtureRequest) -> str:
    """The name of a node, as ``store_of`` takes it, whose messages are in the manifest."""
    name: str = request.param
    return name


@pytest.fixture(params=CLEAN_NODES)
def clean_node(request: pytest.FixtureRequest) -> str:
    """One in which nothing is wrong."""
    name: str = request.param
    return name


@pytest.fixture(params=GOLDEN_NODES)
def golden_node(request: pytest.FixtureRequest) -> str:
    """Any one."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def manifest() -> Callable[[str], dict[str, Any]]:
    """Name of a golden store -> its manifest: config, files with md5, queues, every message."""

    @cache
    def loaded(name: str) -> dict[str, Any]:
        text = lzma.decompress((GOLDEN / f"{name}.json.xz").read_bytes())
        content: dict[str, Any] = json.loads(text)
        return content

    return loaded


@pytest.fixture(scope="session")
def upgrade_commands() -> Callable[[str], list[tuple[str, int]]]:
    """A part of docs/upgrade.md -> the lines of its blocks, with the exit codes they promise."""

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


def _node(folders: Callable[[str], Path], name: str) -> Path:
    archive, _, node = name.partition("/")
    stores = sorted(path.parent for path in folders(archive).rglob("consumequeue"))
    return next(store for store in stores if not node or store.name == node)


def _extract(name: str, base: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4
        archive.extractall(base)
    return base / name
