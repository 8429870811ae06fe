"""The Java that Spark will run on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import define

from rmqpy.model.errors import ConfigFault

__all__ = ["JAVA_MIN", "Java", "find_java"]

JAVA_MIN: Final = 17
ANSWER_SECONDS_MAX: Final = 30.0
REMEDY: Final = (
    f"install a Java runtime of version {JAVA_MIN} or later and set JAVA_HOME to it, "
    "or use --engine local, which needs none"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@define(slots=True, frozen=True)
class Java:
    """``source``: why this one ("JAVA_HOME", "PATH"); ``version``: 17, 21 …"""

    program: str
    version: int
    source: str


def find_java(environment: Mapping[str, str]) -> Java:
    """The one that Spark would start, asked for its version; ConfigFault with the remedy."""
    home = environment.get("JAVA_HOME")
    if home:
        program: str | None = str(Path(home) / "bin" / "java")
        source = "JAVA_HOME"
    else:
        program = shutil.which("java", path=environment.get("PATH", ""))
        source = "PATH"
    if program is None:
        raise ConfigFault(f"Spark needs Java: JAVA_HOME is not set and no java on PATH; {REMEDY}")
    version = _version(program, source)
    if version < JAVA_MIN:
        raise ConfigFault(f"{program} ({source}) is Java {version}, too old for Spark; {REMEDY}")
    return Java(program, version, source)


def _version(program: str, source: str) -> int:
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigFault(f"{program} ({source}) does not run: {error}; {REMEDY}") from None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        raise ConfigFault(f"{program} ({source}) does not tell its version; {REMEDY}")
    return int(found[1])
