"""The C core under warnings and sanitizers, on damaged golden files. Only with RMQPY_SANITIZE=1."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("RMQPY_SANITIZE") != "1", reason="on demand only: RMQPY_SANITIZE=1"
)

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = [str(NATIVE / f"{name}.c") for name in ("fuzz_scan", "scan", "append", "crc32")]
WARNINGS = "-std=c11 -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wpedantic -Werror"


@pytest.fixture(params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest) -> str:
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    return path


def test_no_warnings(compiler: str, tmp_path: Path) -> None:
    for source in SOURCES:
        command = [compiler, *WARNINGS.split(), "-O3", "-c", source, "-o", str(tmp_path / "o")]
        subprocess.run(command, check=True, timeout=120)


def test_sanitizers_find_nothing(
    compiler: str, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    program = tmp_path / "fuzz"
    sanitize = "-g -O1 -std=c11 -fsanitize=address,undefined -fno-sanitize-recover=all"
    command = [compiler, *sanitize.split(), *SOURCES, "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    files = [str(path) for path in (golden("C-upgraded-v497") / "n0").glob("commitlog/*")]
    files += [str(path) for path in (golden("D-dledger-v497") / "n0").glob("dledger-n0/data/*")]
    done = subprocess.run(
        [str(program), "200", "20240611", *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{len(files)} files, {279 + 552} records\n"
