"""The progress of Spark: the tasks of a query, and the work of jobs before their results arrive.

A thread polls Spark's status tracker. For a query, a stage counts from its first appearance, and a
stage that is no longer active counts as done. The size of a job of rmqpy is known: the share of its
completed tasks is reported at once, and left out when its results are reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from attrs import define, field

from rmqpy.model.progress import ProgressSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobProgress", "StageProgress", "watched_tasks"]

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
    stages = StageProgress(context.statusTracker(), progress)
    with _polled(stages.poll):
        yield


@define(slots=True)
class JobProgress:
    """Reports work to ``sink`` as soon as Spark has done it (implements ProgressSink).

    ``advance`` reports only what was not reported before, by the jobs that are watched.
    """

    sink: ProgressSink
    _early: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def expect(self, total: int) -> None:
        """Add ``total`` to the amount to do, and what was reported of results that did not arrive:
        whoever expects more work has given them up.
        """
        with self._lock:
            total += self._early
            self._early = 0
        self.sink.expect(total)

    def advance(self, done: int) -> None:
        with self._lock:
            known = min(self._early, done)
            self._early -= known
        if done > known:
            self.sink.advance(done - known)

    @contextmanager
    def watched(self, session: SparkSession, size: int) -> Iterator[None]:
        """Report the work of the job that this thread starts in the block: together ``size``.

        Do nothing for a session without a tracker (Spark Connect).
        """
        context = getattr(session, "sparkContext", None)
        if context is None or not size:
            yield
            return
        group, reported = uuid4().hex, 0
        context.setJobGroup(group, "rmqpy")
        tracker = context.statusTracker()

        def poll() -> None:
            nonlocal reported
            done = int(size * _completed_share(tracker, group))
            if done > reported:
                with self._lock:
                    self._early += done - reported
                self.sink.advance(done - reported)
                reported = done

        with _polled(poll):
            yield


def _completed_share(tracker: Any, group: str) -> float:
    """Return the share of the tasks of a job group that are completed."""
    tasks = completed = 0
    for job in tracker.getJobIdsForGroup(group):
        about = tracker.getJobInfo(job)
        for stage in about.stageIds if about is not None else ():
            found = tracker.getStageInfo(stage)
            if found is not None:
                tasks += found.numTasks
                completed += min(found.numCompletedTasks, found.numTasks)
    return completed / tasks if tasks else 0.0


@contextmanager
def _polled(poll: Callable[[], None]) -> Iterator[None]:
    """Call a function again and again, in a thread, until the block ends."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(INTERVAL_S):
            poll()

    thread = threading.Thread(target=run, name="rmqpy-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
