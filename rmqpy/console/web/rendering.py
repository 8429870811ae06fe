"""Templates to responses. Everything that a template prints is escaped, and characters that are not
printable are replaced by their codes, except in the values of forms (the filter ``verbatim``).
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rmqpy.console.views.messages import shown
from rmqpy.console.web.guard import session_of
from rmqpy.console.web.sessions import COOKIE, SessionTable
from rmqpy.model.text import format_bytes, format_duration

__all__ = ["ASSETS", "TEMPLATES", "Renderer", "environment"]

TEMPLATES: Final = Path(__file__).parent.parent / "templates"
ASSETS: Final = Path(__file__).parent.parent / "static"


class Renderer:
    """The pages of one console.

    ``writes`` is whether writes are allowed, and ``secure`` whether browsers connect over TLS.
    """

    def __init__(
        self, sessions: SessionTable, *, writes: bool, secure: bool, has_migration: bool = False
    ) -> None:
        self._templates = environment()
        self._sessions = sessions
        self.writes = writes
        self._secure = secure
        self._has_migration = has_migration

    def page(
        self,
        request: web.Request,
        template: str,
        *,
        status: int = 200,
        form: bool = False,
        **values: Any,
    ) -> web.Response:
        """Return a page. With ``form`` it contains one, and the session is kept for its token."""
        session = session_of(request)
        has_form = form or self.writes
        if has_form:
            self._sessions.keep(session)
        text = self._templates.get_template(template).render(
            session=session,
            writes=self.writes,
            has_migration=self._has_migration,
            path=request.path,
            status=status,
            login_query=_login_query(request),
            **values,
        )
        response = web.Response(text=text, content_type="text/html", status=status)
        if has_form:
            self.set_cookie(response, session.id)
        return response

    def refusal(self, request: web.Request, refusal: web.HTTPException) -> web.Response:
        """Return the page of a refusal."""
        error = refusal.text or refusal.reason
        if refusal.status == web.HTTPNotFound.status_code:
            error = f"found no page {request.path}, expected one of the screens above"
        elif refusal.status == web.HTTPMethodNotAllowed.status_code:
            error = f"{request.path} is reached by a button of a page only; open a screen above"
        return self.page(request, "failed.html", status=refusal.status, error=error)

    def set_cookie(self, response: web.StreamResponse, session_id: str) -> None:
        response.set_cookie(
            COOKIE, session_id, httponly=True, samesite="Strict", secure=self._secure, path="/"
        )


def _login_query(request: web.Request) -> str:
    """Return the query with which a login leads back to the page of a request."""
    has_way_back = request.method == "GET" and request.path not in ("/", "/login")
    return f"?{urlencode({'next': request.path_qs})}" if has_way_back else ""


def environment() -> Environment:
    """Return the environment of all templates."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "size": lambda count: "" if count is None else format_bytes(count),
        "duration_ms": lambda ms: format_duration(ms / 1000),
        "count": lambda number: "" if number is None else f"{number:,}",
        "rate": _rate,
        "moment": _moment,
        "verbatim": lambda text: Markup(escape(text)),
        "percent": lambda ratio: "" if ratio is None else f"{ratio:.0%}",
    }
    return found


def _printable(value: object) -> object:
    """Return a text that is no markup as it may be shown."""
    return shown(value, keep="\n\t") if type(value) is str else value


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _moment(time_ms: int) -> str:
    """Return a time of the log in UTC; what is none is returned as a number."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
