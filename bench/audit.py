"""Measure how fast a store is audited and certified, relative to md5 over the same files.

    python bench/audit.py                     # 2 x 1 GiB of messages with 1 KiB and with 128 bytes
    python bench/audit.py --mib 128 --rounds 1
    python bench/audit.py --mib 4096 --sizes 1024 --queues 50000 --rows md5,command --no-keys

The bodies are random bytes. ``command`` is the whole command ``rmqpy pipeline audit`` in a process
of its own, as a user runs it; the other rows are functions of this process. The figures are bytes
of the log per CPU-second, medians over the rounds, which measure everything in turn; md5 reads the
log files only. Only ratios are meaningful. Exit code 2: a ratio is below its goal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from attrs import asdict, define

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import ManifestPlan, Md5, make_manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec import layout
from rmqpy.codec.backend import implementation
from rmqpy.codec.hashes import java_hash_of_bytes
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import Tally, TallyPlan
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.steps.plan_context import settings_of_facts

FILE_BYTES = 1 << 28
QUEUE_FILE_BYTES = 6_000_000
TOPIC_QUEUES = 8
BODY_POOL = os.urandom(1 << 22)
HEAD = struct.Struct(">iIiiiqqiq4siq4siiqi")
HOST = b"\x7f\0\0\1"

Logs = dict[int, bytes]
"""The bytes of each log file by first offset, for measurements that do not read files."""

GOALS = {"kernel": 8.0, "audit": 6.0, "certificate": 0.5, "command": 6.0}
"""The lowest accepted ratios of bytes per CPU-second to those of md5."""


@define(frozen=True)
class Row:
    """One line of the table: ``speed`` in GB per CPU-second, and its ``ratio`` to that of md5."""

    body: int
    messages: int
    work: str
    speed: float
    ratio: float
    goal: float


@define(frozen=True, kw_only=True)
class Shape:
    """A store with messages of ``body`` random bytes, round robin over ``queues`` queues."""

    body: int
    queues: int = 128
    keys: bool = True


def make_store(root: Path, shape: Shape, total: int, file_bytes: int = FILE_BYTES) -> int:
    """Write a classic store with about ``total`` bytes of messages and return their number."""
    (root / "commitlog").mkdir(parents=True)
    queues: dict[tuple[bytes, int], bytearray] = {}
    offset = number = 0
    while offset < total:
        data = bytearray()
        while True:
            record = _record(queues, shape, number, offset + len(data))
            if len(data) + len(record) + layout.BLANK_SIZE > file_bytes:
                break
            data += record
            number += 1
            place = offset + len(data) - len(record)
            _add_unit(queues, _queue_of(shape, number - 1), number - 1, place, len(record))
        remaining = file_bytes - len(data)
        data += struct.pack(">iI", remaining, layout.BLANK_MAGIC) + bytes(remaining - 8)
        (root / "commitlog" / f"{offset:020d}").write_bytes(data)
        offset += file_bytes
    for (topic, queue), units in queues.items():
        folder = root / "consumequeue" / topic.decode() / str(queue)
        folder.mkdir(parents=True)
        for start in range(0, len(units), QUEUE_FILE_BYTES):
            with (folder / f"{start:020d}").open("wb") as file:
                file.write(units[start : start + QUEUE_FILE_BYTES])
                file.truncate(QUEUE_FILE_BYTES)
    if shape.keys:
        add_index(root)
    return number


def add_index(root: Path) -> None:
    """Add the key index that the broker would have written.

    It is built from the log of a store without topics: thousands of queue files would be built with
    it, and removed, and ext4 takes long to create files after that (see ``pipeline.py``).
    """
    bare = root.with_name(f"{root.name}.bare")
    (bare / "consumequeue/a folder").mkdir(parents=True)
    (bare / "config").mkdir()
    (bare / "config/topics.json").write_text('{"topicConfigTable": {}}', encoding="ascii")
    (bare / "commitlog").symlink_to((root / "commitlog").resolve())
    facts = read_facts(OsFileSystem(), str(bare))
    settings = settings_of_facts(str(bare), FILE_BYTES, facts.as_json())
    rebuild = Rebuild(RebuildPlan(root=str(bare), target=str(bare / "built"), settings=settings))
    rebuild.run()
    assert not rebuild.queues and rebuild.keys
    (bare / "built/index").rename(root / "index")
    shutil.rmtree(bare)


def _queue_of(shape: Shape, number: int) -> tuple[bytes, int]:
    topic, queue = divmod(number * 7919 % shape.queues, TOPIC_QUEUES)
    return b"Topic%05d" % topic, queue


def _record(
    queues: dict[tuple[bytes, int], bytearray], shape: Shape, number: int, offset: int
) -> bytes:
    topic, queue = _queue_of(shape, number)
    start = number * 977 % (len(BODY_POOL) - shape.body)
    body = BODY_POOL[start : start + shape.body]
    queue_offset = len(queues.setdefault((topic, queue), bytearray())) // 20
    properties = b"WAIT\1true\2TAGS\1Tag%d" % (number % 5)
    if shape.keys:
        properties = b"UNIQ_KEY\1%032X\2KEYS\1k%d\2" % (number, number) + properties
    size = layout.RECORD_SIZE_MIN + len(body) + len(topic) + len(properties)
    stored_ms = 1_700_000_000_000 + number
    head = HEAD.pack(
        *(size, layout.MESSAGE_MAGIC_V1, zlib.crc32(body) & layout.CRC_MASK, queue, 0),
        *(queue_offset, offset, 0, stored_ms, HOST, 1000, stored_ms, HOST, 10911, 0, 0, len(body)),
    )
    tail = bytes([len(topic)]) + topic + struct.pack(">h", len(properties)) + properties
    return head + body + tail


def _add_unit(
    queues: dict[tuple[bytes, int], bytearray],
    queue: tuple[bytes, int],
    number: int,
    offset: int,
    size: int,
) -> None:
    tags_code = java_hash_of_bytes(b"Tag%d" % (number % 5))
    queues[queue] += QUEUE_UNIT.pack(offset, size, tags_code)


def _md5(_root: Path, logs: Logs) -> None:
    for data in logs.values():
        hashlib.md5(data).digest()


def _kernel(_root: Path, logs: Logs) -> None:
    for base, data in logs.items():
        tally = Tally(TallyPlan(dledger=False, digests=False))
        tally_frames(memoryview(data), base, 0, len(data), tally)


def _audit(root: Path, _logs: Logs) -> None:
    options = AuditOptions(root=str(root), workers=1, pooled=True)
    assert audit_store(OsFileSystem(), options).is_clean


def _command(root: Path, _logs: Logs) -> None:
    words = ["-m", "rmqpy.cli", "pipeline", "audit", str(root), "--engine", "local"]
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def _certificate(root: Path, _logs: Logs) -> None:
    """Certify two replicas. They are the same folder here, which is read twice."""
    plans = [
        ManifestPlan(
            name=name,
            audit=AuditOptions(root=str(root), workers=1),
            now_ms=lambda: 0,
            md5=Md5.NONE,
            blocks=False,
        )
        for name in ("before", "after")
    ]
    manifests = [make_manifest(OsFileSystem(), plan)[0] for plan in plans]
    store = QueueMessages(OsFileSystem(), read_directory(OsFileSystem(), str(root)))
    assert certify(manifests, 0, {"before": store, "after": store}).holds


WORK: dict[str, tuple[Callable[[Path, Logs], None], int]] = {
    "md5": (_md5, 1),
    "kernel": (_kernel, 1),
    "audit": (_audit, 1),
    "certificate": (_certificate, 2),
    "command": (_command, 1),
}
"""The measured functions, and how often each reads the store."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


