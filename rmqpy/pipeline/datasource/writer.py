"""Send rows as messages: ``df.write.format("rocketmq")`` and ``df.writeStream``.

====================  ===============  ========================================================
column                type             meaning
====================  ===============  ========================================================
body, value           binary, string   required: one of them
topic                 string           required, unless the option ``topic`` names one for all
tags                  string
keys                  string           several are separated by blanks
key                   binary, string   the same with Kafka's name
properties            map of strings
headers               array            (key, value) pairs, as Kafka's; added to ``properties``
flag                  int
delayLevel            int
shardingKey           string           messages of one key go to one queue, in the order of rows
====================  ===============  ========================================================

Delivery is at least once: a task that is repeated sends its rows again, and so does a batch of a
stream that was not committed. Rows of a stream carry SPARK_QUERY, SPARK_BATCH, SPARK_PARTITION, and
SPARK_ROW as properties, so that a consumer can detect a repetition if the rows of the query have a
fixed order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from rmqpy import __version__
from rmqpy.client.core.instance import ClientInstance
from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer, ProducerSettings
from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.datasource.cluster_access import ACCESS_OPTIONS, ClusterAccess
from rmqpy.pipeline.datasource.options import Options
from rmqpy.pipeline.datasource.schema import HEADERS
from rmqpy.pipeline.spark.distributed_map import prepare_worker

if TYPE_CHECKING:
    import pyarrow

__all__ = ["MessageStreamWriter", "MessageWriter"]

OPTIONS: Final = ACCESS_OPTIONS.union(
    [
        *("topic", "group", "retries", "sendTimeoutMs"),
        *("columns", "checkpointLocation", "queryName"),
    ]
)
"""The options of a sink. ``columns`` is for reading the same table; the last two are Spark's own,
which Spark also passes to the sink.
"""
GROUP: Final = "rmqpy-spark-writer"
SENDS_IN_FLIGHT: Final = 64
"""The maximum number of messages without an answer at a time."""
RETRIES: Final = 16
SEND_TIMEOUT_MS: Final = 30_000

TYPES: Final[Mapping[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "tags": (StringType(),),
    "keys": (StringType(),),
    "key": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "properties": (MapType(StringType(), StringType()),),
    "flag": (IntegerType(),),
    "delayLevel": (IntegerType(),),
    "shardingKey": (StringType(),),
}


@define(slots=True, frozen=True, kw_only=True)
class SendPlan:
    """The settings for sending rows; ``topic`` is for rows without a topic."""

    cluster: ClusterAccess
    group: str
    topic: str | None
    settings: ProducerSettings
    version: str

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> SendPlan:
        """Return the plan that the options describe.

        Raise ConfigError if rows of ``schema`` cannot be sent as messages.
        """
        if overwrite:
            raise ConfigError("topics are not overwritten: write with mode append")
        given = Options(options, OPTIONS)
        _check(schema, has_topic="topic" in {name.lower() for name in options})
        return cls(
            cluster=ClusterAccess.of(given),
            group=given.text("group", GROUP),
            topic=given.text("topic", None),
            settings=ProducerSettings(
                retries=given.count("retries", RETRIES, least=0),
                timeout_ms=given.count("sendTimeoutMs", SEND_TIMEOUT_MS),
                avoid_faults=True,
            ),
            version=__version__,
        )


def _check(schema: StructType, has_topic: bool) -> None:
    for column in schema.fields:
        kinds = TYPES.get(column.name)
        if kinds is None:
            raise ConfigError(
                f"messages to send have no column {column.name!r}, only {', '.join(TYPES)}"
            )
        if not any(_same(column.dataType, kind) for kind in kinds):
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise ConfigError(
                f"the column {column.name} is {column.dataType.simpleString()}, not {names}"
            )
    for own, other in (("body", "value"), ("keys", "key")):
        if own in schema.names and other in schema.names:
            raise ConfigError(f"found the columns {own} and {other}, expected one of them")
    if "body" not in schema.names and "value" not in schema.names:
        raise ConfigError("a message to send needs the column body, or value")
    if "topic" not in schema.names and not has_topic:
        raise ConfigError("give the column topic, or the option topic")


def _same(one: DataType, other: DataType) -> bool:
    return bool(one.simpleString() == other.simpleString())


class WriteResult(WriterCommitMessage):
    """The number of messages that a task has sent."""

    def __init__(self, count: int) -> None:
        self.count = count


class MessageWriter(DataSourceArrowWriter):
    """Sends a batch; there is nothing to commit, because sent messages are stored."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._plan = SendPlan.of(options, schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self._plan, iterator, {})

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends each batch of a stream; the messages are marked with query, batch, and partition."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._plan = SendPlan.of(options, schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        marks: dict[str, str] = {}
        if context is not None:
            marks = {
                "SPARK_QUERY": context.getLocalProperty("sql.streaming.queryId") or "",
                "SPARK_BATCH": context.getLocalProperty("streaming.sql.batchId") or "",
                "SPARK_PARTITION": str(context.partitionId()),
            }
        return _write(self._plan, iterator, {name: text for name, text in marks.items() if text})

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass


