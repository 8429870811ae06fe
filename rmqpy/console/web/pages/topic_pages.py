"""Topics, their queues, and their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from html import escape

from aiohttp import web
from attrs import define

from rmqpy.client.core.message import MessageExt
from rmqpy.console.collecting.topic_reader import MESSAGES_SHOWN, TopicReader
from rmqpy.console.views.messages import BODY_FORMS, message_view, preview, shown
from rmqpy.console.views.paging import page_of
from rmqpy.console.views.topics import listed_topic
from rmqpy.console.web.event_stream import EventStream
from rmqpy.console.web.query import number_in, time_of
from rmqpy.console.web.rendering import Renderer
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import MessageQueue

__all__ = ["TopicPages"]

TAIL_ROWS_MAX = 20
"""Rows that a live tail shows of one poll and queue; the rest of a busy queue is skipped."""


@define(slots=True, frozen=True)
class TopicPages:
    """``/topics``, ``/topic``, ``/messages``, and ``/message``; names are in the query."""

    reader: TopicReader
    streams: EventStream
    render: Renderer

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/topics", self.topics),
            web.get("/topic", self.topic),
            web.get("/messages", self.messages),
            web.get("/message", self.message),
            web.get("/tail", self.tail),
        ]

    async def topics(self, request: web.Request) -> web.StreamResponse:
        search = request.query.get("search", "")
        entries = list((await self.reader.topics()).values())
        page = page_of(entries, lambda each: each.name, search, number_in(request, "page", 1))
        figures = await self.reader.figures([each.name for each in page.rows])
        rows = [listed_topic(each, figures[each.name]) for each in page.rows]
        template = "_topics.html" if "live" in request.query else "topics.html"
        return self.render.page(request, template, page=page, rows=rows, search=search)

    async def topic(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        queues = (await self.reader.figures([name]))[name]
        template = "_queues.html" if "live" in request.query else "topic.html"
        status = 200 if queues else 404
        return self.render.page(request, template, status=status, name=name, queues=queues)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Browse a queue by offset or time, or search a topic by key, unique id, or offset id."""
        query = request.query
        topic, broker = query.get("topic", ""), query.get("broker", "")
        queue = MessageQueue(topic, broker, number_in(request, "queue", 0))
        offset, after = number_in(request, "offset", 0), 0
        found: list[MessageExt] = []
        error = ""
        try:
            if query.get("id"):
                found = [await self.reader.with_id(query["id"].strip())]
            elif query.get("key"):
                found = await self.reader.with_key(topic, query["key"].strip())
            else:
                if query.get("time"):
                    offset = await self.reader.offset_at(queue, time_of(query["time"]))
                found, after = await self.reader.page(queue, offset)
        except RmqError as refusal:
            error = str(refusal)
        return self.render.page(
            request,
            "messages.html",
            queue=queue,
            offset=offset,
            after=after,
            rows=MESSAGES_SHOWN,
            found=[(each, preview(each)) for each in found],
            query=query,
            error=error,
        )

    async def message(self, request: web.Request) -> web.StreamResponse:
        form = request.query.get("as", "auto")
        form = form if form in BODY_FORMS else "auto"
        try:
            message = await self.reader.with_id(request.query.get("id", "").strip())
        except RmqError as refusal:
            return self.render.page(request, "failed.html", status=404, error=str(refusal))
        view = message_view(message, self.reader.broker_of(message), form)
        traces = await self.reader.traces(message.msg_id)
        return self.render.page(request, "message.html", view=view, traces=traces, forms=BODY_FORMS)

    async def tail(self, request: web.Request) -> web.StreamResponse:
        """Send each new message of a topic as a row."""
        return await self.streams.send(request, self._rows(request.query.get("topic", "")))

    async def _rows(self, topic: str) -> AsyncIterator[tuple[str, str]]:
        ends: dict[tuple[str, int], int] = {}
        while True:
            queues = (await self.reader.figures([topic]))[topic]
            for queue in queues:
                key = queue.broker, queue.queue_id
                start = max(ends.get(key, queue.end), queue.end - TAIL_ROWS_MAX)
                ends[key] = queue.end
                if start < queue.end:
                    place = MessageQueue(topic, queue.broker, queue.queue_id)
                    try:
                        found, _ = await self.reader.page(place, start)
                    except RmqError:
                        continue
                    for message in found:
                        yield "row", _tail_row(message)
            await self.streams.collector.changed()


def _tail_row(message: MessageExt) -> str:
    stored = message.stored
    time = datetime.fromtimestamp(stored.store_timestamp_ms / 1000, UTC)
    place = f"{stored.queue_id}:{stored.queue_offset}"
    return (
        f'<li><span class="mono">{time:%H:%M:%S}</span>'
        f' <a href="/message?id={message.offset_msg_id}">{place}</a>'
        f" <b>{escape(shown(message.tags or ''))}</b> {escape(preview(message))}</li>"
    )
