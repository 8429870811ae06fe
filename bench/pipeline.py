"""Measure the cost of the data pipeline, as ratios of two measurements on one store in one run.

    python bench/pipeline.py                              # stores of 2 GiB of 1 KiB messages
    python bench/pipeline.py --gigabytes 4 --rows audit,cores --rounds 5
    python bench/pipeline.py --gigabytes 12 --store DIR --rows parquet

The bodies are random bytes. A command is timed as a user runs it, as a process of its own with all
of its work: start, log, consume queues, key index, report. CPU means all processes together:
command, JVM, Python workers. ``md5`` reads the log files only. The log is in the page cache. The
folder that ``--store`` names gets the store with 100 queues and keys, and is kept and reused. The
output is one JSON line with the load of the machine before and after. Exit code: 0 every goal is
met, 2 one is not.

==================  ====  =========================================================================
row                 goal  ratio
==================  ====  =========================================================================
audit               6     CPU: openssl md5 / ``pipeline audit``; 100 queues, two keys a message
audit-plain         6     the same without keys
audit-queues        6     the same with 50,000 queues, and keys
audit-queues-plain  6     the same with 50,000 queues, without keys
md5                 0.85  CPU: openssl md5 / ``pipeline audit --md5``
cores               1.7   wall time: ``pipeline audit --engine local`` on one core / on two
spark               0.7   CPU: ``pipeline audit`` / the same with ``--engine spark``
spark-warm          0.7   the same in a session of ``pipeline audit`` that has run it before
spark-cores         1.7   wall time: ``pipeline audit --engine spark`` on one core / on two
rebuild-queues      2     CPU: ``pipeline rebuild --apply``, 50,000 queues / 100 queues (at most)
splits              1.2   CPU: all columns in splits of 8 MiB / of 64 MiB, in a session (at most)
column              0.4   CPU: a schema of one column / all columns, in a session (at most)
rebuild-spark       0.5   CPU: a rebuild in one process / in a Spark session
parquet             4     CPU: Spark's own Parquet writer / an export, in a Spark session
latency             1     seconds from a send to its committed batch, median (at most)
==================  ====  =========================================================================

"On one core" means that all threads and processes of the command run on it, including those of the
JVM. Both Parquet writers use zstd level 1.

Nothing is removed before all is measured, and a second run should wait for five minutes: ext4 does
not use the inodes of removed files again before that, and each new file searches past all of them.
The creation of 50,000 queues took 15 times as long after the removal of as many.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from audit import Shape, make_store

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.client import Message
from rmqpy.client.blocking import BlockingProducer
from rmqpy.pipeline.jobs.export import Export, ExportPlan
from rmqpy.pipeline.jobs.export_target import FolderTarget
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan, run_here
from rmqpy.pipeline.jobs.spark_runner import SparkRunner
from rmqpy.pipeline.spark.distributed_map import map_on_spark
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import connect_when_ready, create_topic
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite
from rmqpy.upgrade.steps.plan_context import settings_of_facts

CHUNK: Final = 8 << 20
GIB: Final = 1 << 30
RANGE: Final = 256 << 20
SMALL_TASK: Final = 8 << 20
TINY: Final = 1 << 20
QUEUES: Final = 100
MANY_QUEUES: Final = 50_000
WARMING_PASSES: Final = 8
"""Passes before timing, in which the JVM compiles and the workers start."""
ZSTD_LEVEL: Final = "1"
"""The level of Spark's writer, whose default is 3; the export uses 1."""
STREAM_ROUNDS: Final = 20
STREAM_SECONDS_MAX: Final = 60.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
STAT_TIMES = slice(11, 15)
"""utime, stime, cutime, and cstime after the name of a process in /proc/PID/stat."""
SET_CHILD_SUBREAPER: Final = 36
"""The number of the call of prctl after which orphans become children of this process."""

EMPTY_APPLICATION: Final = """
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
with spark_session(SessionPlan(light=True)) as session:
    session.range(1).count()
"""
"""A program of Spark that does nothing, in a session as that of ``pipeline audit``."""

BARE_WALK: Final = """
import sys
from concurrent.futures import ThreadPoolExecutor
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.ranges import audit_range, split_log
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.store.files.disk import OsFileSystem
files, root, range_bytes = OsFileSystem(), sys.argv[1], int(sys.argv[2])
plan = TallyPlan(dledger=False, digests=False, pooled=True, keys=(0, 1 << 62))
works = split_log(read_directory(files, root, queues=False).classic, root, range_bytes)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda work: audit_range(map_log(files, work.path), work, plan), works))
"""
"""A program that walks the log in two threads, as ``pipeline audit`` does, and nothing else."""

