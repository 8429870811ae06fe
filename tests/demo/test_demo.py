"""The demo, as a new user runs it, and that it says no when something differs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.demo import DemoPlan, run_demo
from rmqpy.demo.comparison import ClientMessageValue, Reading, compare
from rmqpy.demo.store_copy import copy_store, detected_sizes
from rmqpy.demo.walkthrough import SECONDS_MAX
from rmqpy.model.errors import RmqError, StoreError

TOLD = (
    r"a master and its slave",
    r"rmqpy upgrade check: [1-9]\d* findings",
    r"rmqpy upgrade plan, apply: \d+ operations, 0 findings left",
    r"three members, n\d leads, dividedCommitlogOffset \d+; no send was acknowledged for [\d.]+ s",
    r"the leader is killed \(SIGKILL\): n\d leads",
    r"after the switch: EQUAL; [1-9][\d,]* messages the same on all three, 0 missing, 0 different",
    r"rmqpy upgrade leave: \d+ operations",
    r"after the way back: EQUAL",
    r"master and slave again: [\d,]+ messages read, 0 lost, \d+ more sent",
    r"every earlier message reads the same after the switch",
    r"attempts refused meanwhile, 0 lost",
)


def tells_the_story(printed: str) -> None:
    position = 0
    for line in TOLD:
        found = re.compile(line).search(printed, position)
        assert found is not None, (line, printed)
        position = found.end()


@pytest.mark.slow
def test_a_store_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert run_demo(DemoPlan(keep=str(tmp_path)))
    assert time.monotonic() - began < SECONDS_MAX
    tells_the_story(capsys.readouterr().out)
    certificate = Certificate.decode((tmp_path / "certificate.json").read_bytes())
    assert certificate.is_equal and len(certificate.subjects) == 4
    for member in ("n0", "n1", "n2"):
        assert len(list((tmp_path / member / "store/commitlog").iterdir())) >= 2


@pytest.mark.crash
@pytest.mark.parametrize("name", ["A-classic-killed-v497"])
def test_a_copy_of_a_java_store(
    name: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = golden(name) / "store"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    assert run_demo(DemoPlan(store=str(source)))
    tells_the_story(capsys.readouterr().out)
    assert before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}, (
        "the original changed"
    )


def test_a_directory_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no directory commitlog"):
        run_demo(DemoPlan(store=str(tmp_path)))


def test_a_store_that_runs_dledger_already(golden: Callable[[str], Path]) -> None:
    with pytest.raises(StoreError, match="already runs DLedger"):
        run_demo(DemoPlan(store=str(golden("C-upgraded-v497") / "n0")))


def test_a_keep_directory_that_has_a_store(tmp_path: Path) -> None:
    (tmp_path / "n0").mkdir()
    with pytest.raises(RmqError, match="exists already"):
        run_demo(DemoPlan(keep=str(tmp_path)))


def test_sizes_are_read_off_the_files(golden: Callable[[str], Path]) -> None:
    assert detected_sizes(golden("A-classic-clean-v497") / "store") == {
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }


def test_a_copy_is_equal_and_sparse(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "commitlog").mkdir(parents=True)
    path = source / "commitlog" / ("0" * 20)
    with path.open("wb") as file:
        file.truncate(1 << 24)
        file.seek(1 << 20)
        file.write(b"x" * 5000)
    copied = copy_store(source, tmp_path / "b")
    there = tmp_path / "b" / "commitlog" / path.name
    assert there.read_bytes() == path.read_bytes()
    assert there.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert 5000 <= copied < 1 << 20


VALUE = ClientMessageValue(100, 200, "id", "offset id", 1, 2, (("k", "v"),), b"body")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"physical_offset": 101}, "physical_offset"),
        ({"body_crc": 9}, "body_crc"),
        ({"properties": ()}, "properties"),
        ({"body": b"other"}, "body"),
        ({"msg_id": "x"}, "msg_id"),
    ],
)
def test_a_difference_is_named(change: dict[str, object], named: str) -> None:
    before = Reading({("T", 0, 0): VALUE})
    after = Reading({("T", 0, 0): evolve(VALUE, **change)})
    result = compare(before, after, divided_offset=1000)
    assert not result.is_same
    assert result.differences == [f"T queue 0 offset 0: {named}"]


def test_a_missing_message_and_a_wrong_side_are_differences() -> None:
    before = Reading({("T", 0, 0): VALUE, ("T", 0, 1): evolve(VALUE, physical_offset=300)})
    after = Reading({("T", 0, 1): evolve(VALUE, physical_offset=300), ("T", 0, 2): VALUE})
    result = compare(before, after, divided_offset=250)
    assert result.differences == [
        "T queue 0 offset 0: missing",
        "T queue 0 offset 1: not below the divided offset",
    ]
