"""The page on which a browser gives the console's token."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.console.web.guard import Guard, session_of
from rmqpy.console.web.rendering import Renderer
from rmqpy.console.web.sessions import SessionTable

__all__ = ["EntrancePages"]


@define(slots=True, frozen=True)
class EntrancePages:
    """``/token``: GET shows the form, POST takes the token."""

    guard: Guard
    sessions: SessionTable
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/token", self.show), web.post("/token", self.enter)]

    async def show(self, request: web.Request) -> web.StreamResponse:
        return self.render.page(request, "token.html", form=True, error="")

    async def enter(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if not self.guard.listening.token or not self.guard.is_token(str(form.get("token", ""))):
            error = "This is not the token of this console. It is in the file of --token-file."
            return self.render.page(request, "token.html", form=True, status=403, error=error)
        session = self.sessions.renewed(session_of(request))
        session.has_token = True
        response = web.Response(status=303, headers={"Location": "/"})
        self.render.set_cookie(response, session.id)
        return response
