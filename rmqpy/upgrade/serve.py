"""``rmqpy upgrade serve``: serve a directory's survey, digests and ranges to other hosts.

The server only reads. It listens on the loopback interface or requires a token over TLS, and serves
only files of the store, whatever path a request names. This is the only module of the upgrade that
imports aiohttp.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web
from attrs import define, field

from rmqpy.audit.scan.directory import StoreDirectory, read_directory
from rmqpy.model.errors import RmqError
from rmqpy.upgrade.checks.replica import RANGE_BYTES_MAX, SUMMED_MAX, TOKEN_HEADER, LocalReplica

TOKEN_BYTES_MIN = 16


@define(slots=True, frozen=True, kw_only=True)
class TokenAuth:
    """The address to listen on, and the token that clients must send."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    certificate: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raise RmqError if anyone could read the store."""
        if _is_loopback(self.host) and not self.token:
            return
        if len(self.token) < TOKEN_BYTES_MIN or self.certificate is None:
            raise RmqError(
                f"serving on {self.host} needs a token of at least {TOKEN_BYTES_MIN} characters"
                " (--token-file) and TLS (--certificate, --key); or serve on 127.0.0.1 and connect"
                " through ssh -L"
            )

    def tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise RmqError(
                f"{self.certificate}: found no certificate with its key ({error.reason}), expected"
                " both in PEM; give them with --certificate and --key"
            ) from None
        return context


def application(replica: LocalReplica, token: str) -> web.Application:
    """Return the application that answers survey, digest, range, sums, status, and clock."""
    server = _ReplicaRequests(replica)

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        token_sent = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(token_sent.encode(), token.encode()):
            raise web.HTTPForbidden(text="wrong token")
        try:
            return await handler(request)
        except (RmqError, OSError, ValueError, KeyError) as error:
            raise web.HTTPBadRequest(text=str(error)) from None

    app = web.Application(middlewares=[guard])
    app.router.add_get("/v1/survey", server.survey)
    app.router.add_get("/v1/digest", server.digest)
    app.router.add_get("/v1/range", server.range)
    app.router.add_get("/v1/sums", server.sums)
    app.router.add_get("/v1/status", server.status)
    app.router.add_get("/v1/clock", server.clock)
    return app


def run(replica: LocalReplica, auth: TokenAuth, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; call ``ready`` with the URL once the server listens."""
    auth.check()
    asyncio.run(_run(replica, auth, ready))


async def _run(replica: LocalReplica, auth: TokenAuth, ready: Callable[[str], None]) -> None:
    runner = web.AppRunner(application(replica, auth.token), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, auth.host, auth.port, ssl_context=auth.tls())
        await site.start()
        host, port = runner.addresses[0][:2]
        scheme = "https" if auth.certificate else "http"
        ready(f"{scheme}://{host}:{port}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


Fingerprint = list[tuple[str, int, int]]
"""The path, size in bytes, and time in ms of every file."""


@define(slots=True)
class _ReplicaRequests:
    replica: LocalReplica
    _fingerprint_seen: Fingerprint = field(factory=list)
    _survey_lock: asyncio.Lock = field(factory=asyncio.Lock)

    async def survey(self, request: web.Request) -> web.Response:
        """Return the survey; take a new one if a file has changed since the last request."""
        async with self._survey_lock:
            now = await asyncio.to_thread(self._fingerprint)
            if now != self._fingerprint_seen:
                self.replica.forget_survey()
                self._fingerprint_seen = now
            found = await asyncio.to_thread(self.replica.survey)
        return web.Response(body=found.encode(), content_type="application/json")

    def _fingerprint(self) -> Fingerprint:
        files, plan = self.replica.files, self.replica.plan
        paths = list(self._directory().every_file())
        if plan.config_path is not None:
            paths.append(plan.config_path)
        existing = filter(files.exists, paths)
        return [(path, files.size_of(path), files.mtime_ms(path)) for path in existing]

    def _directory(self) -> StoreDirectory:
        plan = self.replica.plan
        return read_directory(self.replica.files, plan.root, plan.settings)

    async def sums(self, request: web.Request) -> web.Response:
        query = request.query
        first, end = int(query["first"]), int(query["end"])
        if not 0 <= end - first <= SUMMED_MAX:
            raise ValueError(f"at most {SUMMED_MAX} messages at a time")
        arguments = query["topic"], int(query["queue"]), first, end
        return web.Response(text=json.dumps(await asyncio.to_thread(self.replica.sums, *arguments)))

    async def digest(self, request: web.Request) -> web.Response:
        path, start, end = self._range(request)
        return web.Response(text=await asyncio.to_thread(self.replica.digest, path, start, end))

    async def range(self, request: web.Request) -> web.Response:
        path, start, end = self._range(request)
        if end - start > RANGE_BYTES_MAX:
            raise ValueError(f"at most {RANGE_BYTES_MAX} bytes at a time")
        data = await asyncio.to_thread(self.replica.read, path, start, end)
        return web.Response(body=data)

    async def status(self, request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self.replica.status()))

    async def clock(self, request: web.Request) -> web.Response:
        return web.Response(text=str(self.replica.plan.now_ms()))

    def _range(self, request: web.Request) -> tuple[str, int, int]:
        path = request.query["path"]
        start, end = int(request.query["start"]), int(request.query["end"])
        if not 0 <= start <= end:
            raise ValueError(f"invalid range from {start} to {end}")
        if self.replica.absolute(path) not in set(self._directory().every_file()):
            raise ValueError(f"{path} is not a file of the store")
        return path, start, end


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
