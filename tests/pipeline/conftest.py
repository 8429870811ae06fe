"""Fixtures of tests/pipeline; the objects that they return are defined in harness.pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from harness.pipeline import LiveCluster, Row, check_row

from rmqpy.audit.facts.reader import read_facts
from rmqpy.model.errors import ConfigError
from rmqpy.model.names import is_system_topic
from rmqpy.pipeline.spark.session import SessionPlan, check_needs, spark_session
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session on two cores; tests that need it are skipped if it cannot start."""
    import os

    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError):
            pytest.skip(f"{name}: {found}")
    # Spark finds the source by the module pyspark_rocketmq, as where the package is installed.
    pythonpath = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        top = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (top, pythonpath))))
        warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        plan = SessionPlan(master="local[2,4]", light=True, settings=warehouse)
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
