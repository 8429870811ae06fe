"""Fixtures of the tests of stores; harness.store defines what they return."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.store import CLASSIC_COUNT, MemoryRig

from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.memory_files import MemoryFiles


@pytest.fixture
def small_ledger_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each index file of a ledger hold 16 units."""
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)


@pytest.fixture
def make_rig(small_ledger_index: None) -> type[MemoryRig]:
    """Return the class of rigs in memory, with small index files of ledgers."""
    return MemoryRig


@pytest.fixture(params=["classic", "dledger", "joined"])
def any_mode_rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    """Return a rig in each mode; the classic part of a joined store has CLASSIC_COUNT messages."""
    rig = make_rig()
    if request.param == "joined":
        rig.write(*range(9000, 9000 + CLASSIC_COUNT))
    rig.flag = request.param != "classic"
    return rig


@pytest.fixture(params=["memory", "disk"])
def any_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """Return a file layer and a root directory, in memory and on the disk."""
    if request.param == "memory":
        return MemoryFiles(), "/store"
    return OsFileSystem(), os.fspath(tmp_path / "store")
