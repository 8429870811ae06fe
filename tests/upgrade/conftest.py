"""Fixtures of tests/upgrade; what they hand out is in harness.upgrade."""

from __future__ import annotations

from typing import Any

import pytest
from harness.upgrade import MakeUpgradeRig, UpgradeRig
from simulator.crash_files import (
    CrashingFiles,
)


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> MakeUpgradeRig:
    """Make rigs whose DLedger index files hold 16 units."""
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)

    def rig(files: CrashingFiles | None = None, root: str = "/store", **options: Any) -> UpgradeRig:
        return UpgradeRig(CrashingFiles() if files is None else files, root, **options)

    return rig
