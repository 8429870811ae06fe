"""Sending a test message, after a confirmation that states the effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from attrs import define

from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer
from rmqpy.console.web.changes.changes import Changes
from rmqpy.model.errors import RmqError

__all__ = ["SendPages"]

GROUP = "ADMIN_SENDER"
FIELDS = ("topic", "tags", "keys", "body")


@define(slots=True, frozen=True)
class SendPages:
    """``/send``: GET shows the form, POST the effect, and a confirmed POST sends."""

    changes: Changes

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/send", self.show), web.post("/send", self.send)]

    async def show(self, request: web.Request) -> web.StreamResponse:
        self.changes.show(request)
        values = {name: request.query.get(name, "") for name in FIELDS}
        return self._page(request, values=values, step="fill in")

    async def send(self, request: web.Request) -> web.StreamResponse:
        form = await self.changes.form(request, *FIELDS)
        session, values = form.session, form.values
        if not form.confirmed:
            return self._page(request, values=values, step="confirm")
        message = Message(
            topic=values["topic"],
            body=values["body"].encode(),
            tags=values["tags"] or None,
            keys=values["keys"],
        )
        try:
            async with (
                self.changes.instance(session) as instance,
                Producer(GROUP, instance=instance) as producer,
            ):
                result = await producer.send(message)
        except RmqError as error:
            self.changes.failed(session, "send a test message to %.128r: %s", message.topic, error)
            return self._page(request, values=values, step="fill in", error=str(error))
        self.changes.done(
            session,
            "sent a test message of %d bytes to %.128r: %s",
            len(message.body),
            message.topic,
            result.msg_id,
        )
        return self._page(request, values=values, step="done", result=result)

    def _page(self, request: web.Request, **values: Any) -> web.StreamResponse:
        return self.changes.render.page(request, "send.html", **{"error": "", **values})
