"""Fixtures of tests/upgrade; the objects that they return are defined in harness.upgrade."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.plans import MAKERS, Interrupted
from harness.upgrade import PEERS, MakeUpgradeRig, RunUpgrade, UpgradeRig, write_confs

from rmqpy.cli import main


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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> RunUpgrade:
    """Run ``rmqpy upgrade`` with a line of arguments; return code, stdout, and stderr."""

    def run_line(line: str) -> tuple[int, str, str]:
        code = main(["upgrade", *shlex.split(line)])
        return code, *capsys.readouterr()

    return run_line


@pytest.fixture
def classic(golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of three equal classic replicas with their broker.conf files."""
    root = golden_copy("B-master-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    shutil.copytree(root / "n0", root / "n2")
    for name in ("n1", "n2"):
        shutil.copytree(root / "n0/config", root / name / "config", dirs_exist_ok=True)
    write_confs(root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def lagging(golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a master, a lagging slave, and an empty third node.

    Their broker.conf files are those of docs/how-to/upgrade-a-group.md.
    """
    root = golden_copy("B-lagging-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    (root / "n2").mkdir()
    write_confs(root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def joined(golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a group of three members with their broker.conf files."""
    root = golden_copy("C-upgraded-v497")
    write_confs(
        root,
        f"dLegerPeers={PEERS}\ndLegerSelfId=SELF\nenableDLegerCommitLog=true\ndLegerGroup=b0\n",
    )
    monkeypatch.chdir(root)
    return root
