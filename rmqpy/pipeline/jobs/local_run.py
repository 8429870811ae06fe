"""Execute work units in processes on all cores of this machine, with the results in order.

Building columns and writing Parquet hold Python's lock for most of the time, so threads would not
help. A process takes about a second to start; small stores are done in the calling process.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Final

from rmqpy.model.errors import RmqError

__all__ = ["local_run", "map_on_cores"]

CORES_BYTES: Final = 512 << 20
"""The size of the logs in bytes from which processes are worth their start."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
_work: list[Callable[[Any], Any]] = []
"""The function of a process that :func:`map_on_cores` has started."""


def local_run(log_bytes: int) -> Run:
    """Return how to execute the units of a store with logs of this size on this machine."""
    return map_on_cores if log_bytes >= CORES_BYTES and _cores() > 1 else map


def map_on_cores(do: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
    """Yield ``do(unit)`` for every unit in order; ``do``, units, and results are pickled.

    At most two units per core wait for their turn. Raise what ``do`` raises, and RmqError if a
    process was killed.
    """
    cores = _cores()
    waiting: deque[Future[Any]] = deque()
    pool = ProcessPoolExecutor(cores, get_context("spawn"), _begin, (do,))
    try:
        for unit in units:
            waiting.append(pool.submit(_do, unit))
            if len(waiting) > 2 * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise RmqError(
            "found that a process of this command was killed, expected it to end its work; check"
            " the memory of the machine, and run the command again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _begin(do: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The calling process ends this one.
    _work.append(do)


def _do(unit: Any) -> Any:
    return _work[0](unit)
