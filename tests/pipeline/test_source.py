"""``spark.read.format("rocketmq")`` over stores: rows are those that a Java consumer received."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import Row

from rmqpy.cli import main
from rmqpy.model.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

pytestmark = pytest.mark.spark

PART = 8192
Read = Callable[..., "DataFrame"]

LIGHT = "topic string, queueId int, queueOffset bigint, physicalOffset bigint"


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """Return a function that reads stores as a DataFrame; options are keyword arguments."""
    from rmqpy.pipeline.datasource.source import register

    register(spark)

    def load(*stores: Path, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("rocketmq")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        if schema is not None:
            reader = reader.schema(schema)
        paths = [str(store) for store in stores]
        return reader.load(paths[0] if len(paths) == 1 else paths)

    return load


def parts_of(store: Path, size: int) -> int:
    """Return the number of tasks at which each reads ``size`` bytes of the logs."""
    folders = [store / "commitlog", *store.glob("dledger-*/data")]
    files = [file for folder in folders for file in folder.glob("*") if file.name.isdigit()]
    return sum(file.stat().st_size for file in files) // size


def test_rows_are_those_that_a_java_consumer_received(
    told_node: str,
    store_of: Callable[[str], Path],
    check_rows: Callable[[str, list[Row]], None],
    read: Read,
) -> None:
    store = store_of(told_node)
    rows = read(store, minPartitions=parts_of(store, PART)).collect()
    check_rows(told_node, [row.asDict() for row in rows])


def test_a_directory_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    from rmqpy.pipeline.datasource.source import RocketMqSource

    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    source = RocketMqSource({"path": str(tmp_path)})
    with pytest.raises(StoreError, match="found a directory with other content"):
        source.reader(source.schema())


def test_a_schema_prunes_and_any_division_reads_the_same(
    store_of: Callable[[str], Path], read: Read
) -> None:
    store = store_of("C-upgraded-v497/n0")
    whole = read(store, schema=LIGHT, includeInternalTopics=True).collect()
    assert whole[0].asDict().keys() == {"topic", "queueId", "queueOffset", "physicalOffset"}
    for options in (
        {"minPartitions": parts_of(store, 1000)},
        {"minPartitions": parts_of(store, 65536)},
        {"splitBytes": 1000},
    ):
        part = read(store, schema=LIGHT, includeInternalTopics=True, **options)
        assert part.collect() == whole
    assert [row.asDict() for row in read(store, schema="entryIndex bigint, term bigint").collect()][
        -1
    ]["term"] >= 0


@pytest.mark.parametrize("node", ["A-classic-clean-v497", "C-upgraded-v497/n0"])
def test_small_ranges_and_files_share_a_task(
    node: str, store_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.pipeline.datasource import source

    store = store_of(node)

    def read(**options: object) -> tuple[list[Any], list[Row]]:
        given = {name: str(value) for name, value in options.items()}
        made = source.RocketMqSource({"path": str(store), **given})
        reader = made.reader(made.schema())
        parts: list[Any] = reader.partitions()
        batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
        return parts, [row for batch in batches for row in batch.to_pylist()]

    (part,), whole = read()
    files = len({work.path for work in part.works})
    assert files > 1 and whole
    size = parts_of(store, 1)
    for task in (100_000, 3_000_000):
        monkeypatch.setattr(source, "TASK_BYTES", task)
        for split in (1, 65536, 2_000_000):
            parts, rows = read(splitBytes=split)
            assert rows == whole
            works = [work for part in parts for work in part.works]
            assert sum(work.stop - work.start for work in works) == size
            sizes = [sum(work.stop - work.start for work in part.works) for part in parts]
            share = max(task, split)
            assert max(sizes) <= share
            assert all(len(part.works) == 1 for part in parts) == (share < 1 << 20)
        for least in (1, 2, 7, 50):
            parts, rows = read(minPartitions=least)
            assert rows == whole and len(parts) >= least


def test_many_stores_are_read_together(store_of: Callable[[str], Path], read: Read) -> None:
    nodes = [store_of(f"C-upgraded-v497/n{number}") for number in range(3)]
    counts = [read(node, schema=LIGHT).count() for node in nodes]
    assert read(*nodes, schema=LIGHT).count() == sum(counts) > 0


def test_options_select_messages(store_of: Callable[[str], Path], read: Read) -> None:
    store = store_of("A-classic-clean-v497")
    schema = f"{LIGHT}, storeTimestamp timestamp"
    everything = read(store, schema=schema).collect()
    times = sorted({row["storeTimestamp"] for row in everything})
    since, until = times[len(times) // 3], times[2 * len(times) // 3]
    topic = everything[0]["topic"]
    cases: list[tuple[dict[str, object], Callable[[SparkRow], bool]]] = [
        ({"topic": f"{topic}, none"}, lambda row: row["topic"] == topic),
        ({"queueId": 1}, lambda row: row["queueId"] == 1),
        (
            {
                "startingTimestamp": round(since.timestamp() * 1000),
                "endingTimestamp": round(until.timestamp() * 1000),
            },
            lambda row: since <= row["storeTimestamp"] < until,
        ),
    ]
    for options, is_selected in cases:
        expected = list(filter(is_selected, everything))
        assert 0 < len(expected) < len(everything)
        assert read(store, schema=schema, **options).collect() == expected


def test_damage_fails_unless_data_loss_is_allowed(
    copy_of: Callable[[str], Path], read: Read
) -> None:
    from pyspark.errors import PySparkException

    store = copy_of("A-classic-clean-v497")
    count = read(store, schema=LIGHT, includeInternalTopics=True).count()
    file = min((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[16384:20480] = bytes(4096)
    file.write_bytes(data)
    with pytest.raises(PySparkException, match=r"that are not a message, expected"):
        read(store, schema=LIGHT).count()
    options: dict[str, object] = {"includeInternalTopics": True, "failOnDataLoss": False}
    rows = read(store, schema=LIGHT, **options).collect()
    assert 0 < len(rows) < count
    many = parts_of(store, 1000)
    assert read(store, schema=LIGHT, minPartitions=many, **options).collect() == rows


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("topics string", {}, "no column 'topics'"),
        ("topic binary", {}, "column topic is string, not binary"),
        ("topic string", {"splitbyte": 1}, "has no option splitbyte"),
        ("topic string", {"splitBytes": "many"}, "expected a whole number"),
        ("topic string", {"minPartitions": "-1"}, "expected a whole number"),
        ("topic string", {"failOnDataLoss": "yes"}, "expected true or false"),
    ],
)
def test_invalid_columns_and_options_are_refused(
    schema: str,
    options: dict[str, object],
    message: str,
    store_of: Callable[[str], Path],
    read: Read,
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=message):
        read(store_of("A-classic-clean-v497"), schema=schema, **options).count()


def test_sql_over_a_store(
    store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    store = str(store_of("A-classic-clean-v497"))
    statement = "SELECT count(*) AS n, count(DISTINCT topic) AS topics FROM messages"
    assert main(["pipeline", "sql", statement, "--on", store]) == 0
    assert "|topics|" in capsys.readouterr().out
    assert main(["pipeline", "sql", "SELECT * FROM messages LIMIT 1", "--on", store]) == 0
    assert "|properties" in capsys.readouterr().out
    assert main(["pipeline", "sql", "SELECT none FROM messages", "--on", store]) == 1
    assert "Spark refuses the query" in capsys.readouterr().err


def test_times_are_utc(store_of: Callable[[str], Path], read: Read) -> None:
    row = read(store_of("A-classic-clean-v497"), schema="storeTimestamp timestamp").first()
    assert row is not None
    assert row["storeTimestamp"].astimezone(UTC) > datetime(2020, 1, 1, tzinfo=UTC)