GOALS: Final = {
    "audit": 6.0,
    "audit-plain": 6.0,
    "audit-queues": 6.0,
    "audit-queues-plain": 6.0,
    "md5": 0.85,
    "cores": 1.7,
    "spark": 0.7,
    "spark-warm": 0.7,
    "spark-cores": 1.7,
    "rebuild-queues": 2.0,
    "splits": 1.2,
    "column": 0.4,
    "rebuild-spark": 0.5,
    "parquet": 4.0,
    "latency": 1.0,
}
AT_MOST: Final = frozenset(["latency", "rebuild-queues", "splits", "column"])
SESSION_ROWS: Final = frozenset(
    ["spark-warm", "splits", "column", "rebuild-spark", "parquet", "latency"]
)
SPLIT_MIB: Final = (1, 8, 64)


# ------------------------------------------------------------------------------ the store


def logs_of(store: Path) -> list[Path]:
    rows = read_directory(OsFileSystem(), str(store)).logs
    return [Path(file.path) for row in rows for file in row.files]


def read_all(files: list[Path]) -> int:
    """Read all files, which brings them into the page cache, and return their size."""
    total = 0
    for path in files:
        with path.open("rb") as file:
            while data := file.read(CHUNK):
                total += len(data)
    return total


# ------------------------------------------------------------------------------ clocks


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, including reaped ones."""
    ticks = tree_ticks()
    return sum(ticks.values()) / TICKS


def tree_ticks() -> dict[int, int]:
    """Return the CPU ticks of this process and its descendants, by process id."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[STAT_TIMES]))
    tree = new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree = tree | new
    return {pid: ticks[pid] for pid in tree if pid in ticks}


def command(words: list[str], *, cores: int | None = None) -> tuple[float, float]:
    """Run ``rmqpy pipeline`` and return its seconds, and the CPU seconds of all its processes."""
    return program(["-m", "rmqpy.cli", "pipeline", *words], cores=cores)


def program(words: list[str], *, cores: int | None = None) -> tuple[float, float]:
    """Run a program of Python like :func:`command`."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    cpu, start = children_cpu_s(), time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(os.sched_setaffinity, 0, allowed),
    )
    output, _ = process.communicate()
    seconds = time.monotonic() - start
    if process.returncode != 0:
        raise SystemExit(f"{words} ended with {process.returncode}: {output.decode()}")
    with suppress(ChildProcessError):
        while True:  # the JVM and Spark's workers, which nobody else waits for
            os.wait()
    return seconds, max(children_cpu_s() - cpu, 1 / TICKS)


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    found = os.times()
    return found.children_user + found.children_system


def timed(do: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of ``do``."""
    cpu, start = tree_cpu_s(), time.monotonic()
    do()
    return time.monotonic() - start, max(tree_cpu_s() - cpu, 1 / TICKS)


def best(do: Callable[[], tuple[float, float]], rounds: int) -> tuple[float, float]:
    """Return the shortest time and the least CPU of all rounds, because noise only adds."""
    timings = [do() for _ in range(rounds)]
    return min(wall for wall, _ in timings), min(cpu for _, cpu in timings)


# ------------------------------------------------------------------------------ what is measured


