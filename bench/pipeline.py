"""Measure the cost of the data pipeline, as ratios of two measurements on one store in one run.

    python bench/pipeline.py                              # 2 GiB of 1 KiB messages
    python bench/pipeline.py --gigabytes 12 --size 128
    python bench/pipeline.py --store DIR --rows kernel,md5

rmqload fills the store through an rmqpy broker: a classic log with files of 1 GiB, closed cleanly.
The folder that ``--store`` names is kept, and reused the next time. The store is read once before
anything is timed. The last file ends with zeros, which cost md5 as much as the rest and count for
md5 only. CPU means all processes together: driver, JVM, Python workers. The output is one JSON line
with the load of the machine before and after. Exit code: 0 every goal is met, 2 one is not.

==========  =====  ========================================================================
row         goal   ratio
==========  =====  ========================================================================
kernel      8      bytes per second: the audit of the log in one process / openssl md5
spark-256   0.5    bytes per CPU second: Spark's audit, ranges of 256 MiB / the kernel
spark-file  0.7    the same with ranges of a file
md5         0.85   bytes per CPU second: the audit with MD5 of every file / openssl md5
parquet     4      CPU: Spark's own Parquet writer / an export
rebuild     0.5    CPU: rebuild of consume queues and key index in one process / on Spark
latency     1      seconds from a send to its committed batch, median (at most)
cores       1.7    wall time: the audit on one core / on two
==========  =====  ========================================================================

"On one core" means that all of Spark runs on it, including the threads of the JVM, as on a machine
with one core; with a single worker on two cores, the JVM has the other core (figure ``one
worker``). With ``cores``, the figures ``plain`` show what this machine gains from two cores in
general: the kernel alone over the same ranges, in one process and in two independent ones. Both
Parquet writers use zstd level 1. For ``cores``, the JVM has the options of the rmqpy commands, and
for the other rows those of Spark: the former compile less, with which Spark's own writer would cost
half as much again.
"""

from __future__ import annotations

import argparse
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

from compare import build_generator
from fill import GIB, Filling, filled

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.ranges import WorkRange, audit_range, split_log
from rmqpy.client import Message
from rmqpy.client.blocking import BlockingProducer
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.pipeline.jobs.export import Export, ExportPlan
from rmqpy.pipeline.jobs.export_target import FolderTarget
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan, run_here
from rmqpy.pipeline.jobs.spark_runner import SparkRunner
from rmqpy.pipeline.spark.distributed_map import map_on_spark
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.log_recovery import Framing
from rmqpy.testing.blocking_connection import connect_when_ready, create_topic
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite
from rmqpy.upgrade.steps.plan_context import settings_of_facts

CHUNK: Final = 8 << 20
RANGE: Final = 256 << 20
FILE: Final = 1 << 30
WARMING_PASSES: Final = 4
"""Passes before timing, in which the JVM compiles and the workers start."""
ZSTD_LEVEL: Final = "1"
"""The level of Spark's writer, whose default is 3; the export uses 1."""
STREAM_ROUNDS: Final = 20
STREAM_SECONDS_MAX: Final = 60.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
STAT_TIMES = slice(11, 15)
"""utime, stime, cutime, and cstime after the name of a process in /proc/PID/stat."""

GOALS: Final = {
    "kernel": 8.0,
    "spark-256": 0.5,
    "spark-file": 0.7,
    "md5": 0.85,
    "parquet": 4.0,
    "rebuild": 0.5,
    "latency": 1.0,
    "cores": 1.7,
}
AT_MOST: Final = frozenset(["latency"])


# ------------------------------------------------------------------------------ the store


def fill(work: Path, options: argparse.Namespace) -> Path:
    """Fill a store to the given size, close it cleanly, and return it."""
    spec = BrokerSpec(
        port=free_port_block(BROKER_PORT_COUNT).broker_port,
        namesrv="127.0.0.1:9",
        sizes={"diskMaxUsedSpaceRatio": "95", "fileReservedTime": "480"},
    )
    broker = RmqpySite(work).broker("broker", spec).start()
    filling = Filling(build_generator(work), options.gigabytes, options.size, queues=16)
    try:
        with filled(broker, filling):
            pass
    finally:
        broker.stop(timeout_s=300)
    assert broker.store is not None
    return broker.store


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


