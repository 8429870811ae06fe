"""Map a function over numbered work units in Spark tasks, with the results in order.

A wave is one Spark job: ``spark.range`` over the units' numbers, mapped by ``mapInArrow``. The
overhead of a task is some 20 ms of CPU, about as much as 100 MiB of audit, so a task executes
several units if there are more than two per core. Units are assigned to tasks in turn: neighbours
in a log are alike (the hole at its end costs nothing), and the last task must not be the only one
with work. The units of a wave are sent to the workers, which return one pickled value per unit. Two
waves run at a time, so that cores are not idle at the end of one; the results of at most five waves
wait in the driver, however much work there is.

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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmqpy import __version__
from rmqpy.audit.checks.engine import ordered_map
from rmqpy.audit.scan.ranges import WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.pipeline.spark.stage_progress import JobProgress

if TYPE_CHECKING:
    import pyarrow
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

    tasks = _tasks(session, len(wave))
    unit_numbers = [unit for first in range(tasks) for unit in range(first, len(wave), tasks)]
    task = _task(do, tuple(wave[unit] for unit in unit_numbers), __version__)
    numbers = session.range(0, len(wave), 1, numPartitions=tasks)
    try:
        rows = numbers.mapInArrow(task, ANSWER_SCHEMA).collect()
    except (PySparkException, Py4JError) as error:
        raise RmqError(f"the Spark job failed: {_cause(str(error))}") from error
    answers = {unit_numbers[row["number"]]: pickle.loads(row["answer"]) for row in rows}
    assert len(answers) == len(rows) == len(wave), "Spark lost or duplicated a work unit"
    return [answers[number] for number in range(len(wave))]


def _tasks(session: SparkSession, units: int) -> int:
    """Return the number of tasks for a wave.

    It is one task per unit if the session does not report its cores (Spark Connect).
    """
    context = getattr(session, "sparkContext", None)
    return units if context is None else min(units, TASKS_PER_CORE * context.defaultParallelism)


def _task(
    do: Callable[[T], R], wave: tuple[T, ...], version: str
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        prepare_worker(version)
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            answers: list[Any] = [pickle.dumps(do(wave[number])) for number in numbers]
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array(numbers, pyarrow.int64()), pyarrow.array(answers, pyarrow.binary())],
                names=["number", "answer"],
            )

    return run


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
