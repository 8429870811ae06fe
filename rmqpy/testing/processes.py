"""Run servers as processes in tests: start them until they are ready, stop or kill them, and start
them again on the same files.

:class:`ServerProcess` is any server; a :class:`Site` creates name servers and brokers of one
implementation in one directory. :class:`RmqpySite` is ours, :class:`rmqpy.testing.java.JavaSite`
the Java one; both take the same :class:`BrokerSpec` with the keys of ``broker.conf``, so that a
test can be written once for both.

Children stay in the process group of the test run, so that Ctrl-C and ``timeout`` also reach them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from attrs import define, field

import rmqpy
from rmqpy.model.deprecation import deprecated_names
from rmqpy.model.errors import RmqError

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.01
TAIL_BYTES = 3000
TRACEBACK_S = 5.0
USER_TICKS = 11
"""The place of utime in /proc/PID/stat, after the name of the command (proc_pid_stat(5))."""

SMALL_STORE: Mapping[str, str] = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "maxMessageSize": "32768",
    "diskMaxUsedSpaceRatio": "95",
    "fileReservedTime": "480",
}
"""The broker.conf keys of a store whose files roll over after a few hundred messages."""


class ProcessError(RmqError):
    """A server process did not start, did not stop, or ended unexpectedly.

    The text ends with the last lines of its output.
    """


@define
class ServerProcess:
    """One server: a command line, its port, and the pattern of the line that reports readiness."""

    name: str
    argv: list[str]
    directory: Path
    port: int
    ready: re.Pattern[bytes]
    store: Path | None = None
    environment: Mapping[str, str] = field(factory=lambda: dict(os.environ), repr=False)
    """The environment of the process. It may contain secrets, so no assertion shows it."""
    ready_timeout_s: float = 60.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def output(self) -> Path:
        """The file with the output of the process, over all its starts."""
        return self.directory / "stdout.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def launch(self) -> Self:
        """Start the process without waiting for it."""
        assert not self.running, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self.directory,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self

    def start(self) -> Self:
        """Start the process and return when it reports that it is ready.

        Raise ProcessError if it ends or is not ready after ``ready_timeout_s``.
        """
        seen = self.output.stat().st_size if self.output.exists() else 0
        self.launch()
        deadline = time.monotonic() + self.ready_timeout_s
        with self.output.open("rb") as printed:
            printed.seek(seen)
            while not self._is_ready(printed, seen):
                if not self.running:
                    raise self._fault(f"ended with {self._exit_code()} before it was ready")
                if time.monotonic() > deadline:
                    used = self._cpu_used()
                    self._end_with_traceback()
                    raise self._fault(f"not ready after {self.ready_timeout_s:.0f} s{used}")
                time.sleep(POLL_SECONDS)
        return self

    def stop(self, timeout_s: float = 60.0) -> int:
        """End the process with SIGTERM and return its exit code.

        If the process does not end, kill it and raise ProcessError.
        """
        if self._process is None:
            return 0
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._fault(f"still running {timeout_s:.0f} s after SIGTERM") from None

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def printed(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _is_ready(self, printed: IO[bytes], seen: int) -> bool:
        printed.seek(seen)
        return self.ready.search(printed.read()) is not None

    def _cpu_used(self) -> str:
        """Return how much of its time the process had a processor, if that is known: little of it
        means that the machine was busy, and the process is not at fault.
        """
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        fields = stat.rpartition(")")[2].split()
        ticks = int(fields[USER_TICKS]) + int(fields[USER_TICKS + 1])
        return f" ({ticks / os.sysconf('SC_CLK_TCK'):.1f} s of CPU time)"

    def _end_with_traceback(self) -> None:
        """End the process, which prints where it is if it runs with PYTHONFAULTHANDLER."""
        assert self._process is not None
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TRACEBACK_S)
        self.kill()

    def _exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _fault(self, what: str) -> ProcessError:
        tail = self.output.read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace")
        return ProcessError(f"{self.name} (log {self.output}) {what}:\n{tail}")


@define(frozen=True, kw_only=True)
class BrokerSpec:
    """The specification of a broker for a test.

    ``settings`` has further keys of broker.conf; they override the defaults.
    """

    port: int
    namesrv: str
    broker_name: str = "broker-a"
    store: Path | None = None
    sizes: Mapping[str, str] = SMALL_STORE
    settings: Mapping[str, str] = field(factory=dict)

    def lines(self, store: Path) -> dict[str, str]:
        """Return the keys of a broker.conf that both implementations read."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.broker_name,
            "brokerId": "0",
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "listenPort": str(self.port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            **self.sizes,
            **self.settings,
        }


