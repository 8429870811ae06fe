"""Ctrl-C during a command on Spark: one line, exit code 130, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FOREVER = "SELECT max(queueOffset + id) FROM messages CROSS JOIN range(1000000000000)"
PATIENCE_S = 300.0

T = TypeVar("T")


def children(parent: int) -> dict[int, str]:
    """Return all descendants of a process, with their command lines."""
    parents, lines = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
            lines[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    while more := {pid for pid, of in parents.items() if of in found | {parent}} - found:
        found |= more
    return {pid: lines[pid] for pid in found}


def eventually(probe: Callable[[], T]) -> T:
    """Wait until ``probe`` returns a true value, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        time.sleep(0.05)
    return found


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rmqpy.cli", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.parametrize("as_terminal", [False, True], ids=["process", "group"])
def test_ctrl_c_leaves_no_process(
    as_terminal: bool, spark: SparkSession, store_of: Callable[[str], Path]
) -> None:
    """A terminal sends the signal to every process of the group."""
    store = store_of("A-classic-clean-v497")
    with command("sql", FOREVER, "--on", str(store), "--master", "local[1]") as process:

        def is_working() -> bool:
            return any("pyspark.daemon" in line for line in children(process.pid).values())

        eventually(is_working)
        below = children(process.pid)
        (os.killpg if as_terminal else os.kill)(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, errors
        assert out == "" and "Traceback" not in errors, errors
        assert errors.splitlines()[-1] == "rmqpy: interrupted"
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
