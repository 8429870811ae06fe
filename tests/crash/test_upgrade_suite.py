"""The regression suite that users run on their own stores, run on a store that Java wrote, and the
fixtures of the plug-in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.crash

PLUGIN = "rmqpy.testing.plugin"
SECONDS_MAX = 600
USER_TEST = """
from rmqpy.testing.blocking_connection import BlockingConnection, read_queue

def test_fixtures(rmq_namesrv, rmq_broker, rmq_group):
    assert rmq_namesrv.running
    with BlockingConnection(rmq_broker.address) as connection:
        assert read_queue(connection, "nothing", 0) == []
    assert rmq_group.leader().running

def test_upgraded(rmq_upgraded_group):
    with BlockingConnection(rmq_upgraded_group.leader().address) as connection:
        assert len(read_queue(connection, "before", 0)) == 50
"""


TIMED_TEST = """
def test_broker(rmq_broker):
    assert rmq_broker.server.running

def test_group(rmq_group):
    assert rmq_group.leader().running
"""
SETUP = re.compile(r"([\d.]+)s setup +test_timed.py::test_(\w+)")
GOALS_S = {"broker": 1.0, "group": 3.0}
"""The setup times on a quiet machine; a group is up when it has acknowledged a message."""


def run_pytest(folder: Path, *arguments: str) -> str:
    plugin = ["-p", "no:cacheprovider"]
    if PLUGIN not in {each.value for each in entry_points(group="pytest11")}:
        plugin += ["-p", PLUGIN]  # The checkout is not installed.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plugin, *arguments],
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_the_suite_passes_on_a_java_store_and_does_not_change_it(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    store = golden_copy("B-master-slave-v497") / "master"
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    out = run_pytest(tmp_path, "--pyargs", "rmqpy.testing.suite", "--rmq-store", str(store))
    assert "8 passed, 1 skipped" in out
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_the_fixtures_of_the_plug_in_work(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TEST)
    assert "2 passed" in run_pytest(tmp_path, "test_user.py")


def test_the_fixtures_start_in_time(tmp_path: Path) -> None:
    (tmp_path / "test_timed.py").write_text(TIMED_TEST)
    out = run_pytest(tmp_path, "test_timed.py", "--durations=0", "--durations-min=0.01")
    took = {name: float(seconds) for seconds, name in SETUP.findall(out)}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{took}, a load of {load:.1f} per core")
    assert took.keys() == GOALS_S.keys()
    for name, goal_s in GOALS_S.items():
        assert took[name] < max(1.0, 2 * load) * goal_s
