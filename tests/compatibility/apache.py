"""Apache's own integration tests, as they are in the jar of rocketmq-test, on servers that run
already.
"""

from __future__ import annotations

import queue
import threading
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from foreign_clients import maven

from compatibility.results import Outcome
from compatibility.targets import JudgedCluster
from rmqpy.testing.java.clients import ClientError, Event, LineClient
from rmqpy.testing.processes import BrokerSpec

VERSION: Final = "4.9.7"
NAME: Final = f"apache-{VERSION}"
TITLE: Final = f"Apache's integration tests of {VERSION}"
BROKERS: Final = ("broker-a", "broker-b")
"""The tests need a cluster of two."""
ARTIFACTS: Final = (
    f"org.apache.rocketmq:rocketmq-test:{VERSION}",
    f"org.apache.rocketmq:rocketmq-test:{VERSION}:tests",
    "junit:junit:4.13.2",
    "com.google.truth:truth:0.30",
    "org.assertj:assertj-core:2.6.0",
    "org.mockito:mockito-core:3.10.0",
    "org.awaitility:awaitility:4.1.0",
)
SOURCES: Final = Path(__file__).resolve().parent / "apache"
TLS: Final = Path(__file__).resolve().parents[1] / "tls"
PACKAGE: Final = "org.apache.rocketmq.test."
CLASS_SECONDS_MAX: Final = 400.0
"""A test waits up to two minutes for its messages, and a class has up to six tests."""
EXPORT: Final = "--add-exports=java.base/sun.util.locale=ALL-UNNAMED"
"""Test classes of 4.9 import a constant of the JDK."""


def program() -> list[str]:
    """Return the start of the command line; fetch and compile what it needs."""
    return maven.java_program(NAME, ARTIFACTS, [SOURCES])


def test_classes(words: Sequence[str], pattern: str = "*") -> list[str]:
    """Return the names of the test classes, without their common package.

    Names that begin with ``Base`` are of classes with no test of their own.
    """
    folder = Path(words[-1].partition(":")[2].removesuffix("/*"))
    with zipfile.ZipFile(folder / f"rocketmq-test-{VERSION}-tests.jar") as jar:
        files = [name for name in jar.namelist() if name.endswith("IT.class")]
    names = (name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE) for name in files)
    tests = (name for name in names if not name.rpartition(".")[2].startswith("Base"))
    return sorted(name for name in tests if fnmatch(name, pattern))


def tls_properties(folder: Path) -> Path:
    """Write a tls.properties for servers that ask clients for no certificate."""
    file = folder / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "none",
        "tls.server.keyPath": TLS / "server.key",
        "tls.server.certPath": TLS / "server.pem",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return file


def run_tests(
    cluster: JudgedCluster,
    classes: Sequence[str],
    folder: Path,
    jobs: int,
    keep: Callable[[dict[str, Outcome]], object] = lambda _outcomes: None,
) -> dict[str, Outcome]:
    """Run test classes in ``jobs`` JVMs, and return the outcomes by class and test.

    ``keep`` receives those of a class when it has ended.
    """
    words = program()
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in classes:
        left.put(name)
    outcomes: dict[str, Outcome] = {}
    one_at_a_time = threading.Lock()

    def work(number: int) -> None:
        client = _client(cluster, words, folder / f"jvm-{number}")
        try:
            while True:
                name = left.get_nowait()
                ended = _run_class(client, name)
                with one_at_a_time:
                    outcomes.update(ended)
                    keep(ended)
        except queue.Empty:
            client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _client(cluster: JudgedCluster, words: Sequence[str], folder: Path) -> LineClient:
    kind = cluster.target.members[0]
    spec = BrokerSpec(port=1, namesrv=cluster.namesrv.address)
    further = cluster.site(kind).broker("further", spec)
    command = ["{conf}" if word.endswith("broker.conf") else word for word in further.argv]
    (folder / "stores").mkdir(parents=True)
    properties: Mapping[str, object] = {
        "user.home": folder,
        "judge.namesrv": cluster.namesrv.port,
        "judge.brokers": ",".join(cluster.names),
        "judge.broker": "\n".join(command),
        "judge.folder": folder / "stores",
    }
    options = [f"-D{key}={value}" for key, value in properties.items()]
    memory = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", EXPORT]
    argv = [words[0], *memory, *options, *words[1:], "RunTests"]
    return LineClient(argv, folder, further.environment)


def _run_class(client: LineClient, name: str) -> dict[str, Outcome]:
    events: list[Event] = []
    try:
        client.ask(PACKAGE + name, frozenset({"done"}), CLASS_SECONDS_MAX, events)
    except ClientError as fault:
        ended = _outcomes(name, events)
        return {**ended, f"{name}#*": Outcome("failed", str(fault).splitlines()[0])}
    return _outcomes(name, events)


def _outcomes(name: str, events: Collection[Event]) -> dict[str, Outcome]:
    return {
        f"{name}#{event['name']}": Outcome(event["outcome"], _one_line(event["error"]))
        for event in events
        if event["event"] == "test"
    }


def _one_line(error: str | None) -> str:
    return " ".join((error or "").split())[:300]
