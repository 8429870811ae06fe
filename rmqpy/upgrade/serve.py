"""``rmqpy upgrade serve``: serve a directory's survey, digests and ranges to other hosts.

The server only reads, unless it is given the command of an agent: then a client with the token may
drive the upgrade of the directory through it. It listens on the loopback interface or requires a
token over TLS, and serves only files of the store, whatever path a request names.

What clients can take is bounded: connections, one request each; the time until a request is
complete, and that a client may leave an answer unread; the reads from the disk at a time. Answers
are sent in pieces, so that a slow reader holds one piece in memory.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

from aiohttp import web
from attrs import define, field

from rmqpy.model.errors import RmqError
from rmqpy.net.bounded_http import (
    BoundedConnection,
    bounded_server,
    expect,
    is_loopback,
    tls_of,
    url_of,
)
from rmqpy.upgrade.checks.replica import RANGE_BYTES_MAX, LocalReplica
from rmqpy.upgrade.checks.requests import ReplicaRequests
from rmqpy.upgrade.link.connections import AGENT_PATH, TOKEN_HEADER
from rmqpy.upgrade.served_agent import relay

TOKEN_BYTES_MIN = 16
P = ParamSpec("P")
T = TypeVar("T")

CONNECTIONS_MAX = 32
"""Further connections are closed."""
READS_AT_ONCE = 4
AGENTS_MAX = 4
"""Connections that drive; more than one only while a lost one has not ended yet."""
READ_ONLY = (
    "found a directory that is served to be read only, expected one that may be changed; restart"
    " rmqpy upgrade serve there with --drive -c broker.conf, or reach the host over ssh://"
)
WRONG_TOKEN = (
    "found a wrong token, expected that of this rmqpy upgrade serve; give its file with"
    " --token-file, or as token_file in group.toml"
)
SEND_SECONDS = 60.0
"""The time that a client has for each piece of an answer."""
PIECE_BYTES = 256 << 10


@define(slots=True, frozen=True, kw_only=True)
class TokenAuth:
    """The address to listen on, and the token that clients must send."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    certificate: str | None = None
    key: str | None = None

    def check(self, *, driven: bool = False) -> None:
        """Raise RmqError if anyone could read the store, or change it if it is ``driven``."""
        if is_loopback(self.host) and not self.token and not driven:
            return
        if len(self.token) < TOKEN_BYTES_MIN or self.certificate is None:
            raise RmqError(
                f"serve on {self.host}{' with --drive' if driven else ''}: found no token of at"
                f" least {TOKEN_BYTES_MIN} characters or no TLS, expected both; give --token-file,"
                " --certificate, and --key"
                f"{'' if driven else ', or serve on 127.0.0.1 and connect through ssh -L'}"
            )

    def tls(self) -> ssl.SSLContext | None:
        return tls_of(self.certificate, self.key)


def application(
    replica: LocalReplica, token: str, agent: Sequence[str] | None = None
) -> web.Application:
    """Return the application that answers the questions of
    :class:`rmqpy.upgrade.checks.requests.ReplicaRequests`.

    ``agent`` is the command that it starts for a machine that drives the upgrade.
    """
    server = _Answers(ReplicaRequests(replica))
    agents = asyncio.Semaphore(AGENTS_MAX)

    def may_ask(request: web.Request) -> bool:
        expect(request, None)
        token_sent = request.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(token_sent, token.encode())

    async def drive(request: web.Request) -> web.StreamResponse:
        if not may_ask(request):
            return _refusal(request, 403, WRONG_TOKEN)
        if agent is None:
            return _refusal(request, 403, READ_ONLY)
        if agents.locked():
            return _refusal(request, 503, f"found {AGENTS_MAX} connections that drive, expected 1")
        assert isinstance(request.protocol, BoundedConnection)
        request.protocol.upgraded = asyncio.StreamReader()
        async with agents:
            return await relay(request, request.protocol.upgraded, agent)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not may_ask(request):
            return _refusal(request, 403, WRONG_TOKEN)
        try:
            pieces, size = await server.answer(request)
        except (RmqError, ValueError) as error:
            return _refusal(request, 400, str(error))
        except KeyError as error:
            return _refusal(request, 400, f"found no {error} in the query, expected it")
        except OSError as error:
            return _refusal(request, 400, f"{error.filename}: {error.strerror}")
        return await _sent(request, pieces, size)

    app = web.Application()
    app.router.add_get(AGENT_PATH, drive)
    app.router.add_get("/v1/{what}", answer)
    return app


