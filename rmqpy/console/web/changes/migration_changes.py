"""The steps of a migration, after a confirmation that states what a verb will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.migration_runner import MigrationRunner
from rmqpy.console.views.migration import MIGRATION_VERBS, migration_page
from rmqpy.console.web.changes.changes import Changes
from rmqpy.model.errors import RmqError

__all__ = ["MigrationChangePages"]


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
            return self.changes.render.page(request, "failed.html", status=409, error=str(error))
        return self.changes.render.page(request, "migrate.html", view=view, **given)
