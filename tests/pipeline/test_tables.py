"""``rmqpy pipeline audit --tables``: ranges, queues, and findings as tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import Row, flip_bit

from rmqpy.cli import main
from rmqpy.pipeline.jobs.report_tables import TABLES, audit_frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[Row]


def audit(folder: Path, *words: object) -> int:
    return main(["pipeline", "audit", "--tables", str(folder), *map(str, words)])


def json_rows(folder: Path) -> dict[str, Rows]:
    return {
        name: [json.loads(line) for line in (folder / f"{name}.json").read_text().splitlines()]
        for name in TABLES
    }


def test_json_lines_describe_two_stores(
    store_of: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    stores = [store_of(f"C-upgraded-v497/{node}") for node in ("n0", "n1")]
    form = ("--tables-format", "json", "--range-bytes", 8192)
    assert audit(tmp_path / "out", *stores, *form) == 0
    tables = json_rows(tmp_path / "out")
    assert (tmp_path / "out/_SUCCESS").exists() and not tables["findings"]
    for store in stores:
        ranges = [row for row in tables["ranges"] if row["store"] == str(store)]
        assert sum(row["messages"] for row in ranges) == 560
        # The ranges leave no gap: each starts where the previous one ends.
        for log in ("commitlog", f"dledger-{store.name}/data"):
            part = [row for row in ranges if row["log"] == log]
            for before, after in pairwise(part):
                same_file = before["fileOffset"] == after["fileOffset"]
                assert after["begin"] == (before["end"] if same_file else after["fileOffset"])
        entries = [row for row in ranges if "firstIndex" in row]
        assert [row["firstIndex"] for row in entries[1:]] == [
            row["lastIndex"] + 1 for row in entries[:-1]
        ]
        queues = {
            (row["topic"], row["queueId"]): row
            for row in tables["queues"]
            if row["store"] == str(store)
        }
        for topic, recorded in manifest("C-upgraded-v497")["queues"].items():
            for queue in recorded:
                if not queue["max"]:
                    continue
                row = queues[topic, queue["queueId"]]
                assert (row["minQueueOffset"], row["maxQueueOffset"]) == (
                    queue["min"],
                    queue["max"],
                )
                assert row["messages"] == row["rightUnits"] == queue["max"] - queue["min"]


def test_a_finding_is_a_row(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    store = copy_of("A-classic-clean-v497")
    flip_bit(sorted((store / "commitlog").iterdir())[1], 4)
    assert audit(tmp_path / "out", store, "--tables-format", "json") == 2
    (finding,) = json_rows(tmp_path / "out")["findings"]
    assert (finding["code"], finding["offset"]) == ("RECORD_MAGIC", 65536)
    assert finding["severity"] == "damage" and "topic" not in finding


def test_a_folder_in_use_is_refused(
    store_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").touch()
    assert audit(tmp_path, store_of("A-classic-clean-v497"), "--tables-format", "json") == 1
    assert "is in use" in capsys.readouterr().err


@pytest.mark.spark
def test_parquet_and_json_have_the_same_rows(
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arrow: ModuleType,
    spark: SparkSession,
) -> None:
    store = copy_of("D-dledger-v497/n0")
    flip_bit(sorted((store / "dledger-n0/data").iterdir())[1], 31)
    for form, engine in (("parquet", "spark"), ("json", "local")):
        words = ("--tables-format", form, "--engine", engine, "--range-bytes", 32768)
        assert audit(tmp_path / form, store, *words) == 2
    one, two = (audit_frames(spark, str(tmp_path / form)) for form in ("parquet", "json"))
    for name in TABLES:
        rows = one[name].collect()
        assert rows and rows == two[name].collect(), name
    wrong = one["findings"].where("severity = 'damage'").select("code", "offset").collect()
    assert [tuple(row) for row in wrong] == [("ENTRY_PLACE", 65536)]
    capsys.readouterr()
    statement = "SELECT code, count(*) AS n FROM findings GROUP BY code"
    query = ["pipeline", "sql", statement, "--on", str(tmp_path / "parquet"), "--format", "json"]
    assert main(query) == 0
    assert json.loads(capsys.readouterr().out) == {"code": "ENTRY_PLACE", "n": 1}
