"""Tests of the fuzz target with sanitizers: all known inputs and a few seconds of new ones.

They run only with RMQPY_SANITIZE=1 (``tox run -e sanitize``). ``tox run -e fuzz`` runs longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("RMQPY_SANITIZE") != "1", reason="runs only with RMQPY_SANITIZE=1"
)

NATIVE = Path(__file__).parents[2] / "native"
WARNINGS = "-std=gnu11 -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wpedantic -Werror"
SOURCES = sorted(NATIVE.glob("*.c")) + [NATIVE / "fuzz" / "target.c"]


@pytest.fixture(params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest) -> str:
    """Return the path of an installed compiler."""
    name: str = request.param
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_the_sources_compile_without_warnings(compiler: str, tmp_path: Path) -> None:
    for source in SOURCES:
        command = [compiler, *WARNINGS.split(), "-O3", "-c", str(source), "-o", str(tmp_path / "o")]
        subprocess.run(command, check=True, timeout=120)


def test_the_fuzzer_finds_nothing(compiler: str, tmp_path: Path) -> None:
    options = ["--compiler", compiler, "--seconds", "10", "--crash", str(tmp_path / "cause")]
    result = subprocess.run(
        [sys.executable, str(NATIVE / "fuzz" / "run.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


def test_a_broken_invariant_is_reported(tmp_path: Path) -> None:
    """The run exits with code 2 and saves the input."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    fuzz = tmp_path / "native" / "fuzz"
    shutil.copytree(NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("corpus"))
    target = fuzz / "target.c"
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace("LOG_BYTES - 8,", "200,"), encoding="utf-8")
    cause = tmp_path / "cause"
    options = ["--compiler", "gcc", "--seconds", "0", "--crash", str(cause)]
    result = subprocess.run(
        [sys.executable, str(fuzz / "run.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (result.returncode, cause.stat().st_size > 0) == (2, True), result.stderr[-2000:]
    assert "broken invariant: more staged than the buffer or the file holds" in result.stderr
