"""Java clients of any version: their jars by Maven, and a probe that is compiled against them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from foreign_clients.installing import cache, make, run
from rmqpy.testing.java import JavaHome
from rmqpy.testing.java.install import SOURCES as PROBE_SOURCES

SHARED: Final = ("JsonLine.java", "Options.java")
"""The sources of the Java probe that every other Java program here uses, too."""
PROJECT: Final = """<project><modelVersion>4.0.0</modelVersion>
<groupId>rmqpy.testing</groupId><artifactId>client</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY: Final = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}"
    "</dependency>\n"
)


def missing() -> str | None:
    """Return why no Java program can be built here, or None."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH"
    return None


def java_program(name: str, artifacts: Iterable[str], sources: Iterable[Path]) -> list[str]:
    """Return the start of a command line: java with the artifacts and the compiled sources.

    ``artifacts`` are ``group:artifact:version`` with an optional ``:classifier``. Sources that lie
    below a folder named in ``sources`` keep their packages.
    """
    artifacts, files = tuple(artifacts), tuple(_files(sources))
    content = b"\0".join(path.read_bytes() for path in files) + "".join(artifacts).encode()
    folder = cache() / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"

    def fill(work: Path) -> None:
        pom = PROJECT.format(dependencies="".join(map(_dependency, artifacts)))
        (work / "pom.xml").write_text(pom, encoding="utf-8")
        copy = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        run([*copy, f"-DoutputDirectory={work / 'lib'}"], work)
        javac = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{work / 'lib'}/*"]
        run([*javac, "-d", str(work / "classes"), *map(str, files)], work)

    folder = make(folder, fill)
    return [*JavaHome().java(), "-cp", f"{folder / 'classes'}:{folder / 'lib'}/*"]


def _files(sources: Iterable[Path]) -> Iterable[Path]:
    for shared in SHARED:
        yield PROBE_SOURCES / shared
    for source in sources:
        yield from sorted(source.rglob("*.java")) if source.is_dir() else [source]


def _dependency(artifact: str) -> str:
    group, name, version, *classifier = artifact.split(":")
    more = "".join(f"<classifier>{each}</classifier>" for each in classifier)
    return DEPENDENCY.format(group, name, version, more)
