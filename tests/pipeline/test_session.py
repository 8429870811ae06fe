"""The needs of a session: each missing one is named with its remedy."""

from __future__ import annotations

import platform
import re
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.pipeline.spark.java_output import held_output
from rmqpy.pipeline.spark.session import SessionPlan, check_needs, spark_session
from rmqpy.testing.processes import python_environment


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    """Let only these packages be installed, with these versions."""

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the runtime of the extra spark-java."""
    monkeypatch.setattr("rmqpy.pipeline.spark.jvm._wheel", lambda: None)


@pytest.mark.usefixtures("no_wheel")
def test_missing_and_old_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions(monkeypatch, pyspark="4.1.4", pandas="2.3.3")
    found = dict(check_needs({"PATH": str(tmp_path)}))
    assert "older than 4.2" in str(found["pyspark"])
    assert "pip install 'rmqpy[spark]'" in str(found["pyarrow"])
    assert found["pandas"] == "2.3.3"
    assert isinstance(found["Java"], ConfigError)
    versions(monkeypatch, pyarrow="20.0.0")
    found = dict(check_needs({"PATH": str(tmp_path)}))
    assert "pyarrow 20.0.0 is older than 21.0" in str(found["pyarrow"])


def test_a_spark_home_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions(monkeypatch, pyspark="4.3.0")
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.13-4.0.5.jar"
    jar.touch()
    found = dict(check_needs({"SPARK_HOME": str(tmp_path)}))["SPARK_HOME"]
    assert isinstance(found, ConfigError) and "unset it" in str(found)
    jar.rename(jar.with_name("spark-core_2.13-4.3.0.jar"))
    assert dict(check_needs({"SPARK_HOME": str(tmp_path)}))["SPARK_HOME"] == str(tmp_path)


@pytest.mark.usefixtures("no_wheel")
def test_doctor_reports_a_missing_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["pipeline", "doctor"]) == 1
    output = capsys.readouterr().out
    assert "Java         missing: Spark needs Java" in output
    assert "Spark cannot start; --engine local works" in output


def test_spark_without_java_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions(monkeypatch, pyspark="4.3.0", pyarrow="26.0.1", pandas="2.3.3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    assert main(["pipeline", "audit", str(tmp_path), "--engine", "spark"]) == 1
    assert "set JAVA_HOME" in capsys.readouterr().err


@pytest.mark.spark
def test_doctor_reports_that_spark_can_start(
    spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "doctor"]) == 0
    assert "Spark can start" in capsys.readouterr().out


@pytest.mark.spark
def test_doctor_reports_the_workers(spark: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "doctor", "--master", "local[2,4]"]) == 0
    output = capsys.readouterr().out
    assert f"worker       Python {platform.python_version()} at " in output
    assert "Spark works at local[2,4]" in output


@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--master", "local[1]"], 0, ""),
        (
            ["--master", "local[1]", "--conf", "spark.driver.memory=lots"],
            1,
            "Spark does not start with master local[1]: ",
        ),
        (
            ["--master", "local[1]", "--conf", "spark.task.cpus=two"],
            1,
            "spark.task.cpus",
        ),
    ],
    ids=["starts", "no Java", "no Spark"],
)
def test_s14_java_says_nothing_and_a_failure_is_one_sentence(
    words: list[str], code: int, message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rmqpy.cli", "pipeline", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=python_environment({}),
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr and done.stderr.count("\n") == code, done.stderr
    assert ("Spark works at local[1]" in done.stdout) == (code == 0)


@pytest.mark.spark
@pytest.mark.parametrize(
    "words",
    [
        ["--master", "spark://127.0.0.1:{0}"],
        ["--master", "spark://127.0.0.1:{0},127.0.0.1:{0}"],
        ["--remote", "sc://127.0.0.1:{0}/;user_id=a"],
    ],
    ids=["a master", "several masters", "Spark Connect"],
)
def test_a_cluster_that_is_not_there_is_named_before_java_starts(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark would try for 98 s and for minutes."""
    sql = pytest.importorskip("pyspark.sql").SparkSession
    monkeypatch.setattr(sql, "getActiveSession", lambda: None)
    monkeypatch.setattr("rmqpy.pipeline.spark.session._start", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    option, address = words[0], words[1].format(port)
    assert main(["pipeline", "doctor", option, address]) == 1
    shown = capsys.readouterr().err
    assert f"Spark does not start with {option[2:]} {address}: found no answer (127." in shown
    assert re.search("refused.*, expected a running (master|Spark Connect server); start", shown)
    assert shown.count("\n") == 1


@pytest.mark.spark
def test_one_of_several_masters_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql").SparkSession
    monkeypatch.setattr(sql, "getActiveSession", lambda: None)

    def start(*_given: object) -> None:
        raise RmqError("started")

    monkeypatch.setattr("rmqpy.pipeline.spark.session._start", start)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{port},127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RmqError, match="started"), spark_session(SessionPlan(master=master)):
            pass


def test_output_is_passed_on_while_the_session_runs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = """
import os
os.write(2, b"noise\\n26/01/01 00:00:00 ERROR Store: full\\n")
input()
os.write(2, b"later\\n")
os.write(1, b"written\\n")
input()
os.write(2, b"Traceback (most recent call last):\\nBrokenPipeError\\n")
"""
    with held_output() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        while (reason := output.reason()) is None:
            assert process.poll() is None
        output.release()
    assert reason == "full"
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"written\n"
    output.hold()  # which drains first
    process.communicate(b"\n")
    output.drain()
    # Read once: what the thread writes while capfd reads would be lost.
    assert capfd.readouterr().err == "26/01/01 00:00:00 ERROR Store: full\nlater\n"
