"""``rmqpy pipeline audit``: both engines print equal reports, for any split."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import flip_bit

from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import find_unread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT = "8192"
DAMAGED = ("X-gap_same_file-v497/n1", "X-gap_same_file-v497/n2")
"""Nodes in which Java has used queue offsets twice."""

Audit = Callable[..., tuple[int, Any]]


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Audit:
    """Return a function that audits a store and returns the exit code and the JSON report."""

    def run(store: Path, engine: str, *more: str) -> tuple[int, Any]:
        words = ["pipeline", "audit", str(store), "--engine", engine, "--format", "json", *more]
        code = main(words)
        output = capsys.readouterr()
        assert code != 1, output.err
        return code, json.loads(output.out)

    return run


def flip(store: Path, log: str, place: int) -> None:
    """Flip a bit of the log's first file."""
    flip_bit(min((store / log).iterdir()), place)


def test_many_stores_in_one_report(
    store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [str(store_of(f"C-upgraded-v497/{node}")) for node in ("n0", "n1")]
    assert main(["pipeline", "audit", *roots, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [store["facts"]["root"] for store in report["stores"]] == roots
    assert [store["records"] for store in report["stores"]] == [560, 560]
    assert main(["pipeline", "audit", *roots]) == 0
    assert capsys.readouterr().out.count("560 records, 22 queues: clean") == 2


def test_one_damaged_store_of_two_is_exit_code_2(
    store_of: Callable[[str], Path],
    copy_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = copy_of("A-classic-clean-v497")
    flip(damaged, "commitlog", 4)
    roots = [str(damaged), str(store_of("A-classic-clean-v497"))]
    assert main(["pipeline", "audit", *roots]) == 2
    assert "damage was found" in capsys.readouterr().out


def sums_of(report: Any) -> dict[str, tuple[str, str, int]]:
    files = report["stores"][0]["files"]
    return {file["file"]: (file["md5"], file["valid_md5"], file["valid_bytes"]) for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A-classic-clean-v497", "C-upgraded-v497/n0"])
def test_md5_of_files_and_of_their_valid_bytes(
    name: str,
    copy_of: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    audit: Audit,
) -> None:
    store = copy_of(name)
    before = sums_of(audit(store, "local", "--md5", "--range-bytes", SPLIT)[1])
    recorded = next(iter(manifest(name.partition("/")[0])["files"].values()))
    assert {file: each[0] for file, each in before.items()} == {
        file: recorded[file]["md5"] for file in before
    }
    for log in (store / "commitlog", *store.glob("dledger-*/data")):
        closed, *_, last = sorted(log.iterdir())
        data = bytearray(closed.read_bytes())
        valid = before[str(closed.relative_to(store))][2]
        assert 60000 < valid < 65536 and before[str(last.relative_to(store))][2] > 0
        data[valid:] = b"\x77" * (65536 - valid)
        closed.write_bytes(data)
        after = sums_of(audit(store, "local", "--md5")[1])
        (changed,) = (file for file in after if after[file] != before[file])
        assert changed == str(closed.relative_to(store))
        assert after[changed][0] != before[changed][0] and after[changed][1:] == before[changed][1:]
        before = after


@pytest.mark.spark
def test_both_engines_compute_the_same_md5(
    store_of: Callable[[str], Path], audit: Audit, spark: SparkSession
) -> None:
    store = store_of("C-upgraded-v497/n0")
    local = audit(store, "local", "--md5")
    assert len(sums_of(local[1])) > 4
    assert audit(store, "spark", "--md5", "--range-bytes", SPLIT) == local


def test_an_audit_loads_neither_the_network_nor_the_configuration(
    store_of: Callable[[str], Path],
) -> None:
    """Their modules would double the time that the command needs to start."""
    words = ["pipeline", "audit", str(store_of("A-classic-clean-v497"))]
    code = (
        f"import sys\nfrom rmqpy.cli import main\nassert main({words}) == 0\n"
        "print(sorted({'asyncio', 'ssl', 'rmqpy.config.loading'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_directory_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "audit", str(tmp_path), str(tmp_path / "none")]) == 1
    assert "storePathRootDir" in capsys.readouterr().err


@pytest.mark.spark
def test_both_engines_report_the_same(
    golden_node: str, store_of: Callable[[str], Path], audit: Audit, spark: SparkSession
) -> None:
    store = store_of(golden_node)
    local = audit(store, "local")
    assert local[1]["stores"][0]["records"] > 250
    assert local[0] == (0 if golden_node not in DAMAGED else 2)
    assert audit(store, "spark", "--range-bytes", SPLIT) == local
    assert audit(store, "spark") == local


@pytest.mark.spark
@pytest.mark.parametrize(
    ("node", "records", "of_clients"),
    [
        ("E-timers-v533/clean", 43, 6),
        ("E-timers-v533/killed", 34, 6),
        ("E-timers-v533/lagging", 7, 3),
        ("F-pop-v533/log", 23, 15),
        ("F-pop-v533/kv", 15, 15),
        ("F-pop-acknowledged-v533/log", 20, 6),
        ("G-rocksdb-v533/queues", 40, 40),
        ("G-rocksdb-v533/both", 40, 40),
        ("H-queues-v533/store", 48, 48),
        ("I-controller-v533/n0", 40, 40),
        ("I-controller-v533/n1", 40, 40),
        ("J-tiered-v533/store", 40, 40),
    ],
)
def test_both_engines_and_the_data_source_read_stores_of_5_x(
    node: str,
    records: int,
    of_clients: int,
    golden: Callable[[str], Path],
    audit: Audit,
    spark: SparkSession,
) -> None:
    """What only 5.x reads is named; inner batches and records of version 2 are rows, and the
    receipts of POP in system topics are not.
    """
    archive, _, name = node.partition("/")
    store = golden(archive) / name
    local = audit(store, "local")
    assert local[0] == 0 and local[1]["stores"][0]["records"] == records
    unread = find_unread(OsFileSystem(), StorePaths(str(store), f"{store}/commitlog"))
    codes = [each["code"] for each in local[1]["stores"][0]["findings"]]
    assert codes.count("DATA_UNREAD") == len(unread)
    assert audit(store, "spark", "--range-bytes", SPLIT) == local
    assert spark.read.format("rocketmq").load(str(store)).count() == of_clients


def cut(store: Path) -> None:
    """Zero the last 100 bytes of the content of the classic log's last file."""
    file = max((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 100 :] = bytes(len(data) - end + 100)
    file.write_bytes(data)


def zeroed(store: Path) -> None:
    """Zero a page in the middle of the first file."""
    file = min((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[20480:24576] = bytes(4096)
    file.write_bytes(data)


def missing(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[1].unlink()


def swapped(store: Path) -> None:
    first, second, *_ = sorted((store / "commitlog").iterdir())
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def unit_lost(store: Path) -> None:
    queue = next(path for path in sorted((store / "consumequeue").rglob("0" * 20)))
    data = bytearray(queue.read_bytes())
    data[:20] = bytes(20)
    queue.write_bytes(data)


def entry_flipped(store: Path) -> None:
    flip(next(store.glob("dledger-*")), "data", 16)


DAMAGE = [cut, zeroed, missing, swapped, unit_lost, entry_flipped]


@pytest.mark.spark
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_both_engines_find_the_same_damage(
    damage: Callable[[Path], None],
    copy_of: Callable[[str], Path],
    audit: Audit,
    spark: SparkSession,
) -> None:
    store = copy_of("C-upgraded-v497/n0")
    damage(store)
    local = audit(store, "local")
    assert local[0] == 2 and local[1]["stores"][0]["findings"]
    assert audit(store, "spark", "--range-bytes", SPLIT) == local


@pytest.mark.spark
@pytest.mark.parametrize("place", range(0, 92, 13))
def test_both_engines_find_the_same_flipped_bit(
    place: int, copy_of: Callable[[str], Path], audit: Audit, spark: SparkSession
) -> None:
    """Bits in the fields of the first record; those in FLAG, times, and hosts are not found."""
    store = copy_of("A-classic-clean-v497")
    flip(store, "commitlog", place)
    assert audit(store, "spark", "--range-bytes", SPLIT) == audit(store, "local")
