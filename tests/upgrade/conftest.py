"""Fixtures of tests/upgrade; the objects that they return are defined in harness.upgrade."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
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


HOLDER = """
import fcntl, os, pathlib, signal, sys
root = pathlib.Path(sys.argv[1])
lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
(root / "holder.pid").write_text(str(os.getpid()))
signal.pause()
"""


@pytest.fixture
def holders() -> Iterator[Callable[[Path], None]]:
    """Give the members of the ``group.toml`` in a folder commands: ``start`` runs a process that
    holds the store as a broker does, ``stop`` ends it.
    """
    folders: list[Path] = []

    def give_commands(folder: Path) -> None:
        folders.append(folder)
        (folder / "holder.py").write_text(HOLDER)
        text = (folder / "group.toml").read_text()
        for name in ("n0", "n1", "n2"):
            store = shlex.quote(str(folder / name))
            start = f"{sys.executable} {folder}/holder.py {store} > {folder}/{name}.log 2>&1 &"
            stop = f"kill $(cat {store}/holder.pid); rm {store}/holder.pid"
            text = text.replace(
                f"[member.{name}]\n", f'[member.{name}]\nstart = "{start}"\nstop = "{stop}"\n'
            )
        (folder / "group.toml").write_text(text)

    yield give_commands
    for folder in folders:
        for path in folder.glob("n*/holder.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
