"""Fixtures of tests/upgrade; what they hand out is in harness.upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.upgrade import Kit, Rig
from simulator.crash_files import (
    CrashingFiles,
    load_folder,
)


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)

    def rig(files: Any = None, root: str = "/store", **options: Any) -> Rig:
        return Rig(CrashingFiles() if files is None else files, root, **options)

    yield Kit(rig, load_folder)
