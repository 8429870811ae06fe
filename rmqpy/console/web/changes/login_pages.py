"""Logging in with an account of the cluster, which every write requires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aiohttp import web
from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.client.core.instance import ClientSettings
from rmqpy.console.collecting.accounts import check_account
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.web.guard import session_of
from rmqpy.console.web.query import own_path
from rmqpy.console.web.rendering import Renderer
from rmqpy.console.web.sessions import SessionTable
from rmqpy.model.errors import RmqError

__all__ = ["LoginPages"]

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class LoginPages:
    """``/login`` and ``/logout``. One login is checked at a time. ``next`` is where it leads."""

    collector: Collector
    cluster: ClientSettings
    sessions: SessionTable
    render: Renderer
    _one: asyncio.Lock = field(factory=asyncio.Lock)

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/login", self.show),
            web.post("/login", self.enter),
            web.post("/logout", self.leave),
        ]

    async def show(self, request: web.Request) -> web.StreamResponse:
        after = own_path(request.query.get("next", "/"))
        return self.render.page(request, "login.html", error="", after=after)

    async def enter(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        name, secret = str(form.get("account", "")), str(form.get("secret", ""))
        after = own_path(str(form.get("next", "/")))
        try:
            async with self._one:
                await self._check(Credentials(name, secret))
        except RmqError as error:
            logger.warning("login of %.64r from %s failed: %s", name, request.remote, error)
            return self.render.page(
                request, "login.html", status=403, error=str(error), after=after
            )
        session = self.sessions.renewed(session_of(request))
        session.account, session.credentials = name, Credentials(name, secret)
        logger.info("%.64r logged in from %s", name, request.remote)
        response = web.Response(status=303, headers={"Location": after})
        self.render.set_cookie(response, session.id)
        return response

    async def _check(self, credentials: Credentials) -> None:
        if not credentials.access_key or not credentials.secret_key:
            raise RmqError("found no account or no secret, expected both")
        masters = [each for each in self.collector.moment.masters() if not each.fault]
        if not masters:
            masters = self.collector.moment.masters()
        if not masters:
            raise RmqError("found no broker, expected one that checks the account; start one")
        for broker in masters:
            await check_account(self.cluster, credentials, broker.address)

    async def leave(self, request: web.Request) -> web.StreamResponse:
        session = self.sessions.renewed(session_of(request))
        logger.info("%.64r logged out", session.account)
        session.account, session.credentials = "", None
        response = web.Response(status=303, headers={"Location": "/"})
        self.render.set_cookie(response, session.id)
        return response
