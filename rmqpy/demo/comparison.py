"""Read everything that a client can read from a store, and compare two readings."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator

from attrs import define, field

from rmqpy.client.core.base_consumer import PullStatus
from rmqpy.client.core.message import MessageExt
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.codec.layout import CRC_MASK
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.text import count_text
from rmqpy.remoting.bodies import MessageQueue

PAGE = 32
LOOKUPS_PER_TOPIC = 50
"""The number of messages of a topic that are also fetched by key and by id."""

Place = tuple[str, int, int]
"""(topic, queue id, queue offset)."""


@define(slots=True, frozen=True)
class ClientMessageValue:
    """The values of a message that must not change."""

    physical_offset: int
    size: int
    msg_id: str
    offset_msg_id: str
    body_crc: int
    store_timestamp_ms: int
    properties: tuple[tuple[str, str], ...]
    body: bytes

    @classmethod
    def of(cls, message: MessageExt) -> ClientMessageValue:
        stored = message.stored
        if zlib.crc32(stored.body) & CRC_MASK != stored.body_crc and stored.body:
            raise RmqError(f"message {message.offset_msg_id}: the body does not match its CRC")
        return cls(
            stored.physical_offset,
            stored.size,
            message.msg_id,
            message.offset_msg_id,
            stored.body_crc,
            stored.store_timestamp_ms,
            tuple(sorted(stored.properties.items())),
            stored.body,
        )


@define(slots=True)
class Reading:
    """Everything that was read from a store.

    ``lookups`` is the number of messages that were also fetched by id and by key. ``closed`` has
    the queues that no client may read.
    """

    messages: dict[Place, ClientMessageValue] = field(factory=dict)
    lookups: int = 0
    closed: list[tuple[str, int]] = field(factory=list)


async def read_all_topics(
    consumer: PullConsumer, broker_name: str, queues: Iterable[tuple[str, int]]
) -> Reading:
    """Pull every queue as a whole, and look up some messages by id and by key."""
    reading = Reading()
    looked_up: Counter[str] = Counter()
    for topic, queue_id in queues:
        queue = MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
        try:
            async for message in _pull_queue(consumer, queue):
                value = ClientMessageValue.of(message)
                reading.messages[topic, queue_id, message.queue_offset] = value
                if looked_up[topic] < LOOKUPS_PER_TOPIC:
                    looked_up[topic] += 1
                    reading.lookups += await _look_up(consumer, message, value)
        except RequestRejectedError:
            # No client can read topics without a configuration, such as those of the transaction
            # service. That is the same in Java.
            reading.closed.append((topic, queue_id))
    return reading


async def _pull_queue(consumer: PullConsumer, queue: MessageQueue) -> AsyncIterator[MessageExt]:
    offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    while offset < end:
        page = await consumer.pull(queue, offset, PAGE)
        for message in page.messages:
            yield message
        if page.status is not PullStatus.FOUND and page.next_begin_offset <= offset:
            raise RmqError(
                f"{queue.topic} queue {queue.queue_id}: nothing to read at {offset} before {end}"
            )
        offset = page.next_begin_offset


async def _look_up(consumer: PullConsumer, message: MessageExt, value: ClientMessageValue) -> int:
    by_id = await consumer.view_message(message.offset_msg_id, message.queue)
    if ClientMessageValue.of(by_id) != value:
        raise RmqError(f"message {message.offset_msg_id} reads differently by id")
    stored_ms = value.store_timestamp_ms
    for key in message.keys.split():
        found = await consumer.query_by_key(
            message.topic, key, PAGE, begin_ms=stored_ms - 1000, end_ms=stored_ms + 1000
        )
        # A full page has the newest messages; it may lack an older one of the same second.
        if len(found) < PAGE and all(ClientMessageValue.of(each) != value for each in found):
            raise RmqError(f"message {message.offset_msg_id} is not found by key {key}")
    return 1


@define(slots=True)
class TopicRow:
    before: int = 0
    below: int = 0
    above: int = 0
    same: int = 0


@define(slots=True)
class ReadComparison:
    """The comparison of a later reading with an earlier one."""

    rows: dict[str, TopicRow]
    differences: list[str]
    lookups: int

    @property
    def is_same(self) -> bool:
        return not self.differences

    def table(self) -> Iterator[str]:
        width = max([5, *map(len, self.rows)])

        def line(name: str, *columns: object) -> str:
            return f"{name:<{width}}" + "".join(f"  {column:>8}" for column in columns)

        yield ""
        yield line("topic", "before", "below", "above", "same")
        for topic, row in sorted(self.rows.items()):
            yield line(topic, row.before, row.below, row.above, row.same)
        yield (
            "(messages read before the switch; after it, below and above the divided offset;"
            " earlier ones that read the same)"
        )
        yield f"{self.lookups} of them also fetched by id and by key"
        for difference in self.differences[:20]:
            yield f"DIFFERENT {difference}"
        if self.is_same:
            yield "every earlier message reads the same after the switch"
        else:
            yield count_text(len(self.differences), "difference")


def compare(before: Reading, after: Reading, divided_offset: int) -> ReadComparison:
    """Compare two readings.

    Every message of ``before`` must be in ``after``, equal and below the divided offset. New
    messages may also be below it: they arrived between that reading and the switch.
    """
    rows: dict[str, TopicRow] = {}
    differences = [
        f"{topic} queue {queue}: can no longer be read"
        for topic, queue in after.closed
        if (topic, queue) not in before.closed
    ]
    for place, value in before.messages.items():
        row = rows.setdefault(place[0], TopicRow())
        row.before += 1
        now = after.messages.get(place)
        if now == value:
            row.same += 1
        else:
            differences.append(
                f"{place[0]} queue {place[1]} offset {place[2]}: {_what(value, now)}"
            )
    for place, value in after.messages.items():
        row = rows.setdefault(place[0], TopicRow())
        if value.physical_offset < divided_offset:
            row.below += 1
        else:
            row.above += 1
        if place in before.messages and value.physical_offset >= divided_offset:
            differences.append(
                f"{place[0]} queue {place[1]} offset {place[2]}: not below the divided offset"
            )
    return ReadComparison(rows, differences, after.lookups)


def _what(value: ClientMessageValue, now: ClientMessageValue | None) -> str:
    if now is None:
        return "missing"
    names = [name for name in ClientMessageValue.__slots__ if name != "__weakref__"]
    return ", ".join(name for name in names if getattr(value, name) != getattr(now, name))
