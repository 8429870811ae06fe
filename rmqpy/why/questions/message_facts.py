"""The facts about a message, a topic, and a group, for :mod:`rmqpy.why.questions.no_message`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from rmqpy.store.unread.pop import PopReceipt
from rmqpy.why.message_id import MessageId
from rmqpy.why.questions.message_copies import CopyKind, MessageCopy, WhereResult
from rmqpy.why.sources.interface import AccessAccounts, ClientGroup, StoreRange

__all__ = [
    "ConsumerGroupFacts",
    "NoMessageFacts",
    "PopFacts",
    "QueueFacts",
    "TopicFacts",
    "place_of",
]


@define(slots=True, frozen=True, kw_only=True)
class QueueFacts:
    """The bounds of a queue, and the offset of the group (None without one)."""

    queue_id: int
    first: int
    end: int
    offset: int | None = None

    @property
    def lag(self) -> int:
        return self.end - max(self.first, self.offset or 0)


@define(slots=True, frozen=True, kw_only=True)
class TopicFacts:
    """A topic. ``config`` has the fields of topics.json, or is None if the topic is not in it.

    ``known`` is False if the table could not be read. ``hint`` names a similar topic.
    """

    name: str
    known: bool
    config: Mapping[str, Any] | None
    queues: tuple[QueueFacts, ...] = ()
    hint: str = ""


@define(slots=True, frozen=True, kw_only=True)
class ConsumerGroupFacts:
    """A consumer group, as :class:`TopicFacts`. ``members`` is None if they are not known.

    ``sql`` is the SQL92 expression in consumerFilter.json, and whether it is in use.
    ``retries`` are the queues of the group's retry topic, ``pop_retries`` those of the topics to
    which messages of the topic return that were received by POP, by topic; ``dead_count`` is the
    number of messages in its dead letter topic.
    """

    name: str
    known: bool
    config: Mapping[str, Any] | None
    hint: str = ""
    members: ClientGroup | None = None
    sql: tuple[str, bool] | None = None
    retries: tuple[QueueFacts, ...] = ()
    pop_retries: tuple[tuple[str, QueueFacts], ...] = ()
    dead_count: int = 0


@define(slots=True, frozen=True, kw_only=True)
class PopFacts:
    """What the clients of the group have received by POP, the oldest first."""

    receipts: tuple[PopReceipt, ...] = ()
    not_examined: tuple[str, ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class NoMessageFacts:
    """All facts. ``wanted`` and ``where`` are None if the question names no message."""

    subject: str
    is_live: bool
    target: str
    now_ms: int
    settings: Mapping[str, str]
    settings_from: str
    range: StoreRange | None
    topic: TopicFacts | None = None
    group: ConsumerGroupFacts | None = None
    wanted: MessageId | None = None
    where: WhereResult | None = None
    pop: PopFacts = field(factory=PopFacts)
    access: AccessAccounts | None = None
    """The accounts of access control, or None if it is off or the question names no group."""

    @property
    def copy(self) -> MessageCopy | None:
        """The copy that consumers of the topic read, if there is one."""
        if self.where is None:
            return None
        copies = self.where.copies_of(CopyKind.TOPIC)
        return copies[-1] if copies else None

    def setting(self, key: str) -> str:
        return f"{key}={self.settings.get(key, '?')} ({self.settings_from})"


def place_of(copy: MessageCopy) -> str:
    message, place = copy.message, copy.place
    where = f", {place.file} byte {place.position}" if place.position >= 0 else ""
    return (
        f"{message.topic} queue {message.queue_id} offset {message.queue_offset}, physical offset"
        f" {message.physical_offset}{where}"
    )
