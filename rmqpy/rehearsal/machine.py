"""How fast this machine reads a log, and makes a small write durable."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from attrs import asdict, define

READ_MAX = 256 << 20
CHUNK = 4 << 20
SYNCS = 100
SYNCED_BYTES = 4096


@define(slots=True, frozen=True)
class Machine:
    """``read_mib_s`` is of files that were not in memory; ``fsync_p99_ms`` of 4 KiB appended."""

    read_mib_s: float
    fsync_p99_ms: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(log: Path, folder: Path) -> Machine:
    """Read up to ``READ_MAX`` of the files in ``log``, and sync a file in ``folder``. Blocks."""
    return Machine(_read(log), _sync(folder / "fsync.tmp"))


def _read(log: Path) -> float:
    done = 0
    begin_s = time.perf_counter()
    for path in sorted(log.iterdir()):
        with path.open("rb", buffering=0) as file:
            if sys.platform == "linux":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while done < READ_MAX and (chunk := file.read(min(CHUNK, READ_MAX - done))):
                done += len(chunk)
    return done / (1 << 20) / max(time.perf_counter() - begin_s, 1e-6)


def _sync(path: Path) -> float:
    taken = []
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the second
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(SYNCS):
                file.write(bytes(SYNCED_BYTES))
                begin_s = time.perf_counter()
                sync(file.fileno())
                taken.append(time.perf_counter() - begin_s)
    finally:
        path.unlink(missing_ok=True)
    return 1000 * sorted(taken)[round(0.99 * (SYNCS - 1))]
