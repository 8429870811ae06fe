"""``format("rocketmq")`` with the names that Spark's Kafka source uses, and how soon it fails.

Readers and writers are called as Spark calls them. The brokers are real; no JVM is needed.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from harness.pipeline import LiveCluster, bodies

from rmqpy.model.errors import ConfigError, NetworkError, RequestRejectedError

pytest.importorskip("pyspark", reason="pyspark is not installed; pip install 'rmqpy[spark]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'rmqpy[spark]'")

pytestmark = pytest.mark.spark

BROKER = "broker-a"


def source(live: LiveCluster | str, **options: object) -> Any:
    from rmqpy.pipeline.datasource.source import RocketMqSource

    address = live if isinstance(live, str) else live.namesrv.address
    given = {name: str(value) for name, value in options.items()}
    return RocketMqSource({"nameServer": address, **given})


def rows(live: LiveCluster, **options: object) -> list[dict[str, Any]]:
    """Return the rows of a batch read, in the order of its tasks."""
    made = source(live, **options)
    reader = made.reader(made.schema())
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_columns_are_those_of_kafka(live: LiveCluster) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 3), tags="t")
    found = rows(live, subscribe=topic, columns="kafka")
    own = rows(live, topic=topic)
    assert list(found[0]) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    for row, other in zip(found, own, strict=True):
        assert (row["key"], row["value"]) == (other["keys"].encode(), other["body"])
        assert (row["topic"], row["partition"]) == (topic, other["queueId"])
        assert (row["offset"], row["timestamp"]) == (other["queueOffset"], other["storeTimestamp"])
        pairs = {pair["key"]: pair["value"].decode() for pair in row["headers"]}
        assert pairs == dict(other["properties"]) and pairs["TAGS"] == "t"
        assert row["timestampType"] == 1


def test_edges_are_those_of_kafka(live: LiveCluster) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 5))
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    time.sleep(0.01)
    live.send(topic, bodies(5, 5))
    by_time = json.dumps({topic: {"0": between_ms}})
    edges: list[tuple[dict[str, object], range]] = [
        ({}, range(10)),
        ({"startingOffsets": json.dumps({topic: {"0": 3}})}, range(3, 10)),
        ({"endingOffsets": json.dumps({topic: {"0": 3}})}, range(3)),
        ({"endingTimestamp": between_ms}, range(5)),
        ({"startingOffsetsByTimestamp": by_time}, range(5, 10)),
        ({"endingOffsetsByTimestamp": by_time}, range(5)),
        ({"endingOffsetsByTimestamp": json.dumps({topic: {BROKER: {"0": between_ms}}})}, range(5)),
    ]
    for options, offsets in edges:
        found = [row["queueOffset"] for row in rows(live, topic=topic, **options)]
        assert found == list(offsets), options


def test_small_queues_share_a_task_and_large_ones_are_divided(live: LiveCluster) -> None:
    topic = live.topic(queues=5)
    live.send(topic, bodies(0, 25))
    for options, least, most in (({}, 1, 1), ({"minPartitions": 6}, 6, 10)):
        made = source(live, topic=topic, **options)
        reader = made.reader(made.schema())
        parts = reader.partitions()
        assert least <= len(parts) <= most
        batches = [batch for part in parts for batch in reader.read(part)]
        found = [body for batch in batches for body in batch["body"].to_pylist()]
        assert sorted(found) == bodies(0, 25)


def test_a_batch_joins_the_answers_to_several_pulls(live: LiveCluster) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 50))
    made = source(live, topic=topic, pullBatchSize=7)
    reader = made.reader(made.schema())
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch["body"].to_pylist() == bodies(0, 50)


def test_a_trigger_waits_for_enough_offsets_or_for_its_delay(live: LiveCluster) -> None:
    topic = live.topic(queues=2)
    live.send(topic, bodies(0, 4))
    options = {"topic": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 6}
    made = source(live, **options)
    patient = made.streamReader(made.schema())
    made = source(live, **options, maxTriggerDelay="0s")
    hasty = made.streamReader(made.schema())
    start = patient.initialOffset()
    limit = patient.getDefaultReadLimit()
    assert patient.latestOffset(start, limit) == start
    assert hasty.latestOffset(start, limit) != start
    live.send(topic, bodies(4, 4))
    end = patient.latestOffset(start, limit)
    assert sum(end[topic][BROKER].values()) == 8
    live.send(topic, bodies(8, 1))
    assert patient.latestOffset(end, limit) == end
    assert sum(patient.reportLatestOffset()[topic][BROKER].values()) == 9
    patient.prepareForTriggerAvailableNow()
    assert sum(patient.latestOffset(end, limit)[topic][BROKER].values()) == 9


def test_a_wrong_topic_and_a_dead_name_server_fail_soon(live: LiveCluster) -> None:
    with socket.socket() as bound:  # Nobody listens, and nobody else takes the port.
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        wrong: tuple[tuple[LiveCluster | str, str, type[Exception]], ...] = (
            (live, "no-such-topic", NetworkError),
            (nobody, "orders", NetworkError),
        )
        for address, topic, kind in wrong:
            made = source(address, topic=topic, startTimeoutMs=300)
            stream = made.streamReader(made.schema())
            limit = stream.getDefaultReadLimit()
            for ask in (
                made.reader(made.schema()).partitions,
                stream.initialOffset,
                lambda asked=stream, most=limit: asked.latestOffset({}, most),
            ):
                with pytest.raises(kind, match=r"waited 300 ms"):
                    ask()


def test_an_outage_after_the_start_is_waited_for(live: LiveCluster) -> None:
    from rmqpy.pipeline.datasource.live_reader import TopicChoice

    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 1))
    made = source(live, topic=topic, startTimeoutMs=1, brokerTimeoutMs=700, group="outage")
    reader = made.streamReader(made.schema())._reader
    assert reader.queues(TopicChoice((topic,)))

    async def rejects() -> None:
        raise RequestRejectedError(17, "no route")

    with pytest.raises(NetworkError, match="waited 700 ms"):
        reader._found(topic, rejects)
    with pytest.raises(NetworkError, match="waited 1 ms"):
        reader._found("another", rejects)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a", "topic": "b"}, "option topic twice"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "expected one of them"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "expected one of them"),
        ({"startingOffsetsByTimestamp": "x"}, "expected JSON like"),
        ({"columns": "flink"}, "expected rocketmq, message, or kafka"),
        ({"minPartitions": "some"}, "whole number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    given = options if "subscribe" in options else {"topic": "t", **options}
    with pytest.raises(ConfigError, match=message):
        made = source("127.0.0.1:1", **given)
        made.reader(made.schema())


def test_a_delay_has_a_unit() -> None:
    made = source("127.0.0.1:1", topic="t", maxTriggerDelay="soon")
    with pytest.raises(ConfigError, match="expected a time like 30s"):
        made.streamReader(made.schema())


def test_rows_are_written_with_the_names_of_kafka(live: LiveCluster) -> None:
    import pyarrow
    from pyspark.sql.types import StructType

    from rmqpy.pipeline.datasource.schema import KAFKA_TYPES

    topic = live.topic(queues=1)
    schema = StructType()
    for name in ("key", "value", "headers"):
        schema = schema.add(name, KAFKA_TYPES[name])
    writer = source(live, topic=topic).writer(schema, False)
    row = {"key": b"k", "value": b"v", "headers": [{"key": "from", "value": "grün".encode()}]}
    writer.write(iter([pyarrow.RecordBatch.from_pylist([row])]))
    (found,) = rows(live, topic=topic)
    assert (found["keys"], found["body"]) == ("k", b"v")
    assert dict(found["properties"])["from"] == "grün"
    with pytest.raises(ConfigError, match="not UTF-8"):
        bad = {**row, "headers": [{"key": "from", "value": b"\xff"}]}
        writer.write(iter([pyarrow.RecordBatch.from_pylist([bad])]))
    for names, message in ((("value", "body"), "value, expected one"), (("key",), "column body")):
        schema = StructType()
        for name in names:
            schema = schema.add(name, "binary")
        with pytest.raises(ConfigError, match=message):
            source(live, topic=topic).writer(schema, False)
