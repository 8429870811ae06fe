"""Fixtures of tests/upgrade; the objects that they return are defined in harness.upgrade."""

from __future__ import annotations

import pytest
from harness.plans import MAKERS, Interrupted
from harness.upgrade import MakeUpgradeRig, UpgradeRig


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> MakeUpgradeRig:
    """Make rigs whose DLedger index files hold 16 units."""
    monkeypatch.setattr("rmqpy.store.ledger.entry_recovery.INDEX_FILE_SIZE", 32 * 16)

    return UpgradeRig


@pytest.fixture
def alignment(make_rig: MakeUpgradeRig) -> Interrupted:
    return MAKERS["alignment"](make_rig)


@pytest.fixture
def filling(make_rig: MakeUpgradeRig) -> Interrupted:
    return MAKERS["filling"](make_rig)


@pytest.fixture(params=sorted(MAKERS))
def interrupted(request: pytest.FixtureRequest, make_rig: MakeUpgradeRig) -> Interrupted:
    """Return a plan of each kind."""
    return MAKERS[request.param](make_rig)
