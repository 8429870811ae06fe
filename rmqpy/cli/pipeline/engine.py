"""The shared parts of the ``rmqpy pipeline`` verbs: the engine, the Spark session, the stores."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from pyspark.sql import SparkSession

    from rmqpy.audit.checks.engine import RangeRunner
    from rmqpy.audit.scan.directory import StoreDirectory

    StoreRunners = Callable[[StoreDirectory], RangeRunner]

AUTO_SPARK_BYTES: Final = 50 << 30
"""The size of the logs in bytes from which ``--engine auto`` uses Spark, if it is installed."""
RANGE_BYTES: Final = 256 << 20
"""The size of a range; larger than with threads, because a Spark task has a fixed overhead."""


def engine_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        default="auto",
        choices=["auto", "local", "spark"],
        help="default auto: Spark with --master, or from 50 GiB of logs on if it is installed",
    )


def master_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="URL", help="Spark master; default local[*,4]: all cores of this host"
    )


def spark_options(parser: argparse.ArgumentParser) -> None:
    master_option(parser)
    parser.add_argument(
        "--range-bytes",
        type=int,
        default=RANGE_BYTES,
        metavar="N",
        help="bytes per task; default 256 MiB",
    )


def store_roots(directories: list[str]) -> list[str]:
    """Return the directories as absolute paths. Raise StoreError if one is not a store."""
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.store.files.disk import OsFileSystem

    roots = [str(Path(name).resolve()) for name in directories]
    for root in roots:
        check_store_root(OsFileSystem(), root)
    return roots


def store_runners(
    options: argparse.Namespace, roots: list[str], stack: ExitStack
) -> StoreRunners | None:
    """Return a function that returns the runner for a store, or None to use threads.

    ``stack`` ends the Spark session.
    """
    if not takes_spark(options, roots):
        return None
    from functools import partial

    from rmqpy.pipeline.jobs.spark_runner import SparkRunner

    return partial(SparkRunner, spark_of(options, stack))


def spark_of(options: argparse.Namespace, stack: ExitStack, *, light: bool = True) -> SparkSession:
    """Return a session; it is ``light`` if Python workers do all the work."""
    from rmqpy.pipeline.spark.session import LOCAL_MASTER, SessionPlan, spark_session

    plan = SessionPlan(master=options.master or LOCAL_MASTER, light=light)
    session = stack.enter_context(spark_session(plan))
    # This imports pyspark. If pyspark were missing, the session would have reported it.
    from rmqpy.pipeline.datasource.source import register

    register(session)
    return session


def takes_spark(options: argparse.Namespace, roots: list[str]) -> bool:
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.pipeline.spark.session import is_installed
    from rmqpy.store.files.disk import OsFileSystem

    if options.engine != "auto":
        return bool(options.engine == "spark")
    if options.master is not None:
        return True
    logs = [log for root in roots for log in read_directory(OsFileSystem(), root).logs]
    total = sum(file.size for log in logs for file in log.files)
    return total >= AUTO_SPARK_BYTES and is_installed()
