"""What all pages that change something share: the login, signed calls, and the line in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from aiohttp import web
from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.console.collecting.accounts import signed_instance
from rmqpy.console.web.guard import session_of
from rmqpy.console.web.rendering import Renderer
from rmqpy.console.web.sessions import BrowserSession

__all__ = ["Changes", "ConfirmedForm"]

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class ConfirmedForm:
    """A form that somebody who has logged in has sent; ``confirmed`` after the effect was shown."""

    session: BrowserSession
    values: Mapping[str, str]
    confirmed: bool
    ids: tuple[str, ...] = ()


@define(slots=True, frozen=True)
class Changes:
    """Pages that change something use this; without ``--allow-writes`` there are none."""

    cluster: ClientSettings
    render: Renderer

    def show(self, request: web.Request) -> None:
        """Send a browser without a login to the login page, which leads back."""
        if not session_of(request).account:
            raise web.HTTPSeeOther(f"/login?{urlencode({'next': request.path_qs})}")

    async def form(self, request: web.Request, *names: str) -> ConfirmedForm:
        """Return these fields of a form; raise HTTPForbidden without a login."""
        session = session_of(request)
        if session.credentials is None:
            raise web.HTTPForbidden(text="found no login, expected one; open /login")
        form = await request.post()
        values = {name: str(form.get(name, "")) for name in names}
        ids = tuple(str(each) for each in form.getall("id", ()))
        return ConfirmedForm(session, values, form.get("confirmed") == "yes", ids)

    @asynccontextmanager
    async def instance(self, session: BrowserSession) -> AsyncIterator[ClientInstance]:
        """Open a client whose requests are signed with the account that has logged in."""
        assert session.credentials is not None
        async with signed_instance(self.cluster, session.credentials) as instance:
            yield instance

    @asynccontextmanager
    async def admin(self, session: BrowserSession) -> AsyncIterator[Admin]:
        """Open an Admin whose requests are signed with the account that has logged in."""
        async with self.instance(session) as instance:
            yield Admin(instance, self.cluster.name_servers)

    @staticmethod
    def done(session: BrowserSession, text: str, *values: object) -> None:
        """Log a change, and who has made it."""
        logger.info("%.64r " + text, session.account, *values)

    @staticmethod
    def failed(session: BrowserSession, text: str, *values: object) -> None:
        """Log a change that could not be made."""
        logger.warning("%.64r could not " + text, session.account, *values)
