"""The shared parts of the ``rmqpy pipeline`` verbs: the engine, and the Spark session."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Final

from rmqpy.cli.parsing import positive
from rmqpy.cli.pipeline.places import log_bytes
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from pyspark.sql import SparkSession

    from rmqpy.audit.checks.range_runner import RangeRunner
    from rmqpy.audit.scan.directory import StoreDirectory
    from rmqpy.cli.pipeline.places import StorePlace
    from rmqpy.model.files import FileSystem
    from rmqpy.pipeline.spark.stage_progress import JobProgress
    from rmqpy.pipeline.spark.work_units import SkippedRange

    StoreRunners = Callable[[FileSystem, StoreDirectory], RangeRunner]

AUTO_SPARK_BYTES: Final = 50 << 30
"""The size of the logs in bytes from which ``--engine auto`` uses Spark, if it is installed."""
MASTER: Final = re.compile(
    r"local(\[[1-9*]\d*(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://.+|k8s://.+|yarn"
)
REMOTE: Final = re.compile(r"sc://[^/:;]+|local")
SPARK_OPTIONS: Final = ("master", "remote", "conf", "py-files", "archives")
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
    """Add the options of a Spark session: where it runs, and what its workers get."""
    parser.add_argument(
        "--master",
        type=spark_master,
        metavar="URL",
        help="Spark master; default local[*,4]: all cores of this host",
    )
    parser.add_argument(
        "--remote",
        type=spark_remote,
        metavar="URL",
        help="a Spark Connect server, sc://HOST:PORT, instead of --master",
    )
    parser.add_argument(
        "--conf",
        action="append",
        type=spark_setting,
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    parser.add_argument(
        "--py-files", metavar="FILES", help="Python files for the workers, comma separated"
    )
    parser.add_argument(
        "--archives", metavar="FILES", help="archives for the workers, as spark-submit takes them"
    )


def spark_master(text: str) -> str:
    if MASTER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected local[N], spark://HOST:PORT, yarn, or k8s://URL"
        )
    return text


def spark_remote(text: str) -> str:
    if REMOTE.match(text) is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected sc://HOST:PORT")
    return text


def spark_setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected spark.KEY=VALUE")
    return key, value


def spark_options(parser: argparse.ArgumentParser) -> None:
    master_option(parser)
    parser.add_argument(
        "--range-bytes",
        type=positive,
        default=RANGE_BYTES,
        metavar="N",
        help="bytes per task; default 256 MiB",
    )


def store_runners(
    options: argparse.Namespace,
    places: list[StorePlace],
    stack: ExitStack,
    progress: JobProgress | None = None,
) -> StoreRunners | None:
    """Return a function that returns the runner for a store, or None to use threads.

    ``stack`` ends the Spark session. ``progress`` receives the work of Spark's jobs early.
    """
    if not takes_spark(options, places):
        return None
    from functools import partial

    from rmqpy.pipeline.jobs.spark_runner import SparkRunner

    return partial(SparkRunner, spark_of(options, stack), progress=progress)


def spark_of(options: argparse.Namespace, stack: ExitStack, *, light: bool = True) -> SparkSession:
    """Return a session.

    It is ``light`` if Python workers do all the work, and then has no ``format("rocketmq")``: the
    registration starts a worker, and Spark's SQL.
    """
    from rmqpy.pipeline.spark.session import LOCAL_MASTER, SessionPlan, spark_session

    if options.master is not None and options.remote is not None:
        raise RmqError("found --master and --remote, expected one of them; omit the other")
    plan = SessionPlan(
        master=options.master or LOCAL_MASTER,
        remote=options.remote,
        light=light,
        settings=dict(options.conf),
        python_files=_list(options.py_files),
        archives=_list(options.archives),
    )
    session = stack.enter_context(spark_session(plan))
    if not light:
        # This imports pyspark. If pyspark were missing, the session would have reported it.
        from rmqpy.pipeline.datasource.source import register

        register(session)
    return session


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))


def print_skipped(skipped: Iterable[SkippedRange]) -> None:
    """Print a line for each range without a message that was passed over."""
    for each in skipped:
        print(
            f"{each.file} at offset {each.offset}: {each.size} bytes that are not a message",
            file=sys.stderr,
        )


def takes_spark(options: argparse.Namespace, places: Iterable[StorePlace]) -> bool:
    """Return whether Spark does the work. Raise RmqError for options of Spark without Spark."""
    if options.engine == "local":
        for name in SPARK_OPTIONS:
            if getattr(options, name.replace("-", "_")):
                raise RmqError(f"found --{name} and --engine local, which has no Spark; omit one")
        return False
    if options.engine == "spark":
        return True
    if options.master is not None or options.remote is not None:
        return True
    if log_bytes(places) < AUTO_SPARK_BYTES:
        return False
    from rmqpy.pipeline.spark.session import is_installed

    return is_installed()
