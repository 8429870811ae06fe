"""The C core compiles without what only Linux has; tox -e wheel compiles it for other systems."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = sorted(NATIVE.glob("*.c"))
COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="found no C compiler; apt-get install gcc")
def test_the_c_core_compiles_without_what_only_linux_has() -> None:
    assert COMPILER is not None
    calling = [source for source in SOURCES if "#include <sys/" in source.read_text("utf-8")]
    assert len(calling) >= 3
    flags = ["-fsyntax-only", "-std=c11", "-Wall", "-Wextra", "-Werror"]
    hidden = ["-U__linux__", "-U__linux", "-Ulinux"]
    done = subprocess.run(
        [COMPILER, *flags, *hidden, *map(str, calling)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_headers_of_linux_are_only_included_on_linux() -> None:
    linux_only = ("sys/epoll.h", "sys/eventfd.h", "sys/prctl.h", "sys/sendfile.h", "linux/")
    for source in [*SOURCES, *NATIVE.glob("*.h")]:
        guarded = 0
        for line in source.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] in (["#ifdef"], ["#if"], ["#ifndef"]):
                guarded += 1 if guarded or "__linux__" in line else 0
            elif words[:1] == ["#endif"]:
                guarded = max(0, guarded - 1)
            elif words[:1] == ["#include"]:
                assert guarded or not any(name in line for name in linux_only), (source, line)