@contextmanager
def limited_to_cores(cores: int) -> Iterator[None]:
    """Run this process and its descendants, including later ones, on ``cores`` cores."""
    allowed = os.sched_getaffinity(0)
    _set_cores(set(sorted(allowed)[:cores]))
    try:
        yield
    finally:
        _set_cores(allowed)


def _set_cores(cores: set[int]) -> None:
    for pid in tree_ticks():
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def timed(do: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of ``do``."""
    cpu, start = tree_cpu_s(), time.monotonic()
    do()
    return time.monotonic() - start, max(tree_cpu_s() - cpu, 1 / TICKS)


def best(do: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the shortest time and the least CPU of all rounds, because noise only adds."""
    timings = [timed(do) for _ in range(rounds)]
    return min(wall for wall, _ in timings), min(cpu for _, cpu in timings)


# ------------------------------------------------------------------------------ what is measured


class Bench:
    """The measurements on one store, with their results in ``figures``."""

    def __init__(self, store: Path, options: argparse.Namespace, work: Path) -> None:
        self.store = store
        self.files = logs_of(store)
        self.size = read_all(self.files)
        facts = read_facts(OsFileSystem(), str(store))
        self.content = facts.end - facts.begin
        self.rounds: int = options.rounds
        self.work = work
        self.figures: dict[str, float] = {}

    def plan(self, **more: Any) -> AuditOptions:
        return AuditOptions(root=str(self.store), derived=False, **more)

    def kernel(self) -> None:
        """Measure the audit of the log in one process and thread, without consume queues."""
        wall, cpu = best(lambda: audit_store(OsFileSystem(), self.plan(workers=1)), self.rounds)
        self.figures["kernel bytes/s"] = self.content / wall
        self.figures["kernel bytes/cpu-s"] = self.content / cpu

    def openssl(self) -> None:
        command = ["openssl", "md5", *map(str, self.files)]
        wall, cpu = best(
            lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), self.rounds
        )
        self.figures["md5 bytes/s"] = self.size / wall
        self.figures["md5 bytes/cpu-s"] = self.size / cpu

    def with_md5(self) -> None:
        def both() -> None:
            assert audit_store(OsFileSystem(), self.plan(workers=1, md5=True)).md5s

        _, cpu = best(both, self.rounds)
        self.figures["audit+md5 bytes/cpu-s"] = self.size / cpu

    def spark(self, session: Any, name: str, range_bytes: int) -> None:
        directory = read_directory(OsFileSystem(), str(self.store))

        def audit() -> None:
            plan = self.plan(range_bytes=range_bytes)
            assert audit_store(
                OsFileSystem(), plan, SparkRunner(session, OsFileSystem(), directory)
            ).records

        for _ in range(WARMING_PASSES):
            audit()
        wall, cpu = best(audit, self.rounds)
        self.figures[f"{name} bytes/s"] = self.content / wall
        self.figures[f"{name} bytes/cpu-s"] = self.content / cpu

    def cores(self) -> dict[str, float]:
        """Measure the audit with two workers, with one, and with all of Spark on one core."""
        with session_of(2, light=True) as session:
            self.spark(session, "two cores", RANGE)
        with session_of(1, light=True) as session:
            self.spark(session, "one worker", RANGE)
            with limited_to_cores(1):
                self.spark(session, "one core", RANGE)
        return self.figures

    def plain(self) -> None:
        """Measure the kernel in one process and in two, which is the most two cores can gain."""
        ranges = [
            work
            for row in read_directory(OsFileSystem(), str(self.store)).logs
            for work in split_log(row, str(self.store), RANGE)
        ]
        for count in (1, 2):
            seconds = min(plain_seconds(ranges, count) for _ in range(self.rounds))
            self.figures[f"plain bytes/s of {count}"] = self.content / seconds

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
        wall, cpu = best(do, self.rounds)
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


