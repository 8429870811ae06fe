"""The migration of the group whose ``group.toml`` the console was given."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.migration_runner import MigrationRunner
from rmqpy.console.views.migration import MIGRATION_VERBS, migration_page
from rmqpy.console.web.pages.map_pages import checked_map
from rmqpy.console.web.rendering import Renderer
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RmqError

__all__ = ["MigrationPages"]


@define(slots=True, frozen=True)
class MigrationPages:
    """``/migration``: the stepper, the members, the plan, the certificate, and what runs.
    ``/check`` compares the members, which reads their stores and changes nothing.
    """

    runner: MigrationRunner
    clock: Clock
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/migration", self.show), web.post("/check", self.check)]

    async def show(self, request: web.Request) -> web.StreamResponse:
        template = "_migration.html" if "live" in request.query else "migration.html"
        return await self._page(request, template)

    async def check(self, request: web.Request) -> web.StreamResponse:
        try:
            self.runner.run(MIGRATION_VERBS["check"].words, "")
        except RmqError as error:
            return await self._page(request, "migration.html", error=str(error))
        raise web.HTTPSeeOther("/migration")

    async def _page(
        self, request: web.Request, template: str, error: str = ""
    ) -> web.StreamResponse:
        view = None
        try:
            view = migration_page(await self.runner.status())
        except RmqError as fault:
            error = error or str(fault)
        return self.render.page(
            request,
            template,
            form=True,
            view=view,
            error=error,
            folder=str(self.runner.folder),
            plan=self.runner.plan(),
            certificate=self.runner.certificate(),
            checked=self.runner.checked,
            checked_map=checked_map(self.runner),
            run=self.runner.last,
            is_running=self.runner.is_running,
            now_ms=self.clock.now_ms(),
        )
