"""Spark Connect: a server in this process's machine reads and audits a store as Spark does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness.pipeline import QUICK_JVM

from rmqpy.cli import main
from rmqpy.testing.processes import LOOPBACK, python_environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        find_spec("grpc") is None or find_spec("grpc_status") is None,
        reason="grpc is not installed; pip install 'pyspark[connect]'",
    ),
]

STORE = "A-classic-clean-v497"
PROGRAM = """
import sys
from rmqpy.pipeline.spark.session import SessionPlan, spark_session
from rmqpy.pipeline.datasource.source import register
from rmqpy.cli import main

with spark_session(SessionPlan(remote="local[2]")) as spark:
    register(spark)
    store = sys.argv[1]
    assert "connect" in type(spark).__module__, type(spark)
    frame = spark.read.format("rocketmq").schema("topic string, body binary").load(store)
    spark.sql(f"CREATE TEMPORARY VIEW stored USING rocketmq OPTIONS (path '{store}')")
    print(frame.count(), spark.sql("SELECT count(*) FROM stored").first()[0])
    sys.exit(main(["pipeline", "audit", store, "--remote", "local[2]", "--format", "json"]))
"""


def test_a_connect_server_reads_and_audits(
    store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(store_of(STORE))
    assert main(["pipeline", "audit", store, "--format", "json"]) == 0
    local = json.loads(capsys.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=python_environment({**QUICK_JVM, "SPARK_LOCAL_IP": LOOPBACK}),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts, _, report = done.stdout.partition("\n")
    read, in_sql = map(int, counts.split())
    assert read == in_sql > 200
    assert json.loads(report) == local
