"""The table of the clients, and how each is built."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import define, field

from foreign_clients import maven
from foreign_clients.installing import ClientUnavailableError, cache, make, run
from rmqpy.testing.java.clients import LineClient, Probe, probe_body
from rmqpy.testing.java.install import DEFAULT_VERSION
from rmqpy.testing.java.install import SOURCES as PROBE_SOURCES

SOURCES: Final = Path(__file__).resolve().parent
GO_MODULE: Final = "github.com/apache/rocketmq-client-go/v2"
GO_REPAIRED: Final = ("github.com/json-iterator/go v1.1.12", "github.com/modern-go/reflect2 v1.0.2")
"""Dependencies of clients before 2.1 whose old versions crash in programs of today's Go."""
DETAIL_LENGTH: Final = 300
JAVA_OPTIONS: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@define(frozen=True, kw_only=True)
class ForeignClient:
    """One version of a client."""

    title: str
    """The name and the version, for people."""

    argv: Callable[[], list[str]]
    """Returns the command line of the probe, and builds the probe first if it is not yet built."""

    tools: tuple[str, ...]
    """The programs that building and running it needs."""

    body: Callable[[int, int], bytes] = probe_body
    """Returns the body of the message with this number and size, as the probe sends it."""

    java_namesrv: str = DEFAULT_VERSION
    """The version of Java's name server with which it is judged, where Java's brokers are."""

    lacks: Mapping[str, str] = field(factory=dict)
    """What the client cannot do, by the name of the case, and why."""

    def missing(self) -> str | None:
        """Return why it cannot run here, or None if it can, perhaps after a download."""
        if "pip" in self.tools and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            return f"there is no wheel for {platform.system()} {platform.machine()}"
        absent = [tool for tool in self.tools if tool != "pip" and shutil.which(tool) is None]
        return f"{absent[0]} is not on the PATH" if absent else None

    def unavailable(self) -> str | None:
        """Build it, and return why that is not possible, or None."""
        reason = self.missing()
        if reason is None:
            try:
                self.argv()
            except ClientUnavailableError as fault:
                reason = " ".join(str(fault).split())[:DETAIL_LENGTH]
        return reason

    def probe(self, directory: Path, namesrv: str) -> Probe:
        """Start the client in its own process, which writes files only in ``directory``."""
        reason = self.missing()
        if reason is not None:
            raise ClientUnavailableError(reason)
        environment = {**os.environ, "HOME": str(directory)}
        argv = [word.replace("{directory}", str(directory)) for word in self.argv()]
        return Probe(LineClient(argv, directory, environment), namesrv)


def cpp_body(index: int, size: int) -> bytes:
    """Return the body of the message with this number as the C++ probe sends it."""
    return bytes(97 + (31 * index + 7 * j) % 26 for j in range(size))


# -- Java


def _java(version: str) -> ForeignClient:
    return ForeignClient(
        title=f"Java client {version}",
        argv=lambda: [
            *_jvm(
                "java-client",
                f"org.apache.rocketmq:rocketmq-client:{version}",
                sources=(SOURCES / "java", PROBE_SOURCES / "Broadcasting.java"),
            ),
            "ClientProbe",
        ],
        tools=("java", "javac", "mvn"),
    )


def _jvm(name: str, *artifacts: str, sources: Iterable[Path]) -> list[str]:
    version = artifacts[0].split(":")[2]
    program = maven.java_program(f"{name}-{version}", artifacts, sources)
    return [
        program[0],
        *JAVA_OPTIONS,
        "-Duser.home={directory}",
        "-Drocketmq.client.logRoot={directory}/logs",
        *program[1:],
    ]


def _spring(version: str, boot: str) -> ForeignClient:
    artifacts = (
        f"org.apache.rocketmq:rocketmq-spring-boot-starter:{version}",
        f"org.springframework.boot:spring-boot-starter:{boot}",
    )
    return ForeignClient(
        title=f"Spring starter {version}, Spring Boot {boot}",
        argv=lambda: [*_jvm("spring", *artifacts, sources=[SOURCES / "spring"]), "SpringProbe"],
        tools=("java", "javac", "mvn"),
    )


# -- Go


def _go(version: str) -> ForeignClient:
    required = (f"{GO_MODULE} {version}", *GO_REPAIRED)
    lines = ("module probe", "go 1.21", *(f"require {module}" for module in required))

    def argv() -> list[str]:
        source = (SOURCES / "probe.go").read_bytes() + "\n".join(lines).encode()
        folder = cache() / f"go-{hashlib.sha256(source).hexdigest()[:12]}"
        return ["env", "ROCKETMQ_GO_LOG_LEVEL=error", str(make(folder, build) / "probe")]

    def build(work: Path) -> None:
        shutil.copy(SOURCES / "probe.go", work / "main.go")
        (work / "go.mod").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        run(["go", "mod", "tidy"], work)
        run(["go", "build", "-o", "probe", "."], work)

    return ForeignClient(title=f"Go client {version}", argv=argv, tools=("go",))


