"""An HTTP server whose clients cannot take more than their share: a limit on connections, and on
the time that a client has for what it does next.
"""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_address
from typing import Final

from aiohttp import web

from rmqpy.model.errors import RmqError

__all__ = [
    "HEAD_SECONDS",
    "BoundedConnection",
    "bounded_server",
    "expect",
    "is_loopback",
    "tls_of",
    "url_of",
]

HEAD_SECONDS: Final = 20.0
"""The time that a client has for its request, and for TLS before it."""


class BoundedConnection(web.RequestHandler):
    """A connection that is aborted if the client does not do the next thing in time."""

    upgraded: asyncio.StreamReader | None = None
    """What receives the data of a connection that is no longer HTTP."""
    _timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self.upgraded is None:
            super().data_received(data)
        else:
            self.upgraded.feed_data(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.expect(HEAD_SECONDS)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.expect(None)
        if self.upgraded is not None:
            self.upgraded.feed_eof()
        super().connection_lost(exc)

    def log_access(
        self, request: web.BaseRequest, response: web.StreamResponse, start: float | None
    ) -> None:
        """Log no requests: a page with live data sends one every few seconds."""

    def expect(self, seconds: float | None) -> None:
        """Allow the client this time from now on; None while it waits for the server."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and isinstance(self.transport, asyncio.Transport):
            self._timer = self._loop.call_later(seconds, self.transport.abort)


class _TooMany(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def expect(request: web.Request, seconds: float | None) -> None:
    """Allow the client of a request this time for what it does next."""
    if isinstance(request.protocol, BoundedConnection):
        request.protocol.expect(seconds)


async def bounded_server(
    runner: web.AppRunner,
    address: tuple[str, int],
    tls: ssl.SSLContext | None,
    connections_max: int,
) -> asyncio.Server:
    """Listen for a runner that is set up. Further connections than ``connections_max`` are
    closed.
    """
    loop, requests = asyncio.get_running_loop(), runner.server
    assert requests is not None

    def connection() -> asyncio.Protocol:
        if len(requests.connections) >= connections_max:
            return _TooMany()
        return BoundedConnection(requests, loop=loop, lingering_time=0.0, read_bufsize=1 << 16)

    return await loop.create_server(
        connection,
        *address,
        ssl=tls,
        ssl_handshake_timeout=HEAD_SECONDS if tls else None,
    )


def url_of(server: asyncio.Server, *, is_tls: bool) -> str:
    """Return the address of a server that listens."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"{'https' if is_tls else 'http'}://{host if ':' not in host else f'[{host}]'}:{port}"


def tls_of(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS settings with a certificate, or None without one. Raise RmqError if the files
    are not a certificate and its key.
    """
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise RmqError(
            f"{certificate}: found no certificate with its key ({error.reason}), expected both in"
            " PEM; give them with --certificate and --key"
        ) from None
    return context


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
