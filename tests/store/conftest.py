"""Fixtures of tests/store; what they hand out is in harness.store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness.store import MakeStoreRig, StoreRig

from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.memory_files import MemoryFiles


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> MakeStoreRig:
    """Make rigs whose DLedger index files hold 16 units."""
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)

    def rig(files: FileSystem | None = None, root: str = "/store", **options: Any) -> StoreRig:
        return StoreRig(MemoryFiles() if files is None else files, root, **options)

    return rig


@pytest.fixture(params=["memory", "disk"])
def any_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file layer and a root: in memory, on the disk."""
    if request.param == "memory":
        return MemoryFiles(), "/store"
    return OsFileSystem(), os.fspath(tmp_path / "store")
