"""``spark.read.format("rocketmq")`` over stores: rows are what a Java consumer got."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rmqpy.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPLIT = 8192
LIGHT = "topic string, queueId int, queueOffset bigint, physicalOffset bigint"


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., Any]:
    """Rows of a store as a DataFrame; options by name."""
    from rmqpy.pipeline.datasource.source import register

    register(spark)

    def load(*stores: Path, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("rocketmq")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        if schema is not None:
            reader = reader.schema(schema)
        paths = [str(store) for store in stores]
        return reader.load(paths[0] if len(paths) == 1 else paths)

    return load


def test_rows_are_what_a_java_consumer_got(
    told_node: str,
    store_of: Callable[[str], Path],
    check_rows: Callable[[str, list[dict[str, Any]]], None],
    read: Callable[..., Any],
) -> None:
    rows = read(store_of(told_node), splitBytes=SPLIT).collect()
    check_rows(told_node, [row.asDict() for row in rows])


def test_a_schema_prunes_and_any_split_reads_the_same(
    store_of: Callable[[str], Path], read: Callable[..., Any]
) -> None:
    store = store_of("C-upgraded-v497/n0")
    whole = read(store, schema=LIGHT, includeInternalTopics=True).collect()
    assert whole[0].asDict().keys() == {"topic", "queueId", "queueOffset", "physicalOffset"}
    for split in (1000, 65536):
        part = read(store, schema=LIGHT, includeInternalTopics=True, splitBytes=split)
        assert part.collect() == whole
    assert [row.asDict() for row in read(store, schema="entryIndex bigint, term bigint").collect()][
        -1
    ]["term"] >= 0


def test_many_stores(store_of: Callable[[str], Path], read: Callable[..., Any]) -> None:
    nodes = [store_of(f"C-upgraded-v497/n{number}") for number in range(3)]
    counts = [read(node, schema=LIGHT).count() for node in nodes]
    assert read(*nodes, schema=LIGHT).count() == sum(counts) > 0


FILTERS = [
    "topic = '{topic}'",
    "topic IN ('{topic}', 'none')",
    "queueId >= 2",
    "queueId = 1 AND queueOffset < 3",
    "queueOffset > 4 AND queueOffset <= 7",
    "physicalOffset > 70000 AND physicalOffset < 90000",
    "physicalOffset = 0",
    "storeTimestamp >= timestamp '{middle}'",
    "storeTimestamp < timestamp '{middle}'",
    "storeTimestamp > timestamp '{between}'",
    "NOT topic = '{topic}'",
    "topic LIKE 'T%' OR queueId = 0",
    "tags IS NOT NULL AND topic IS NOT NULL",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_take_what_spark_would_take(
    condition: str, store_of: Callable[[str], Path], read: Callable[..., Any], spark: SparkSession
) -> None:
    store = store_of("A-classic-clean-v497")
    schema = f"{LIGHT}, storeTimestamp timestamp, tags string"
    everything = read(store, schema=schema).collect()
    middle = everything[len(everything) // 2]
    text = condition.format(
        topic=middle["topic"],
        middle=middle["storeTimestamp"].astimezone(UTC).replace(tzinfo=None),
        between=middle["storeTimestamp"].astimezone(UTC).replace(tzinfo=None)
        + timedelta(microseconds=1),
    )
    wanted = spark.createDataFrame(everything, schema=schema).where(text).collect()
    pushing = read(store, schema=schema, splitBytes=SPLIT, pushFilters=True)
    assert pushing.where(text).collect() == wanted
    if "none" not in condition:
        assert 0 < len(wanted) < len(everything)


def test_a_filter_on_places_starts_fewer_tasks(
    store_of: Callable[[str], Path], read: Callable[..., Any]
) -> None:
    store = store_of("A-classic-clean-v497")
    pushing = read(store, schema=LIGHT, splitBytes=SPLIT, pushFilters=True)
    few = pushing.where("physicalOffset < 8192")
    assert few.count() > 0 and few.rdd.getNumPartitions() == 1


def test_a_table_can_be_used_twice(
    store_of: Callable[[str], Path], read: Callable[..., Any]
) -> None:
    """Spark mixes up what it pushed down for one use with another: so nothing is, unasked."""
    everything = read(store_of("A-classic-clean-v497"), schema=LIGHT, splitBytes=SPLIT)
    count = everything.count()
    low, high = everything.where("queueId < 2"), everything.where("queueId >= 2")
    assert 0 < low.count() < count
    assert low.union(high).count() == count == everything.count()
    assert everything.rdd.getNumPartitions() > 8


def test_options_tell_what_is_wanted(
    store_of: Callable[[str], Path], read: Callable[..., Any]
) -> None:
    store = store_of("A-classic-clean-v497")
    schema = f"{LIGHT}, storeTimestamp timestamp"
    everything = read(store, schema=schema).collect()
    times = sorted({row["storeTimestamp"] for row in everything})
    since, until = times[len(times) // 3], times[2 * len(times) // 3]
    topic = everything[0]["topic"]
    told = [
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
    for options, takes in told:
        wanted = list(filter(takes, everything))
        assert 0 < len(wanted) < len(everything)
        assert read(store, schema=schema, **options).collect() == wanted


def test_damage_fails_unless_it_may_be_passed(
    copy_of: Callable[[str], Path], read: Callable[..., Any]
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
    options = {"includeInternalTopics": True, "failOnDataLoss": False}
    rows = read(store, schema=LIGHT, **options).collect()
    assert 0 < len(rows) < count
    assert read(store, schema=LIGHT, splitBytes=1000, **options).collect() == rows


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("topics string", {}, "no column 'topics'"),
        ("topic binary", {}, "column topic is string, not binary"),
        ("topic string", {"splitbyte": 1}, "has no option splitbyte"),
        ("topic string", {"splitBytes": "many"}, "expected a whole number"),
        ("topic string", {"failOnDataLoss": "yes"}, "expected true or false"),
    ],
)
def test_slips_of_the_pen(
    schema: str,
    options: dict[str, Any],
    says: str,
    store_of: Callable[[str], Path],
    read: Callable[..., Any],
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=says):
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
    assert "the query is refused" in capsys.readouterr().err


def test_columns_that_a_statement_can_mean(arrow: ModuleType) -> None:
    from rmqpy.pipeline.arrow.rows import COLUMNS
    from rmqpy.pipeline.jobs.sql import used_columns

    assert used_columns("SELECT Topic, max(queueoffset) FROM messages") == ("topic", "queueOffset")
    assert used_columns("select count( * ) from messages where crcOk") == ("crcOk",)
    assert used_columns("SELECT count(*) FROM messages") == ("topic",)
    for statement in (
        "SELECT * FROM messages",
        "FROM messages",
        "SELECT m.topic FROM messages m NATURAL JOIN messages n",
        "TABLE messages",
        "FROM messages |> WHERE topic = 'a'",
    ):
        assert used_columns(statement) == COLUMNS


def test_times_are_utc(store_of: Callable[[str], Path], read: Callable[..., Any]) -> None:
    row = read(store_of("A-classic-clean-v497"), schema="storeTimestamp timestamp").first()
    assert row["storeTimestamp"].astimezone(UTC) > datetime(2020, 1, 1, tzinfo=UTC)
