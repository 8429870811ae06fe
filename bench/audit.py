"""Measure how fast a store is audited and certified, relative to md5 over the same files.

    python bench/audit.py                     # 2 x 1 GiB of messages with 1 KiB and with 128 bytes
    python bench/audit.py --mib 128 --rounds 1

The figures are bytes per CPU-second of this process, medians over the rounds. Only their ratios are
meaningful. Exit code 2: a ratio is below its goal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from attrs import asdict, define

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import ManifestPlan, Md5, make_manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec import layout
from rmqpy.codec.backend import implementation
from rmqpy.codec.hashes import java_hash_of_bytes
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import Tally, TallyPlan
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.store.files.disk import OsFileSystem

FILE_BYTES = 1 << 28
QUEUE_FILE_BYTES = 6_000_000
TOPICS, QUEUES = 16, 8
HEAD = struct.Struct(">iIiiiqqiq4siq4siiqi")
HOST = b"\x7f\0\0\1"

Logs = dict[int, bytes]
"""The bytes of each log file by first offset, for measurements that do not read files."""

GOALS = {"kernel": 8.0, "audit": 1.0, "certificate": 0.5}
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


def make_store(root: Path, body_bytes: int, total: int, file_bytes: int = FILE_BYTES) -> int:
    """Write a classic store with about ``total`` bytes of messages and return their number."""
    (root / "commitlog").mkdir(parents=True)
    queues: dict[tuple[bytes, int], bytearray] = {}
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    offset = number = 0
    while offset < total:
        data = bytearray()
        while True:
            record = _record(queues, number, offset + len(data), body[:body_bytes])
            if len(data) + len(record) + layout.BLANK_SIZE > file_bytes:
                break
            data += record
            number += 1
            _add_unit(queues, number - 1, offset + len(data) - len(record), len(record))
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
    return number


def _queue_of(number: int) -> tuple[bytes, int]:
    return b"Topic%02d" % (number % TOPICS), number // TOPICS % QUEUES


def _record(
    queues: dict[tuple[bytes, int], bytearray], number: int, offset: int, body: bytes
) -> bytes:
    topic, queue = _queue_of(number)
    queue_offset = len(queues.setdefault((topic, queue), bytearray())) // 20
    properties = b"UNIQ_KEY\1%032X\2KEYS\1k%d\2WAIT\1true" % (number, number)
    properties += b"\2TAGS\1Tag%d" % (number % 5)
    size = layout.RECORD_SIZE_MIN + len(body) + len(topic) + len(properties)
    stored_ms = 1_700_000_000_000 + number
    head = HEAD.pack(
        *(size, layout.MESSAGE_MAGIC_V1, zlib.crc32(body) & layout.CRC_MASK, queue, 0),
        *(queue_offset, offset, 0, stored_ms, HOST, 1000, stored_ms, HOST, 10911, 0, 0, len(body)),
    )
    tail = bytes([len(topic)]) + topic + struct.pack(">h", len(properties)) + properties
    return head + body + tail


def _add_unit(
    queues: dict[tuple[bytes, int], bytearray], number: int, offset: int, size: int
) -> None:
    tags_code = java_hash_of_bytes(b"Tag%d" % (number % 5))
    queues[_queue_of(number)] += QUEUE_UNIT.pack(offset, size, tags_code)


def _md5(_root: Path, logs: Logs) -> None:
    for data in logs.values():
        hashlib.md5(data).digest()


def _kernel(_root: Path, logs: Logs) -> None:
    for base, data in logs.items():
        tally = Tally(TallyPlan(dledger=False, digests=False))
        tally_frames(memoryview(data), base, 0, len(data), tally)


def _audit(root: Path, _logs: Logs) -> None:
    assert audit_store(OsFileSystem(), AuditOptions(root=str(root), workers=1)).is_clean


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
}
"""The measured functions, and how often each reads the store."""


def measure(root: Path, total: int, rounds: int) -> dict[str, float]:
    """Return the GB per CPU-second of each function."""
    seconds: dict[str, list[float]] = {name: [] for name in WORK}
    logs = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    for _ in range(rounds):
        for name, (work, times) in WORK.items():
            start = time.process_time()
            work(root, logs)
            seconds[name].append((time.process_time() - start) / times)
    return {name: total / statistics.median(taken) / 1e9 for name, taken in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of messages for each body size")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each figure")
    parser.add_argument("--format", default="text", choices=["text", "json"])
    options = parser.parse_args()
    rows = []
    for body_bytes in (1024, 128):
        with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder:
            root = Path(folder)
            count = make_store(root, body_bytes, options.mib << 20)
            total = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
            speeds = measure(root, total, options.rounds)
        for name, goal in GOALS.items():
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
