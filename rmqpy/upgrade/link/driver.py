"""The driving end of a link: starts ``rmqpy upgrade agent`` on another host over the system's ssh.

A lost connection is opened again, and the request sent again: a ``get`` only reads, and verbs are
journaled, so a repeated one continues. Should the first agent still be at work, the lock of the
store refuses the second until it has ended.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from attrs import define, field

from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.upgrade.link.frames import PROTOCOL, Frame, read_frame, write_frame

RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The pauses before a lost connection is opened again; after the last it is given up."""
CLOSE_SECONDS_MAX: Final = 10

SSH_OPTIONS: Final = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"),
)
"""No password is asked for, and a silent connection is given up after 20 s."""

Answer = Callable[[Frame], Frame]
"""Returns the answer to a question of the agent."""


def ssh_command(host: str, program: str) -> list[str]:
    """Return the command that starts the agent on ``ssh://[USER@]HOST[:PORT]``."""
    parts = urlsplit(host)
    if parts.scheme != "ssh" or not parts.hostname or parts.hostname.startswith("-"):
        raise RmqError(f"found the host {host}, expected ssh://[USER@]HOST[:PORT]; correct it")
    words = ["ssh", *SSH_OPTIONS]
    try:
        words += ["-p", str(parts.port)] if parts.port else []
    except ValueError:
        raise RmqError(f"found the host {host}, expected a port number; correct it") from None
    words += ["-l", parts.username] if parts.username else []
    return [*words, "--", parts.hostname, f"{shlex.quote(program)} upgrade agent"]


@define(slots=True)
class AgentLink:
    """The link to the agent of one host, started by ``command``; ``note`` tells of new attempts."""

    host: str
    command: Sequence[str]
    note: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def request(self, frame: Frame, answer: Answer | None = None) -> Frame:
        """Send a frame and return the agent's answer to it.

        Questions of the agent are answered by ``answer``. Raise RmqError with the agent's text if
        it refuses, NetworkError if the host cannot be reached.
        """
        for pause_s in (*RETRY_SECONDS, None):
            try:
                return self._exchange(frame, answer)
            except NetworkError as error:
                self.close()
                if pause_s is None:
                    raise NetworkError(
                        f"{self.host}: {error}; check that ssh reaches it without a password and"
                        " that rmqpy is installed there, then run the command again"
                    ) from None
                self.note(f"{self.host}: {error}; connecting again in {pause_s:.0f} s")
                self.sleep(pause_s)
        raise AssertionError("unreachable")

    def get(self, what: str, query: Mapping[str, object], at: Mapping[str, str]) -> bytes:
        """Return the answer to a question about a directory: ``at`` has its name and its paths."""
        texts = {name: str(value) for name, value in query.items()}
        return self.request(Frame("get", {"what": what, "query": texts, **at})).body

    def close(self) -> None:
        """End the agent and forget the connection."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # what was left to send is lost with the connection
        try:
            process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _exchange(self, frame: Frame, answer: Answer | None) -> Frame:
        process = self._opened()
        assert process.stdin is not None and process.stdout is not None
        write_frame(process.stdin, frame)
        while True:
            found = read_frame(process.stdout)
            if found is None:
                raise NetworkError("the connection is lost")
            if found.kind == "ask" and answer is not None:
                write_frame(process.stdin, answer(found))
            elif found.kind == "refused":
                raise RmqError(f"{self.host}: {found.head.get('text')}")
            else:
                return found

    def _opened(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C ends the connection by closing it
                )
            except OSError as error:
                raise RmqError(f"{self.command[0]} cannot be started: {error}") from None
            assert self._process.stdout is not None
            hello = read_frame(self._process.stdout)
            if hello is None:
                raise NetworkError("found no answer of rmqpy upgrade agent")
            if hello.kind != "hello" or hello.head.get("protocol") != PROTOCOL:
                raise RmqError(
                    f"{self.host}: found protocol {hello.head.get('protocol')} of rmqpy"
                    f" {hello.head.get('version')}, expected {PROTOCOL}; use the same rmqpy on all"
                    " hosts"
                )
        return self._process
