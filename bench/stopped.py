"""Measure what the verbs of an upgrade read while the group is stopped, by the size of the store.

    python bench/stopped.py                              # 1 and 4 GiB of 1 KiB messages
    python bench/stopped.py --gigabytes 1,4,12 --work DIR
    python bench/stopped.py --gigabytes 0.1,0.4 --file-mib 16

For each size, rmqload fills the classic store of a master through an rmqpy broker (closed cleanly;
queue and index files have the default sizes), and a copy becomes its slave. Each verb runs in a
process of its own, on both replicas: first as they are, then after ``prepare``. Before each run,
the files of both stores are dropped from the page cache. The figures are those of the process:

=========  ==========================================================================
read_mib   bytes that were read from the disk (read_bytes of /proc/PID/io)
cpu_s      user and system time
wall_s     elapsed time; the disk and the other load of the machine are in it
rss_mib    the largest resident set, mapped pages of files included
anon_mib   the anonymous memory at the end
=========  ==========================================================================

The output is one JSON line, and a table on stderr. ``--work`` names a folder that is kept, with the
stores and the rows that have been measured: a run that was interrupted continues there.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen
from compare import build_generator
from fill import Filling, filled

from rmqpy.audit.facts.learned import learned_folder
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite

MEMBERS: Final = ("n0", "n1")
PEERS: Final = "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"
VERBS: Final = {
    "check": "check",
    "plan": "plan",
    "switch": f"switch --dry-run --peers {PEERS} --self-id n0=n0 --self-id n1=n1",
    "verify": "verify",
}
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
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "wall_s": round(time.monotonic() - begin, 2),
        "rss_mib": round(used.ru_maxrss / 1024),
        "anon_mib": round(int(status["RssAnon"].split()[0]) / 1024),
    }, file)
"""


@frozen
class Shape:
    """The shape of the stores: bytes of a body, and MiB of a log file."""

    body_bytes: int
    file_mib: int


def fill(work: Path, gigabytes: float, shape: Shape) -> Path:
    """Fill the store of a master, close it cleanly, and return it."""
    spec = BrokerSpec(
        port=free_port_block(BROKER_PORT_COUNT).broker_port,
        namesrv="127.0.0.1:9",
        sizes={
            "diskMaxUsedSpaceRatio": "95",
            "fileReservedTime": "480",
            "mappedFileSizeCommitLog": str(shape.file_mib << 20),
        },
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


def make_group(work: Path, gigabytes: float, shape: Shape) -> None:
    """Make the stores n0 and n1 below ``work``, and a broker.conf for each."""
    if not (work / "n0").exists():
        work.mkdir(parents=True, exist_ok=True)
        shutil.move(fill(work, gigabytes, shape), work / "n0")
        copy = ["cp", "-a", "--sparse=always", str(work / "n0"), str(work / "n1")]
        subprocess.run(copy, check=True)
    for number, name in enumerate(MEMBERS):
        role = "SLAVE" if number else "ASYNC_MASTER"
        lines = {
            "brokerName": "bench",
            "brokerId": number,
            "brokerRole": role,
            "listenPort": 40711 + 20 * number,
            "storePathRootDir": work / name,
            "storePathCommitLog": work / name / "commitlog",
            "mappedFileSizeCommitLog": shape.file_mib << 20,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        (work / f"{name}.conf").write_text(text)


def drop(work: Path) -> None:
    """Drop the files of both stores from the page cache."""
    os.sync()
    for path in (each for name in MEMBERS for each in (work / name).rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def measured(work: Path, line: str) -> dict[str, Any]:
    """Run a verb of ``rmqpy upgrade`` in a process of its own, and return its figures."""
    drop(work)
    figures = work / "figures.json"
    figures.unlink(missing_ok=True)
    given = [f"{name}={work / name}" for name in MEMBERS]
    for name in MEMBERS:
        given += ["-c", f"{name}={work / name}.conf"]
    command = [sys.executable, "-c", CHILD, str(figures), "upgrade", *line.split(), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not figures.exists():
        raise SystemExit(f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(figures.read_text())
    if found["code"]:
        raise SystemExit(f"{line}: exit code {found['code']}: {done.stdout[-2000:]}")
    return found


def rows_of(work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of one size; those that were measured before are not measured again."""
    kept = work / "rows.json"
    known: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    if not known:
        for name in MEMBERS:
            shutil.rmtree(learned_folder(str(work / name)), ignore_errors=True)
    lines = {f"{name}, all read": line for name, line in VERBS.items()}
    lines["prepare"] = "prepare --rate 0"
    lines |= {f"{name}, prepared": line for name, line in VERBS.items()}
    for name, line in lines.items():
        if name not in known:
            known[name] = measured(work, line)
            kept.write_text(json.dumps(known))
        yield name, known[name]


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
    parser.add_argument("--work", type=Path, help="folder for the stores, which is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqpy-stopped-") as temporary:
        base = options.work or Path(temporary)
        shape = Shape(options.size, options.file_mib)
        result: dict[str, Any] = {"machine": machine(), **asdict(shape), "sizes": {}}
        for size in options.gigabytes.split(","):
            work = base / f"{size}g"
            make_group(work, float(size), shape)
            rows = result["sizes"][size] = {}
            for name, figures in rows_of(work):
                rows[name] = figures
                text = " ".join(f"{key} {value}" for key, value in figures.items())
                print(f"{size:>4} GiB  {name:18} {text}", file=sys.stderr, flush=True)
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
