"""The runbook of ``rmqpy upgrade leave``, printed for a group that Java has switched, and run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main

pytestmark = pytest.mark.crash

MEMBERS = ("n0", "n1", "n2")
CONF = """brokerName=b0
listenPort={port}
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
storePathRootDir={root}
dLegerPeers=n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913
dLegerSelfId={member}
dLegerGroup=b0
enableDLegerCommitLog=true
"""


def test_the_printed_runbook_leads_back_to_a_classic_log(
    golden_copy: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = golden_copy("C-upgraded-v497")
    ports = {member: 15911 + 10 * number for number, member in enumerate(MEMBERS)}
    for member in MEMBERS:
        (root / f"{member}.conf").write_text(
            CONF.format(root=root / member, member=member, port=ports[member])
        )
    monkeypatch.chdir(root)
    arguments = ["upgrade", "leave", *MEMBERS, "--runbook", "java"]
    for member in MEMBERS:
        arguments += ["-c", f"{member}={member}.conf"]
    assert main(arguments) == 0
    done = []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("rmqpy upgrade"):
            code = main(shlex.split(line)[1:])
            printed = capsys.readouterr().out
            done.append(shlex.split(line)[2])
            assert code == (2 if "--until returned" in line else 0), (line, printed)
    assert done == ["init", "run", "leave", "apply", "apply", "verify", "run"]
    assert "start the brokers of n0, n1, n2" in printed
    assert main(["upgrade", "finalize"]) == 0
    assert not list(root.glob("n*/dledger-*"))
    assert "brokerRole=SLAVE\n" in (root / "n1.conf").read_text()


def test_leaving_into_a_copy_does_not_change_the_original(
    golden_copy: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = golden_copy("C-upgraded-v497")
    conf = root / "n0.conf"
    conf.write_text(CONF.format(root=root / "n0", member="n0", port=15911))
    monkeypatch.chdir(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    arguments = ["upgrade", "leave", "n0", "-c", "n0=n0.conf", "--cut-index", "280"]
    assert main([*arguments, "--into", "classic/n0"]) == 0
    copy = root / "classic"
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*") if copy not in path.parents}
    del after[copy]
    assert after == before
    assert (copy / "n0/commitlog/00000000000000262144").exists()
    assert not list((copy / "n0").glob("dledger-*"))
    assert main(["upgrade", "verify", "old=n0", "new=classic/n0"]) == 0
    assert "560 the same" in capsys.readouterr().out
