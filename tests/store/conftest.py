"""Fixtures of tests/store; what they hand out is in harness.store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.store import Kit, Rig
from simulator.crash_files import (
    load_folder,
)

from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.memory_files import MemoryFiles


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)
    rigs: list[Rig] = []

    def rig(files: FileSystem | None = None, root: str = "/store", **options: Any) -> Rig:
        made = Rig(MemoryFiles() if files is None else files, root, **options)
        rigs.append(made)
        return made

    yield Kit(rig, load_folder)


@pytest.fixture(params=["memory", "disk"])
def any_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file layer and a root: in memory, on the disk."""
    if request.param == "memory":
        return MemoryFiles(), "/store"
    return OsFileSystem(), os.fspath(tmp_path / "store")