def _write(
    plan: SendPlan, batches: Iterator[pyarrow.RecordBatch], marks: Mapping[str, str]
) -> WriterCommitMessage:
    prepare_worker(plan.version)
    rows = (row for batch in batches for row in batch.to_pylist())
    return WriteResult(asyncio.run(_send(plan, rows, marks)))


async def _send(plan: SendPlan, rows: Iterator[dict[str, Any]], marks: Mapping[str, str]) -> int:
    instance = await ClientInstance.open(plan.cluster.settings())
    try:
        async with Producer(plan.group, settings=plan.settings, instance=instance) as producer:
            return await _send_all(producer, plan, rows, marks)
    finally:
        await instance.close()


async def _send_all(
    producer: Producer, plan: SendPlan, rows: Iterator[dict[str, Any]], marks: Mapping[str, str]
) -> int:
    """Send rows: those of one sharding key in sequence, others ``SENDS_IN_FLIGHT`` at a time."""
    count = 0
    in_flight: set[asyncio.Task[Any]] = set()
    last_of: dict[str, asyncio.Task[Any]] = {}
    for count, row in enumerate(rows, 1):
        own = {**marks, "SPARK_ROW": str(count - 1)} if marks else {}
        message, key = _message(plan, row, own), row.get("shardingKey")
        before = last_of.get(key) if key else None
        task = asyncio.create_task(_send_one(producer, message, key, before))
        if key:
            last_of[key] = task
        in_flight.add(task)
        if len(in_flight) >= SENDS_IN_FLIGHT:
            _, in_flight = await _wait_for_some(in_flight)
            last_of = {key: task for key, task in last_of.items() if not task.done()}
    while in_flight:
        _, in_flight = await _wait_for_some(in_flight)
    return count


async def _wait_for_some(
    tasks: set[asyncio.Task[Any]],
) -> tuple[set[asyncio.Task[Any]], set[asyncio.Task[Any]]]:
    """Return (done, pending) once a task is done. If tasks failed, raise the first error and cancel
    the pending tasks.
    """
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    faults = [task.exception() for task in done]
    for fault in faults:
        if fault is not None:
            for task in pending:
                task.cancel()
            raise fault
    return done, pending


async def _send_one(
    producer: Producer, message: Message, key: str | None, before: asyncio.Task[Any] | None
) -> None:
    if key is None or not key:
        await producer.send(message)
        return
    if before is not None:
        await before
    await producer.send_ordered(message, key)


def _message(plan: SendPlan, row: Mapping[str, Any], marks: Mapping[str, str]) -> Message:
    topic = row.get("topic") or plan.topic
    if topic is None:
        raise ConfigError("a row has no topic, and the option topic is not given")
    body = row["body"] if "body" in row else row["value"]
    if body is None:
        raise ConfigError("a row has no body: a message must have one")
    keys = row.get("keys") or row.get("key") or ""
    pairs = [(pair["key"], _text("header", pair["value"])) for pair in row.get("headers") or ()]
    return Message(
        topic=topic,
        body=body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=_text("key", keys),
        properties={**dict(row.get("properties") or {}), **dict(pairs), **marks},
        flag=row.get("flag") or 0,
        delay_level=row.get("delayLevel") or 0,
    )


def _text(what: str, value: bytes | str) -> str:
    """Return a key or the value of a header as text. Raise ConfigError if it is not UTF-8."""
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"found a {what} that is not UTF-8: {value!r:.80}, expected text: RocketMQ stores keys"
            " and properties as text; encode it, for example as base64"
        ) from None
