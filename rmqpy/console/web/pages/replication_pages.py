"""DLedger groups with the timeline of their elections, and the groups of controllers."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.admin.elections import terms_of
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.controller_reader import ControllerReader
from rmqpy.console.collecting.election_reader import ElectionReader
from rmqpy.console.views.replication import groups_of
from rmqpy.console.web.rendering import Renderer

__all__ = ["ReplicationPages"]


@define(slots=True, frozen=True)
class ReplicationPages:
    """``/replication``, a group per section; ``/elections?name=``, its timeline."""

    collector: Collector
    elections: ElectionReader
    controllers: ControllerReader
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/replication", self.groups), web.get("/elections", self.timeline)]

    async def groups(self, request: web.Request) -> web.StreamResponse:
        template = "_replication.html" if "live" in request.query else "replication.html"
        return self.render.page(
            request,
            template,
            groups=groups_of(self.collector.moment),
            controlled=await self.controllers.groups(),
        )

    async def timeline(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        terms = terms_of(await self.elections.events(name))
        template = "_elections.html" if "live" in request.query else "elections.html"
        return self.render.page(request, template, name=name, terms=terms)
