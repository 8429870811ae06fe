"""The store maps of running brokers."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define
from markupsafe import Markup

from rmqpy.audit.picture.svg import MAP_SHAPES, map_svg
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.views.store_maps import maps_of
from rmqpy.console.web.rendering import Renderer

__all__ = ["MapPages"]


@define(slots=True, frozen=True)
class MapPages:
    """``/map`` and the stylesheet of its shapes."""

    collector: Collector
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/map", self.maps), web.get("/map.css", self.style)]

    async def maps(self, request: web.Request) -> web.StreamResponse:
        # map_svg escapes every name and title.
        found = [(each, Markup(map_svg(each.layout))) for each in maps_of(self.collector.moment)]
        template = "_map.html" if "live" in request.query else "map.html"
        return self.render.page(request, template, maps=found)

    async def style(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=MAP_SHAPES, content_type="text/css")
