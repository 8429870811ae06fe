"""What is said where Java or Maven is missing; the jars themselves are fetched by the interop
tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.testing.java import JavaHome, JavaUnavailableError, probe_body
from rmqpy.testing.java.install import SOURCES


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A PATH with exactly these programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def add(name, script="#!/bin/sh\nexit 0\n"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return add


def test_the_missing_program_is_named(tools, tmp_path: Path) -> None:
    home = JavaHome("4.9.7", tmp_path / "cache")
    assert home.missing() == "java is neither in JAVA_HOME nor on the PATH"
    tools("java")
    assert home.missing() == "javac is neither in JAVA_HOME nor on the PATH"
    tools("javac")
    assert "no jars of RocketMQ 4.9.7" in home.missing()
    with pytest.raises(JavaUnavailableError, match="no mvn to fetch them"):
        home.libraries()


def test_jars_in_the_cache_need_no_maven(tools, tmp_path: Path) -> None:
    tools("java")
    tools("javac")
    (tmp_path / "4.9.7" / "lib").mkdir(parents=True)
    home = JavaHome("4.9.7", tmp_path)
    assert home.missing() is None
    assert home.libraries() == tmp_path / "4.9.7" / "lib"


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RMQPY_JAVA_CACHE", str(tmp_path))
    assert JavaHome().cache == tmp_path


def test_a_failing_maven_is_told_with_its_last_lines_and_leaves_nothing(
    tools, tmp_path: Path
) -> None:
    tools("java")
    tools("javac")
    tools("mvn", "#!/bin/sh\necho no such artifact\nexit 1\n")
    home = JavaHome("0.0.0", tmp_path / "cache")
    with pytest.raises(JavaUnavailableError, match=r"ended with 1:\nno such artifact"):
        home.libraries()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["0.0.0.lock"]


@pytest.mark.parametrize(
    ("version", "opens"),
    [("1.8.0_292", False), ("11.0.2", True), ("17.0.15", True)],
)
def test_a_modular_java_gets_its_packages_opened(tools, tmp_path: Path, version, opens) -> None:
    tools("java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    tools("javac")
    (tmp_path / "4.9.7" / "lib").mkdir(parents=True)
    words = JavaHome("4.9.7", tmp_path).java()
    assert ("--add-opens=java.base/java.nio=ALL-UNNAMED" in words) is opens


def test_the_java_sources_are_installed_with_the_package() -> None:
    assert {"Probe.java", "Admin.java"} <= {source.name for source in SOURCES.glob("*.java")}


def test_the_body_of_a_probe_message() -> None:
    assert probe_body(2, 4) == bytes([62, 69, 76, 83])
