"""The needs of a session: each missing one is named with its remedy."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.spark.java_output import held_output
from rmqpy.pipeline.spark.session import check_needs
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


def test_output_is_passed_on_once_the_start_has_succeeded(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = """
import os
os.write(2, b"noise\\n26/01/01 00:00:00 ERROR Store: full\\n")
input()
os.write(2, b"later\\n")
"""
    with held_output() as output:
        process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, text=True)
        while (reason := output.reason()) is None:
            assert process.poll() is None
        output.release()
    assert reason == "full"
    process.communicate("\n")
    output.drain()
    assert capfd.readouterr().err == "26/01/01 00:00:00 ERROR Store: full\nlater\n"
