"""Work units on Spark: results in order, once each, even if workers die."""

from __future__ import annotations

import gc
import os
import platform
import resource
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rmqpy.audit.scan.directory import read_directory
from rmqpy.model.errors import RmqError
from rmqpy.pipeline.jobs.spark_runner import SparkRunner
from rmqpy.pipeline.spark.distributed_map import map_on_spark, prepare_worker
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_results_are_in_order(spark: SparkSession) -> None:
    assert list(map_on_spark(spark, str, range(11), wave=3)) == [str(n) for n in range(11)]
    assert list(map_on_spark(spark, str, [])) == []


def test_a_job_uses_nothing_of_sql(spark: SparkSession) -> None:
    """Spark would plan and compile a query for each job, and load its SQL for the first."""
    only: Any = SimpleNamespace(sparkContext=spark.sparkContext)
    assert list(map_on_spark(only, str, range(11), wave=3)) == [str(n) for n in range(11)]


def test_the_error_of_a_worker_reaches_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RmqError, match="none: found no such file or directory, expected an"):
        list(map_on_spark(spark, os.stat, [str(tmp_path / "none")]))


def process_of(_number: int) -> int:
    return os.getpid()


def test_a_single_unit_needs_no_worker(
    spark: SparkSession, store_of: Callable[[str], Path]
) -> None:
    files, root = OsFileSystem(), str(store_of("A-classic-clean-v497"))
    runner = SparkRunner(spark, files, read_directory(files, root))
    assert [*runner.map(process_of, [])] == []
    assert [*runner.map(process_of, [0])] == [os.getpid()]
    assert os.getpid() not in [*runner.map(process_of, [0, 1])]


def dies_once(marker: str) -> Callable[[int], int]:
    """Return a task whose worker is killed at the first execution of unit 1."""

    def do(number: int) -> int:
        if number == 1 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    return do


def test_a_killed_worker_costs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    assert list(map_on_spark(spark, dies_once(str(marker)), range(4))) == [0, 1, 4, 9]
    assert marker.exists()


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(RmqError, match=r"0\.0\.0 on the driver"):
        prepare_worker("0.0.0")


def collected(_number: int) -> int:
    """Return the number of objects that a garbage collection visits."""
    return len(gc.get_objects())


def test_garbage_collections_after_a_task_visit_few_objects(spark: SparkSession) -> None:
    for _ in range(2):
        list(map_on_spark(spark, collected, range(4)))
    assert max(map_on_spark(spark, collected, range(4))) < 5000


BATCHES = 20
BLOCKS = 3


def page_faults(_number: int) -> int:
    """Return the number of pages taken from the system for some batches in blocks of 8 MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(BATCHES):
        blocks = [b"\1" * (8 << 20) for _ in range(BLOCKS)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a parameter of glibc")
def test_a_worker_keeps_the_memory_of_a_batch_for_the_next(spark: SparkSession) -> None:
    pages = BLOCKS * (8 << 20) // resource.getpagesize()
    assert max(map_on_spark(spark, page_faults, range(2))) < 3 * pages


def test_many_units_share_tasks(spark: SparkSession) -> None:
    shares = Counter(map_on_spark(spark, task_of, range(41)))
    assert sorted(shares.values()) == [10] * 3 + [11]
    assert len(set(map_on_spark(spark, task_of, range(3)))) == 3


def test_neighbours_are_in_different_tasks(spark: SparkSession) -> None:
    """The end of a log is cheap, so no task may have only that."""
    tasks = list(map_on_spark(spark, task_of, range(40)))
    assert all(len(set(tasks[first : first + 4])) == 4 for first in range(0, 40, 4))


def task_of(_number: int) -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()
