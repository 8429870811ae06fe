"""The fuzz target on all known inputs, with sanitizers and a few seconds of new ones; only with
RMQPY_SANITIZE=1 (``tox run -e sanitize``). ``tox run -e fuzz`` goes on for longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("RMQPY_SANITIZE") != "1", reason="on demand only: RMQPY_SANITIZE=1"
)

NATIVE = Path(__file__).parents[2] / "native"
WARNINGS = "-std=gnu11 -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wpedantic -Werror"
SOURCES = sorted(NATIVE.glob("*.c")) + [NATIVE / "fuzz" / "target.c"]


@pytest.fixture(params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest) -> str:
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    return path


def test_no_warnings(compiler: str, tmp_path: Path) -> None:
    for source in SOURCES:
        command = [compiler, *WARNINGS.split(), "-O3", "-c", str(source), "-o", str(tmp_path / "o")]
        subprocess.run(command, check=True, timeout=120)


def test_nothing_is_found(compiler: str, tmp_path: Path) -> None:
    words = ["--compiler", compiler, "--seconds", "10", "--crash", str(tmp_path / "cause")]
    done = subprocess.run(
        [sys.executable, str(NATIVE / "fuzz" / "run.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_report_is_seen(tmp_path: Path) -> None:
    """The run ends with 2 and leaves the input when an invariant breaks."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    fuzz = tmp_path / "native" / "fuzz"
    shutil.copytree(NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("corpus"))
    target = fuzz / "target.c"
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace("LOG_BYTES - 8,", "200,"), encoding="utf-8")
    cause = tmp_path / "cause"
    words = ["--compiler", "gcc", "--seconds", "0", "--crash", str(cause)]
    done = subprocess.run(
        [sys.executable, str(fuzz / "run.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, cause.stat().st_size > 0) == (2, True), done.stderr[-2000:]
    assert "broken invariant: more staged than the buffer or the file holds" in done.stderr
