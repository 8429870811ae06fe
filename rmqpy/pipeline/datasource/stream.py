"""``format("rocketmq")`` over live brokers, as a batch and as a stream.

A batch of a stream is a range of offsets of every queue, which Spark writes to its log before it
reads any message; reading the batch again returns the same messages. So a sink that handles each
batch once handles each message once. Failures and their handling:

==================================  ==============================================================
no answer, no leader, a temporary   repeated until ``brokerTimeoutMs`` has passed, with a new
refusal                             route
no route when a query starts        repeated until ``startTimeoutMs`` has passed: the topic or the
                                    name server is probably wrong
a broker that lags                  the same: another member of the group has the messages
offsets below the queue's first     lost: the query fails, or (failOnDataLoss=false) continues at
                                    the first
a queue's end before the start      no new messages; after brokerTimeoutMs the query fails, or
                                    (failOnDataLoss=false) starts at the queue's first message
a new queue                         read from its first message; also for a new topic of the
                                    pattern
a queue that is in no route         its offset stays
==================================  ==============================================================
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import define
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmqpy import __version__
from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.arrow.rows import MessageColumns
from rmqpy.pipeline.datasource.cluster_access import ACCESS_OPTIONS, ClusterAccess
from rmqpy.pipeline.datasource.live_reader import (
    BrokerAccess,
    LiveQueueReader,
    QueueRange,
    TopicChoice,
    reader_for,
)
from rmqpy.pipeline.datasource.options import Options
from rmqpy.pipeline.datasource.queue_parts import PartSizes, queue_parts
from rmqpy.pipeline.datasource.schema import checked_columns, project_columns
from rmqpy.pipeline.datasource.stream_offsets import (
    EARLIEST,
    LATEST,
    Boundary,
    Position,
    limited,
    position_of,
    read_boundary,
    read_times,
    tree_of,
)
from rmqpy.pipeline.spark.distributed_map import prepare_worker

if TYPE_CHECKING:
    import pyarrow

__all__ = ["LiveReader", "LiveStreamReader"]

GROUP: Final = "rmqpy-spark"
BROKER_TIMEOUT_MS: Final = 60_000
START_TIMEOUT_MS: Final = 3_000
TRIGGER_DELAY: Final = "15m"
PULL_COUNT: Final = 32
PULL_COUNT_MAX: Final = 1024

SHARED_OPTIONS: Final = ACCESS_OPTIONS.union(
    [
        "topic",
        "topicPattern",
        "propertiesFormat",
        "columns",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "failOnDataLoss",
        "subExpression",
        "group",
        "pullBatchSize",
        "brokerTimeoutMs",
        "startTimeoutMs",
        "maxRecordsPerPartition",
        "minPartitions",
    ]
)
BATCH_OPTIONS: Final = SHARED_OPTIONS.union(
    ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"]
)
STREAM_OPTIONS: Final = SHARED_OPTIONS.union(
    ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup"]
)


@define(slots=True, frozen=True, kw_only=True)
class LiveSettings:
    """The settings that batch and stream share."""

    access: BrokerAccess
    topics: TopicChoice
    start: Boundary
    sizes: PartSizes

    @classmethod
    def of(cls, given: Options, start: str) -> LiveSettings:
        return cls(
            access=BrokerAccess(
                cluster=ClusterAccess.of(given),
                group=given.text("group", GROUP),
                expression=given.text("subExpression", "*"),
                pull_count=min(given.count("pullBatchSize", PULL_COUNT), PULL_COUNT_MAX),
                patience_ms=given.count("brokerTimeoutMs", BROKER_TIMEOUT_MS),
                start_ms=given.count("startTimeoutMs", START_TIMEOUT_MS),
                fails=given.flag("failOnDataLoss", True),
            ),
            topics=_topics(given),
            start=_boundary(given, "starting", start, EARLIEST),
            sizes=PartSizes(
                count_max=given.count("maxRecordsPerPartition", 0, least=0) or None,
                parts_min=given.count("minPartitions", 0, least=0) or None,
            ),
        )


def _topics(given: Options) -> TopicChoice:
    pattern = given.text("topicPattern", None)
    if pattern is None:
        names = (name.strip() for name in given.required("topic").split(","))
        return TopicChoice(tuple(filter(None, names)))
    if given.text("topic", None) is not None:
        raise ConfigError("give either topic or topicPattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"the option topicPattern is {pattern!r}: {error}") from None
    return TopicChoice(pattern=pattern)


def _boundary(given: Options, edge: str, default: str, other: int) -> Boundary:
    """Return the start or the end (``edge`` is "starting" or "ending") that the options describe.

    Queues that they do not list use ``other``.
    """
    names = [f"{edge}{what}" for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")]
    found = [name for name in names if given.text(name, None) is not None]
    if len(found) > 1:
        raise ConfigError(f"found the options {' and '.join(found)}, expected one of them")
    offsets, time_name, times = names
    if time_name in found:
        return Boundary(time_ms=given.count(time_name, 0, least=0))
    if times in found:
        return read_times(times, given.required(times), other)
    return read_boundary(offsets, given.text(offsets, default), other)


class QueuePart(InputPartition):
    """Ranges of queues that one task reads."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class _LiveBase:
    """The common base of batch and stream readers."""

    def __init__(self, settings: LiveSettings, schema: StructType) -> None:
        self._version = __version__
        self._settings = settings
        self._schema = schema
        self._columns = checked_columns(schema)

    @property
    def _reader(self) -> LiveQueueReader:
        """The reader of this process: the driver's or a worker's."""
        return reader_for(self._settings.access)

    def _parts(self, begin: Position, end: Position) -> list[InputPartition]:
        return [QueuePart(part) for part in queue_parts(begin, end, self._settings.sizes)]

    def _read(self, partition: InputPartition) -> Iterator[Any]:
        prepare_worker(self._version)
        if isinstance(partition, QueuePart):
            for part in partition.ranges:
                yield from project_columns(self._batches(part), self._schema)

    def _batches(self, part: QueueRange) -> Iterator[pyarrow.RecordBatch]:
        make = MessageColumns(self._columns, part.queue.broker_name)
        for rows in self._reader.rows(part):
            yield make.batch(rows)


