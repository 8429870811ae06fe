"""Map a function over numbered work units in Spark tasks, with the results in order.

A wave is one Spark job: an RDD of the units' numbers, or with Spark Connect, which has none,
``spark.range`` and ``mapInArrow``. For an RDD Spark plans and compiles nothing, which halves the
CPU time of a first job. The overhead of a task is some 20 ms of CPU, about as much as 100 MiB of
audit, so a task executes several units if there are more than two per core. Units are assigned to
tasks in turn: neighbours in a log are alike (the hole at its end costs nothing), and the last task
must not be the only one with work. The units of a wave are sent to the workers, which return one
pickled value per unit. Two waves run at a time, so that cores are not idle at the end of one; the
results of at most five waves wait in the driver, however much work there is.

A unit may be executed more than once (a worker died, speculation), but only one result is returned.
"""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from attrs import define

from rmqpy import __version__
from rmqpy.audit.checks.engine import ordered_map
from rmqpy.audit.scan.ranges import WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.model.os_errors import sentence_of
from rmqpy.pipeline.spark.stage_progress import JobProgress

if TYPE_CHECKING:
    import pyarrow
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["WAVE_UNITS", "map_on_spark"]

T = TypeVar("T")
R = TypeVar("R")

WAVE_UNITS: Final = 64
CONCURRENT_WAVES: Final = 2
TASKS_PER_CORE: Final = 2
"""The number of tasks per core in a wave; fewer would leave cores idle at its end."""
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's ``mallopt``."""
KEPT_BYTES: Final = 64 << 20
"""The freed memory that a worker keeps: some batches of 8 MiB, each in several copies."""
MAPPED_BYTES_MIN: Final = 32 << 20
"""The size from which glibc maps a block and returns it alone; it accepts no larger number."""
ANSWER_SCHEMA: Final = "number long, answer binary"


def bytes_of_range(unit: Any) -> int:
    """Return the size of the range of a work unit, 0 for other units."""
    work = getattr(unit, "work", unit)
    return work.stop - work.start if isinstance(work, WorkRange) else 0


def map_on_spark(
    session: SparkSession,
    do: Callable[[T], R],
    units: Iterable[T],
    wave: int = WAVE_UNITS,
    progress: JobProgress | None = None,
    size_of: Callable[[T], int] = bytes_of_range,
) -> Iterator[R]:
    """Yield ``do(unit)`` for every work unit, in order; ``do``, units, and results are pickled.

    ``wave`` is the number of units per wave. ``progress`` receives the work of a wave before its
    results are yielded, in the unit of ``size_of``. Raise RmqError if Spark gives up on a unit.
    """

    def run(wave: tuple[T, ...]) -> list[R]:
        if progress is None:
            return _run_wave(session, do, wave)
        with progress.watched(session, sum(map(size_of, wave))):
            return _run_wave(session, do, wave)

    for answers in ordered_map(run, _waves(units, wave), CONCURRENT_WAVES):
        yield from answers


def _waves(units: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    remaining = iter(units)
    while wave := tuple(islice(remaining, size)):
        yield wave


def _run_wave(session: SparkSession, do: Callable[[T], R], wave: tuple[T, ...]) -> list[R]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context: SparkContext | None = getattr(session, "sparkContext", None)
    tasks = len(wave) if context is None else _tasks(context, len(wave))
    unit_numbers = [unit for first in range(tasks) for unit in range(first, len(wave), tasks)]
    task = _Task(do, tuple(wave[unit] for unit in unit_numbers), __version__)
    try:
        if context is None:
            numbers = session.range(0, len(wave), 1, numPartitions=tasks)
            rows = [
                tuple(row) for row in numbers.mapInArrow(task.in_arrow, ANSWER_SCHEMA).collect()
            ]
        else:
            rows = context.parallelize(range(len(wave)), tasks).mapPartitions(task).collect()
    except (PySparkException, Py4JError) as error:
        raise RmqError(f"the Spark job failed: {_cause(str(error))}") from error
    answers = {unit_numbers[number]: pickle.loads(answer) for number, answer in rows}
    assert len(answers) == len(rows) == len(wave), "Spark lost or duplicated a work unit"
    return [answers[number] for number in range(len(wave))]


def _tasks(context: SparkContext, units: int) -> int:
    """Return the number of tasks for a wave."""
    cores: int = context.defaultParallelism
    return min(units, TASKS_PER_CORE * cores)


@define(slots=True, frozen=True)
class _Task(Generic[T, R]):
    """Executes work units on a worker, given by their numbers in ``wave``."""

    do: Callable[[T], R]
    wave: tuple[T, ...]
    version: str

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each unit, and its pickled result."""
        prepare_worker(self.version)
        for number in numbers:
            try:
                answer = self.do(self.wave[number])
            except OSError as error:  # Spark passes on its text only.
                raise RmqError(sentence_of(error)) from None
            yield number, pickle.dumps(answer)

    def in_arrow(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Do the same for batches of numbers."""
        import pyarrow

        for batch in batches:
            numbers, answers = zip(*self(batch.column(0).to_pylist()), strict=True)
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array(numbers, pyarrow.int64()), pyarrow.array(answers, pyarrow.binary())],
                names=["number", "answer"],
            )


def prepare_worker(version: str) -> None:
    """Prepare a worker at the start of a task. Raise RmqError unless it has the driver's version.

    Spark collects garbage after each task, which takes 20 ms for the objects of pandas and pyarrow.
    Therefore the objects of imported modules are excluded from collection.
    """
    if version != __version__:
        raise RmqError(
            f"rmqpy {__version__} on a worker, {version} on the driver: install the same version"
        )
    _freeze(len(sys.modules))
    _keep_memory()


@cache
def _freeze(_modules: int) -> None:
    """Freeze the present objects, once per number of loaded modules."""
    gc.collect()
    gc.freeze()


@cache
def _keep_memory() -> None:
    """Let glibc keep the memory of a batch for the next one.

    It returns a freed end of the heap to the system as soon as that is twice as large as a block,
    so many batches would take their pages from the system again: a tenth of the time of a read.
    """
    with suppress(AttributeError, OSError):  # another libc, or none that can be opened
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _cause(text: str) -> str:
    """Return the message of the Python error in Spark's text, or the first line of the text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line or "Fault: " in line]
    return (errors or lines or ["no reason given"])[0]