# -- Node, Rust


def _node(version: str) -> ForeignClient:
    def argv() -> list[str]:
        source = (SOURCES / "probe.js").read_bytes() + version.encode()
        folder = cache() / f"node-{hashlib.sha256(source).hexdigest()[:12]}"
        return ["node", str(make(folder, build) / "probe.js")]

    def build(work: Path) -> None:
        shutil.copy(SOURCES / "probe.js", work / "probe.js")
        run(["npm", "install", "--no-audit", "--no-fund", f"ali-ons@{version}"], work)

    return ForeignClient(
        title=f"ali-ons {version} (Node)",
        argv=argv,
        tools=("node", "npm"),
        lacks=dict.fromkeys(
            ("async", "oneway", "batch", "transactions"), "this client has no such sends"
        ),
    )


RUST_CRATES: Final = ("client-rust", "model", "observability", "protocol", "runtime")
RUST_PROJECT: Final = """[package]
name = "probe"
version = "1.0.0"
edition = "2021"

[dependencies]
crc32fast = "1"
serde_json = "1"
tokio = {{ version = "1", features = ["full"] }}
{crates}

[profile.dev]
debug = false
"""


def _rust(version: str) -> ForeignClient:
    def argv() -> list[str]:
        source = (SOURCES / "probe.rs").read_bytes() + version.encode()
        folder = cache() / f"rust-{hashlib.sha256(source).hexdigest()[:12]}"
        return [str(make(folder, build) / "probe")]

    def build(work: Path) -> None:
        crates = "\n".join(f'rocketmq-{name} = "={version}"' for name in RUST_CRATES)
        (work / "Cargo.toml").write_text(RUST_PROJECT.format(crates=crates), encoding="utf-8")
        (work / "src").mkdir()
        shutil.copy(SOURCES / "probe.rs", work / "src" / "main.rs")
        # A development build takes half of the time of a release.
        target = cache() / "rust-target"
        run(["cargo", "build", "--quiet", "--target-dir", str(target)], work)
        shutil.copy(target / "debug" / "probe", work / "probe")

    return ForeignClient(
        title=f"rocketmq-client-rust {version}",
        argv=argv,
        tools=("cargo",),
        java_namesrv="5.3.3",  # It reads no route of 4.9.7, which lacks enableActingMaster.
    )


# -- PyPI


def _pip(work: Path, *requirements: str) -> None:
    options = ["--quiet", "--only-binary=:all:", "--target", str(work)]
    run([sys.executable, "-m", "pip", "install", *options, *requirements], work)


def _cpp(version: str) -> ForeignClient:
    def argv() -> list[str]:
        folder = make(cache() / f"rocketmq-{version}", install)
        return [sys.executable, str(SOURCES / "cpp_probe.py"), str(folder)]

    def install(work: Path) -> None:
        _pip(work, "--no-deps", f"rocketmq=={version}")

    return ForeignClient(
        title=f"PyPI's rocketmq {version} (C++ client)",
        argv=argv,
        tools=("pip",),
        body=cpp_body,
        lacks=dict.fromkeys(
            ("async", "batch", "sql", "broadcast", "transactions"), "the wrapper has no such calls"
        ),
    )


def _jpype(version: str, java_client: str) -> ForeignClient:
    def argv() -> list[str]:
        artifact = f"com.alibaba.rocketmq:rocketmq-client:{java_client}"
        classes = maven.java_program(f"alibaba-client-{java_client}", [artifact], [])
        jars = classes[-1].partition(":")[2].removesuffix("/*")
        folder = make(cache() / f"rocketmq3-{version}", install)
        return [sys.executable, str(SOURCES / "jpype_probe.py"), str(folder), jars]

    def install(work: Path) -> None:
        _pip(work, f"rocketmq3-py-client=={version}")

    return ForeignClient(
        title=f"PyPI's rocketmq3-py-client {version} (Java client {java_client})",
        argv=argv,
        tools=("pip", "java", "javac", "mvn"),
        lacks=dict.fromkeys(
            ("batch", "ordered", "sql", "broadcast", "transactions"),
            "the wrapper has no such calls",
        ),
    )


CLIENTS: Final[Mapping[str, ForeignClient]] = {
    "java-4.2.0": _java("4.2.0"),
    "java-4.5.2": _java("4.5.2"),
    "java-4.9.7": _java("4.9.7"),
    "java-5.3.3": _java("5.3.3"),
    "spring-2.3.1": _spring("2.3.1", "2.7.18"),
    "go-2.0.0": _go("v2.0.0"),
    "go-2.1.2": _go("v2.1.2"),
    "go-2.1.3": _go("v2.1.3-0.20251226070945-2173d070fd1b"),
    "node-3.12.0": _node("3.12.0"),
    "rust-1.0.0": _rust("1.0.0"),
    "cpp-0.4.4": _cpp("0.4.4"),
    "rocketmq3-0.4.0": _jpype("0.4.0", "3.2.6"),
}
"""The clients by name; the name has the version."""
