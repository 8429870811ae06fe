"""Sending a test message, after a confirmation that states the effect."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.client.core.instance import ClientSettings
from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer
from rmqpy.console.collecting.accounts import signed_instance
from rmqpy.console.web.guard import session_of
from rmqpy.console.web.rendering import Renderer
from rmqpy.model.errors import RmqError

__all__ = ["SendPages"]

GROUP = "ADMIN_SENDER"
FIELDS = ("topic", "tags", "keys", "body")

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class SendPages:
    """``/send``: GET shows the form, POST the effect, and a confirmed POST sends."""

    cluster: ClientSettings
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/send", self.show), web.post("/send", self.send)]

    async def show(self, request: web.Request) -> web.StreamResponse:
        if not session_of(request).account:
            raise web.HTTPSeeOther("/login")
        values = {name: request.query.get(name, "") for name in FIELDS}
        return self.render.page(request, "send.html", values=values, step="fill in", error="")

    async def send(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        if session.credentials is None:
            raise web.HTTPForbidden(text="found no login, expected one; open /login")
        form = await request.post()
        values = {name: str(form.get(name, "")) for name in FIELDS}
        if form.get("confirmed") != "yes":
            return self.render.page(request, "send.html", values=values, step="confirm", error="")
        message = Message(
            topic=values["topic"],
            body=values["body"].encode(),
            tags=values["tags"] or None,
            keys=values["keys"],
        )
        try:
            async with (
                signed_instance(self.cluster, session.credentials) as instance,
                Producer(GROUP, instance=instance) as producer,
            ):
                result = await producer.send(message)
        except RmqError as error:
            logger.warning(
                "%.64r could not send a test message to %.128r: %s",
                session.account,
                message.topic,
                error,
            )
            return self.render.page(
                request, "send.html", values=values, step="fill in", error=str(error)
            )
        logger.info(
            "%.64r sent a test message of %d bytes to %.128r: %s",
            session.account,
            len(message.body),
            message.topic,
            result.msg_id,
        )
        return self.render.page(
            request, "send.html", values=values, step="done", error="", result=result
        )
