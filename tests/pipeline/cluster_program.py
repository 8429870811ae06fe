"""The program of test_clusters.py: jobs on a store, in this process and on Spark.

The jobs are audit, export, and rebuild. On Spark, a task kills its worker or its executor after its
work, or waits until speculation has executed it again.

    python cluster_program.py MASTER STORE FOLDER FAULT:VERB...

The results are written to ``FOLDER/results.json``, by fault and verb; those of this process have
the fault ``here``. Large results are replaced by their SHA-256. A range is half a file; the fault
happens in the range at the start of the second file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.ranges import RangeResult, WorkRange
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.pipeline.jobs.export import Export, ExportPlan
from rmqpy.pipeline.jobs.export_target import FolderTarget
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan
from rmqpy.pipeline.jobs.spark_runner import RangeTask, SparkRunner
from rmqpy.pipeline.spark.distributed_map import map_on_spark
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.steps.plan_context import settings_of_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE = 8
SECONDS_MAX = 60
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.locality.wait": "0s",
}

T = TypeVar("T")
R = TypeVar("R")
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


def executor_of(pid: int) -> int:
    """Return the JVM that started a Python worker and its daemon."""
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("a worker without an executor")


def with_fault(task: Callable[[T], R], fault: str, marker: str, start: int) -> Callable[[T], R]:
    """Return ``task`` with a fault, once, after the work on the unit that starts at ``start``."""

    def do(unit: T) -> R:
        result = task(unit)
        work: Any = getattr(unit, "work", unit)
        if work.start != start:
            return result
        try:
            open(marker, "x").close()
        except FileExistsError:
            open(f"{marker}.again", "a").close()
            return result
        if fault == "speculation":
            deadline = time.monotonic() + SECONDS_MAX
            while not os.path.exists(f"{marker}.again") and time.monotonic() < deadline:
                time.sleep(0.05)
            return result
        own = os.getpid()
        os.kill(executor_of(own) if fault == "executor" else own, signal.SIGKILL)
        time.sleep(SECONDS_MAX)
        return result

    return do


class Work:
    """The jobs on a store, on Spark or, without a session, in this process."""

    def __init__(self, root: str, folder: str, fault: str, session: SparkSession | None) -> None:
        self.root = root
        self.folder = folder
        self.fault = fault
        self.session = session
        first, second, *_ = read_directory(OsFileSystem(), root).logs[0].files
        self.range_bytes = first.size // 2
        self.fault_start = second.first_offset

    def marker(self, name: str) -> str:
        return f"{self.folder}/{self.fault}-{name}.met"

    def runner(self, name: str) -> Run:
        """Return a function that executes work units on Spark, with the fault.

        The fault needs ranges; the second wave of a rebuild has none.
        """

        def run(task: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
            assert self.session is not None
            listed = list(units)
            if hasattr(listed[0], "work") or hasattr(listed[0], "start"):
                task = with_fault(task, self.fault, self.marker(name), self.fault_start)
            return map_on_spark(self.session, task, listed, WAVE)

        return run

    def audit(self) -> list[Any]:
        found: list[Finding] = []
        directory = read_directory(OsFileSystem(), self.root)
        run = self.runner("audit")

        class Runner(SparkRunner):
            def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
                return run(RangeTask.of(plan, OsFileSystem(), directory), ranges)

        plan = AuditOptions(root=self.root, sink=found.extend, range_bytes=self.range_bytes)
        runner = Runner(self.session, OsFileSystem(), directory) if self.session else None
        audit = audit_store(OsFileSystem(), plan, runner)
        queues = sorted(f"{name.decode()} {number}" for name, number in audit.queues)
        return [audit.records, [each.as_json() for each in found], queues]

    def export(self) -> list[Any]:
        target = f"{self.folder}/{self.fault}-export"
        plan = ExportPlan(root=self.root, target=FolderTarget(target), range_bytes=self.range_bytes)
        export = Export(plan, self.runner("export")) if self.session else Export(plan)
        export.run()
        return [export.rows, export.files, digests_of(target)]

    def rebuild(self) -> list[Any]:
        facts = read_facts(OsFileSystem(), self.root)
        log = facts.classic or facts.ledger
        assert log is not None
        settings = settings_of_facts(self.root, log.file_size, facts.as_json())
        target = f"{self.folder}/{self.fault}-rebuild"
        plan = RebuildPlan(
            root=self.root, target=target, settings=settings, range_bytes=self.range_bytes
        )
        rebuild = Rebuild(plan, self.runner("rebuild")) if self.session else Rebuild(plan)
        rebuild.run()
        return [rebuild.units, rebuild.keys, digests_of(target)]

    def execute(self, verb: str) -> dict[str, Any]:
        """Run a job; return its result and whether the fault happened and the task ran again."""
        do: Callable[[], list[Any]] = getattr(self, verb)
        return {
            "result": do(),
            "met": os.path.exists(self.marker(verb)),
            "again": os.path.exists(f"{self.marker(verb)}.again"),
        }


def count_executors(session: SparkSession) -> int:
    """Wait for a second executor and return the number of executors that execute tasks."""
    found: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < 2 and time.monotonic() < deadline:
        found |= set(map_on_spark(session, lambda _unit: executor_of(os.getpid()), range(8)))
    return len(found)


def digests_of(target: str) -> dict[str, str]:
    """Return the SHA-256 of each file below ``target``, and remove the folder."""
    found = {}
    for path in sorted(path for path in Path(target).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        found[str(path.relative_to(target))] = digest.hexdigest()
    shutil.rmtree(target)
    return found


def main(master: str, root: str, folder: str, *cases: str) -> None:
    results: dict[str, Any] = {}
    for verb in dict.fromkeys(case.partition(":")[2] for case in cases):
        results[f"here:{verb}"] = Work(root, folder, "here", None).execute(verb)
    settings = SETTINGS if cases[0].startswith("speculation") else {}
    with spark_session(SessionPlan(master=master, settings=settings)) as session:
        results["executors"] = count_executors(session)
        for case in cases:
            fault, _, verb = case.partition(":")
            results[case] = Work(root, folder, fault, session).execute(verb)
    Path(folder, "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
