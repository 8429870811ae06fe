"""Tests of ``rmqpy upgrade prepare``: it changes no answer, and can be interrupted and removed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.cli import start_process, write_broker_conf
from harness.upgrade import RunUpgrade, tree_of

from rmqpy.audit.facts.learned import learned_folder
from rmqpy.store.files.disk import DiskFile, OsFileSystem
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.prepare import ATTEMPTS_MAX, Pace, prepare

GROUP = "n0 n1 n2 -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf"


@define
class Clock:
    """A clock that only sleeping advances."""

    now_s: float = 1000.0
    slept: list[float] = field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def pace_of(clock: Clock, bytes_per_second: float = 0) -> Pace:
    return Pace(bytes_per_second, lambda: clock.now_s, clock.sleep)


def replica_of(root: Path, files: OsFileSystem | None = None) -> LocalReplica:
    plan = SurveyPlan(name="n0", root=str(root), now_ms=lambda: 4_000_000_000_000)
    return LocalReplica(files or OsFileSystem(), plan)


def entries(root: Path) -> set[Path]:
    return {path for path in Path(learned_folder(str(root))).rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_answers_of_all_verbs_stay_the_same(lagging: Path, run: RunUpgrade) -> None:
    verbs = (
        f"check {GROUP} --format json",
        f"plan {GROUP} --format json",
        "manifest n0 -c n0.conf --format json",
        "verify n0 n1 -c n0=n0.conf -c n1=n1.conf --format json",
    )
    before = [run(verb) for verb in verbs]
    code, out, _ = run(f"prepare {GROUP} --rate 0")
    assert code == 0
    known = dict(re.findall(r"^(n\d): ([\d.]+ \w+) are known", out, re.MULTILINE))
    assert known.keys() == {"n0", "n1", "n2"}
    assert not known["n0"].startswith("0 ")
    assert known["n2"] == "0 B"
    for verb, expected in zip(verbs, before, strict=True):
        for option in ("", " --full"):
            answer = run(verb + option)
            assert answer[0] == expected[0]
            assert timeless(json.loads(answer[1])) == timeless(json.loads(expected[1])), verb


def timeless(value: Any) -> Any:
    """Return an answer without its times and the age of its evidence."""
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = ("age", "ages", "made_ms", "taken_ms", "created_ms")
    return {name: timeless(each) for name, each in value.items() if name not in left_out}


def test_reports_say_how_old_their_evidence_is(classic: Path, run: RunUpgrade) -> None:
    run("prepare n0 --rate 0")
    for verb in ("check n0", "verify n0 n1"):
        _, out, _ = run(verb)
        assert re.search(r"read now .* learned earlier .*, the oldest part \d+ s ago", out), out
        assert "learned earlier" not in run(f"{verb} --full")[1]


def test_clear_removes_what_was_learned(classic: Path, run: RunUpgrade) -> None:
    before = tree_of(classic / "n0")
    run("prepare n0 --rate 0")
    assert entries(classic / "n0")
    assert tree_of(classic / "n0") == before
    code, out, _ = run("prepare n0 --clear")
    assert (code, out) == (0, "n0: nothing is known\n")
    assert not Path(learned_folder(str(classic / "n0"))).exists()


def test_an_interrupted_preparation_continues(classic: Path) -> None:
    class KilledError(Exception):
        pass

    def killed(seconds: float) -> None:
        if len(entries(classic / "n0")) >= 2:
            raise KilledError

    with pytest.raises(KilledError):
        prepare(replica_of(classic / "n0"), Pace(1 << 30, lambda: 0.0, killed))
    known = {path: path.stat().st_mtime_ns for path in entries(classic / "n0")}
    assert known
    found = prepare(replica_of(classic / "n0"), pace_of(Clock()))
    assert found.learned_bytes > 0
    assert {path: path.stat().st_mtime_ns for path in known} == known, "nothing was learned twice"
    assert entries(classic / "n0") > known.keys()


def test_files_are_read_at_the_given_rate(classic: Path) -> None:
    clock = Clock()
    size = sum(path.stat().st_size for path in (classic / "n0/commitlog").iterdir())
    prepare(replica_of(classic / "n0"), pace_of(clock, size / 100))
    assert sum(clock.slept) == pytest.approx(100, rel=0.02)


class Expiring(OsFileSystem):
    """Files of which the first expires when it is about to be read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def open_readonly(self, path: str) -> DiskFile:
        if path == str(self.path):
            self.path.unlink(missing_ok=True)
        return super().open_readonly(path)


def test_files_may_expire_meanwhile(classic: Path) -> None:
    first = classic / "n0/commitlog/00000000000000000000"
    found = prepare(replica_of(classic / "n0", Expiring(first)), pace_of(Clock()))
    assert not first.exists()
    assert found.learned_bytes > 0
    assert not [path for path in entries(classic / "n0") if path.name.startswith(first.name + ".")]


class Vanishing(OsFileSystem):
    """Files that disappear whenever they are read."""

    def open_readonly(self, path: str) -> DiskFile:
        raise FileNotFoundError(path)


def test_files_that_always_disappear_are_an_error(classic: Path) -> None:
    with pytest.raises(Exception, match=f"each of {ATTEMPTS_MAX} attempts"):
        prepare(replica_of(classic / "n0", Vanishing()), pace_of(Clock()))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Path]:
    """Start a broker on a store, and return the directory."""
    conf = write_broker_conf(tmp_path, 0)
    process = start_process(["broker", "-c", str(conf)])
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield tmp_path / "store"
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_a_broker_may_run(broker: Path, run: RunUpgrade) -> None:
    before = {path: path.stat().st_mtime_ns for path in broker.glob("commitlog/*")}
    assert run(f"prepare {broker}")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in broker.glob("commitlog/*")} == before


def test_a_directory_that_cannot_be_written_is_read_as_ever(
    classic: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare n0 --rate 0")
    before = run("check n0")
    log = classic / "n0/commitlog/00000000000000000000"
    os.utime(log)

    def refused(files: OsFileSystem, path: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(OsFileSystem, "replace_bytes", refused)
    assert run("check n0")[0] == before[0]
