"""Find Java, and install the jars of one RocketMQ version.

The cache is below ``RMQPY_JAVA_CACHE`` or ``~/.cache/rmqpy/java``::

    <version>/lib/*.jar              the jars that Maven resolved for broker, namesrv, and tools
    <version>/classes-<hash>/        the probe, compiled against these jars; hash of its sources
    <version>.lock                   held while one of the folders is created

Both folders are created by a rename, so they are complete or do not exist.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from rmqpy.model.errors import RmqError

DEFAULT_VERSION = "4.9.7"
MODULES = ("broker", "namesrv", "tools")
SOURCES = Path(__file__).resolve().parent
INSTALL_SECONDS_MAX = 900
COMPILE_SECONDS_MAX = 120
FIRST_MODULAR_JAVA = 9
OPENED_PACKAGES = (
    "java.nio",
    "java.lang",
    "java.lang.reflect",
    "java.util",
    "sun.nio.ch",
    "jdk.internal.ref",
    "jdk.internal.misc",
)
"""The packages that Java 9 and later need opened to unmap a file; otherwise a broker cannot delete
its files.
"""


class JavaUnavailableError(RmqError):
    """Java, Maven, or the jars are not available; the text says which, and why."""


def default_cache() -> Path:
    chosen = os.environ.get("RMQPY_JAVA_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "rmqpy" / "java"


@define(frozen=True)
class JavaHome:
    """One RocketMQ version and the Java runtime for it."""

    version: str = DEFAULT_VERSION
    cache: Path = field(factory=default_cache)

    def missing(self) -> str | None:
        """Return the reason why Java RocketMQ cannot run here, or None if it can.

        The jars need not be installed yet.
        """
        for tool in ("java", "javac"):
            if _find(tool) is None:
                return f"{tool} is neither in JAVA_HOME nor on the PATH"
        if not self._lib.is_dir() and _find("mvn") is None:
            return f"no jars of RocketMQ {self.version} in {self._lib} and no mvn to fetch them"
        return None

    def libraries(self) -> Path:
        """Return the folder with all jars, which Maven fetches on first use."""
        self._need()
        if not self._lib.is_dir():
            with self._locked():
                if not self._lib.is_dir():
                    self._install()
        return self._lib

    def classes(self) -> Path:
        """Return the folder with the compiled probe.

        It is compiled on first use and after a change of its sources.
        """
        lib = self.libraries()
        sources = sorted(SOURCES.glob("*.java"))
        digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources))
        classes = self.cache / self.version / f"classes-{digest.hexdigest()[:12]}"
        if not classes.is_dir():
            with self._locked():
                if not classes.is_dir():
                    self._compile(lib, sources, classes)
        return classes

    def java(self) -> list[str]:
        """Return the start of every command line: the program and the options to open packages."""
        self._need()
        java = _find("java")
        assert java is not None
        if _java_major(java) < FIRST_MODULAR_JAVA:
            return [java]
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
        return [java, *opens]

    @property
    def _lib(self) -> Path:
        return self.cache / self.version / "lib"

    def _need(self) -> None:
        reason = self.missing()
        if reason is not None:
            raise JavaUnavailableError(reason)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / f"{self.version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _install(self) -> None:
        maven = _find("mvn")
        assert maven is not None
        with tempfile.TemporaryDirectory(dir=self.cache, prefix="install-") as folder:
            work = Path(folder)
            (work / "pom.xml").write_text(_project(self.version), encoding="utf-8")
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
            command = [maven, "-B", "-q", "-f", str(work / "pom.xml"), *goal]
            _run([*command, f"-DoutputDirectory={work / 'lib'}"], INSTALL_SECONDS_MAX)
            self._lib.parent.mkdir(parents=True, exist_ok=True)
            (work / "lib").rename(self._lib)

    def _compile(self, lib: Path, sources: list[Path], classes: Path) -> None:
        javac = _find("javac")
        assert javac is not None
        with tempfile.TemporaryDirectory(dir=classes.parent, prefix="compile-") as folder:
            output = Path(folder) / "classes"
            output.mkdir()
            command = [javac, "-nowarn", "-encoding", "UTF-8", "-cp", f"{lib}/*", "-d", str(output)]
            _run([*command, *map(str, sources)], COMPILE_SECONDS_MAX)
            output.rename(classes)


def _find(tool: str) -> str | None:
    java_home = os.environ.get("JAVA_HOME")
    if java_home and tool != "mvn":
        found = shutil.which(tool, path=os.path.join(java_home, "bin"))
        if found is not None:
            return found
    return shutil.which(tool)


def _java_major(java: str) -> int:
    """Return the major version of a runtime: 8 for "1.8.0_292", 17 for "17.0.15"."""
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None:
        raise JavaUnavailableError(f"{java} -version printed no version: {printed.strip()[:200]!r}")
    return int(found.group(1))


def _project(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId>"
        f"<artifactId>rocketmq-{module}</artifactId><version>{version}</version></dependency>"
        for module in MODULES
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>rmqpy.testing</groupId><artifactId>java-rocketmq</artifactId>"
        f"<version>{version}</version><dependencies>{dependencies}</dependencies></project>"
    )


def _run(command: list[str], seconds_max: int) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds_max, check=False
        )
    except subprocess.TimeoutExpired as fault:
        raise JavaUnavailableError(f"{command[0]} did not end within {seconds_max} s") from fault
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise JavaUnavailableError(f"{command[0]} ended with {done.returncode}:\n{tail}")
