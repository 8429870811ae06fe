"""The progress of work: what a terminal shows of every verb, and what is known of Spark's tasks."""

from __future__ import annotations

import os
import pty
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from attrs import define, field
from harness.pipeline import RecordedProgress

from rmqpy.cli import main
from rmqpy.pipeline.spark.stage_progress import JobProgress, StageProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def reported_early(recorded: RecordedProgress) -> JobProgress:
    """Return the progress of work of 1000, of which a job that ran reported 300 before its end."""
    progress, session = JobProgress(recorded), Session()
    progress.expect(1000)
    with progress.watched(cast("SparkSession", session), 400):
        session.tracker.stages[0] = Stage(4, 3)
        while not recorded.reports:
            session.tracker.polled.wait(10)
    return progress


def test_work_is_reported_once() -> None:
    """A share was reported before: only the rest of what is done is."""
    recorded = RecordedProgress()
    progress = reported_early(recorded)
    assert recorded.reports == [300]
    progress.advance(200)
    progress.advance(200)
    assert recorded.reports == [300, 100]
    progress.advance(600)
    assert (recorded.total, recorded.sum) == (1000, 1000)


def test_work_in_vain_is_expected_once_more() -> None:
    """A share was reported, and its results were given up: the next work is new."""
    recorded = RecordedProgress()
    progress = reported_early(recorded)
    progress.expect(0)
    progress.advance(1000)
    assert recorded.reports == [300, 1000]
    assert (recorded.total, recorded.sum) == (1300, 1300)


@define
class GroupTracker(Tracker):
    """A tracker of one job with all stages."""

    polled: threading.Event = field(factory=threading.Event)

    def getJobIdsForGroup(self, _group: str) -> list[int]:
        self.polled.set()
        return [0]

    def getJobInfo(self, _job: int) -> SimpleNamespace:
        return SimpleNamespace(stageIds=list(self.stages))


@define
class Session:
    tracker: GroupTracker = field(factory=GroupTracker)

    @property
    def sparkContext(self) -> Session:
        return self

    def setJobGroup(self, _group: str, _description: str) -> None:
        pass

    def statusTracker(self) -> GroupTracker:
        return self.tracker


@pytest.mark.spark
def test_spark_reports_work_before_its_results_arrive(spark: SparkSession, tmp_path: Path) -> None:
    """The last task ends when the work of the others has been reported."""
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    fifo = tmp_path / "end"
    os.mkfifo(fifo)
    ending: list[str] = []

    def end(why: str) -> None:
        if not ending:
            ending.append(why)
            with open(fifo, "w"):
                pass

    class Ending(RecordedProgress):
        def advance(self, done: int) -> None:
            super().advance(done)
            if self.sum >= 300:
                end("reported")

    patience = threading.Timer(60, end, ["nothing was reported"])
    patience.start()
    sink = Ending()
    progress = JobProgress(sink)

    def do(unit: int) -> int:
        if unit == 3:
            with open(fifo) as waiting:
                waiting.read()
        return unit

    for unit in map_on_spark(spark, do, range(4), 4, progress, lambda _unit: 100):
        assert ending == ["reported"] and sink.sum >= 300
        progress.advance(100)
        assert unit < 4
    patience.cancel()
    assert sink.sum == 400


SPARK = ["--engine", "spark"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "verb"),
    [
        (["audit", "{store}"], "checked"),
        (["audit", "{store}", *SPARK], "checked"),
        (["certify", "{store}", "again={other}", *SPARK], "checked"),
        (["export", "{store}", "--to", "{out}"], "exported"),
        (["export", "{store}", "--to", "{out}", *SPARK], "exported"),
        (["rebuild", "{store}"], "packed"),
        (["rebuild", "{store}", *SPARK], "packed"),
        (
            ["append", "{store}", "--to", "{out}", "--table", "parquet", "--broker-name", "a"],
            "appended",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else given,
)
def test_a_terminal_shows_progress_and_a_pipe_does_not(
    words: list[str],
    verb: str,
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    pytest.importorskip("pyarrow")
    store, other = copy_of("A-classic-clean-v497"), tmp_path / "other"
    shutil.copytree(store, other, symlinks=True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("rmqpy.cli.progress.TERMINAL_INTERVAL_S", 0.0)

    def run(out: str) -> tuple[str, str]:
        places = {"store": store, "other": other, "out": tmp_path / out}
        given = [word.format(**places) for word in words]
        assert main(["pipeline", *given, "--range-bytes", "65536"]) == 0
        shown = capfd.readouterr()
        return shown.out, shown.err

    output, errors = run("piped")
    assert f"{verb} " not in errors
    reader, writer = pty.openpty()
    with open(writer, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        assert run("shown")[0] == output
        terminal.flush()
        drawn = b""
        while not drawn.endswith(b"\r\x1b[K"):
            drawn += os.read(reader, 65536)
    os.close(reader)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn.decode())
    shown = re.findall(rf"{verb} [\d.]+ [KM]?i?B of ([\d.]+ [KM]iB), ", plain)
    assert shown and set(shown) <= {"256.0 KiB", "512.0 KiB"}, plain
