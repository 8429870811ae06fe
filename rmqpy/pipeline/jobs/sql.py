"""SQL over an export or a store: the table ``messages``.

For a store, only the columns whose names appear in the statement are built; a statement can refer
to a column by its name, or by words that mean all columns. Filters are pushed down if the table is
used once (:mod:`rmqpy.pipeline.datasource.source`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqpy.model.errors import RmqError
from rmqpy.pipeline.arrow.rows import COLUMNS
from rmqpy.pipeline.jobs.export import read_export_manifest
from rmqpy.pipeline.jobs.report_tables import audit_frames, is_audit_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["json_lines", "query", "table_text"]


ALL_COLUMNS: Final = re.compile(r"\*|\|>|\b(natural|table)\b", re.IGNORECASE)
"""Words that can refer to columns without their names. A multiplication matches as well, which only
costs time.
"""
COUNT_ALL: Final = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
SELECTS: Final = re.compile(r"\bselect\b", re.IGNORECASE)
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
WORDS: Final = re.compile(r"\w+")


def query(session: SparkSession, folder: str, statement: str) -> DataFrame:
    """Return the result of ``statement`` on an export, a store, or the tables of an audit.

    Raise RmqError with Spark's message if the statement is invalid.
    """
    from pyspark.errors import PySparkException

    if is_audit_folder(folder):
        frames = audit_frames(session, folder)
    elif is_export(folder):
        frames = {"messages": session.read.parquet(folder)}
    else:
        frames = {"messages": _store(session, folder, statement)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        return session.sql(statement)
    except PySparkException as error:
        raise RmqError(f"Spark refuses the query: {str(error).splitlines()[0]}") from None


def is_export(folder: str) -> bool:
    """Return True if ``folder`` is an export, False if it is a store.

    Raise RmqError if it is neither, or an export that has no messages or is not finished.
    """
    # An export of a DLedger log has files with the name of its folder.
    logs = [Path(folder, "commitlog"), *Path(folder).glob("dledger-*")]
    if any(log.is_dir() for log in logs):
        return False
    if not read_export_manifest(folder)["rows"]:
        raise RmqError(f"{folder}: the export has no messages to query")
    return True


def _store(session: SparkSession, folder: str, statement: str) -> DataFrame:
    from pyspark.sql.types import StructField, StructType

    from rmqpy.pipeline.datasource.schema import TYPES
    from rmqpy.pipeline.datasource.source import FORMAT, register

    register(session)
    schema = StructType([StructField(name, TYPES[name]) for name in used_columns(statement)])
    reader = session.read.format(FORMAT).schema(schema)
    if references_table_once(statement) and session.conf.get(PUSHDOWN, "false") == "true":
        reader = reader.option("pushFilters", "true")
    return reader.option("includeInternalTopics", "true").load(folder)


def references_table_once(statement: str) -> bool:
    """Return whether the statement uses the table exactly once, judging by its words."""
    words = [word.lower() for word in WORDS.findall(statement)]
    return words.count("messages") == 1 and "with" not in words


def used_columns(statement: str) -> tuple[str, ...]:
    """Return the columns that the statement can refer to, at least one."""
    if ALL_COLUMNS.search(COUNT_ALL.sub(" ", statement)) or not SELECTS.search(statement):
        return COLUMNS
    words = {word.lower() for word in WORDS.findall(statement)}
    return tuple(name for name in COLUMNS if name.lower() in words) or COLUMNS[:1]


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
