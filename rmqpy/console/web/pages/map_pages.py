"""The store maps of running brokers, and of the members of a migration."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define
from markupsafe import Markup

from rmqpy.audit.picture.svg import MAP_SHAPES, map_svg
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.log_comparer import LogComparer
from rmqpy.console.collecting.migration_runner import MigrationRunner
from rmqpy.console.views.store_maps import GroupMap, map_of_check, maps_of
from rmqpy.console.web.rendering import Renderer

__all__ = ["MapPages", "checked_map", "drawn"]


@define(slots=True, frozen=True)
class MapPages:
    """``/map`` and the stylesheet of its shapes."""

    collector: Collector
    comparer: LogComparer
    runner: MigrationRunner | None
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/map", self.maps), web.get("/map.css", self.style)]

    async def maps(self, request: web.Request) -> web.StreamResponse:
        now_ms = self.collector.clock.now_ms()
        maps = maps_of(self.collector.moment, self.comparer.look(), now_ms)
        found = [drawn(each) for each in maps]
        if "live" in request.query:
            return self.render.page(request, "_map.html", maps=found)
        return self.render.page(
            request, "map.html", maps=found, checked_map=checked_map(self.runner)
        )

    async def style(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=MAP_SHAPES, content_type="text/css")


def drawn(found: GroupMap) -> tuple[GroupMap, Markup]:
    """Return a map and its picture; map_svg escapes every name and title."""
    return found, Markup(map_svg(found.layout))


def checked_map(runner: MigrationRunner | None) -> tuple[GroupMap, Markup] | None:
    """Return the map of the members of a migration as of the last check, if there was one."""
    if runner is None or runner.checked is None:
        return None
    found = map_of_check("Stores of the members", runner.checked[1])
    return drawn(found) if found is not None else None
