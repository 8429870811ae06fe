"""The pipeline on the store of a running broker that accepts messages.

The broker is not disturbed, the report is clean, and no acknowledged message is missing.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from harness.pipeline import LiveCluster

from rmqpy.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COUNT = 200


@pytest.fixture
def sending(live: LiveCluster) -> Iterator[Callable[[], tuple[str, set[bytes]]]]:
    """Send until the test ends.

    Return a function that returns the topic and the messages acknowledged so far.
    """
    topic, stop = live.topic(), threading.Event()
    sent: set[bytes] = set()

    def send(number: int) -> None:
        body = b"%06d" % number
        live.send(topic, [body])
        sent.add(body)

    for number in range(COUNT):
        send(number)

    def send_until_stopped() -> None:
        number = COUNT
        while not stop.is_set():
            send(number)
            number += 1

    thread = threading.Thread(target=send_until_stopped)
    thread.start()
    yield lambda: (topic, set(sent))
    stop.set()
    thread.join()


def tree(store: Path) -> list[str]:
    return sorted(str(path) for path in store.rglob("*") if "commitlog" not in path.parts)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_the_store_of_a_running_broker_is_audited_and_exported(
    engine: str,
    live: LiveCluster,
    sending: Callable[[], tuple[str, set[bytes]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arrow: ModuleType,
    request: pytest.FixtureRequest,
) -> None:
    from pyarrow import parquet

    if engine == "spark":
        request.getfixturevalue("spark")
    store = live.store
    before = tree(store)
    words = ("--engine", engine, "--range-bytes", "32768")
    topic, sent = sending()
    assert main(["pipeline", "audit", str(store), *words, "--format", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["stores"]
    assert report["clean"] and report["records"] >= len(sent) >= COUNT
    topic, sent = sending()
    target = tmp_path / "out"
    assert main(["pipeline", "export", str(store), "--to", str(target), *words]) == 0
    tables = map(parquet.read_table, target.glob("*.parquet"))
    rows = [row for table in tables for row in table.to_pylist()]
    bodies = [row["body"] for row in rows if row["topic"] == topic]
    assert len(bodies) == len(set(bodies)) and sent <= set(bodies)
    assert set(before) <= set(tree(store)) and not os.path.exists(store / "rmqpy" / "upgrade")


def test_the_store_of_a_running_broker_is_read(
    live: LiveCluster, sending: Callable[[], tuple[str, set[bytes]]], spark: SparkSession
) -> None:
    topic, sent = sending()
    reader = spark.read.format("rocketmq").option("topic", topic).option("minPartitions", 32)
    bodies = [bytes(row["body"]) for row in reader.load(str(live.store)).collect()]
    assert len(bodies) == len(set(bodies)) and sent <= set(bodies)
