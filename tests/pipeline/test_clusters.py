"""Masters whose executors are processes of their own: the same results there, and when a Python
worker, or a whole executor, dies in the middle, or speculation does a task twice.

Spark has one session a process: what needs a master of its own runs in a Python of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.spark.session import check_needs
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import LOOPBACK, ServerProcess, python_environment

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("cluster_program.py")
STORE = "C-upgraded-v497/n0"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
HOSTS = (LOOPBACK, "127.0.0.2")
"""Speculation never does a task twice on one host."""
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""One that lives for minutes does not earn back what better code costs."""
SECONDS_MAX = 900
LARGE = os.environ.get("RMQPY_LARGE_STORE")
LARGE_SECONDS_MAX = 3600


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError):
            pytest.skip(f"{name}: {found}")
    own = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    return python_environment(own | QUICK_JVM)


@pytest.fixture(scope="module")
def standalone(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A master and two workers."""
    import pyspark

    folder = tmp_path_factory.mktemp("standalone")
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    ports = [free_port_block(1) for _ in range(3)]

    def server(name: str, host: str, port: int, words: list[str], ready: bytes) -> ServerProcess:
        place = ["--host", host, "--port", str(port), "--webui-port", "0"]
        argv = [launcher, f"org.apache.spark.deploy.{words[0]}", *place, *words[1:]]
        own = {**environment, "SPARK_LOCAL_IP": host, "SPARK_WORKER_DIR": str(folder / "work")}
        return ServerProcess(
            name, argv, folder / name, port, re.compile(ready), None, own, SECONDS_MAX
        )

    url = f"spark://{LOOPBACK}:{ports[0].first}"
    size = ["--cores", "1", "--memory", "1g"]
    servers = [server("master", LOOPBACK, ports[0].first, ["master.Master"], rb"New state: ALIVE")]
    for host, port in zip(HOSTS, ports[1:], strict=True):
        words = ["worker.Worker", *size, url]
        servers.append(server(f"worker-{host}", host, port.first, words, rb"registered with"))
    started: list[ServerProcess] = []
    try:
        for each in servers:
            started.append(each.start())
        yield url
    finally:
        for each in reversed(started):
            each.kill()


def damaged(store: Path) -> str:
    """One flipped bit of a body in the third file."""
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    data[30000] ^= 1
    file.write_bytes(data)
    return str(store)


Cases = Callable[..., None]


@pytest.fixture
def check(environment: dict[str, str], copy_of: Callable[[str], Path], tmp_path: Path) -> Cases:
    """Each of the cases ("executor:audit") happened on the master, and gave what is told here."""

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
            here = results[f"here:{case.partition(':')[2]}"]["told"]
            assert here[0] > 200 and here[-1]
            assert results[case] == {"told": here, "met": True, "again": True}, case

    return check


def every(mishap: str) -> list[str]:
    return [f"{mishap}:{verb}" for verb in ("audit", "export", "rebuild")]


def test_two_executors_of_which_one_dies(check: Cases) -> None:
    check(LOCAL_CLUSTER, "worker:audit", "executor:export")


def test_local_cluster_loses_workers_and_executors(check: Cases) -> None:
    check(LOCAL_CLUSTER, *every("worker"), *every("executor"))


@pytest.mark.skipif(LARGE is None, reason="RMQPY_LARGE_STORE names no store of bench/pipeline.py")
def test_a_large_store_loses_workers_and_executors(check: Cases) -> None:
    check(LOCAL_CLUSTER, *every("worker"), *every("executor"), store=LARGE)


def test_standalone_cluster_loses_workers_and_executors(standalone: str, check: Cases) -> None:
    check(standalone, *every("worker"), *every("executor"))


def test_speculation_doubles_nothing(standalone: str, check: Cases) -> None:
    """The first attempt ends when the second has: both have written their files."""
    check(standalone, *every("speculation"))


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """A command as an operator types it."""

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
    there = ("--master", standalone, "--range-bytes", "8192")
    told = run("audit", store, *there, "--format", "json")
    assert told.returncode == 0, told.stderr
    here = run("audit", store, "--engine", "local", "--format", "json")
    assert json.loads(told.stdout) == json.loads(here.stdout)
    assert run("export", store, "--to", str(tmp_path / "out"), *there).returncode == 0
    statement = "SELECT count(*) AS n, count(DISTINCT physicalOffset) AS m FROM messages"
    asked = [
        run("sql", statement, "--on", name, "--master", standalone, "--format", "json")
        for name in (str(tmp_path / "out"), store)
    ]
    exported, everything = (json.loads(each.stdout) for each in asked)
    assert everything["n"] == everything["m"] == json.loads(here.stdout)["stores"][0]["records"]
    assert 200 < exported["n"] == exported["m"] < everything["n"]


def test_the_doctor_asks_the_workers_of_a_cluster(standalone: str, run: Run) -> None:
    told = run("doctor", "--master", standalone)
    assert told.returncode == 0, told.stderr
    assert f"worker       Python {sys.version.split()[0]} at " in told.stdout
    assert f"Spark works at {standalone}" in told.stdout


def test_a_master_that_is_not_there_is_exit_code_1(run: Run) -> None:
    told = run("doctor", "--master", f"spark://{LOOPBACK}:{free_port_block(1).first}")
    assert told.returncode == 1 and "Spark" in told.stderr, told.stdout
