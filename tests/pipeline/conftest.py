"""Fixtures of tests/pipeline; what they hand out is in harness.pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
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
def spark() -> Iterator[SparkSession]:
    """A session on two cores; the tests that ask for it are skipped where it cannot start."""
    import os

    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError):
            pytest.skip(f"{name}: {found}")
    with spark_session(SessionPlan(master="local[2,4]", light=True)) as session:
        from rmqpy.pipeline.datasource.source import register

        register(session)
        yield session


@pytest.fixture
def arrow() -> ModuleType:
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed; pip install 'rmqpy[spark]'")
    import pyarrow

    return pyarrow


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def check_rows(
    manifest: Callable[[str], Row], store_of: Callable[[str], Path]
) -> Callable[[str, list[Row]], None]:
    """Rows of a node, of all topics but the system's, are what a Java consumer got."""

    def check(node: str, rows: list[Row]) -> None:
        told = manifest(node.partition("/")[0])
        end = read_facts(OsFileSystem(), str(store_of(node))).end
        wanted = [
            found
            for found in told["messages"]
            if not is_system_topic(found["topic"]) and found["commitLogOffset"] < end
        ]
        ends = {
            (topic, queue["queueId"]): queue["max"]
            for topic, queues in told["queues"].items()
            for queue in queues
        }
        # What was delivered behind the consumer's look is in the store alone.
        rows = [row for row in rows if row["queueOffset"] < ends[row["topic"], row["queueId"]]]
        got = {row["physicalOffset"]: row for row in rows}
        assert len(got) == len(rows) == len(wanted) > 200
        for found in wanted:
            check_row(got[found["commitLogOffset"]], found)

    return check


@pytest.fixture(scope="session")
def live_form() -> type[LiveCluster]:
    """For tests that start brokers of their own."""
    return LiveCluster


@pytest.fixture(scope="session", params=["rmqpy", pytest.param("java", marks=pytest.mark.interop)])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    made = LiveCluster(request.param, tmp_path_factory.mktemp(f"live-{request.param}"))
    yield made
    made.close()
