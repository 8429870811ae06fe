"""Fixtures of tests/pipeline; the objects that they return are defined in harness.pipeline."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from harness.pipeline import QUICK_JVM, LiveCluster, Row, check_row

from rmqpy.audit.facts.reader import read_facts
from rmqpy.model.errors import ConfigError
from rmqpy.model.names import is_system_topic
from rmqpy.pipeline.spark.session import SessionPlan, check_needs, spark_session
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import LOOPBACK, ServerProcess, python_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HOSTS = (LOOPBACK, "127.0.0.2")
"""The hosts of the workers; speculation never executes a task twice on one host."""
CLUSTER_SECONDS_MAX = 900


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session on two cores; tests that need it are skipped if it cannot start."""
    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError):
            pytest.skip(f"{name}: {found}")
    # Spark finds the source by the module pyspark_rocketmq, as where the package is installed.
    pythonpath = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        top = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (top, pythonpath))))
        settings = {
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            # Snappy needs a library that does not load where musl is installed beside glibc.
            "spark.sql.parquet.compression.codec": "uncompressed",
        }
        plan = SessionPlan(master="local[2,4]", light=True, settings=settings)
        with spark_session(plan) as session:
            yield session


@pytest.fixture
def arrow() -> ModuleType:
    """Import and return pyarrow; tests that need it are skipped if it is not installed."""
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed; pip install 'rmqpy[spark]'")
    return import_module("pyarrow")


@pytest.fixture
def check_rows(
    manifest: Callable[[str], Row], store_of: Callable[[str], Path]
) -> Callable[[str, list[Row]], None]:
    """Return a function that compares the rows of a node with what a Java consumer received.

    Topics of the system are left out.
    """

    def check(node: str, rows: list[Row]) -> None:
        content = manifest(node.partition("/")[0])
        end = read_facts(OsFileSystem(), str(store_of(node))).end
        expected = [
            found
            for found in content["messages"]
            if not is_system_topic(found["topic"]) and found["commitLogOffset"] < end
        ]
        ends = {
            (topic, queue["queueId"]): queue["max"]
            for topic, queues in content["queues"].items()
            for queue in queues
        }
        # Messages that were delivered after the consumer stopped are only in the store.
        rows = [row for row in rows if row["queueOffset"] < ends[row["topic"], row["queueId"]]]
        by_offset = {row["physicalOffset"]: row for row in rows}
        assert len(by_offset) == len(rows) == len(expected) > 200
        for found in expected:
            check_row(by_offset[found["commitLogOffset"]], found)

    return check


@pytest.fixture(scope="session")
def live_form() -> type[LiveCluster]:
    """Return the class of clusters, for tests that start separate brokers."""
    return LiveCluster


@pytest.fixture(scope="session", params=["rmqpy", pytest.param("java", marks=pytest.mark.interop)])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    cluster = LiveCluster(request.param, tmp_path_factory.mktemp(f"live-{request.param}"))
    yield cluster
    cluster.close()


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
    """Start a master and two workers, and return the URL of the master."""
    import pyspark

    folder = tmp_path_factory.mktemp("standalone")
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    ports = [free_port_block(1) for _ in range(3)]

    def server(name: str, host: str, port: int, words: list[str], ready: bytes) -> ServerProcess:
        place = ["--host", host, "--port", str(port), "--webui-port", "0"]
        argv = [launcher, f"org.apache.spark.deploy.{words[0]}", *place, *words[1:]]
        own = {**environment, "SPARK_LOCAL_IP": host, "SPARK_WORKER_DIR": str(folder / "work")}
        return ServerProcess(
            name, argv, folder / name, port, re.compile(ready), None, own, CLUSTER_SECONDS_MAX
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