class Bench:
    """The measurements on one store, with their results in ``figures``."""

    def __init__(self, store: Path, options: argparse.Namespace, work: Path) -> None:
        self.store = store
        self.files = logs_of(store)
        self.size = read_all(self.files)
        self.rounds: int = options.rounds
        self.work = work
        self.figures: dict[str, float] = {}

    def openssl(self, name: str) -> None:
        """Measure md5 of the log files; ``name`` is that of the store."""
        words = ["openssl", "md5", *map(str, self.files)]

        def digest() -> tuple[float, float]:
            cpu, start = children_cpu_s(), time.monotonic()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            return time.monotonic() - start, max(children_cpu_s() - cpu, 1 / TICKS)

        self._note(f"openssl {name}", best(digest, self.rounds))

    def audit(self, name: str, *options: str, cores: int | None = None) -> None:
        """Measure ``pipeline audit`` as a command."""
        words = ["audit", str(self.store), "--format", "json", *options]
        command(words, cores=cores)  # brings the derived files into the page cache
        self._note(name, best(lambda: command(words, cores=cores), self.rounds))

    def tiny_audit(self) -> None:
        """Measure what an audit takes however small the store is, on two cores."""
        store = self.work / "tiny"
        make_store(store, Shape(body=1024, queues=1), TINY, TINY)
        words = ["audit", str(store), "--format", "json", "--engine", "local"]
        self._note("audit of 1 MiB", best(lambda: command(words), self.rounds))

    def empty_application(self, name: str, *, cores: int | None = None) -> None:
        """Measure a program that starts a session, counts one row, and stops it."""
        words = ["-c", EMPTY_APPLICATION]
        self._note(name, best(lambda: program(words, cores=cores), self.rounds))

    def bare_walk(self, name: str, *, cores: int | None = None) -> None:
        """Measure a program that only walks the log."""
        words = ["-c", BARE_WALK, str(self.store), str(RANGE)]
        self._note(name, best(lambda: program(words, cores=cores), self.rounds))

    def _note(self, name: str, timing: tuple[float, float]) -> None:
        self.figures[f"{name} s"], self.figures[f"{name} cpu-s"] = timing

    def rebuild_queues(self, name: str) -> None:
        """Measure ``pipeline rebuild --apply`` of a store that has only its log."""
        root = self.work / name.replace(",", "")  # which separates the folders of a log
        root.mkdir()
        (root / "commitlog").symlink_to(self.store / "commitlog")
        words = ["rebuild", str(root), "--apply", "--engine", "local"]
        self._note(name, command(words))

    def spark_warm(self, session: Any) -> None:
        """Measure a whole audit in a session, without its start."""
        directory = read_directory(OsFileSystem(), str(self.store))
        plan = AuditOptions(root=str(self.store), pooled=True, range_bytes=RANGE)

        def audit() -> None:
            runner = SparkRunner(session, OsFileSystem(), directory)
            assert audit_store(OsFileSystem(), plan, runner).is_clean

        for _ in range(WARMING_PASSES):
            audit()
        self._note("spark warm", best(partial(timed, audit), self.rounds))

    def data_source(
        self, session: Any, name: str, split_bytes: int, schema: str = "", *, tasks: int = 0
    ) -> None:
        """Measure a read of the store that is written nowhere."""

        def read() -> None:
            reader = session.read.format("rocketmq").option("splitBytes", split_bytes)
            reader = reader.option("minPartitions", tasks)
            frame = (reader.schema(schema) if schema else reader).load(str(self.store))
            frame.write.format("noop").mode("overwrite").save()

        read()
        self._note(name, best(partial(timed, read), self.rounds))

    def small_tasks(self, session: Any) -> None:
        """Measure a read with a task per 8 MiB, and as many tasks with an idle worker."""
        count = self.size // SMALL_TASK
        self.data_source(session, "tasks of 8 MiB", RANGE, tasks=count)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            from rmqpy import __version__
            from rmqpy.pipeline.spark.distributed_map import prepare_worker

            prepare_worker(__version__)  # else each task also collects garbage
            yield from batches

        def tasks() -> None:
            frame = session.range(0, count, 1, count).mapInArrow(run, "id long")
            frame.write.format("noop").mode("overwrite").save()

        tasks()
        self._note("empty tasks", best(partial(timed, tasks), self.rounds))
        self.figures["empty tasks"] = count

    def export(self, session: Any) -> None:
        def export() -> None:
            shutil.rmtree(self.work / "export", ignore_errors=True)
            target = FolderTarget(str(self.work / "export"))
            plan = ExportPlan(root=str(self.store), target=target, range_bytes=RANGE)
            Export(plan, lambda task, units: map_on_spark(session, task, units)).run()

        self._written("export", export)

    def spark_writer(self, session: Any) -> None:
        def write() -> None:
            frame = session.read.format("rocketmq").option("splitBytes", RANGE)
            writer = frame.load(str(self.store)).write.mode("overwrite")
            writer = writer.option("compression", "zstd")
            writer = writer.option("parquet.compression.codec.zstd.level", ZSTD_LEVEL)
            writer.parquet(str(self.work / "spark writer"))

        self._written("spark writer", write)

    def _written(self, name: str, do: Callable[[], None]) -> None:
        do()  # warms up the JVM and the workers
        wall, cpu = best(partial(timed, do), self.rounds)
        self.figures[f"{name} s"], self.figures[f"{name} cpu-s"] = wall, cpu
        files = (self.work / name).glob("*.parquet")
        self.figures[f"{name} bytes"] = sum(file.stat().st_size for file in files)
        shutil.rmtree(self.work / name)

    def rebuild(self, session: Any) -> None:
        root = str(self.store)
        facts = read_facts(OsFileSystem(), root)
        log = facts.classic or facts.ledger
        assert log is not None
        plan = RebuildPlan(
            root=root,
            target=str(self.work / "rebuilt"),
            settings=settings_of_facts(root, log.file_size, facts.as_json()),
            range_bytes=RANGE,
        )
        runs: dict[str, Any] = {"rebuild here": run_here, "rebuild": partial(map_on_spark, session)}
        for name, run in runs.items():
            rebuild = Rebuild(plan, run)
            wall, cpu = timed(rebuild.run)
            assert rebuild.is_whole
            self.figures[f"{name} s"], self.figures[f"{name} cpu-s"] = wall, cpu
            self.figures[f"{name} messages/cpu-s"] = rebuild.units / cpu
        shutil.rmtree(self.work / "rebuilt")

    def latency(self, session: Any) -> None:
        seconds = list(latencies(session, self.work))
        self.figures["latency s"] = statistics.median(seconds)
        self.figures["latency max s"] = max(seconds)


