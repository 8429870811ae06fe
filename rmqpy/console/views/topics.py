"""Topics and their queues, as a list and one by one."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from rmqpy.model.names import (
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from rmqpy.remoting.bodies import TopicConfig

__all__ = ["ListedTopic", "QueueFigures", "TopicEntry", "listed_topic"]


@define(slots=True)
class TopicEntry:
    """A topic and its configuration by broker name."""

    name: str
    places: dict[str, TopicConfig] = field(factory=dict)

    @property
    def kind(self) -> str:
        if is_retry_topic(self.name):
            return "retry"
        if is_dlq_topic(self.name):
            return "dead letters"
        return "system" if is_system_topic(self.name) else ""


@define(slots=True, frozen=True, kw_only=True)
class QueueFigures:
    """One queue: its offsets, store time of its last message, and messages per second."""

    broker: str
    queue_id: int
    begin: int
    end: int
    last_ms: int
    rate: float | None

    @property
    def count(self) -> int:
        return self.end - self.begin


@define(slots=True, frozen=True, kw_only=True)
class ListedTopic:
    """A topic in the list."""

    name: str
    kind: str
    brokers: Sequence[str]
    queue_count: int
    message_count: int
    last_ms: int


def listed_topic(entry: TopicEntry, queues: Sequence[QueueFigures]) -> ListedTopic:
    """Return the row of a topic whose queues are known."""
    return ListedTopic(
        name=entry.name,
        kind=entry.kind,
        brokers=sorted(entry.places),
        queue_count=sum(config.read_queue_nums for config in entry.places.values()),
        message_count=sum(queue.count for queue in queues),
        last_ms=max((queue.last_ms for queue in queues), default=0),
    )