def measure(root: Path, total: int, rounds: int, rows: set[str]) -> dict[str, float]:
    """Return the GB per CPU-second of each function."""
    seconds: dict[str, list[float]] = {name: [] for name in WORK if name in rows}
    logs = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    for _ in range(rounds):
        for name in seconds:
            work, times = WORK[name]
            start = cpu_seconds()
            work(root, logs)
            seconds[name].append((cpu_seconds() - start) / times)
    return {name: total / statistics.median(taken) / 1e9 for name, taken in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of messages for each body size")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each figure")
    parser.add_argument("--sizes", default="1024,128", help="bytes of a body, comma-separated")
    parser.add_argument("--queues", type=int, default=128, help="number of queues")
    parser.add_argument("--no-keys", action="store_true", help="messages without keys or index")
    parser.add_argument("--rows", default=",".join(WORK), help="comma-separated; default: all")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder of the store")
    parser.add_argument("--format", default="text", choices=["text", "json"])
    options = parser.parse_args()
    rows = []
    measured = {"md5", *options.rows.split(",")}
    for body_bytes in map(int, options.sizes.split(",")):
        shape = Shape(body=body_bytes, queues=options.queues, keys=not options.no_keys)
        with tempfile.TemporaryDirectory(prefix="rmqpy-bench-", dir=options.folder) as folder:
            root = Path(folder)
            count = make_store(root, shape, options.mib << 20)
            total = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
            speeds = measure(root, total, options.rounds, measured)
        for name in speeds.keys() - {"md5"}:
            goal = GOALS[name]
            ratio = speeds[name] / speeds["md5"]
            rows.append(Row(body_bytes, count, name, speeds[name], ratio, goal))
    if options.format == "json":
        tree = {"implementation": implementation, "rows": list(map(asdict, rows))}
        json.dump(tree, sys.stdout, indent=1)
        print()
    else:
        print(f"{'body':>6} {'work':<12} {'GB/cpu-s':>9} {'/ md5':>7} {'goal':>6}")
        for row in rows:
            print(f"{row.body:>6} {row.work:<12} {row.speed:>9.2f} {row.ratio:>7.2f} {row.goal:>6}")
    return 0 if all(row.ratio >= row.goal for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
