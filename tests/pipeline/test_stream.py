"""``format("rocketmq")`` over live brokers: every message is read once, and none is skipped."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.pipeline import LiveCluster, bodies

from rmqpy.client.blocking import BlockingPullConsumer
from rmqpy.remoting.bodies import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

BROKER = "broker-a"

Reading = Callable[..., "DataFrame"]
Sink = Callable[["DataFrame"], "StreamingQuery"]


@pytest.fixture
def reading(spark: SparkSession, live: LiveCluster) -> Reading:
    """Return a function that reads a topic of the live broker as a DataFrame or a stream."""
    from rmqpy.pipeline.datasource.source import register

    register(spark)

    def load(topic: str, stream: bool = False, **options: object) -> DataFrame:
        reader = (spark.readStream if stream else spark.read).format("rocketmq")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.option("nameServer", live.namesrv.address).option("topic", topic).load()

    return load


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    """Return a function that streams the messages of its start into Parquet files."""

    def run(frame: DataFrame) -> StreamingQuery:
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(120)
        return query

    return run


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Callable[[], list[bytes]]:
    """Return a function that returns the bodies in the Parquet files of ``sink``."""

    def read() -> list[bytes]:
        return [bytes(row["body"]) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]

    return read


def test_a_batch_has_what_is_in_the_queues_now(live: LiveCluster, reading: Reading) -> None:
    topic = live.topic()
    live.send(topic, bodies(0, 41), tags="red")
    found = {row["body"].decode(): row for row in reading(topic).collect()}
    assert sorted(found) == [body.decode() for body in bodies(0, 41)]
    for body, row in found.items():
        assert (row["topic"], row["brokerName"], row["tags"], row["keys"]) == (
            topic,
            BROKER,
            "red",
            body,
        )
        assert row["crcOk"] and row["properties"]["TAGS"] == "red"
        assert row["storeHost"] == live.broker.address
    places = {(row["queueId"], row["queueOffset"]) for row in found.values()}
    assert len(places) == 41 and {queue for queue, _ in places} == {0, 1, 2, 3}
    part = reading(
        topic,
        startingOffsets=json.dumps({topic: {BROKER: {"0": 3, "1": -1}}}),
        endingOffsets=json.dumps({topic: {BROKER: {"0": 7}}}),
        maxRecordsPerPartition=2,
    )
    expected = {
        (row["queueId"], row["queueOffset"])
        for row in found.values()
        if row["queueId"] in (2, 3) or (row["queueId"] == 0 and 3 <= row["queueOffset"] < 7)
    }
    assert {(row["queueId"], row["queueOffset"]) for row in part.collect()} == expected
    assert part.rdd.getNumPartitions() > 8


def test_a_stream_continues_where_it_stopped(
    live: LiveCluster,
    reading: Reading,
    sink: Sink,
    rows: Callable[[], list[bytes]],
    tmp_path: Path,
) -> None:
    topic = live.topic()
    live.send(topic, bodies(0, 50))
    options: dict[str, object] = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 16,
        "stream": True,
    }
    query = sink(reading(topic, **options))
    assert Counter(rows()) == Counter(bodies(0, 50))
    batches = [progress["numInputRows"] for progress in query.recentProgress]
    assert max(batches) <= 16 and len([count for count in batches if count]) >= 4
    live.send(topic, bodies(50, 20))
    sink(reading(topic, **options))
    assert Counter(rows()) == Counter(bodies(0, 70))
    last = max((tmp_path / "checkpoint/offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    tree = json.loads(last.read_text().splitlines()[-1])
    assert sum(tree[topic][BROKER].values()) == 70 and set(tree[topic][BROKER]) == set("0123")
    sink(reading(topic, **options))
    assert Counter(rows()) == Counter(bodies(0, 70))


def test_a_new_queue_is_read_from_its_start(
    live: LiveCluster,
    reading: Reading,
    sink: Sink,
    rows: Callable[[], list[bytes]],
) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 5))
    sink(reading(topic, stream=True))  # from the latest offsets: no message yet
    live.topic(queues=3, name=topic)
    deadline = time.monotonic() + 60
    with BlockingPullConsumer("looks", live.namesrv.address) as consumer:
        while len(consumer.queues(topic)) < 3:
            assert time.monotonic() < deadline
            consumer._wait(consumer._member._open().refresh_routes())
            time.sleep(0.2)
    live.send(topic, bodies(5, 30))
    sink(reading(topic, stream=True, group="sees-the-new-route"))
    assert Counter(rows()) == Counter(bodies(5, 30))


def test_timestamps_and_tags_select_messages(live: LiveCluster, reading: Reading) -> None:
    topic = live.topic()
    live.send(topic, bodies(0, 9), tags="red")
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    time.sleep(0.01)
    live.send(topic, bodies(9, 14), tags="green")
    late = reading(topic, startingTimestamp=between_ms).collect()
    assert sorted(bytes(row["body"]) for row in late) == bodies(9, 14)
    red = reading(topic, subExpression="red || blue").collect()
    assert sorted(bytes(row["body"]) for row in red) == bodies(0, 9)


def test_progress_is_committed_for_a_group(live: LiveCluster, reading: Reading, sink: Sink) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 8))
    sink(reading(topic, stream=True, startingOffsets="earliest", commitGroup="shown"))
    live.send(topic, bodies(8, 1))
    # Spark commits a batch when it starts the next one.
    sink(reading(topic, stream=True, startingOffsets="earliest", commitGroup="shown"))
    with BlockingPullConsumer("shown", live.namesrv.address) as consumer:
        assert consumer.committed_offset(MessageQueue(topic, BROKER, 0)) == 8


def test_unreadable_offsets_and_topics_are_reported(live: LiveCluster, reading: Reading) -> None:
    from pyspark.errors import PySparkException

    topic = live.topic()
    ahead = json.dumps({topic: {BROKER: {"0": 5}}})
    cases: list[tuple[dict[str, object], str]] = [
        ({"endingOffsets": ahead, "brokerTimeoutMs": 300}, "the broker does not have message 0"),
        ({"startingOffsets": "soon"}, "expected earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": 1}'}, "do not have the shape"),
        ({"startingOffset": "latest"}, "has no option startingoffset"),
        ({"startingOffsets": "latest", "startingTimestamp": 1}, "expected one of them"),
    ]
    for options, message in cases:
        with pytest.raises(PySparkException, match=message):
            reading(topic, **options).count()
    with pytest.raises(PySparkException, match=r"17|[Nn]o.*route"):
        reading("none-such", brokerTimeoutMs=300).count()


def test_rows_are_sent(live: LiveCluster, reading: Reading, spark: SparkSession) -> None:
    topic, other = live.topic(), live.topic()
    rows = [
        (f"{number:06d}", topic if number % 2 else None, "red", "a b", {"city": "Zürich"}, 7)
        for number in range(60)
    ]
    schema = "body string, topic string, tags string, keys string, properties map<string,string>"
    frame = spark.createDataFrame(rows, f"{schema}, flag int").repartition(3)
    options = {"nameServer": live.namesrv.address, "topic": other}
    frame.write.format("rocketmq").options(**options).mode("append").save()
    for name, parity in ((topic, 1), (other, 0)):
        found = reading(name).collect()
        assert sorted(int(row["body"]) for row in found) == list(range(parity, 60, 2))
        for row in found:
            assert (row["tags"], row["keys"], row["flag"]) == ("red", "a b", 7)
            assert row["properties"]["city"] == "Zürich"


def test_rows_of_a_key_keep_their_order(
    live: LiveCluster, reading: Reading, spark: SparkSession
) -> None:
    topic = live.topic()
    rows = [(f"{number:06d}", f"key-{number % 5}") for number in range(200)]
    frame = spark.createDataFrame(rows, "body string, shardingKey string").coalesce(1)
    options = {"nameServer": live.namesrv.address, "topic": topic}
    frame.write.format("rocketmq").options(**options).mode("append").save()
    found = sorted(reading(topic).collect(), key=lambda row: (row["queueId"], row["queueOffset"]))
    assert len(found) == 200
    for key in range(5):
        numbers = [int(row["body"]) for row in found if int(row["body"]) % 5 == key]
        assert numbers == sorted(numbers)


def test_a_stream_of_rows_is_sent_with_its_marks(
    live: LiveCluster, reading: Reading, tmp_path: Path
) -> None:
    source, target = live.topic(), live.topic()
    live.send(source, bodies(0, 25))
    frame = reading(source, stream=True, startingOffsets="earliest").selectExpr("body", "keys")
    query = (
        frame.writeStream.format("rocketmq")
        .option("nameServer", live.namesrv.address)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = reading(target).collect()
    assert sorted(bytes(row["body"]) for row in found) == bodies(0, 25)
    marks = {
        tuple(row["properties"][f"SPARK_{name}"] for name in ("BATCH", "PARTITION", "ROW"))
        for row in found
    }
    assert len(marks) == 25 and {mark[0] for mark in marks} == {"0"}


@pytest.mark.parametrize(
    ("schema", "values", "options", "message"),
    [
        ("topic string", ("a",), {}, "needs the column body"),
        ("body int, topic string", (1, "a"), {}, "body is int, not binary or string"),
        ("body string", ("a",), {}, "give the column topic"),
        ("body string, tag string", ("a", "b"), {"topic": "t"}, "no column 'tag'"),
        ("body string, topic string", (None, "t"), {}, "a row has no body"),
    ],
)
def test_rows_that_are_not_messages_are_refused(
    schema: str,
    values: tuple[object, ...],
    options: dict[str, str],
    message: str,
    live: LiveCluster,
    spark: SparkSession,
) -> None:
    from pyspark.errors import PySparkException

    from rmqpy.pipeline.datasource.source import register

    register(spark)
    frame = spark.createDataFrame([values], schema)
    writer = frame.write.format("rocketmq").option("nameServer", live.namesrv.address)
    with pytest.raises(PySparkException, match=message):
        writer.options(**options).mode("append").save()
