"""``apply --resume``, ``rollback``, and ``status``, given the directory alone."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from harness.store import KilledError
from harness.upgrade import GOLDEN_SIZES

from rmqpy.cli import main
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.plan import engine
from rmqpy.upgrade.plan.journal import Journal, save_journal

ALL = "n0 n1 n2 -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf"
PEERS = (
    "--peers 'n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913'"
    " --self-id n0=n0 --self-id n1=n1 --self-id n2=n2"
)


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(shlex.split(line)[1:])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def kill_at(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """Kill the process before it writes the journal for the ``saves``-th time."""
    left = itertools.count(saves, -1)

    def killed(*arguments: object) -> None:
        if next(left) == 0:
            raise KilledError
        save_journal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "save_journal", killed)


def aligned_to_the_kill(
    saves: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> bool:
    """Plan, and apply the part of n2 up to a kill; return False if it was not reached."""
    assert run(f"rmqpy upgrade plan {ALL} --out plan.json", capsys)[0] == 0
    with monkeypatch.context() as patched:
        kill_at(patched, saves)
        try:
            main(shlex.split(f"upgrade apply --plan plan.json --node n2 {ALL}"))
        except KilledError:
            return True
    return False


def queue_sizes(root: Path) -> set[int]:
    return {path.stat().st_size for path in root.glob("consumequeue/*/*/*")}


@pytest.mark.slow
def test_an_interrupted_empty_member_resumes_with_the_sizes_of_its_group(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for saves in itertools.count(1):
        if not aligned_to_the_kill(saves, monkeypatch, capsys):
            break
        code, text = run("rmqpy upgrade status n2", capsys)
        assert code == 2 and f"--resume {lagging / 'n2'}" in text, text
        code, text = run("rmqpy upgrade apply --resume n2", capsys)
        assert code == 0, (saves, text)
        # Java exits with 253 if a file has another size.
        assert queue_sizes(lagging / "n2") == {2000}
        assert {path.stat().st_size for path in (lagging / "n2/commitlog").iterdir()} == {65536}
        opened = open_store(
            StoreContext(
                StoreSettings(store_path_root_dir=os.fspath(lagging / "n2"), **GOLDEN_SIZES),
                OsFileSystem(),
                ManualScheduler(),
                1 << 34,
            )
        )
        assert opened.reader.max_queue_offset("Normal", 0) > 0
        opened.shutdown()
        shutil.rmtree(lagging / "n2")
        (lagging / "n2").mkdir()
    assert saves > 10


@pytest.mark.slow
def test_an_interrupted_empty_member_is_rolled_back_given_the_directory(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for saves in (1, 4, 9, 13):
        assert aligned_to_the_kill(saves, monkeypatch, capsys)
        code, text = run("rmqpy upgrade rollback n2", capsys)
        assert code == 0 and "undoes plan" in text and "m0002_align" in text, text
        left = {path.name for path in (lagging / "n2").rglob("*") if path.is_file()}
        assert left <= {"lock", "journal.json", "journal.bak", "plan.json", "plan.bak"}, saves


@pytest.mark.slow
def test_a_member_that_was_the_source_and_is_gone_is_named(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aligned_to_the_kill(3, monkeypatch, capsys)
    (lagging / "n0").rename(lagging / "moved")
    code, text = run("rmqpy upgrade apply --resume n2", capsys)
    assert code == 1 and "n0" in text and "Errno" not in text, text
    code, text = run("rmqpy upgrade apply --resume n2 n0=moved", capsys)
    assert code == 0, text


@pytest.mark.slow
def test_a_switch_is_begun_on_all_members_before_the_first_is_changed(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"rmqpy upgrade plan {ALL} --out plan.json", capsys)[0] == 0
    for node in ("n0", "n1", "n2"):
        line = f"rmqpy upgrade apply --plan plan.json --node {node} {ALL}"
        assert run(line, capsys)[0] == 0
    aligned = json.loads(Path("n2/rmqpy/upgrade/journal.json").read_text())
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        real = engine.resume

        def killed(*arguments: object) -> Journal:
            if begun:
                raise KilledError
            begun.append(1)
            return real(*arguments)  # type: ignore[arg-type]

        begun: list[int] = []
        patched.setattr(engine, "resume", killed)
        main(shlex.split(f"upgrade switch {ALL} {PEERS}"))
    for node in ("n1", "n2"):
        code, text = run(f"rmqpy upgrade rollback {node}", capsys)
        assert code == 0 and "m0003_seal" in text and aligned["plan_id"] in text, text
        journal = json.loads(Path(f"{node}/rmqpy/upgrade/journal.json").read_text())
        assert journal["plan_id"] == aligned["plan_id"] and journal["state"] == "applied"
    code, text = run("rmqpy upgrade rollback n2 --plan 000000000000", capsys)
    assert code == 2 and "expected 000000000000" in text


@pytest.mark.slow
def test_refusals_are_json_if_json_was_asked_for(
    lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("rollback n0", "apply --resume n0", "finalize n0"):
        assert main(["upgrade", *line.split(), "--format", "json"]) == 2
        refused = json.loads(capsys.readouterr().out)["refused"]
        assert "found no plan" in refused and "expected" in refused


def test_errors_are_json_if_json_was_asked_for(
    lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("rollback nowhere", "status n0 n9", "apply --plan none.json --node n0 n0"):
        assert main(["upgrade", *line.split(), "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]
