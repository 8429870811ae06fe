"""Numbered pieces of work over Spark tasks, their results in order.

A wave is one Spark job: ``spark.range`` over the pieces' numbers, mapped by ``mapInArrow``. A task
costs some 20 ms of CPU whatever it does, about as much as 100 MiB of audit: where there are more
pieces than two for each core, some follow each other in one task. They are dealt like cards: what
is next to each other in a log is alike (the hole at its end costs nothing), and the last task shall
not be the only one that has work. What goes to a worker is the
wave's pieces, what comes back a pickled value a piece. Two waves run at a time, so that the end of
one does not leave cores idle; results of no more than five waves wait in the driver, whatever there
is to do.

A piece may be done more than once (a worker died, speculation): only one answer comes back.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmqpy import __version__
from rmqpy.audit.checks.engine import ordered_map
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

__all__ = ["WAVE_PIECES", "map_on_spark"]

T = TypeVar("T")
R = TypeVar("R")

WAVE_PIECES: Final = 64
WAVES_AT_A_TIME: Final = 2
TASKS_A_CORE: Final = 2
"""So many of a wave: less would leave cores idle at its end."""
ANSWER_SCHEMA: Final = "number long, answer binary"


def map_on_spark(
    session: SparkSession, do: Callable[[T], R], pieces: Iterable[T], wave: int = WAVE_PIECES
) -> Iterator[R]:
    """``do`` of every piece, in the order of the pieces. ``do``, pieces and results are pickled.

    RmqError when Spark gives up on a piece.
    """
    for answers in ordered_map(
        lambda wave: _run_wave(session, do, wave), _waves(pieces, wave), WAVES_AT_A_TIME
    ):
        yield from answers


def _waves(pieces: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    left = iter(pieces)
    while wave := tuple(islice(left, size)):
        yield wave


def _run_wave(session: SparkSession, do: Callable[[T], R], wave: tuple[T, ...]) -> list[R]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = _tasks(session, len(wave))
    dealt = [place for first in range(tasks) for place in range(first, len(wave), tasks)]
    task = _task(do, tuple(wave[place] for place in dealt), __version__)
    numbers = session.range(0, len(wave), 1, numPartitions=tasks)
    try:
        rows = numbers.mapInArrow(task, ANSWER_SCHEMA).collect()
    except (PySparkException, Py4JError) as error:
        raise RmqError(f"Spark could not do its part: {_cause(str(error))}") from error
    answers = {dealt[row["number"]]: pickle.loads(row["answer"]) for row in rows}
    assert len(answers) == len(rows) == len(wave), "Spark lost or doubled a piece"
    return [answers[number] for number in range(len(wave))]


def _tasks(session: SparkSession, pieces: int) -> int:
    """How many for so many pieces; one each where the session cannot tell its cores (Connect)."""
    context = getattr(session, "sparkContext", None)
    return pieces if context is None else min(pieces, TASKS_A_CORE * context.defaultParallelism)


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
    """At the begin of every task: the worker must be of the driver's version. Spark collects
    garbage behind each, which is 20 ms for what pandas and pyarrow consist of: what was imported,
    by the last task too, is taken out of that.
    """
    if version != __version__:
        raise RmqError(f"rmqpy {__version__} on a worker, {version} at the driver: make them equal")
    _freeze(len(sys.modules))


@cache
def _freeze(_modules: int) -> None:
    """Once for so many modules."""
    gc.collect()
    gc.freeze()


def _cause(text: str) -> str:
    """The last line of the Python error within Spark's text, else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error: " in line or "Fault: " in line]
    return (told or lines or ["no reason given"])[0]
