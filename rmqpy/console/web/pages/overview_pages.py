"""The overview, and the data of its charts."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.group_reader import GroupReader
from rmqpy.console.collecting.log_comparer import LogComparer
from rmqpy.console.views.groups import backlog_of
from rmqpy.console.views.overview import overview_of, rate_columns
from rmqpy.console.web.rendering import Renderer

__all__ = ["OverviewPages"]


@define(slots=True, frozen=True)
class OverviewPages:
    """``/`` and ``/rates``. With ``?live`` a page is only its part that changes."""

    collector: Collector
    groups: GroupReader
    logs: LogComparer
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/", self.overview), web.get("/rates", self.rates)]

    async def overview(self, request: web.Request) -> web.StreamResponse:
        view = overview_of(self.collector.moment, self.collector.history, self.logs.different())
        template = "_overview.html" if "live" in request.query else "overview.html"
        backlog = backlog_of(self.groups.latest_lags())
        return self.render.page(request, template, view=view, backlog=backlog)

    async def rates(self, request: web.Request) -> web.StreamResponse:
        cluster = request.query.get("cluster", "")
        columns = rate_columns(self.collector.moment, self.collector.history, cluster)
        return web.json_response(columns)
