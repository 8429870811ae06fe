"""``rmqpy pipeline export`` and ``sql``: rows are compared with what a Java consumer received."""

from __future__ import annotations

import json
import os
import signal
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import FORGED_SIZE, Row, forged_record

from rmqpy.audit.checks.messages import MessageSelection, each_message
from rmqpy.audit.scan.directory import read_directory
from rmqpy.cli import main
from rmqpy.model.names import is_system_topic
from rmqpy.pipeline.jobs.export import Export, ExportedRange, ExportPlan, ExportTask, WorkUnit
from rmqpy.pipeline.jobs.export_target import FolderTarget
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPLIT = "8192"
Rows = list[Row]


@pytest.fixture(autouse=True)
def _needs_arrow(arrow: ModuleType) -> None:
    pass


def rows_of(folder: Path) -> Rows:
    """Return the rows of every file, in the order of the log."""
    from pyarrow import parquet

    files = sorted(folder.glob("*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def export(store: Path, target: Path, *more: str) -> int:
    return main(["pipeline", "export", str(store), "--to", str(target), *more])


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_rows_are_those_that_a_java_consumer_received(
    engine: str,
    told_node: str,
    store_of: Callable[[str], Path],
    check_rows: Callable[[str, Rows], None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    words = ("--engine", engine, "--range-bytes", SPLIT)
    assert export(store_of(told_node), tmp_path / "out", *words) == 0
    check_rows(told_node, rows_of(tmp_path / "out"))


def test_rows_are_those_of_java_consume_queues(
    store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    store = store_of("X-gap_same_file-v497/n0")
    assert export(store, tmp_path / "out", "--internal-topics", "--range-bytes", SPLIT) == 0
    found = {
        (row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"])
        for row in rows_of(tmp_path / "out")
    }
    queues: dict[tuple[str, int], list[Path]] = {}
    for file in (store / "consumequeue").rglob("0" * 17 + "*"):
        queues.setdefault((file.parts[-3], int(file.parts[-2])), []).append(file)
    units = {
        (*queue, int(file.name) // 20 + number, offset)
        for queue, files in queues.items()
        for file in files
        for number, (offset, size, _) in enumerate(struct.iter_unpack(">qiq", file.read_bytes()))
        if size
    }
    assert units == found and len(units) > 250


@pytest.mark.parametrize("name", ["C-upgraded-v497/n0", "D-dledger-v497"])
def test_both_engines_write_the_same(
    name: str, store_of: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    more = ("--internal-topics", "--broker-name", "broker-a")
    assert export(store_of(name), tmp_path / "local", "--engine", "local", *more) == 0
    assert export(store_of(name), tmp_path / "spark", "--engine", "spark", *more) == 0
    split = (*more, "--range-bytes", SPLIT)
    assert export(store_of(name), tmp_path / "split", "--engine", "spark", *split) == 0
    rows = rows_of(tmp_path / "local")
    assert {row["brokerName"] for row in rows} == {"broker-a"}
    assert any(row["entryIndex"] is not None and row["term"] >= 0 for row in rows)
    assert rows_of(tmp_path / "spark") == rows_of(tmp_path / "split") == rows
    assert {path.name for path in (tmp_path / "split").iterdir() if "parquet" not in path.name} == {
        "_manifest.json",
        "_SUCCESS",
    }


def test_damage_is_skipped_and_reported(
    copy_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of("C-upgraded-v497/n0")
    file = min((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[16000:20480] = bytes(4480)
    file.write_bytes(data)
    lost: list[tuple[str, int, int]] = []
    kept = [
        found.message.physical_offset
        for found in each_message(
            OsFileSystem(),
            read_directory(OsFileSystem(), str(store)),
            MessageSelection(),
            lambda file, offset, size: lost.append((file, offset, size)),
        )
    ]
    assert len(lost) == 1
    for number, more in enumerate([(), ("--range-bytes", SPLIT)]):
        target = tmp_path / f"out{number}"
        assert export(store, target, "--internal-topics", *more) == 2
        (line,) = capsys.readouterr().err.splitlines()
        file_name, offset, size = lost[0]
        assert line == f"{file_name} at offset {offset}: {size} bytes that are not a message"
        assert [row["physicalOffset"] for row in rows_of(target)] == kept


def test_a_file_of_another_length_is_reported(
    copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copy_of("A-classic-clean-v497")
    file = sorted((store / "commitlog").iterdir())[1]
    os.truncate(file, 60000)
    assert export(store, tmp_path / "out") == 2
    written = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert written["passed"] == [{"file": f"commitlog/{file.name}", "offset": 65536, "size": 60000}]


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_forged_records_in_a_body_are_not_rows(
    engine: str, copy_of: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    """Ranges that start inside the body find the forged records, and are executed again."""
    store = copy_of("A-classic-clean-v497")
    intact = Export(ExportPlan(root=str(store), target=FolderTarget(str(tmp_path / "intact"))))
    intact.run()
    rows = rows_of(tmp_path / "intact")
    inside = [row for row in rows if row["physicalOffset"] < 65536 and row["sysFlag"] == 0]
    large = max(inside, key=lambda row: len(row["body"]))
    place, size = large["physicalOffset"], len(large["body"])
    file = min((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    start = data.index(large["body"], place)
    for at in range(start, start + size - FORGED_SIZE + 1, FORGED_SIZE):
        data[at : at + FORGED_SIZE] = forged_record(at)
    body = bytes(data[start : start + size])
    struct.pack_into(">i", data, place + 8, zlib.crc32(body) & 0x7FFFFFFF)
    file.write_bytes(data)
    assert size > 1400, "a range starts inside the body"
    large["body"], large["bodyCrc"] = body, zlib.crc32(body) & 0x7FFFFFFF
    split = ("--range-bytes", "1400", "--engine", engine)
    assert export(store, tmp_path / "out", *split) == 0
    assert rows_of(tmp_path / "out") == rows
    assert main(["pipeline", "audit", str(store), *split]) == 0


def test_a_worker_killed_after_its_write_duplicates_no_row(
    store_of: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    root = str(store_of("A-classic-clean-v497"))
    marker = str(tmp_path / "died")
    left = tmp_path / "out" / "_temporary"

    def dying(task: ExportTask) -> Callable[[WorkUnit], ExportedRange]:
        def do(unit: WorkUnit) -> ExportedRange:
            written = task(unit)
            if unit.work.start == 65536 and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return written

        return do

    def run(task: ExportTask, units: Iterable[WorkUnit]) -> Iterator[ExportedRange]:
        yield from map_on_spark(spark, dying(task), units)
        placed = len(list(left.parent.glob("*.parquet")))
        assert placed and len(list(left.iterdir())) >= 1, "the killed attempt has left its file"

    again = Export(ExportPlan(root=root, target=FolderTarget(str(tmp_path / "out"))), run)
    again.run()
    assert os.path.exists(marker) and not left.exists()
    once = Export(ExportPlan(root=root, target=FolderTarget(str(tmp_path / "once"))))
    once.run()
    assert again.files == once.files
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "once")


def test_a_target_in_use_is_refused(
    store_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").touch()
    assert export(store_of("A-classic-clean-v497"), tmp_path) == 1
    assert "is in use" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["A-classic-clean-v497", "C-upgraded-v497/n0", "D-dledger-v497"])
def test_an_export_is_distinguished_from_a_store(
    name: str, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    from rmqpy.pipeline.jobs.sql import FolderKind, tables_in

    assert export(store_of(name), tmp_path / "out", "--engine", "local") == 0
    assert tables_in(str(tmp_path / "out")).kind is FolderKind.EXPORT
    assert tables_in(str(store_of(name))).kind is FolderKind.STORE


def test_sql_over_an_export(
    store_of: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spark: SparkSession,
) -> None:
    target = tmp_path / "out"
    assert export(store_of("A-classic-clean-v497"), target) == 0
    capsys.readouterr()
    statement = "SELECT topic, count(*) AS n, max(queueOffset) AS last FROM messages GROUP BY topic"
    assert main(["pipeline", "sql", statement, "--on", str(target), "--format", "json"]) == 0
    by_topic = {row["topic"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    for topic, queues in manifest("A-classic-clean-v497")["queues"].items():
        if not is_system_topic(topic) and any(queue["max"] for queue in queues):
            assert by_topic[topic]["n"] == sum(queue["max"] - queue["min"] for queue in queues)
            assert by_topic[topic]["last"] == max(queue["max"] for queue in queues) - 1
    assert main(["pipeline", "sql", "SELECT 6 * 7 AS answer", "--on", str(target)]) == 0
    assert "|answer|" in capsys.readouterr().out
    for statement, reason in (
        ("SELECT none FROM messages", "[UNRESOLVED_COLUMN"),
        ("SELEC 1", "[PARSE_SYNTAX_ERROR] Syntax error"),
        ("", "[PARSE_"),
    ):
        assert main(["pipeline", "sql", statement, "--on", str(target)]) == 1
        shown = capsys.readouterr().err
        assert f"rmqpy: Spark refuses the query: {reason}" in shown and "Traceback" not in shown
        assert "stacktrace" not in shown
    (target / "_SUCCESS").unlink()
    assert main(["pipeline", "sql", "SELECT 1", "--on", str(target)]) == 1
    assert "no finished export" in capsys.readouterr().err
