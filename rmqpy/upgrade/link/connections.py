"""How the driving machine reaches ``rmqpy upgrade agent`` on another host.

========================  ====================================================================
connection                the agent is started by
========================  ====================================================================
:class:`ProgramPipes`     the system's ``ssh``, as a program there
:class:`HttpsConnection` ``rmqpy upgrade serve --drive``, for a client with its token, over TLS
========================  ====================================================================
"""

from __future__ import annotations

import shlex
import socket
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import urlsplit

from attrs import define

from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.upgrade.link.frames import ByteReader, ByteWriter

CLOSE_SECONDS_MAX: Final = 10
CONNECT_SECONDS_MAX: Final = 10
ANSWER_LINE_MAX: Final = 1 << 12
TOKEN_HEADER: Final = "X-Rmqpy-Token"
AGENT_PATH: Final = "/v1/agent"
SSH_OPTIONS: Final = (
    *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS_MAX}"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"),
)
"""No password is asked for, and a connection that falls silent is given up after 20 s."""


class AgentConnection(Protocol):
    """Frames are read from ``reader`` and written to ``writer``."""

    @property
    def reader(self) -> ByteReader: ...

    @property
    def writer(self) -> ByteWriter: ...

    def close(self) -> None:
        """End the connection, and with it the agent."""


@define(slots=True, frozen=True)
class ProgramPipes:
    """The standard streams of a program (implements :class:`AgentConnection`)."""

    process: subprocess.Popen[bytes]

    @property
    def reader(self) -> BinaryIO:
        assert self.process.stdout is not None
        return self.process.stdout  # type: ignore[return-value]

    @property
    def writer(self) -> BinaryIO:
        assert self.process.stdin is not None
        return self.process.stdin  # type: ignore[return-value]

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # what was left to send is lost with the connection
        try:
            self.process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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


def start_program(command: Sequence[str]) -> ProgramPipes:
    """Start a program that speaks frames. Raise RmqError if it cannot be started."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends the connection by closing it
        )
    except OSError as error:
        raise RmqError(f"{command[0]} cannot be started: {error}") from None
    return ProgramPipes(process)


@define(slots=True, frozen=True)
class HttpsConnection:
    """A TLS connection to ``rmqpy upgrade serve`` (implements :class:`AgentConnection`)."""

    socket: ssl.SSLSocket
    reader: Any
    writer: Any

    def close(self) -> None:
        for each in (self.writer, self.reader, self.socket):
            with suppress(OSError):  # what was left to send is lost with the connection
                each.close()


def connect_served(url: str, token: str, authority: str | None) -> HttpsConnection:
    """Connect to the agent of a served directory.

    Raise RmqError if the server refuses, NetworkError if it cannot be reached.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 443
    except ValueError:
        raise RmqError(f"found the host {url}, expected a port number; correct it") from None
    if parts.scheme != "https" or not parts.hostname:
        raise RmqError(
            f"found the host {url}, expected https://HOST:PORT: a member is changed over TLS only;"
            " correct it, and run rmqpy upgrade serve there with --certificate and --key"
        )
    context = trusting(authority)
    try:
        raw = socket.create_connection((parts.hostname, port), CONNECT_SECONDS_MAX)
        _keep_alive(raw)
        connected = context.wrap_socket(raw, server_hostname=parts.hostname)
        connected.sendall(
            f"GET {AGENT_PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\n{TOKEN_HEADER}: {token}\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
        )
        reader = connected.makefile("rb")
        status, text = _read_answer(reader)
        connected.settimeout(None)
    except ssl.SSLCertVerificationError as error:
        raise distrusted(url, error) from None
    except OSError as error:
        raise NetworkError(f"the connection failed: {error}") from None
    if status != 101:
        connected.close()
        raise RmqError(f"{url}: {status or ''} {text}".rstrip())
    return HttpsConnection(connected, reader, connected.makefile("wb"))


def distrusted(url: str, error: ssl.SSLCertVerificationError) -> RmqError:
    return RmqError(
        f"{url}: found a certificate that is not trusted ({error.verify_message}), expected a"
        " trusted one; give its authority with --authority, or as authority in group.toml"
    )


def trusting(authority: str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates in a file, or those of the system."""
    try:
        return ssl.create_default_context(cafile=authority)
    except ssl.SSLError as error:
        raise RmqError(
            f"{authority}: found no certificates ({error.reason}), expected PEM; give the file of"
            " the certificates to trust"
        ) from None


def _keep_alive(raw: socket.socket) -> None:
    """Let a silent connection end after 20 s, as over ssh."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read_answer(reader: Any) -> tuple[int, str]:
    """Return the status of an HTTP answer, and its text if it refuses."""
    words = reader.readline(ANSWER_LINE_MAX).split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return 0, "found something else than an answer of rmqpy upgrade serve; check the address"
    while reader.readline(ANSWER_LINE_MAX).strip():
        pass
    status = int(words[1])
    return status, "" if status == 101 else reader.read(ANSWER_LINE_MAX).decode("utf-8", "replace")
