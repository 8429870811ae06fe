"""SQL over an export: the table ``messages``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqpy.model.errors import RmqError
from rmqpy.pipeline.export import done_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["json_lines", "query"]


def query(session: SparkSession, folder: str, statement: str) -> DataFrame:
    """The result of ``statement``; RmqError with Spark's words when it is wrong."""
    from pyspark.errors import PySparkException

    if not done_export(folder)["rows"]:
        raise RmqError(f"{folder}: the export has no messages to ask about")
    session.read.parquet(folder).createOrReplaceTempView("messages")
    try:
        return session.sql(statement)
    except PySparkException as error:
        raise RmqError(f"the query is refused: {str(error).splitlines()[0]}") from None


def json_lines(result: DataFrame, limit: int) -> Iterator[str]:
    from pyspark.sql.functions import struct, to_json

    rows = result.limit(limit).select(to_json(struct("*")).alias("line")).collect()
    return (row["line"] for row in rows)
