"""Measure what the verbs of an upgrade read and write while the group is stopped, by the size of
the store.

    python bench/stopped.py                              # 1 and 4 GiB of 1 KiB messages
    python bench/stopped.py --gigabytes 1,4,12 --work DIR
    python bench/stopped.py --gigabytes 0.1,0.4 --file-mib 16

For each size there are two groups. Both logs are written by rmqload through an rmqpy broker, which
is closed cleanly; queue and index files have the default sizes.

==========  ========================================================================
classic     a master and its slave, which is a copy that shares the sealed log files by hard
            links; for ``apply`` the slave is empty
dledger     a DLedger group of one member, for ``leave`` and its ``rollback``
==========  ========================================================================

Each verb runs in a process of its own: first with stores as they are, then after ``prepare``.
(What is never prepared is read by ``check``, ``plan``, ``switch``, and ``verify`` alike; only the
first of them is measured.)
Before each run except those of ``prepare``, the files of the stores are dropped from the page
cache. ``--prepared-only`` leaves the runs without ``prepare`` out. The figures are those of the
process:

==========  ==========================================================================
read_mib    bytes that were read from the disk (read_bytes of /proc/PID/io)
write_mib   bytes that were written (write_bytes)
cpu_s       user and system time
wall_s      elapsed time; the disk and the other load of the machine are in it
rss_mib     the largest resident set, mapped pages of files included
anon_mib    the anonymous memory at the end
==========  ==========================================================================

The output is one JSON line, and a table on stderr. ``--work`` names a folder in which the stores
and the rows are kept: a run that was interrupted continues with the first step that is not done.
(If that is a ``prepare``, its figures are those of the rest.) The stores of a group are removed
when it is measured.

A log file of a gigabyte, Java's default, makes the size of the open file depend on that of the log:
``--gigabytes 1.06,4.06,12.06`` leaves 64 MiB in it for each size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen
from compare import build_generator
from fill import Filling, filled

from rmqpy.audit.facts.learned import learned_folder
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, dledger_settings

MEMBERS: Final = ("n0", "n1")
PEERS: Final = "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"
VERBS: Final = {
    "check": "check",
    "plan": "plan",
    "switch": f"switch --dry-run --peers {PEERS} --self-id n0=n0 --self-id n1=n1",
    "verify": "verify",
}
LEAVE: Final = "leave --role n0=ASYNC_MASTER --apply"
CHILD: Final = """
import json, os, resource, sys, time
begin = time.monotonic()
from rmqpy.cli import main
code = main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
with open(sys.argv[1], "w") as file:
    json.dump({
        "code": code,
        "read_mib": round(int(io["read_bytes"]) / 2**20, 1),
        "write_mib": round(int(io["write_bytes"]) / 2**20, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "wall_s": round(time.monotonic() - begin, 2),
        "rss_mib": round(used.ru_maxrss / 1024),
        "anon_mib": round(int(status["RssAnon"].split()[0]) / 1024),
    }, file)
"""


@frozen
class Shape:
    """The shape of the stores: bytes of a body, and MiB of a log file; and what is measured."""

    body_bytes: int
    file_mib: int
    prepared_only: bool

    @property
    def states(self) -> tuple[str, ...]:
        return ("prepared",) if self.prepared_only else ("all read", "prepared")


def fill(work: Path, gigabytes: float, shape: Shape, settings: dict[str, str]) -> Path:
    """Fill the store of a broker, close it cleanly, and return it."""
    spec = BrokerSpec(
        port=free_port_block(BROKER_PORT_COUNT).broker_port,
        namesrv="127.0.0.1:9",
        sizes={
            "diskMaxUsedSpaceRatio": "95",
            "fileReservedTime": "480",
            "mappedFileSizeCommitLog": str(shape.file_mib << 20),
        },
        settings=settings,
    )
    broker = RmqpySite(work).broker("broker", spec).start()
    filling = Filling(build_generator(work), gigabytes, shape.body_bytes, queues=8)
    try:
        with filled(broker, filling):
            pass
    finally:
        broker.stop(timeout_s=300)
    assert broker.store is not None
    return broker.store


def write_conf(work: Path, number: int, shape: Shape, settings: dict[str, str]) -> None:
    name = MEMBERS[number]
    lines = {
        "brokerName": "bench",
        "brokerId": number,
        "listenPort": 40711 + 20 * number,
        "storePathRootDir": work / name,
        "storePathCommitLog": work / name / "commitlog",
        "mappedFileSizeCommitLog": shape.file_mib << 20,
        **settings,
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    (work / f"{name}.conf").write_text(text)


@frozen
class Runner:
    """Runs verbs on the members in ``work``, and keeps their figures in ``steps.json`` there, with
    the names of the other steps that are done.
    """

    work: Path
    members: tuple[str, ...]

    @property
    def done(self) -> dict[str, Any]:
        path = self.work / "steps.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {name: figures for name, figures in self.done.items() if figures is not None}

    def step(self, name: str, action: Callable[[], dict[str, Any] | None]) -> None:
        """Carry out a step that is not done yet."""
        if name in self.done:
            return
        done = {**self.done, name: action()}
        (self.work / "steps.json").write_text(json.dumps(done))

    def row(self, name: str, line: str) -> None:
        """Run a verb of ``rmqpy upgrade`` in a process of its own, and note its figures."""
        self.step(name, lambda: self._row(name, line))

    def _row(self, name: str, line: str) -> dict[str, Any]:
        figures = self.run(line)
        text = " ".join(f"{key} {value}" for key, value in figures.items() if key != "code")
        print(f"{self.work.parent.name:>5}  {name:19} {text}", file=sys.stderr, flush=True)
        return figures

    def run(self, line: str) -> dict[str, Any]:
        if not line.startswith("prepare"):
            drop(self.work)
        figures = self.work / "figures.json"
        figures.unlink(missing_ok=True)
        given = [] if line.startswith("rollback") else self.given()
        command = [sys.executable, "-c", CHILD, str(figures), "upgrade", *line.split(), *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.work)
        if not figures.exists():
            raise SystemExit(f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(figures.read_text())
        if found["code"]:
            raise SystemExit(f"{line}: exit code {found['code']}: {done.stdout}{done.stderr}")
        return found

    def given(self) -> list[str]:
        confs = [each for name in self.members for each in ("-c", f"{name}={name}.conf")]
        return [*(f"{name}={self.work / name}" for name in self.members), *confs]


def drop(work: Path) -> None:
    """Drop the files of all stores from the page cache."""
    os.sync()
    for path in work.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store; the sealed log files, which no verb writes to, become hard links."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    sealed = sorted((store / "commitlog").iterdir())[:-1]
    log = copy / "commitlog"
    log.mkdir()
    for file in sealed:
        os.link(file, log / file.name)
    linked = {file.name for file in sealed}
    for part in store.iterdir():
        found = sorted(part.iterdir()) if part.name == "commitlog" else [part]
        for path in (each for each in found if each.name not in linked):
            target = copy / path.relative_to(store)
            subprocess.run(["cp", "-a", "--sparse=always", str(path), str(target)], check=True)


def empty(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()


def make_store(runner: Runner, gigabytes: float, shape: Shape, settings: dict[str, str]) -> None:
    """Fill the store of n0."""
    shutil.rmtree(runner.work / "broker", ignore_errors=True)
    shutil.move(fill(runner.work, gigabytes, shape, settings), runner.work / "n0")


def measure_classic(work: Path, gigabytes: float, shape: Shape) -> dict[str, dict[str, Any]]:
    """Measure the verbs of the way to DLedger."""
    runner = Runner(work, MEMBERS)
    runner.step("fill", lambda: make_store(runner, gigabytes, shape, {}))
    runner.step("copy", lambda: copy_store(work / "n0", work / "n1"))
    write_conf(work, 0, shape, {"brokerRole": "ASYNC_MASTER"})
    write_conf(work, 1, shape, {"brokerRole": "SLAVE"})
    if not shape.prepared_only:
        runner.row("check, all read", VERBS["check"])
    runner.row("prepare", "prepare --rate 0")
    for name, line in VERBS.items():
        runner.row(f"{name}, prepared", line)
    for state in shape.states:
        runner.step(f"empty, {state}", lambda: empty(work / "n1"))
        if state == "prepared":
            runner.row("prepare, n1 empty", "prepare --rate 0")
        else:
            runner.step("forget", lambda: shutil.rmtree(learned_folder(str(work / "n0"))))
        runner.step(f"plan for apply, {state}", lambda: plan(runner))
        runner.row(f"apply, {state}", "apply --plan plan.json --node n1")
    return runner.rows


def plan(runner: Runner) -> None:
    runner.run("plan --out plan.json")


def measure_dledger(work: Path, gigabytes: float, shape: Shape) -> dict[str, dict[str, Any]]:
    """Measure the way back of a group of one member, and its rollback."""
    ports = free_port_block(1)
    settings = dledger_settings("bench", ports.first)
    runner = Runner(work, ("n0",))
    runner.step("fill", lambda: make_store(runner, gigabytes, shape, settings))
    if not (work / "n0.conf").exists():
        write_conf(work, 0, shape, settings)
    for state in shape.states:
        if state == "prepared":
            runner.row("prepare --leave", "prepare --leave --rate 0")
        runner.row(f"leave, {state}", LEAVE)
        runner.row(f"rollback, {state}", "rollback n0")
    return runner.rows


GROUPS: Final = {"classic": measure_classic, "dledger": measure_dledger}


def rows_of(base: Path, size: str, shape: Shape) -> dict[str, dict[str, Any]]:
    """Return the rows of one size; groups that were measured before are not measured again."""
    rows: dict[str, dict[str, Any]] = {}
    for group, measure in GROUPS.items():
        kept = base / f"{size}-{group}.json"
        if not kept.exists():
            work = base / size / group
            work.mkdir(parents=True, exist_ok=True)
            found = measure(work, float(size), shape)
            shutil.rmtree(work)
            kept.write_text(json.dumps(found))
        rows |= json.loads(kept.read_text())
    return rows


def machine() -> dict[str, Any]:
    with open("/proc/cpuinfo", encoding="ascii") as file:
        models = {line.partition(": ")[2].strip() for line in file if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(models)),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", default="1,4", help="sizes of the log, default 1,4")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body, default 1024")
    parser.add_argument("--file-mib", type=int, default=1024, help="MiB of a log file")
    parser.add_argument("--prepared-only", action="store_true", help="not without prepare")
    parser.add_argument(
        "--work", type=Path, help="folder for the stores and the rows, which is kept"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqpy-stopped-") as temporary:
        base = options.work or Path(temporary)
        shape = Shape(options.size, options.file_mib, options.prepared_only)
        result: dict[str, Any] = {"machine": machine(), **asdict(shape), "sizes": {}}
        for size in options.gigabytes.split(","):
            result["sizes"][size] = rows_of(base, size, shape)
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
