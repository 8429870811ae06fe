"""The tasks of a query that a progress line counts."""

from __future__ import annotations

from attrs import define, field
from harness.pipeline import RecordedProgress

from rmqpy.pipeline.spark.stage_progress import StageProgress


@define
class Stage:
    """The information about a stage, as Spark returns it."""

    numTasks: int
    numCompletedTasks: int


@define
class Tracker:
    """A status tracker like Spark's, without information about inactive stages."""

    stages: dict[int, Stage] = field(factory=dict)

    def getActiveStageIds(self) -> list[int]:
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Stage | None:
        return self.stages.get(stage)


def test_tasks_of_all_stages_are_counted() -> None:
    progress, tracker = RecordedProgress(), Tracker()
    count = StageProgress(tracker, progress)
    count.poll()
    assert (progress.total, progress.sum) == (0, 0)
    tracker.stages[0] = Stage(8, 0)
    count.poll()
    tracker.stages[0] = Stage(8, 5)
    tracker.stages[1] = Stage(4, 1)
    count.poll()
    assert (progress.total, progress.sum) == (12, 6)
    del tracker.stages[0]
    count.poll()
    assert (progress.total, progress.sum) == (12, 9)
    tracker.stages.clear()
    count.poll()
    count.poll()
    assert (progress.total, progress.sum) == (12, 12)
