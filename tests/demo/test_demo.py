"""The demo, as a new user runs it, and that it says no when something differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.demo import DemoPlan, run_demo
from rmqpy.demo.reading import MessageValue, Reading, compare
from rmqpy.demo.store_copy import copy_store, detected_sizes
from rmqpy.model.errors import RmqError, StoreFault


def test_a_store_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(DemoPlan(keep=str(tmp_path)))
    printed = capsys.readouterr().out
    assert "every earlier message reads the same after the switch" in printed
    assert len(list((tmp_path / "store/commitlog").iterdir())) >= 2
    assert list((tmp_path / "store/dledger-n0/data").iterdir())


@pytest.mark.parametrize(
    "name", ["A-classic-clean-v497", "A-classic-killed-v497", "A-classic-clean-v533"]
)
def test_a_copy_of_a_java_store(
    name: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = golden(name) / "store"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    assert run_demo(DemoPlan(store=str(source)))
    assert "every earlier message reads the same" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}, (
        "the original changed"
    )


def test_a_directory_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreFault, match="no directory commitlog"):
        run_demo(DemoPlan(store=str(tmp_path)))


def test_a_store_that_runs_dledger_already(golden: Callable[[str], Path]) -> None:
    with pytest.raises(StoreFault, match="DLedger already"):
        run_demo(DemoPlan(store=str(golden("C-upgraded-v497") / "n0")))


def test_a_keep_directory_that_has_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
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


VALUE = MessageValue(100, 200, "id", "offset id", 1, 2, (("k", "v"),), b"body")


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
    assert "T queue 0 offset 0: missing" in result.differences
    assert "T queue 0 offset 2: on the wrong side of the divide" in result.differences
