"""Libraries that tests preload into brokers, and the system calls that fail on demand in them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import define

FOLDER = Path(__file__).parents[1] / "crash"
SHADOW = FOLDER / "shadow_io.c"
FAULTY = FOLDER / "faulty_io.c"
KILLING = FOLDER / "kill_io.c"


def build_preloaded(source: Path, folder: Path) -> Path:
    """Build a library to preload, or skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"a C compiler is needed to build {source.name}")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@define
class Faults:
    """The file from which faulty_io.c reads the system calls of the broker that fail."""

    path: Path
    library: Path

    def __attrs_post_init__(self) -> None:
        self.clear()

    def environment(self, other: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables that the broker must run with, in addition to those of ``other``
        libraries, which then see only the calls that did not fail.
        """
        others = dict(other or {})
        libraries = ":".join(filter(None, [str(self.library), others.get("LD_PRELOAD")]))
        return {**others, "LD_PRELOAD": libraries, "FAULTY_IO": str(self.path)}

    def set(self, *lines: str) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.rename(self.path)

    def clear(self) -> None:
        self.set()