def plain_seconds(ranges: list[WorkRange], count: int) -> float:
    """Return the seconds in which ``count`` processes audit all ranges, a share each."""
    context = get_context("fork")
    started, ended = context.Barrier(count + 1), context.Barrier(count + 1)

    def share(first: int) -> None:
        started.wait()
        for work in ranges[first::count]:
            plan = TallyPlan(dledger=work.framing is Framing.DLEDGER, digests=False)
            audit_range(map_log(OsFileSystem(), work.path), work, plan)
        ended.wait()

    processes = [context.Process(target=share, args=(first,)) for first in range(count)]
    for process in processes:
        process.start()
    started.wait()
    start = time.monotonic()
    ended.wait()
    seconds = time.monotonic() - start
    for process in processes:
        process.join()
    return seconds


@contextmanager
def session_of(workers: int, *, light: bool = False) -> Iterator[Any]:
    plan = SessionPlan(master=f"local[{workers},4]", name="bench", light=light)
    with spark_session(plan) as session:
        yield session


# ------------------------------------------------------------------------------ the run


def measure(bench: Bench, rows: set[str]) -> dict[str, float]:
    """Return the ratios of the requested rows."""
    figures = bench.figures
    bench.kernel()
    if rows & {"kernel", "md5"}:
        bench.openssl()
    if "md5" in rows:
        bench.with_md5()
    if "cores" in rows:
        bench.plain()
        with ProcessPoolExecutor(1, get_context("fork")) as other:
            figures |= other.submit(bench.cores).result()  # needs a separate JVM
    if rows & {"spark-256", "spark-file", "parquet", "rebuild", "latency"}:
        with session_of(2) as session:
            if "spark-256" in rows:
                bench.spark(session, "spark-256", RANGE)
            if "spark-file" in rows:
                bench.spark(session, "spark-file", FILE)
            if "parquet" in rows:
                bench.export(session)
                bench.spark_writer(session)
            if "rebuild" in rows:
                bench.rebuild(session)
            if "latency" in rows:
                bench.latency(session)
    pairs = {
        "kernel": ("kernel bytes/s", "md5 bytes/s"),
        "spark-256": ("spark-256 bytes/cpu-s", "kernel bytes/cpu-s"),
        "spark-file": ("spark-file bytes/cpu-s", "kernel bytes/cpu-s"),
        "md5": ("audit+md5 bytes/cpu-s", "md5 bytes/cpu-s"),
        "parquet": ("spark writer cpu-s", "export cpu-s"),
        "rebuild": ("rebuild here cpu-s", "rebuild cpu-s"),
        "cores": ("two cores bytes/s", "one core bytes/s"),
    }
    if "cores" in rows:
        figures["plain two to one"] = figures["plain bytes/s of 2"] / figures["plain bytes/s of 1"]
    ratios = {row: figures[one] / figures[two] for row, (one, two) in pairs.items() if row in rows}
    return ratios | ({"latency": figures["latency s"]} if "latency" in rows else {})


def is_met(row: str, ratio: float) -> bool:
    return ratio <= GOALS[row] if row in AT_MOST else ratio >= GOALS[row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the log")
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
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-", dir=options.folder) as folder:
        work = Path(folder)
        store: Path = options.store or work / "store"
        if not store.exists():
            shutil.move(fill(work, options), store)
        loads = [os.getloadavg()[0]]
        bench = Bench(store.resolve(), options, work)
        ratios = measure(bench, rows)
        loads.append(os.getloadavg()[0])
    met = {row: is_met(row, ratio) for row, ratio in ratios.items()}
    report = {
        "gigabytes": round(bench.content / GIB, 2),
        "load": [round(load, 2) for load in loads],
        "cores": os.cpu_count(),
        "ratios": {row: round(ratio, 3) for row, ratio in ratios.items()},
        "met": met,
        "figures": {name: round(value, 3) for name, value in bench.figures.items()},
    }
    print(json.dumps(report))
    return 0 if all(met.values()) else 2


if __name__ == "__main__":
    sys.exit(main())