def latencies(session: Any, work: Path) -> Iterator[float]:
    """Send one message at a time and yield the seconds until its batch is committed."""
    site = RmqpySite(work / "live")
    namesrv = site.namesrv("namesrv", free_port_block(1).first).start()
    port = free_port_block(BROKER_PORT_COUNT).broker_port
    broker = site.broker("broker", BrokerSpec(port=port, namesrv=namesrv.address)).start()
    with connect_when_ready(broker.address) as connection:
        create_topic(connection, "latency", 4)
    reader = session.readStream.format("rocketmq").option("nameServer", namesrv.address)
    frame = reader.option("topic", "latency").option("startingOffsets", "earliest").load()
    checkpoint = work / "checkpoint"
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.start(str(work / "rows"))
    try:
        with BlockingProducer("bench", namesrv.address) as producer:
            for number in range(-2, STREAM_ROUNDS):
                before = committed(checkpoint)
                start = time.time()
                producer.send(Message(topic="latency", body=b"x"))
                while committed(checkpoint) == before:
                    if time.time() - start > STREAM_SECONDS_MAX:
                        raise SystemExit(f"no batch was committed: {query.exception()}")
                    time.sleep(0.005)
                if number >= 0:  # the JVM and the workers start during the first sends
                    yield time.time() - start
    finally:
        query.stop()
        broker.stop()
        namesrv.stop()


def committed(checkpoint: Path) -> int:
    return sum(1 for name in (checkpoint / "commits").glob("*") if name.name.isdigit())


@contextmanager
def session_of(workers: int, *, light: bool = False) -> Iterator[Any]:
    plan = SessionPlan(master=f"local[{workers},4]", name="bench", light=light)
    with spark_session(plan) as session:
        yield session


# ------------------------------------------------------------------------------ the run


def measure_commands(bench: Bench, rows: set[str]) -> None:
    """Measure the rows of the store with 100 queues and keys that are commands."""
    bench.openssl("keys")
    bench.audit("audit", "--engine", "local")
    if "md5" in rows:
        bench.audit("audit --md5", "--engine", "local", "--md5")
    if "cores" in rows:
        bench.audit("audit on one core", "--engine", "local", cores=1)
        bench.tiny_audit()
        bench.bare_walk("bare walk")
        bench.bare_walk("bare walk on one core", cores=1)
    if rows & {"spark", "spark-cores"}:
        bench.audit("audit on Spark", "--engine", "spark")
        bench.empty_application("empty application")
    if "spark-cores" in rows:
        bench.audit("audit on Spark on one core", "--engine", "spark", cores=1)
        bench.empty_application("empty application on one core", cores=1)
    if "rebuild-queues" in rows:
        bench.rebuild_queues("rebuild of 100 queues")


def measure_warm_audit(bench: Bench, _rows: set[str]) -> dict[str, float]:
    """Measure an audit in a session like that of ``pipeline audit``."""
    with session_of(2, light=True) as session:
        bench.spark_warm(session)
    return bench.figures


def measure_in_session(bench: Bench, rows: set[str]) -> dict[str, float]:
    """Measure the rows that need a Spark session; the JVM lives as long as this process."""
    with session_of(2) as session:
        if "splits" in rows:
            for mib in SPLIT_MIB:
                bench.data_source(session, f"splits of {mib} MiB", mib << 20)
            bench.small_tasks(session)
        if "column" in rows:
            bench.data_source(session, "all columns", RANGE)
            bench.data_source(session, "one column", RANGE, "topic STRING")
        if "parquet" in rows:
            bench.export(session)
            bench.spark_writer(session)
        if "rebuild-spark" in rows:
            bench.rebuild(session)
        if "latency" in rows:
            bench.latency(session)
    return bench.figures


