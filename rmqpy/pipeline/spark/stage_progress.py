"""The progress of a Spark query: the tasks of the stages that have started.

A thread polls Spark's status tracker. A stage counts from its first appearance; a stage that is no
longer active counts as done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqpy.model.progress import ProgressSink

__all__ = ["StageProgress", "watched_tasks"]

INTERVAL_S: Final = 0.5


@define(slots=True)
class StageProgress:
    """Reports the tasks of the stages in ``tracker``, Spark's status tracker, to ``progress``."""

    tracker: Any
    progress: ProgressSink
    _stages: dict[int, tuple[int, int]] = field(factory=dict)
    """(tasks, completed tasks) by stage."""

    def poll(self) -> None:
        """Report the tasks that were added or completed since the last call."""
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
def watched_tasks(session: SparkSession, progress: ProgressSink) -> Iterator[None]:
    """Report the tasks of the block. Do nothing for a session without a tracker (Spark Connect)."""
    context = getattr(session, "sparkContext", None)
    if context is None:
        yield
        return
    stages, stopped = StageProgress(context.statusTracker(), progress), threading.Event()

    def watch() -> None:
        while not stopped.wait(INTERVAL_S):
            stages.poll()

    thread = threading.Thread(target=watch, name="rmqpy-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
