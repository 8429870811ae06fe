"""The tasks of a query, as a progress line counts them."""

from __future__ import annotations

from attrs import define, field

from rmqpy.pipeline.spark.stage_progress import StageProgress


@define
class Stage:
    numTasks: int
    numCompletedTasks: int


@define
class Tracker:
    """As Spark's: what is no longer active has no information."""

    stages: dict[int, Stage] = field(factory=dict)

    def getActiveStageIds(self) -> list[int]:
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Stage | None:
        return self.stages.get(stage)


@define
class Sums:
    total: int = 0
    done: int = 0

    def expect(self, total_bytes: int) -> None:
        self.total += total_bytes

    def advance(self, done_bytes: int) -> None:
        self.done += done_bytes


def test_tasks_of_all_stages_are_counted() -> None:
    sums, tracker = Sums(), Tracker()
    count = StageProgress(tracker, sums)
    count.poll()
    assert (sums.total, sums.done) == (0, 0)
    tracker.stages[0] = Stage(8, 0)
    count.poll()
    tracker.stages[0] = Stage(8, 5)
    tracker.stages[1] = Stage(4, 1)
    count.poll()
    assert (sums.total, sums.done) == (12, 6)
    del tracker.stages[0]
    count.poll()
    assert (sums.total, sums.done) == (12, 9)
    tracker.stages.clear()
    count.poll()
    count.poll()
    assert (sums.total, sums.done) == (12, 12)
