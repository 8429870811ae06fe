"""What every request passes before a handler: the host it names, the token, and forged writes.

===================  =============================================================================
attack               protection
===================  =============================================================================
DNS rebinding        the Host header must be an address, ``localhost``, or a name that was allowed
foreign readers      the console listens on loopback, or requires a token over TLS
scripts in content   templates escape, and the Content-Security-Policy allows no inline script
framing              frame-ancestors 'none'
forged writes        a session cookie with SameSite=Strict, a CSRF token in every form, the Origin
===================  =============================================================================
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from attrs import define, field

from rmqpy.console.web.sessions import COOKIE, BrowserSession, SessionTable
from rmqpy.model.errors import RmqError
from rmqpy.net.bounded_http import HEAD_SECONDS, expect, is_loopback, tls_of

__all__ = ["SEND_SECONDS", "Guard", "Listening", "session_of"]

TOKEN_CHARACTERS_MIN: Final = 16
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, Chromium sends "Origin: null" with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN_PATHS: Final = ("/static/", "/token")
"""Paths that are answered without the token."""

_SESSION: Final = web.RequestKey("session", BrowserSession)

SEND_SECONDS: Final = 60.0
"""The time that a client has to take an answer and to send its next request."""


@define(slots=True, frozen=True, kw_only=True)
class Listening:
    """The address to listen on and who may use it. ``names`` are further names of this host."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = field(default="", repr=False)
    certificate: str | None = None
    key: str | None = None
    names: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise RmqError if others could use the console without a token, or read it on its way."""
        if self.token and len(self.token) < TOKEN_CHARACTERS_MIN:
            raise RmqError(
                f"found a token of {len(self.token)} characters, expected at least"
                f" {TOKEN_CHARACTERS_MIN}; write a longer one to the --token-file"
            )
        if is_loopback(self.host) or (self.token and self.certificate):
            return
        raise RmqError(
            f"found --host {self.host}, which others can reach, expected also a token"
            " (--token-file) and TLS (--certificate, --key); or listen on 127.0.0.1 and connect"
            " through ssh -L"
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings, or None without a certificate."""
        return tls_of(self.certificate, self.key)

    def allows_name(self, host: str) -> bool:
        """Return whether the Host header of a request is this console and not a name that somebody
        has made to lead here.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name == "localhost" or name in self.names:
                return True
            ip_address(name)
        except ValueError:
            return False
        return True


def session_of(request: web.Request) -> BrowserSession:
    """Return the session of a request that has passed the guard."""
    return request[_SESSION]


@define(slots=True, frozen=True)
class Guard:
    """The checks of every request, and the headers of every response.

    ``refusal_page`` makes a page of a refusal for a browser whose session is known.
    """

    listening: Listening
    sessions: SessionTable
    refusal_page: Callable[[web.Request, web.HTTPException], web.StreamResponse]

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    @property
    def _token(self) -> bytes:
        return self.listening.token.encode()

    def middleware(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        expect(request, HEAD_SECONDS if request.can_read_body else None)
        try:
            if not self.listening.allows_name(request.host):
                raise web.HTTPForbidden(
                    text=f"found the host {request.host!r}, expected an address or localhost; use"
                    " one, or start the console with --name"
                )
            request[_SESSION] = self.sessions.of(request.cookies.get(COOKIE, ""))
            if self.listening.token and not self._may_enter(request):
                if request.method == "GET" and _is_browser(request):
                    raise web.HTTPSeeOther("/token")
                raise web.HTTPUnauthorized(text="found no token, expected one; open /token")
            if request.method not in ("GET", "HEAD"):
                await self._check_origin(request)
            response = await handler(request)
        except web.HTTPException as refusal:
            if not _wants_page(request, refusal):
                refusal.headers.update(HEADERS)
                expect(request, SEND_SECONDS)
                raise
            response = self.refusal_page(request, refusal)
        expect(request, SEND_SECONDS)
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _may_enter(self, request: web.Request) -> bool:
        if request.path.startswith(OPEN_PATHS) or request[_SESSION].has_token:
            return True
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        return kind == "Bearer" and self.is_token(given)

    async def _check_origin(self, request: web.Request) -> None:
        """Refuse a request that a page of another origin has sent, or without the session's CSRF
        token.
        """
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise web.HTTPForbidden(text="found a form of another origin, expected one of this one")
        form = await request.post()
        given = str(form.get("csrf", ""))
        if not hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), request[_SESSION].csrf.encode()
        ):
            raise web.HTTPForbidden(
                text="found no valid form, expected one of this session; reload the page and repeat"
            )


def _is_browser(request: web.Request) -> bool:
    return "text/html" in request.headers.get("Accept", "")


def _wants_page(request: web.Request, refusal: web.HTTPException) -> bool:
    """Return whether a refusal is for somebody who may see the console, and reads pages."""
    has_entered = _SESSION in request and refusal.status != web.HTTPUnauthorized.status_code
    return has_entered and refusal.status >= 400 and _is_browser(request)
