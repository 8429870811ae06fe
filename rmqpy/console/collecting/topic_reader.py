"""Topics, their queues, and their messages, as the brokers have them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from rmqpy.admin.commands.trace import Trace, decode_traces
from rmqpy.client.core.base_consumer import PullStatus
from rmqpy.client.core.message import MessageExt, host_address
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.codec.message import parse_offset_msg_id
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.console.facts import BrokerFacts
from rmqpy.console.history import Sample
from rmqpy.console.views.topics import QueueFigures, TopicEntry
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.names import TRACE_TOPIC
from rmqpy.remoting.bodies import (
    MessageQueue,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)

__all__ = ["MESSAGES_SHOWN", "TopicReader"]

TABLE_MS: Final = 15_000
STATS_MS: Final = 4_000
MESSAGES_SHOWN: Final = 32
KEY_HITS_MAX: Final = 64
ROUNDS_MAX: Final = 8
"""The pulls of one page; a queue may have stretches without a message."""


@frozen(eq=False)
class _Table:
    """The topics of one broker, and the answer that they were decoded from."""

    body: bytes = b""
    topics: Sequence[TopicConfig] = ()

    @classmethod
    def decode(cls, body: bytes) -> _Table:
        table = TopicConfigSerializeWrapper.decode(body).topic_config_table
        return cls(body, tuple(table.values()))


def _merged(tables: Sequence[tuple[str, _Table]]) -> dict[str, TopicEntry]:
    found: dict[str, TopicEntry] = {}
    for broker, table in tables:
        for config in table.topics:
            entry = found.setdefault(config.topic_name, TopicEntry(config.topic_name))
            entry.places[broker] = config
    return {name: found[name] for name in sorted(found)}


class TopicReader:
    """Reads topics through the collector's connections; tables are shared by all viewers.

    ``consumer`` pulls messages and commits nothing.
    """

    def __init__(self, collector: Collector, consumer: PullConsumer) -> None:
        self._collector = collector
        self._admin = collector.admin
        self._consumer = consumer
        self._shared = SharedAnswers(collector.clock)
        self._tables: dict[str, _Table] = {}
        self._merged: tuple[list[tuple[str, _Table]], dict[str, TopicEntry]] = [], {}

    async def topics(self) -> Mapping[str, TopicEntry]:
        """Return all topics, sorted by name: one request per broker, whatever their number."""
        masters = [each for each in self._collector.moment.masters() if not each.fault]
        answers = await asyncio.gather(*(self._table(each) for each in masters))
        tables = [(each.name, table) for each, table in zip(masters, answers, strict=True)]
        if tables != self._merged[0]:
            self._tables = dict(zip((each.address for each in masters), answers, strict=True))
            self._merged = tables, _merged(tables)
        return self._merged[1]

    async def _table(self, broker: BrokerFacts) -> _Table:
        """Return the topics of a broker, which are decoded only when its answer has changed."""

        async def ask() -> _Table:
            try:
                body = await self._admin.encoded_topics(broker.address)
                known = self._tables.get(broker.address)
                return known if known and known.body == body else _Table.decode(body)
            except RmqError:
                return _Table()

        return await self._shared.get(("topics", broker.address), TABLE_MS, ask)

    async def figures(self, topics: Sequence[str]) -> dict[str, list[QueueFigures]]:
        """Return the queues of these topics: one request per topic and broker that has it."""
        entries = await self.topics()
        wanted = [
            (topic, broker)
            for topic in topics
            for broker in self._collector.moment.masters()
            if topic in entries and broker.name in entries[topic].places and not broker.fault
        ]
        tables = await asyncio.gather(*(self._stats(broker, topic) for topic, broker in wanted))
        found: dict[str, list[QueueFigures]] = {topic: [] for topic in topics}
        for (topic, broker), table in zip(wanted, tables, strict=True):
            found[topic] += self._queues(broker, topic, table)
        return found

    async def _stats(self, broker: BrokerFacts, topic: str) -> TopicStatsTable | None:
        async def ask() -> TopicStatsTable | None:
            try:
                table = await self._admin.topic_stats(broker.address, topic)
            except RmqError:
                return None
            now_ms = self._collector.clock.now_ms()
            for queue, offsets in table.offset_table.items():
                key = ("queue", broker.name, topic, queue.queue_id)
                self._collector.history.add(key, now_ms, offsets.max_offset)
            return table

        return await self._shared.get(("stats", broker.address, topic), STATS_MS, ask)

    def _queues(
        self, broker: BrokerFacts, topic: str, table: TopicStatsTable | None
    ) -> list[QueueFigures]:
        if table is None:
            return []
        rows = sorted(table.offset_table.items(), key=lambda each: each[0].queue_id)
        return [
            QueueFigures(
                broker=broker.name,
                queue_id=queue.queue_id,
                begin=offsets.min_offset,
                end=offsets.max_offset,
                last_ms=offsets.last_update_timestamp,
                rate=self._collector.history.rate(
                    ("queue", broker.name, topic, queue.queue_id), 600_000
                ),
            )
            for queue, offsets in rows
        ]

    def samples(self, broker: str, topic: str, queue_id: int) -> list[Sample]:
        return self._collector.history.samples(("queue", broker, topic, queue_id))

    # -- messages

    async def page(self, queue: MessageQueue, offset: int) -> tuple[list[MessageExt], int]:
        """Return messages of a queue from ``offset`` on, and the offset after them."""
        self._check_broker(queue.broker_name)
        found: list[MessageExt] = []
        for _ in range(ROUNDS_MAX):
            result = await self._consumer.pull(queue, offset, MESSAGES_SHOWN - len(found))
            found += result.messages
            if result.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL):
                begins_later = offset < result.min_offset
                if not begins_later:
                    break
                offset = result.min_offset
                continue
            offset = result.next_begin_offset
            if len(found) >= MESSAGES_SHOWN:
                break
        return found, offset

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message of a queue that was stored at this time."""
        self._check_broker(queue.broker_name)
        return await self._consumer.search_offset(queue, time_ms)

    async def with_key(self, topic: str, key: str) -> list[MessageExt]:
        """Return the messages of a topic with a key or a unique id, oldest first."""
        found = {}
        for unique in (False, True):
            for each in await self._consumer.query_by_key(topic, key, KEY_HITS_MAX, unique=unique):
                found[each.offset_msg_id] = each
        return sorted(found.values(), key=lambda each: each.stored.store_timestamp_ms)

    async def with_id(self, offset_id: str) -> MessageExt:
        """Return the message with an offset id. Raise RmqError unless its host is a broker here."""
        address = address_of_id(offset_id)
        if address not in {each.address for each in self._collector.moment.brokers}:
            raise RmqError(
                f"found an id of {address}, expected one of a broker of this cluster; search by key"
                " if the broker has moved"
            )
        return await self._consumer.view_message(offset_id)

    async def traces(self, unique_id: str) -> list[Trace]:
        """Return who sent and consumed a message, if its clients write traces."""
        try:
            records = await self._consumer.query_by_key(TRACE_TOPIC, unique_id, KEY_HITS_MAX)
        except RmqError:
            return []
        return [trace for record in records for trace in decode_traces(record, unique_id)]

    def broker_of(self, message: MessageExt) -> BrokerFacts | None:
        """Return the broker that stored a message, if it is one of this cluster."""
        address = host_address(message.stored.store_host)
        for broker in self._collector.moment.brokers:
            if broker.address == address:
                return broker
        return None

    def _check_broker(self, name: str) -> None:
        if not any(each.name == name for each in self._collector.moment.brokers):
            raise RequestRejectedError(1, f"found no broker {name!r} in this cluster")


def address_of_id(offset_id: str) -> str:
    """Return the address in an offset id. Raise RmqError if it is none."""
    try:
        host, _ = parse_offset_msg_id(offset_id)
    except ValueError:
        raise RmqError(
            f"found {offset_id[:64]!r}, expected an offset id of 32 or 56 hexadecimal digits;"
            " search by key for other ids"
        ) from None
    return host_address(host)
