"""Consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.console.collecting.group_reader import GroupReader
from rmqpy.console.collecting.topic_reader import MESSAGES_SHOWN, TopicReader
from rmqpy.console.views.groups import (
    dead_letter,
    group_row,
    group_view,
    subscriptions_view,
)
from rmqpy.console.views.paging import page_of
from rmqpy.console.views.topics import QueueFigures
from rmqpy.console.web.query import number_in
from rmqpy.console.web.rendering import Renderer
from rmqpy.model.errors import RmqError
from rmqpy.model.names import dlq_topic
from rmqpy.remoting.bodies import MessageQueue

__all__ = ["GroupPages"]


@define(slots=True, frozen=True)
class GroupPages:
    """``/groups``; ``/group?name=`` with ``/lag``, its chart, and ``/subscriptions``, those of its
    members; ``/dead-letters?group=``.
    """

    reader: GroupReader
    topics: TopicReader
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/groups", self.groups),
            web.get("/group", self.group),
            web.get("/lag", self.lag),
            web.get("/subscriptions", self.subscriptions),
            web.get("/dead-letters", self.dead_letters),
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

    async def subscriptions(self, request: web.Request) -> web.StreamResponse:
        """Ask the members themselves; a broker knows only what the last one has told it."""
        online, infos = await self.reader.running(request.query.get("name", ""))
        view = subscriptions_view(infos, online)
        return self.render.page(request, "_subscriptions.html", view=view)

    async def dead_letters(self, request: web.Request) -> web.StreamResponse:
        group = request.query.get("group", "")
        topic, error, letters, after = dlq_topic(group), "", [], 0
        queues = (await self.topics.figures([topic]))[topic]
        queues = [each for each in queues if each.count]
        chosen = next((each for each in queues if _is_chosen(request, each)), None)
        place = MessageQueue(topic, "", 0)
        if chosen is not None:
            place = MessageQueue(topic, chosen.broker, chosen.queue_id)
            start = number_in(request, "offset", max(chosen.begin, chosen.end - MESSAGES_SHOWN))
            try:
                found, after = await self.topics.page(place, start)
                letters = [dead_letter(each) for each in found]
            except RmqError as refusal:
                error = str(refusal)
        return self.render.page(
            request,
            "dead_letters.html",
            form=True,
            group=group,
            queues=queues,
            chosen=chosen,
            place=place,
            rows=MESSAGES_SHOWN,
            letters=letters,
            after=after,
            error=error,
        )


def _is_chosen(request: web.Request, queue: QueueFigures) -> bool:
    """Return whether a queue is the one of the query; without one, any is."""
    broker = request.query.get("broker")
    return broker is None or (
        queue.broker == broker and queue.queue_id == number_in(request, "queue", 0)
    )