def measure_other_store(
    row: str, shape: Shape, options: argparse.Namespace, work: Path, rows: set[str]
) -> dict[str, float]:
    """Measure the commands on another store."""
    store = work / row
    make_store(store, shape, int(options.gigabytes * GIB))
    bench = Bench(store, options, work)
    if row in rows:
        bench.openssl(row)
        bench.audit(row, "--engine", "local")
    if "rebuild-queues" in rows and row == "audit-queues":
        bench.rebuild_queues("rebuild of 50,000 queues")
    return bench.figures


def measure(store: Path, options: argparse.Namespace, work: Path, rows: set[str]) -> Bench:
    """Measure the requested rows and return the figures."""
    shapes = {
        "audit-plain": Shape(body=options.size, queues=QUEUES, keys=False),
        "audit-queues": Shape(body=options.size, queues=MANY_QUEUES),
        "audit-queues-plain": Shape(body=options.size, queues=MANY_QUEUES, keys=False),
    }
    if not store.exists():
        make_store(store, Shape(body=options.size, queues=QUEUES), int(options.gigabytes * GIB))
    bench = Bench(store.resolve(), options, work)
    if rows - SESSION_ROWS - shapes.keys():
        measure_commands(bench, rows)
    for row, shape in shapes.items():
        if row in rows or (row == "audit-queues" and "rebuild-queues" in rows):
            bench.figures |= measure_other_store(row, shape, options, work, rows)
    if rows & SESSION_ROWS:
        warm = frozenset({"spark-warm"})
        if "audit cpu-s" not in bench.figures:
            bench.audit("audit", "--engine", "local")
        for measure_rows, names in (
            (measure_warm_audit, warm),
            (measure_in_session, SESSION_ROWS - warm),
        ):
            if rows & names:
                with ProcessPoolExecutor(1, get_context("fork")) as other:
                    bench.figures |= other.submit(measure_rows, bench, rows).result()
    return bench


def ratios_of(figures: dict[str, float], rows: set[str]) -> dict[str, float]:
    pairs = {
        "audit": ("openssl keys cpu-s", "audit cpu-s"),
        **{
            row: (f"openssl {row} cpu-s", f"{row} cpu-s")
            for row in ("audit-plain", "audit-queues", "audit-queues-plain")
        },
        "md5": ("openssl keys cpu-s", "audit --md5 cpu-s"),
        "cores": ("audit on one core s", "audit s"),
        "spark": ("audit cpu-s", "audit on Spark cpu-s"),
        "spark-warm": ("audit cpu-s", "spark warm cpu-s"),
        "spark-cores": ("audit on Spark on one core s", "audit on Spark s"),
        "rebuild-queues": ("rebuild of 50,000 queues cpu-s", "rebuild of 100 queues cpu-s"),
        "splits": ("splits of 8 MiB cpu-s", "splits of 64 MiB cpu-s"),
        "column": ("one column cpu-s", "all columns cpu-s"),
        "rebuild-spark": ("rebuild here cpu-s", "rebuild cpu-s"),
        "parquet": ("spark writer cpu-s", "export cpu-s"),
    }
    ratios = {row: figures[one] / figures[two] for row, (one, two) in pairs.items() if row in rows}
    return ratios | ({"latency": figures["latency s"]} if "latency" in rows else {})


def is_met(row: str, ratio: float) -> bool:
    return ratio <= GOALS[row] if row in AT_MOST else ratio >= GOALS[row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of each log in GiB")
    parser.add_argument("--size", type=int, default=1024, help="bytes per message body")
    parser.add_argument(
        "--store", type=Path, help="store to use; created and kept if it does not exist"
    )
    parser.add_argument(
        "--rows", default=",".join(GOALS), help="comma-separated rows; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each figure")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder for all output")
    options = parser.parse_args()
    rows = set(options.rows.split(","))
    if rows - GOALS.keys():
        parser.error(f"unknown row; the rows are {', '.join(GOALS)}")
    if ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        parser.error("this needs Linux")
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-", dir=options.folder) as folder:
        work = Path(folder)
        loads = [os.getloadavg()[0]]
        bench = measure(options.store or work / "store", options, work, rows)
        loads.append(os.getloadavg()[0])
    ratios = ratios_of(bench.figures, rows)
    met = {row: is_met(row, ratio) for row, ratio in ratios.items()}
    report = {
        "gigabytes": round(bench.size / GIB, 2),
        "load": [round(load, 2) for load in loads],
        "cores": os.cpu_count(),
        "processor": processor(),
        "ratios": {row: round(ratio, 3) for row, ratio in ratios.items()},
        "met": met,
        "figures": {name: round(value, 3) for name, value in bench.figures.items()},
    }
    print(json.dumps(report))
    return 0 if all(met.values()) else 2


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main())
