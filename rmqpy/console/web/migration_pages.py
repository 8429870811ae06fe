"""The migration of the group whose ``group.toml`` the console was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.migration_runner import MigrationRunner
from rmqpy.console.views.migration import MIGRATION_VERBS, migration_page
from rmqpy.console.web.changes import Changes
from rmqpy.console.web.map_pages import checked_map
from rmqpy.console.web.rendering import Renderer
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RmqError

__all__ = ["MigrationChangePages", "MigrationPages"]


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


@define(slots=True, frozen=True)
class MigrationChangePages:
    """``/migrate``: a POST shows what a verb will do, and a confirmed POST runs it."""

    runner: MigrationRunner
    changes: Changes

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.post("/migrate", self.migrate)]

    async def migrate(self, request: web.Request) -> web.StreamResponse:
        form = await self.changes.form(request, "verb", "state")
        verb = MIGRATION_VERBS.get(form.values["verb"])
        if verb is None or form.values["verb"] == "check":
            raise web.HTTPBadRequest(text="found no such verb, expected next, back, or prepare")
        command = " ".join(("rmqpy upgrade", *verb.words))
        given: dict[str, Any] = {"verb": verb, "command": command, "name": form.values["verb"]}
        try:
            view = migration_page(await self.runner.status(anew=True))
            if form.confirmed:
                if verb.is_bound and form.values["state"] != view.state:
                    raise RmqError(
                        f"found the group in the state {view.state}, expected"
                        f" {form.values['state']}, in which this was confirmed; look again"
                    )
                self.runner.run(verb.words, form.session.account)
                self.changes.done(form.session, "ran %s in %s", command, self.runner.folder)
                raise web.HTTPSeeOther("/migration")
        except RmqError as error:
            self.changes.failed(form.session, "run %s: %s", command, error)
            return self.changes.render.page(request, "failed.html", error=str(error))
        return self.changes.render.page(request, "migrate.html", view=view, **given)