class LiveReader(_LiveBase, DataSourceReader):
    """Reads the messages of the queues from startingOffsets to before endingOffsets."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = Options(options, BATCH_OPTIONS)
        super().__init__(LiveSettings.of(given, "earliest"), schema)
        self._end = _boundary(given, "ending", "latest", LATEST)

    def partitions(self) -> list[InputPartition]:
        reader = self._reader
        queues = reader.queues(self._settings.topics)
        begin = reader.resolve(queues, self._settings.start)
        end = reader.resolve(queues, self._end)
        return self._parts(begin, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)


IDLE_SECONDS: Final = 0.1
"""The pause before the next request if there are no new messages. Spark alone would send a hundred
requests a second.
"""


class LiveStreamReader(_LiveBase, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream; positions are JSON objects
    (:mod:`rmqpy.pipeline.datasource.stream_offsets`).
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = Options(options, STREAM_OPTIONS)
        super().__init__(LiveSettings.of(given, "latest"), schema)
        self._count_max = given.count("maxOffsetsPerTrigger", 0, least=0) or None
        self._count_min = given.count("minOffsetsPerTrigger", 0, least=0)
        self._delay_seconds = given.milliseconds("maxTriggerDelay", TRIGGER_DELAY) / 1000
        self._triggered = time.monotonic()
        self._commit_group = given.text("commitGroup", None)
        self._target: Position | None = None
        self._latest: Position | None = None
        self._idle_until = 0.0

    def initialOffset(self) -> dict[str, Any]:
        queues = self._reader.queues(self._settings.topics)
        return tree_of(self._reader.resolve(queues, self._settings.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._count_max) if self._count_max else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        before = position_of(start)
        known, topics = self._target, self._settings.topics
        self._latest = self._reader.ends(before, topics, every=known is not None)
        end = dict(self._latest)
        if known is not None:
            end = {
                queue: min(at, max(known[queue], before.get(queue, 0)))
                for queue, at in end.items()
                if queue in known
            }
        end = {**before, **end}
        if known is None and self._is_too_little(before, end):
            end = before
        elif isinstance(limit, ReadMaxRows):
            begin = self._begins(before, end)
            end = limited(begin, end, limit.max_rows)
            end = {queue: at for queue, at in end.items() if queue in before or at > begin[queue]}
        now = time.monotonic()
        self._idle_until = now + IDLE_SECONDS if end == before else 0.0
        if end != before:
            self._triggered = now
        return tree_of(end)

    def _is_too_little(self, before: Position, end: Position) -> bool:
        """Return whether to wait for minOffsetsPerTrigger messages, at most maxTriggerDelay."""
        if not self._count_min or time.monotonic() - self._triggered >= self._delay_seconds:
            return False
        begin = self._begins(before, end)
        return sum(end[queue] - begin[queue] for queue in end) < self._count_min

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._reader.ends({}, self._settings.topics, every=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else tree_of(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = position_of(start), position_of(end)
        return self._parts(self._begins(before, after), after)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._commit_group is not None:
            self._reader.commit_position(self._commit_group, position_of(end))

    def stop(self) -> None:
        """Do nothing: the connection belongs to the process and ends with it."""

    def _begins(self, before: Position, end: Position) -> Position:
        """Return the offset at which each queue starts.

        A queue that did not exist before, or was recreated, starts with its first message.
        """
        new = [queue for queue, at in end.items() if at < before.get(queue, at + 1)]
        first = self._reader.resolve(new, Boundary(other=EARLIEST)) if new else {}
        return {queue: first.get(queue, before.get(queue, 0)) for queue in end}
