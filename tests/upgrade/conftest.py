"""Fixtures of tests/upgrade; the objects that they return are defined in harness.upgrade."""

from __future__ import annotations

import pytest
from harness.upgrade import MakeUpgradeRig, UpgradeRig


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> MakeUpgradeRig:
    """Make rigs whose DLedger index files hold 16 units."""
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)

    return UpgradeRig
