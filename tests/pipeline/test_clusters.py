"""Results on masters with separate executor processes.

They are equal to those of this process, also if a Python worker or a whole executor dies, or if
speculation executes a task twice. Spark has one session per process, so each of these tests runs
``cluster_program.py`` in a new Python process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import flip_bit

from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import LOOPBACK

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("cluster_program.py")
STORE = "C-upgraded-v497/n0"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
SECONDS_MAX = 900
LARGE = os.environ.get("RMQPY_LARGE_STORE")
LARGE_SECONDS_MAX = 3600


def damaged(store: Path) -> str:
    """Flip a bit of a body in the third file, and return the path of the store."""
    flip_bit(sorted((store / "commitlog").iterdir())[2], 30000)
    return str(store)


Cases = Callable[..., None]


@pytest.fixture
def check(environment: dict[str, str], copy_of: Callable[[str], Path], tmp_path: Path) -> Cases:
    """Return a function that runs cases such as "executor:audit" on a master.

    It checks that each fault happened and that the result is that of this process.
    """

    def check(master: str, *cases: str, store: str | None = None) -> None:
        root = store or damaged(copy_of(STORE))
        words = [sys.executable, PROGRAM, master, root, tmp_path, *cases]
        done = subprocess.run(
            [*map(str, words)],
            capture_output=True,
            text=True,
            timeout=LARGE_SECONDS_MAX if store else SECONDS_MAX,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
        assert results["executors"] == 2
        for case in cases:
            here = results[f"here:{case.partition(':')[2]}"]["result"]
            assert here[0] > 200 and here[-1]
            assert results[case] == {"result": here, "met": True, "again": True}, case

    return check


def every_job(fault: str) -> list[str]:
    return [f"{fault}:{verb}" for verb in ("audit", "export", "rebuild")]


def test_two_executors_of_which_one_dies(check: Cases) -> None:
    check(LOCAL_CLUSTER, "worker:audit", "executor:export")


def test_local_cluster_loses_workers_and_executors(check: Cases) -> None:
    check(LOCAL_CLUSTER, *every_job("worker"), *every_job("executor"))


@pytest.mark.skipif(
    LARGE is None, reason="RMQPY_LARGE_STORE does not name a store of bench/pipeline.py"
)
def test_a_large_store_loses_workers_and_executors(check: Cases) -> None:
    check(LOCAL_CLUSTER, *every_job("worker"), *every_job("executor"), store=LARGE)


def test_standalone_cluster_loses_workers_and_executors(standalone: str, check: Cases) -> None:
    check(standalone, *every_job("worker"), *every_job("executor"))


def test_speculation_duplicates_no_result(standalone: str, check: Cases) -> None:
    """The first attempt ends after the second, so both have written their files."""
    check(standalone, *every_job("speculation"))


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Return a function that runs a command in a new process."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rmqpy.cli", "pipeline", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    return run


def test_commands_on_a_standalone_cluster(
    standalone: str, run: Run, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    store = str(store_of(STORE))
    cluster = ("--master", standalone, "--range-bytes", "8192")
    remote = run("audit", store, *cluster, "--format", "json")
    assert remote.returncode == 0, remote.stderr
    local = run("audit", store, "--engine", "local", "--format", "json")
    assert json.loads(remote.stdout) == json.loads(local.stdout)
    assert run("export", store, "--to", str(tmp_path / "out"), *cluster).returncode == 0
    statement = "SELECT count(*) AS n, count(DISTINCT physicalOffset) AS m FROM messages"
    counts = [
        run("sql", statement, "--on", name, "--master", standalone, "--format", "json")
        for name in (str(tmp_path / "out"), store)
    ]
    exported, everything = (json.loads(each.stdout) for each in counts)
    assert everything["n"] == everything["m"] == json.loads(local.stdout)["stores"][0]["records"]
    assert 200 < exported["n"] == exported["m"] < everything["n"]


def test_the_doctor_reports_the_workers_of_a_cluster(standalone: str, run: Run) -> None:
    done = run("doctor", "--master", standalone)
    assert done.returncode == 0, done.stderr
    assert f"worker       Python {sys.version.split()[0]} at " in done.stdout
    assert f"Spark works at {standalone}" in done.stdout


def test_an_absent_master_is_exit_code_1(run: Run) -> None:
    done = run("doctor", "--master", f"spark://{LOOPBACK}:{free_port_block(1).first}")
    assert done.returncode == 1 and "Spark" in done.stderr, done.stdout