def _refusal(request: web.Request, status: int, text: str) -> web.Response:
    expect(request, SEND_SECONDS)
    response = web.Response(status=status, text=text)
    response.force_close()
    return response


async def _sent(request: web.Request, pieces: Pieces, size: int) -> web.StreamResponse:
    response = web.StreamResponse()
    response.force_close()
    response.content_length = size
    expect(request, SEND_SECONDS)
    with suppress(ConnectionError):  # The client is gone: aiohttp ends the connection.
        await response.prepare(request)
        async for piece in pieces:
            expect(request, SEND_SECONDS)
            await response.write(piece)
        await response.write_eof()
    return response


def run(
    replica: LocalReplica,
    auth: TokenAuth,
    ready: Callable[[str], None],
    agent: Sequence[str] | None = None,
) -> None:
    """Serve until interrupted; call ``ready`` with the URL once the server listens.

    ``agent`` is the command that serves a machine that drives the upgrade.
    """
    auth.check(driven=agent is not None)
    asyncio.run(_run(replica, auth, ready, agent))


async def _run(
    replica: LocalReplica,
    auth: TokenAuth,
    ready: Callable[[str], None],
    agent: Sequence[str] | None = None,
) -> None:
    runner = web.AppRunner(application(replica, auth.token, agent), access_log=None)
    await runner.setup()
    tls = auth.tls()
    server = await bounded_server(runner, (auth.host, auth.port), tls, CONNECTIONS_MAX)
    try:
        ready(url_of(server, is_tls=tls is not None))
        await asyncio.Event().wait()
    finally:
        server.close()
        await runner.cleanup()


Pieces = AsyncIterator[bytes | memoryview]


@define(slots=True)
class _Answers:
    """The answers about one replica, read in threads: few at a time, and one survey."""

    requests: ReplicaRequests
    _survey_lock: asyncio.Lock = field(factory=asyncio.Lock)
    _reads: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(READS_AT_ONCE))

    async def answer(self, request: web.Request) -> tuple[Pieces, int]:
        """Return the pieces of an answer and its size in bytes.

        Raise ValueError or RmqError for a request that cannot be answered.
        """
        what, query = request.match_info.get("what", ""), request.query
        if what == "range":
            return await self.range(query)
        if what == "survey":
            async with self._survey_lock:
                body = await self._read(self.requests.survey, query)
        else:
            body = await self._read(self.requests.answer, what, query)
        return _pieces_of(body), len(body)

    async def range(self, query: Mapping[str, str]) -> tuple[Pieces, int]:
        path, start, end = await self._read(self.requests.checked_range, query, RANGE_BYTES_MAX)
        read = self.requests.replica.read
        # The last byte, so that a range that is too long is refused before the first is sent.
        await self._read(read, path, max(start, end - 1), end)

        async def pieces() -> Pieces:
            for at in range(start, end, PIECE_BYTES):
                stop = min(at + PIECE_BYTES, end)
                yield await self._read(read, path, at, stop)

        return pieces(), end - start

    async def _read(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function that reads the disk, in a thread; few of them at a time."""
        async with self._reads:
            return await asyncio.to_thread(function, *arguments, **named)


async def _pieces_of(body: bytes) -> Pieces:
    view = memoryview(body)
    for at in range(0, len(view), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]
