"""How far Spark has come with a query: its tasks, of the stages that it has begun.

A thread asks Spark's status tracker now and then. A stage counts from when it is seen; one that is
no longer active is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqpy.model.progress import Progress

__all__ = ["StageProgress", "watched_tasks"]

INTERVAL_S: Final = 0.5


@define(slots=True)
class StageProgress:
    """``tracker``: Spark's; ``progress`` is told of tasks."""

    tracker: Any
    progress: Progress
    _stages: dict[int, tuple[int, int]] = field(factory=dict)
    """(tasks, of them done)."""

    def poll(self) -> None:
        active = set(self.tracker.getActiveStageIds())
        for stage in active | self._stages.keys():
            tasks, done = self._stages.get(stage, (0, 0))
            found = self.tracker.getStageInfo(stage) if stage in active else None
            now = (tasks, tasks) if found is None else (found.numTasks, found.numCompletedTasks)
            self._stages[stage] = now
            if now[0] > tasks:
                self.progress.expect(now[0] - tasks)
            if now[1] > done:
                self.progress.advance(now[1] - done)


@contextmanager
def watched_tasks(session: SparkSession, progress: Progress) -> Iterator[None]:
    """Within the block. Where the session has no tracker (Connect) nothing is told."""
    context = getattr(session, "sparkContext", None)
    if context is None:
        yield
        return
    count, over = StageProgress(context.statusTracker(), progress), threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL_S):
            count.poll()

    thread = threading.Thread(target=watch, name="rmqpy-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
