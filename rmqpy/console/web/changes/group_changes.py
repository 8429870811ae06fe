"""Changes of consumer groups: a reset of offsets, and dead letters that are delivered again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from attrs import define

from rmqpy.admin.dead_letters import resend_dead_letter
from rmqpy.admin.group_offsets import (
    NOW,
    OffsetReset,
    move_offline,
    planned_moves,
    reset_online,
)
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.console.collecting.group_reader import GroupReader
from rmqpy.console.collecting.topic_reader import MESSAGES_SHOWN
from rmqpy.console.views.groups import lags_of
from rmqpy.console.web.changes.changes import Changes
from rmqpy.console.web.query import time_of
from rmqpy.model.errors import RmqError
from rmqpy.model.names import TOOLS_GROUP

__all__ = ["GroupChangePages"]

RESET_FIELDS = ("group", "topic", "to", "time")


@define(slots=True, frozen=True)
class GroupChangePages:
    """``/reset`` and ``/resend``: a POST shows the effect, and a confirmed POST makes it."""

    reader: GroupReader
    changes: Changes

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/reset", self.show_reset),
            web.post("/reset", self.reset),
            web.post("/resend", self.resend),
        ]

    async def show_reset(self, request: web.Request) -> web.StreamResponse:
        self.changes.show(request)
        values = {name: request.query.get(name, "") for name in RESET_FIELDS}
        return await self._reset_page(request, values=values, step="fill in")

    async def reset(self, request: web.Request) -> web.StreamResponse:
        form = await self.changes.form(request, *RESET_FIELDS)
        group, topic = form.values["group"], form.values["topic"]
        try:
            time_ms = NOW if form.values["to"] == "end" else time_of(form.values["time"])
            reset = OffsetReset(group, topic, time_ms, force=True)
            async with self.changes.admin(form.session) as admin:
                moves = await planned_moves(admin, reset)
                if not form.confirmed:
                    return await self._reset_page(
                        request, values=form.values, step="confirm", moves=moves
                    )
                moved = await reset_online(admin, reset)
                if moved is None:
                    await move_offline(admin, reset, moves)
        except RmqError as error:
            self.changes.failed(form.session, "reset %.128r on %.128r: %s", group, topic, error)
            return await self._reset_page(
                request, values=form.values, step="fill in", error=str(error)
            )
        self.changes.done(
            form.session,
            "reset %.128r on %.128r to %s: %d messages skipped, %d again",
            group,
            topic,
            time_ms,
            sum(each.skipped for each in moves),
            sum(each.repeated for each in moves),
        )
        return await self._reset_page(
            request, values=form.values, step="done", moves=moves, was_online=moved is not None
        )

    async def _reset_page(self, request: web.Request, **values: Any) -> web.StreamResponse:
        given = {"error": "", "moves": (), "was_online": False, **values}
        group = given["values"]["group"]
        stats = (await self.reader.stats([group]))[group]
        topics = sorted({each.topic for each in lags_of(stats)})
        return self.changes.render.page(request, "reset.html", topics=topics, **given)

    async def resend(self, request: web.Request) -> web.StreamResponse:
        form = await self.changes.form(request, "group")
        group, ids = form.values["group"], form.ids[:MESSAGES_SHOWN]
        rows: list[tuple[str, str]] = []
        if form.confirmed:
            async with (
                self.changes.admin(form.session) as admin,
                PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer,
            ):
                for each in ids:
                    try:
                        message = await consumer.view_message(each)
                        await resend_dead_letter(admin, group, message)
                        rows.append((each, ""))
                    except RmqError as error:
                        rows.append((each, str(error)))
            failed = sum(1 for _, error in rows if error)
            self.changes.done(
                form.session,
                "resent %d dead letters of %.128r, of which %d failed",
                len(rows),
                group,
                failed,
            )
        return self.changes.render.page(request, "resend.html", group=group, ids=ids, rows=rows)