class Site(Protocol):
    """A factory of servers of one implementation; it does not start them."""

    @property
    def root(self) -> Path:
        """The folder below which each server has a directory."""
        ...

    def namesrv(self, name: str, port: int) -> ServerProcess: ...

    def broker(self, name: str, spec: BrokerSpec) -> ServerProcess: ...


@define(frozen=True)
class RmqpySite:
    """Name servers and brokers of this package, each in its own directory below ``root``."""

    root: Path
    python: str = sys.executable
    environment: Mapping[str, str] = field(factory=dict, repr=False)

    def namesrv(self, name: str, port: int) -> ServerProcess:
        directory = self.root / name
        lines = {"listenPort": str(port), "kvConfigPath": str(directory / "kvConfig.json")}
        conf = write_properties(directory / "namesrv.conf", lines)
        return self._server(name, ["namesrv", "-c", str(conf)], port)

    def broker(self, name: str, spec: BrokerSpec) -> ServerProcess:
        directory = self.root / name
        store = spec.store or directory / "store"
        conf = write_properties(directory / "broker.conf", spec.lines(store))
        arguments = ["broker", "-c", str(conf), "-n", spec.namesrv]
        server = self._server(name, arguments, spec.port)
        server.store = store
        return server

    def _server(self, name: str, arguments: list[str], port: int) -> ServerProcess:
        return ServerProcess(
            name,
            [self.python, "-m", "rmqpy.cli", *arguments],
            self.root / name,
            port,
            re.compile(rb"^ready: .*:%d\s*$" % port, re.MULTILINE),
            environment=python_environment(self.environment),
        )


def dledger_settings(group: str, port: int, member: str = "n0") -> dict[str, str]:
    """Return the broker.conf keys of a DLedger group whose only member listens on ``port``."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": group,
        "dLegerPeers": f"{member}-{LOOPBACK}:{port}",
        "dLegerSelfId": member,
    }


def group_settings(group: str, ports: Sequence[int], number: int) -> dict[str, str]:
    """Return the broker.conf keys of member ``n<number>`` of a group whose members listen on
    ``ports``.
    """
    peers = ";".join(f"n{index}-{LOOPBACK}:{port}" for index, port in enumerate(ports))
    return dledger_settings(group, 1) | {"dLegerPeers": peers, "dLegerSelfId": f"n{number}"}


FAST_ELECTION: Mapping[str, str] = {
    "heartBeatTimeIntervalMs": "200",
    "maxHeartBeatLeak": "3",
    "minVoteIntervalMs": "50",
    "maxVoteIntervalMs": "200",
}
"""The broker.conf keys with which a lost leader is replaced within two seconds
(docs/how-to/replace-a-leader-faster.md).
"""


def write_properties(path: Path, lines: Mapping[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    path.write_text(text, encoding="utf-8")
    return path


def wait_until_accepting(port: int, timeout_s: float = 60.0) -> float:
    """Wait until ``port`` accepts connections, and return the seconds that this took.

    Raise :class:`ProcessError` after ``timeout_s``.
    """
    begin = time.monotonic()
    while True:
        try:
            socket.create_connection((LOOPBACK, port), 1.0).close()
        except OSError as fault:
            if time.monotonic() - begin > timeout_s:
                raise ProcessError(f"port {port} refused for {timeout_s:.0f} s: {fault}") from fault
            time.sleep(POLL_SECONDS / 10)
        else:
            return time.monotonic() - begin


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which a child imports the same rmqpy as this process, from any
    working directory.
    """
    environment = {**os.environ, **(extra or {})}
    here = str(Path(rmqpy.__file__).resolve().parents[1])
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


__getattr__ = deprecated_names(
    __name__,
    {"ProcessFault": "ProcessError"},
)
