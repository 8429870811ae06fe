"""``format("rocketmq")`` for Spark: store directories and live brokers as tables.

==================================  ==============================================================
``spark.read`` with a path          the messages in store directories (this module)
``spark.read`` with nameServer      the messages that live brokers have (:mod:`.stream`)
``spark.readStream``                the messages that live brokers receive (:mod:`.stream`)
``df.write``, ``df.writeStream``    sends rows as messages (:mod:`.writer`)
==================================  ==============================================================

A task reads the frames that start in its range of a log file. It finds its first frame by walking
over the headers of the frames in the 8 MiB before it. A task itself costs as much as the rows of
some 4 MiB, so ranges of less than 32 MiB share one, as those of small files do. Only the columns of
the schema are built, so a user's schema prunes columns.

Messages are selected by options (topic, queueId, startingTimestamp, endingTimestamp), which hold
for every use of a DataFrame. Queue offsets, times, a key, or an id are looked up (:mod:`.lookup`).
Spark's own filters are not pushed down: Spark 4.2 and 4.3 keep pushed filters for *every* later use
of a DataFrame, so one that is used again with other filters, or with none, would lack rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqpy import __version__
from rmqpy.audit.checks.messages import MessageSelection, MessageWalk
from rmqpy.audit.facts.reader import read_confirmed_end
from rmqpy.audit.remote.files import RemoteFileSystem
from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.ranges import WorkRange, split_log
from rmqpy.audit.scan.store_root import check_store_root
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.local_paths import is_elsewhere, local_path, without_slash
from rmqpy.pipeline.arrow.columns import TIME_MS_MAX
from rmqpy.pipeline.arrow.message_filter import MessageFilter, log_batches
from rmqpy.pipeline.arrow.rows import COLUMNS, MessageColumns
from rmqpy.pipeline.datasource.lookup import (
    LOOKUP_OPTIONS,
    Lookup,
    LookupPart,
    record_batches,
)
from rmqpy.pipeline.datasource.options import Options
from rmqpy.pipeline.datasource.schema import (
    checked_columns,
    default_schema,
    project_columns,
    properties_type,
    table_options,
)
from rmqpy.pipeline.spark.distributed_map import prepare_worker
from rmqpy.pipeline.spark.work_units import view_before
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.unread.data import find_unread

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "RocketMqSource", "check_selection", "register"]

logger: Final = logging.getLogger(__name__)

FORMAT: Final = "rocketmq"
SPLIT_BYTES: Final = 256 << 20
TASK_BYTES: Final = 32 << 20
"""The least that a task reads of a large log, unless ``minPartitions`` asks for more tasks."""
WHOLE_FILE_BYTES: Final = 1 << 62
SHARE_BYTES_MIN: Final = 1 << 10
"""What a task reads at least: smaller ranges would contain no start of a message."""

STORE_OPTIONS: Final = frozenset(
    [
        "path",
        "paths",
        "brokerName",
        "includeInternalTopics",
        "splitBytes",
        "minPartitions",
        "failOnDataLoss",
        "topic",
        "queueId",
        "startingTimestamp",
        "endingTimestamp",
        "propertiesFormat",
        "columns",
        "storageOptions",
        *LOOKUP_OPTIONS,
    ]
)


SELECTION_OPTIONS: Final = STORE_OPTIONS - {"path", "paths", "columns", "storageOptions"}
"""The options that say which messages of a store are read, and how."""


def check_selection(options: Mapping[str, str]) -> None:
    """Raise ConfigError unless all are options of SELECTION_OPTIONS that agree."""
    given = Options(options, SELECTION_OPTIONS)
    given.count("splitBytes", SPLIT_BYTES)
    given.count("minPartitions", 0, least=0)
    given.flag("failOnDataLoss", True)
    filter_of(given)
    Lookup.of(given)


def register(session: SparkSession) -> None:
    """Register ``format("rocketmq")`` with the session."""
    session.dataSource.register(RocketMqSource)


class RocketMqSource(DataSource):
    """The data source that Spark looks up by name."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return default_schema(self.options, COLUMNS if _is_store(self.options) else LIVE_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = table_options(self.options, schema)
        properties_type(options)
        if not _is_store(options):
            from rmqpy.pipeline.datasource.stream import LiveReader

            return LiveReader(options, schema)
        return StoreReader(options, schema)

    def streamReader(self, schema: StructType) -> Any:
        options = table_options(self.options, schema)
        properties_type(options)
        if _is_store(options):
            raise ConfigError(
                "a store directory cannot be streamed: give nameServer, or use spark.read"
            )
        from rmqpy.pipeline.datasource.stream import LiveStreamReader

        return LiveStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from rmqpy.pipeline.datasource.writer import MessageWriter

        return MessageWriter(table_options(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from rmqpy.pipeline.datasource.writer import MessageStreamWriter

        return MessageStreamWriter(table_options(self.options, schema), schema, overwrite)


LIVE_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("term", "entryIndex"))


def _is_store(options: Mapping[str, str]) -> bool:
    return "path" in options or "paths" in options


class StorePart(InputPartition):
    """Ranges of log files in the store at ``root``, or below that URI, to read in this order."""

    def __init__(self, works: tuple[WorkRange, ...], root: str) -> None:
        super().__init__(None)
        self.works = works
        self.root = root


class StoreReader(DataSourceReader):
    """Reads store directories.

    The store of a running broker is read up to the last message in a consume queue. Data of
    RocketMQ 5.x that are in no log are named on the standard error of the driver.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = Options(options, STORE_OPTIONS)
        self._version = __version__
        self._schema = schema
        self._columns = checked_columns(schema)
        self._stores = _stores(given)
        self._broker_name = given.text("brokerName", None)
        self._split_bytes = given.count("splitBytes", SPLIT_BYTES)
        self._parts_min = given.count("minPartitions", 0, least=0)
        self._fails = given.flag("failOnDataLoss", True)
        self._filter = filter_of(given)
        self._lookup = Lookup.of(given)

    def partitions(self) -> list[InputPartition]:
        for root, files in self._stores:
            for unread in find_unread(files, read_directory(files, root).paths):
                logger.warning(
                    "%s: %s: not read; the rows are what the log has", unread.path, unread.found
                )
        if self._lookup is not None:
            return [
                part for root, files in self._stores for part in self._lookup.parts(files, root)
            ]
        stores = [(root, [*self._log_files(files, root)]) for root, files in self._stores]
        share = max(self._split_bytes, TASK_BYTES)
        if self._parts_min:
            total = sum(_end(work) - work.start for _root, works in stores for work in works)
            share = min(share, max(total // self._parts_min, SHARE_BYTES_MIN))
        return [
            StorePart(works, root)
            for root, files in stores
            for works in packed((piece for work in files for piece in _cut(work, share)), share)
        ]

    def _log_files(self, files: FileSystem, root: str) -> Iterator[WorkRange]:
        directory = read_directory(files, root)
        limit = read_confirmed_end(files, directory)
        for log in directory.logs:
            for file in log.files:
                if file.size != log.file_size and self._fails:
                    name = directory.relative(file.path)
                    raise self._loss(root, name, file.first_offset, file.size)
            yield from split_log(log, directory.root, WHOLE_FILE_BYTES, limit)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        prepare_worker(self._version)
        if isinstance(partition, StorePart):
            found: Iterator[Any] = (
                batch for work in partition.works for batch in self._batches(partition, work)
            )
            yield from project_columns(found, self._schema)
        elif isinstance(partition, LookupPart):
            make = MessageColumns(self._columns, self._broker_name)
            files = dict(self._stores)[partition.root]
            found = record_batches(files, partition.places, make, self._filter)
            yield from project_columns(found, self._schema)

    def _batches(self, part: StorePart, work: WorkRange) -> Iterator[pyarrow.RecordBatch]:
        file, before = view_before(work, dict(self._stores)[part.root])
        walk = MessageWalk(file, MessageSelection())
        begin = walk.skip(work.start - work.first_offset, before)
        file = walk.file
        stop = min(work.stop - work.first_offset, len(file.view))
        if walk.closed or begin >= stop:
            return

        def on_damage(at: int, size: int) -> None:
            if self._fails:
                raise self._loss(part.root, work.file, at, size)

        walk = MessageWalk(file, MessageSelection(), on_damage)
        make = MessageColumns(self._columns, self._broker_name)
        yield from log_batches(walk, (begin, stop), make, self._filter)

    @staticmethod
    def _loss(root: str, file: str, at: int, size: int) -> StoreError:
        return StoreError(
            f"{root}/{file}",
            f"{size} bytes at offset {at} that are not a message",
            "messages up to the end",
            "run rmqpy pipeline audit for details, or set failOnDataLoss=false to skip them",
        )


def _cut(work: WorkRange, size: int) -> Iterator[WorkRange]:
    """Yield the parts of ``size`` bytes of a range, up to its limit."""
    for start in range(work.start, _end(work), size):
        yield evolve(work, start=start, stop=min(start + size, work.stop))


def _end(work: WorkRange) -> int:
    """Return the offset at which the bytes of a range end that may be read."""
    return work.stop if work.limit is None else min(work.stop, work.limit)


def packed(ranges: Iterable[WorkRange], size: int) -> Iterator[tuple[WorkRange, ...]]:
    """Yield consecutive ranges together as long as they have at most ``size`` bytes."""
    group: list[WorkRange] = []
    filled = 0
    for work in ranges:
        if group and filled + work.stop - work.start > size:
            yield tuple(group)
            group, filled = [], 0
        group.append(work)
        filled += work.stop - work.start
    if group:
        yield tuple(group)


def filter_of(given: Options) -> MessageFilter:
    """Return the filter that the options describe."""
    selection = MessageFilter(internal_topics=given.flag("includeInternalTopics", False))
    topics = given.text("topic", None)
    if topics is not None:
        names = (name.strip() for name in topics.split(","))
        selection = evolve(selection, topics=frozenset(filter(None, names)))
    bounds = {}
    if given.text("queueId", None) is not None:
        number = given.count("queueId", 0, least=0)
        bounds["queueId"] = number, number
    since = given.count("startingTimestamp", 0, least=0)
    until = given.count("endingTimestamp", TIME_MS_MAX, least=0)
    if since or until < TIME_MS_MAX:
        bounds["storeTimestamp"] = since, until - 1
    return evolve(selection, bounds=bounds)


def _stores(given: Options) -> list[tuple[str, FileSystem]]:
    """Return the path or URI of each store, and the file system in which it is."""
    paths: list[str] = json.loads(given.text("paths", "[]") or "[]")
    path = given.text("path", None)
    if path is not None:
        paths.append(path)
    storage = _storage_options(given)
    stores: list[tuple[str, FileSystem]] = []
    for text in paths:
        if is_elsewhere(text):
            root = without_slash(text)
            stores.append((root, RemoteFileSystem(ObjectStore(root, storage))))
        else:
            stores.append((local_path(text), OsFileSystem()))
        check_store_root(stores[-1][1], stores[-1][0])
    return stores


def _storage_options(given: Options) -> dict[str, Any]:
    """Return the options of the driver of an object store. Raise ConfigError unless they are JSON.

    The text may be secret, so no message contains it.
    """
    try:
        found = json.loads(given.text("storageOptions", "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError("found no JSON object as the option storageOptions, expected one")
    return found
