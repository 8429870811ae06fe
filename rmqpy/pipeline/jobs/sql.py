"""SQL over an export, a store, or the tables of an audit.

For a store, only the columns that the statement uses are built: Spark itself resolves the statement
against an empty table of all columns, and its optimized plan names them. Filters are not pushed
down (:mod:`rmqpy.pipeline.datasource.source` says why).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, field

from rmqpy.audit.remote.files import RemoteFileSystem
from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.audit.scan.store_root import check_store_root, is_store_root
from rmqpy.model.errors import ConfigError, RmqError, StoreError
from rmqpy.pipeline.arrow.rows import COLUMNS
from rmqpy.pipeline.jobs.export import read_export_manifest
from rmqpy.pipeline.jobs.report_tables import audit_frames, is_audit_folder
from rmqpy.pipeline.spark.session import check_package
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "QueriedFolder",
    "json_lines",
    "query",
    "read_with",
    "store_elsewhere",
    "table_text",
    "tables_in",
]

MESSAGES: Final = "messages"
"""The name of the table of an export and of a store."""
COMMAND: Final = "org.apache.spark.sql.catalyst.plans.logical.Command"
"""The class of statements that Spark executes at once."""


class FolderKind(Enum):
    """What a folder to query contains."""

    AUDIT = auto()
    EXPORT = auto()
    STORE = auto()


@define(slots=True, frozen=True)
class QueriedFolder:
    """A folder that has tables, or a store below the URI ``path`` with options of its driver."""

    path: str
    kind: FolderKind
    storage: Mapping[str, Any] = field(factory=dict, repr=False)
    reading: Mapping[str, str] = field(factory=dict)
    """Options of the format for a store: which messages are read, and how."""


def tables_in(path: str) -> QueriedFolder:
    """Return what the folder ``path`` contains, without Spark.

    Raise RmqError if it has no tables, and for an export without messages.
    """
    if is_audit_folder(path):
        return QueriedFolder(path, FolderKind.AUDIT)
    # An export of a DLedger log has files with the name of its folder.
    files = OsFileSystem()
    if is_store_root(files, path):
        return QueriedFolder(path, FolderKind.STORE)
    if not Path(path).is_dir():
        check_store_root(files, path)
    if not read_export_manifest(path)["rows"]:
        raise RmqError(f"{path}: the export has no messages to query")
    return QueriedFolder(path, FolderKind.EXPORT)


def store_elsewhere(uri: str, storage: Mapping[str, Any]) -> QueriedFolder:
    """Return the store below a URI of an object store. Raise StoreError for anything else."""
    files = RemoteFileSystem(ObjectStore(uri, storage))
    if not is_store_root(files, uri):
        raise StoreError(
            uri,
            "no store",
            "one (an export or the tables of an audit must be in a folder of this machine)",
            "copy it here, or query it with an engine that reads object stores itself (DuckDB, or"
            " Spark with the package hadoop-aws)",
        )
    return QueriedFolder(uri, FolderKind.STORE, storage)


def read_with(folder: QueriedFolder, options: Sequence[tuple[str, str]]) -> QueriedFolder:
    """Return a store that is read with options of the format. Raise ConfigError for wrong ones."""
    if not options:
        return folder
    if folder.kind is not FolderKind.STORE:
        raise ConfigError(
            f"{folder.path}: found no store, expected one with --option; write a condition of SQL"
        )
    check_package("pyspark")
    from rmqpy.pipeline.datasource.source import check_selection

    reading: dict[str, str] = {}
    for name, value in options:
        if name in reading:
            raise ConfigError(f"found --option {name} twice, expected it once; omit one")
        reading[name] = value
    check_selection(reading)
    return evolve(folder, reading=reading)


def query(session: SparkSession, folder: QueriedFolder, statement: str) -> DataFrame:
    """Return the result of ``statement``.

    Raise RmqError with Spark's message if the statement is invalid.
    """
    from pyspark.errors import PySparkException

    try:
        match folder.kind:
            case FolderKind.STORE:
                return _query_store(session, folder, statement)
            case FolderKind.EXPORT:
                frames = {MESSAGES: session.read.parquet(folder.path)}
            case FolderKind.AUDIT:
                frames = audit_frames(session, folder.path)
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        return session.sql(statement)
    except PySparkException as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise RmqError(f"Spark refuses the query: {reason}") from None


def _query_store(session: SparkSession, folder: QueriedFolder, statement: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    from rmqpy.pipeline.datasource.source import FORMAT, register

    register(session)

    def run(columns: tuple[str, ...]) -> DataFrame:
        reader = session.read.format(FORMAT).schema(_schema(columns))
        reader = reader.option("includeInternalTopics", "true").options(**folder.reading)
        if folder.storage:
            reader = reader.option("storageOptions", json.dumps(folder.storage))
        frame = reader.load(folder.path)
        frame.createOrReplaceTempView(MESSAGES)
        return session.sql(statement)

    columns = used_columns(session, statement)
    try:
        return run(columns)
    except AnalysisException:
        if columns == COLUMNS:
            raise
        return run(COLUMNS)  # The statement names a column that it does not use: * EXCEPT (body)


def _schema(columns: tuple[str, ...]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    from rmqpy.pipeline.datasource.schema import TYPES

    return StructType([StructField(name, TYPES[name]) for name in columns])


def used_columns(session: SparkSession, statement: str) -> tuple[str, ...]:
    """Return the columns of the table that the statement uses, at least one.

    These are all of them for a command, and with Spark Connect, which does not show its plans.
    """
    from py4j.java_gateway import is_instance_of

    if getattr(session, "_jvm", None) is None:
        return COLUMNS
    state = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(statement)
    if is_instance_of(session._sc._gateway, parsed, COMMAND):
        return COLUMNS
    with TemporaryDirectory(prefix="rmqpy-sql-") as empty:
        session.read.schema(_schema(COLUMNS)).parquet(empty).createOrReplaceTempView(MESSAGES)
        execution = session.sql(statement)._jdf.queryExecution()
        # The first plan has every name that must be resolved, the second all that is computed.
        names = {*_names(execution.analyzed()), *_names(execution.optimizedPlan())}
    return tuple(name for name in COLUMNS if name in names) or COLUMNS[:1]


def _names(plan: Any) -> Iterator[str]:
    """Yield the names of the attributes that a plan returns or refers to."""
    yield from _attributes(plan.outputSet())
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield from _attributes(node.references())
        for branches in (node.children(), node.subqueries()):
            waiting += [branches.apply(number) for number in range(branches.size())]


def _attributes(found: Any) -> Iterator[str]:
    attributes = found.toSeq()
    for number in range(attributes.size()):
        yield attributes.apply(number).name()


def table_text(result: DataFrame, limit: int) -> str:
    """Return the table as ``DataFrame.show`` prints it, without truncating values."""
    from contextlib import redirect_stdout
    from io import StringIO

    text = StringIO()
    with redirect_stdout(text):
        result.show(limit, truncate=False)
    return text.getvalue().removesuffix("\n")


def json_lines(result: DataFrame, limit: int) -> Iterator[str]:
    """Return an iterator over the rows as JSON objects."""
    from pyspark.sql.functions import struct, to_json

    rows = result.limit(limit).select(to_json(struct("*")).alias("line")).collect()
    return (row["line"] for row in rows)
