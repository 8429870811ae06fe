"""What test_clusters.py runs beside itself: audit, export and rebuild of a store, here and on a
master, where a task ends its worker, or its executor, behind its work, or waits until speculation
has done the same once more.

    python cluster_program.py MASTER STORE FOLDER MISHAP:VERB...

The results go to ``FOLDER/results.json``: by mishap and verb, and of each verb without any (here).
What is large in them stands as SHA-256. A range is half a file; the one with which the second file
begins is met by the mishap.
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
from typing import Any

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.pipeline.jobs.export import Export, ExportPlan
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan
from rmqpy.pipeline.jobs.spark_runner import RangeTask, SparkRunner
from rmqpy.pipeline.spark.distributed_map import map_on_spark
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.steps.plan_context import settings_of_facts

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

Task = Callable[[Any], Any]


def executor_of(pid: int) -> int:
    """The JVM above a Python worker and its daemon."""
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("a worker without an executor")


def unlucky(task: Task, mishap: str, marker: str, place: int) -> Task:
    """``task``, whose piece at ``place`` meets the mishap, once, when its work is done."""

    def do(piece: Any) -> Any:
        done = task(piece)
        if getattr(piece, "work", piece).start != place:
            return done
        try:
            open(marker, "x").close()
        except FileExistsError:
            open(f"{marker}.again", "a").close()
            return done
        if mishap == "speculation":
            deadline = time.monotonic() + SECONDS_MAX
            while not os.path.exists(f"{marker}.again") and time.monotonic() < deadline:
                time.sleep(0.05)
            return done
        own = os.getpid()
        os.kill(executor_of(own) if mishap == "executor" else own, signal.SIGKILL)
        time.sleep(SECONDS_MAX)
        return done

    return do


class Work:
    """What is done to a store, on a session or here."""

    def __init__(self, root: str, folder: str, mishap: str, session: Any) -> None:
        self.root = root
        self.folder = folder
        self.mishap = mishap
        self.session = session
        first, second, *_ = read_directory(OsFileSystem(), root).logs[0].files
        self.range_bytes = first.size // 2
        self.place = second.first_offset

    def marker(self, name: str) -> str:
        return f"{self.folder}/{self.mishap}-{name}.met"

    def run(self, name: str) -> Callable[[Task, Iterable[Any]], Iterator[Any]]:
        """Pieces on the session. The mishap needs ranges: a rebuild's second wave has none."""

        def run(task: Task, pieces: Iterable[Any]) -> Iterator[Any]:
            listed = list(pieces)
            if hasattr(listed[0], "work") or hasattr(listed[0], "start"):
                task = unlucky(task, self.mishap, self.marker(name), self.place)
            return map_on_spark(self.session, task, listed, WAVE)

        return run

    def audit(self) -> list[Any]:
        found: list[Finding] = []
        directory = read_directory(OsFileSystem(), self.root)
        run = self.run("audit")

        class Runner(SparkRunner):
            def run(self, works: Any, plan: Any) -> Any:
                return run(RangeTask.of(plan, directory), works)

        plan = AuditOptions(root=self.root, sink=found.extend, range_bytes=self.range_bytes)
        runner = Runner(self.session, directory) if self.session else None
        audit = audit_store(OsFileSystem(), plan, runner)
        queues = sorted(f"{name.decode()} {number}" for name, number in audit.queues)
        return [audit.records, [each.as_json() for each in found], queues]

    def export(self) -> list[Any]:
        target = f"{self.folder}/{self.mishap}-export"
        plan = ExportPlan(root=self.root, target=target, range_bytes=self.range_bytes)
        export = Export(plan, self.run("export")) if self.session else Export(plan)
        export.run()
        return [export.rows, export.files, taken(target)]

    def rebuild(self) -> list[Any]:
        facts = read_facts(OsFileSystem(), self.root)
        log = facts.classic or facts.ledger
        assert log is not None
        settings = settings_of_facts(self.root, log.file_size, facts.as_json())
        target = f"{self.folder}/{self.mishap}-rebuild"
        plan = RebuildPlan(
            root=self.root, target=target, settings=settings, range_bytes=self.range_bytes
        )
        rebuild = Rebuild(plan, self.run("rebuild")) if self.session else Rebuild(plan)
        rebuild.run()
        return [rebuild.units, rebuild.keys, taken(target)]

    def done(self, verb: str) -> dict[str, Any]:
        do: Callable[[], list[Any]] = getattr(self, verb)
        return {
            "told": do(),
            "met": os.path.exists(self.marker(verb)),
            "again": os.path.exists(f"{self.marker(verb)}.again"),
        }


def executors(session: Any) -> int:
    """How many do tasks, when the second one has come."""
    found: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < 2 and time.monotonic() < deadline:
        found |= set(map_on_spark(session, lambda _piece: executor_of(os.getpid()), range(8)))
    return len(found)


def taken(target: str) -> dict[str, str]:
    """What was written, by name, each as its SHA-256; it is removed."""
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
        results[f"here:{verb}"] = Work(root, folder, "here", None).done(verb)
    settings = SETTINGS if cases[0].startswith("speculation") else {}
    with spark_session(SessionPlan(master=master, settings=settings)) as session:
        results["executors"] = executors(session)
        for case in cases:
            mishap, _, verb = case.partition(":")
            results[case] = Work(root, folder, mishap, session).done(verb)
    Path(folder, "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
