"""Consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.group_reader import GroupReader
from rmqpy.console.views.groups import group_row, group_view
from rmqpy.console.views.paging import page_of
from rmqpy.console.web.rendering import Renderer
from rmqpy.console.web.topic_pages import number_in

__all__ = ["GroupPages"]


@define(slots=True, frozen=True)
class GroupPages:
    """``/groups``, ``/group?name=``, and ``/lag?name=``, the data of its chart."""

    reader: GroupReader
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/groups", self.groups),
            web.get("/group", self.group),
            web.get("/lag", self.lag),
        ]

    async def groups(self, request: web.Request) -> web.StreamResponse:
        search = request.query.get("search", "")
        names = await self.reader.names()
        page = page_of(names, str, search, number_in(request, "page", 1))
        stats = await self.reader.stats(page.rows)
        rows = [group_row(name, stats[name]) for name in page.rows]
        template = "_groups.html" if "live" in request.query else "groups.html"
        return self.render.page(request, template, page=page, rows=rows, search=search)

    async def group(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        stats = (await self.reader.stats([name]))[name]
        view = group_view(name, stats, await self.reader.connections(name))
        template = "_group.html" if "live" in request.query else "group.html"
        known = view.lags or view.members or name in await self.reader.names()
        return self.render.page(request, template, status=200 if known else 404, view=view)

    async def lag(self, request: web.Request) -> web.StreamResponse:
        samples = self.reader.lag_samples(request.query.get("name", ""))
        return web.json_response([[time / 1000 for time, _ in samples], [n for _, n in samples]])
