"""The probe client and mqadmin: one JVM each, which reads commands as lines and answers with JSON
lines.

A JVM takes a second to start; a command in a running JVM takes some 0.1 s. See Probe.java for the
commands.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from attrs import define, field

from rmqpy.model.errors import RmqError

Event = dict[str, Any]
"""One line of the probe; ``event`` is its kind."""

READ_BYTES = 1 << 16
START_SECONDS_MAX = 60.0
ADMIN_SECONDS_MAX = 30
END_SECONDS_MAX = 10.0


class ClientError(RmqError):
    """A command of the probe or of mqadmin failed, or its JVM ended."""


@define
class LineClient:
    """A child process that reads lines and writes JSON lines."""

    argv: list[str]
    directory: Path
    environment: Mapping[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _pending: bytearray = field(factory=bytearray, init=False)

    def ask(
        self, line: str, last: frozenset[str], timeout_s: float, events: list[Event] | None = None
    ) -> list[Event]:
        """Send one line and return the events up to and including the first one whose name is in
        ``last``.

        If ``events`` is given, that list is filled and returned, so that other threads can read it
        meanwhile. Raise ClientError after ``timeout_s``, or if the process ends.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(line.encode("ascii") + b"\n")
        self._process.stdin.flush()
        return self._answer(last, time.monotonic() + timeout_s, [] if events is None else events)

    def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_SECONDS_MAX)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    def _start(self) -> None:
        self.close()
        self._pending.clear()
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self.directory,
                env=dict(self.environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._answer(frozenset({"ready"}), time.monotonic() + START_SECONDS_MAX, [])

    def _answer(self, last: frozenset[str], deadline: float, events: list[Event]) -> list[Event]:
        while not events or events[-1]["event"] not in last:
            line = self._line(deadline)
            if line.startswith(b"{"):
                events.append(json.loads(line))
        return events

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._fault("no answer in time")
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not data:
                    raise self._fault("the JVM ended")
                self._pending += data
        line, _, rest = self._pending.partition(b"\n")
        self._pending = rest
        return bytes(line)

    def _fault(self, what: str) -> ClientError:
        tail = self._errors.read_bytes()[-2000:].decode("utf-8", "replace")
        if self._process is not None:
            self._process.kill()
        return ClientError(f"{what} ({self._errors}): {tail}")

    @property
    def _errors(self) -> Path:
        return self.directory / "stderr.log"


@define
class Probe:
    """A Java client of one name server. Its first command starts it."""

    client: LineClient
    namesrv: str

    def run(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        events: list[Event] | None = None,
        **options: object,
    ) -> list[Event]:
        """Run a command and return its events without the closing one.

        An option may be a sequence of values. If ``events`` is given, it is filled while the
        command runs. Raise ClientError if the command fails.
        """
        words = [command, f"namesrv={_word(self.namesrv)}"]
        for name, value in options.items():
            many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            words += [f"{name}={_word(str(one))}" for one in many]
        last = frozenset({"done", "fault"})
        answer = self.client.ask(" ".join(words), last, timeout_s, events)
        if answer[-1]["event"] == "fault":
            raise ClientError(f"{command} {options}: {answer[-1]['error']}")
        return answer[:-1]

    def at(self, namesrv: str) -> Probe:
        """Return a client of another name server in the same JVM."""
        return Probe(self.client, namesrv)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@define
class MqAdmin:
    """A client that runs mqadmin commands against one name server."""

    client: LineClient
    namesrv: str

    def run(self, *words: str) -> str:
        """Return the text that ``mqadmin words... -n NAMESRV`` prints.

        Raise ClientError if the command does not end in time.
        """
        answer = self.call(*words)
        output: str = answer["output"]
        if not answer["finished"]:
            raise ClientError(f"mqadmin {' '.join(words)} runs too long; so far: {output}")
        return output

    def call(self, *words: str, seconds: int = ADMIN_SECONDS_MAX) -> Event:
        """Run a command and return its event, which has the printed text and the request codes.

        A command that does not end within ``seconds`` continues in the JVM.
        """
        line = " ".join(_word(word) for word in (f"@{seconds}", *words, "-n", self.namesrv))
        return self.client.ask(line, frozenset({"command"}), seconds + 10.0)[-1]

    def at(self, namesrv: str) -> MqAdmin:
        """Return a client of another name server in the same JVM."""
        return MqAdmin(self.client, namesrv)

    def close(self) -> None:
        self.client.close()


def probe_body(index: int, size: int) -> bytes:
    """Return the body of the probe's message number ``index``."""
    return bytes((31 * index + 7 * j) & 0xFF for j in range(size))


def _word(text: str) -> str:
    return quote(text, safe=":,/*.-_")
