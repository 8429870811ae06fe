"""The messages where Java or Maven is missing. Only the interop tests fetch the jars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.testing.java import JavaHome, JavaUnavailableError, probe_body
from rmqpy.testing.java.install import SOURCES

AddTool = Callable[..., None]


@pytest.fixture
def add_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddTool:
    """Return a function that adds a program to a PATH that has no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def add(name: str, script: str = "#!/bin/sh\nexit 0\n") -> None:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return add


def test_the_missing_program_is_named(add_tool: AddTool, tmp_path: Path) -> None:
    home = JavaHome("4.9.7", tmp_path / "cache")
    assert home.missing() == "java is neither in JAVA_HOME nor on the PATH"
    add_tool("java")
    assert home.missing() == "javac is neither in JAVA_HOME nor on the PATH"
    add_tool("javac")
    reason = home.missing()
    assert reason is not None and "no jars of RocketMQ 4.9.7" in reason
    with pytest.raises(JavaUnavailableError, match="no mvn to fetch them"):
        home.libraries()


def test_jars_in_the_cache_need_no_maven(add_tool: AddTool, tmp_path: Path) -> None:
    add_tool("java")
    add_tool("javac")
    (tmp_path / "4.9.7" / "lib").mkdir(parents=True)
    home = JavaHome("4.9.7", tmp_path)
    assert home.missing() is None
    assert home.libraries() == tmp_path / "4.9.7" / "lib"


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RMQPY_JAVA_CACHE", str(tmp_path))
    assert JavaHome().cache == tmp_path


def test_a_failing_maven_is_reported_with_its_last_lines_and_leaves_no_files(
    add_tool: AddTool, tmp_path: Path
) -> None:
    add_tool("java")
    add_tool("javac")
    add_tool("mvn", "#!/bin/sh\necho no such artifact\nexit 1\n")
    home = JavaHome("0.0.0", tmp_path / "cache")
    with pytest.raises(JavaUnavailableError, match=r"ended with 1:\nno such artifact"):
        home.libraries()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["0.0.0.lock"]


@pytest.mark.parametrize(
    ("version", "is_modular"),
    [("1.8.0_292", False), ("11.0.2", True), ("17.0.15", True)],
)
def test_the_packages_of_a_modular_java_are_opened(
    add_tool: AddTool, tmp_path: Path, version: str, is_modular: bool
) -> None:
    add_tool("java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    add_tool("javac")
    (tmp_path / "4.9.7" / "lib").mkdir(parents=True)
    words = JavaHome("4.9.7", tmp_path).java()
    assert ("--add-opens=java.base/java.nio=ALL-UNNAMED" in words) is is_modular


def test_the_java_sources_are_installed_with_the_package() -> None:
    assert {"Probe.java", "Admin.java"} <= {source.name for source in SOURCES.glob("*.java")}


def test_the_body_of_a_probe_message() -> None:
    assert probe_body(2, 4) == bytes([62, 69, 76, 83])
