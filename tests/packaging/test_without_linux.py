"""Brokers for tests, clients, and tools need nothing that only Linux has (smoke.py without it)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

LINUX_ONLY = """
import ctypes, os, socket
os.posix_fadvise
os.pidfd_open
open("/proc/self/maps")
os.listdir("/proc")
ctypes.CDLL(None).syncfs
socket.socket(socket.AF_UNIX).bind(chr(0) + "name")
import rmqpy.broker.fastpath.poller as poller; assert poller.CAN_WATCH
"""


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    shadowing = str(HERE / "without_linux")
    environment = {**os.environ, "PYTHONPATH": shadowing}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_what_only_linux_has_is_hidden(tmp_path: Path) -> None:
    imports, *calls = LINUX_ONLY.strip().splitlines()
    for call in calls:
        done = run("-c", f"{imports}\n{call}", cwd=tmp_path)
        assert done.returncode == 1, (call, done.stderr)
        wanted = ("AttributeError", "FileNotFoundError", "OSError", "AssertionError")
        assert done.stderr.splitlines()[-1].startswith(wanted), (call, done.stderr)


@pytest.mark.slow
def test_brokers_clients_and_tools_work_without_it(tmp_path: Path) -> None:
    # pytest would import rmqpy itself, because it is a plugin, to rewrite its assertions.
    smoke = ("-m", "pytest", "--assert=plain", "-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    done = run(*smoke, f"--confcutdir={HERE}", HERE / "smoke.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
