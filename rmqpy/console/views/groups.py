"""Consumer groups: how far they are behind, who their members are, and what they subscribe to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.admin.commands.clients import differ, subscribed
from rmqpy.client.core.message import MessageExt
from rmqpy.codec.properties import PROPERTY_RETRY_TOPIC
from rmqpy.console.views.messages import preview
from rmqpy.remoting.bodies import ConsumerConnection, ConsumerRunningInfo, ConsumeStats

__all__ = [
    "Backlog",
    "DeadLetter",
    "GroupPage",
    "GroupRow",
    "OnlineMember",
    "QueueLag",
    "SubscriptionsView",
    "backlog_of",
    "dead_letter",
    "group_row",
    "group_view",
    "lags_of",
    "subscriptions_view",
]


LARGEST_SHOWN: Final = 5


@define(slots=True, frozen=True, kw_only=True)
class QueueLag:
    """One queue: the offset of the group, and that of the broker."""

    topic: str
    broker: str
    queue_id: int
    consumed: int
    end: int
    last_ms: int

    @property
    def lag(self) -> int:
        return self.end - self.consumed


@define(slots=True, frozen=True, kw_only=True)
class GroupRow:
    """A group in the list; ``last_ms`` is the store time of what it consumed last, 0 if unknown."""

    name: str
    lag: int
    topics: Sequence[str]
    rate: float
    last_ms: int


@define(slots=True, frozen=True, kw_only=True)
class Backlog:
    """What all groups together have not consumed, as of their latest samples: ``lag`` messages in
    ``behind`` of ``groups`` groups. ``largest`` are the groups with the largest lags.
    """

    lag: int
    behind: int
    groups: int
    largest: Sequence[tuple[str, int]]


@define(slots=True, frozen=True, kw_only=True)
class OnlineMember:
    """A client that is online, and the brokers that it is connected to."""

    client_id: str
    address: str
    language: str
    brokers: Sequence[str]


@define(slots=True, frozen=True, kw_only=True)
class GroupPage:
    """``subscriptions`` are (topic, expression); ``conflicts`` are sentences."""

    name: str
    lags: Sequence[QueueLag]
    members: Sequence[OnlineMember]
    subscriptions: Sequence[tuple[str, str]]
    conflicts: Sequence[str]
    model: str


def lags_of(stats: Sequence[ConsumeStats]) -> list[QueueLag]:
    """Return the queues of a group, those with the largest lag first."""
    found = [
        QueueLag(
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            consumed=offsets.consumer_offset,
            end=offsets.broker_offset,
            last_ms=offsets.last_timestamp,
        )
        for each in stats
        for queue, offsets in each.offset_table.items()
    ]
    return sorted(found, key=lambda each: (-each.lag, each.topic, each.broker, each.queue_id))


def backlog_of(lags: Mapping[str, int]) -> Backlog:
    """Return the backlog of groups from the latest lag of each."""
    behind = sorted((-lag, name) for name, lag in lags.items() if lag > 0)
    return Backlog(
        lag=-sum(lag for lag, _ in behind),
        behind=len(behind),
        groups=len(lags),
        largest=[(name, -lag) for lag, name in behind[:LARGEST_SHOWN]],
    )


def group_row(name: str, stats: Sequence[ConsumeStats]) -> GroupRow:
    """Return the row of a group from the answers of all brokers."""
    lags = lags_of(stats)
    return GroupRow(
        name=name,
        lag=sum(each.lag for each in lags),
        topics=sorted({each.topic for each in lags}),
        rate=sum(each.consume_tps for each in stats),
        last_ms=max((each.last_ms for each in lags), default=0),
    )


def group_view(
    name: str,
    stats: Sequence[ConsumeStats],
    connections: Mapping[str, ConsumerConnection],
) -> GroupPage:
    """Return a group; ``connections`` are the answers of the brokers by their names."""
    expressions: dict[str, dict[str, list[str]]] = {}
    members: dict[str, OnlineMember] = {}
    for broker, answer in sorted(connections.items()):
        for topic, data in answer.subscription_table.items():
            expression = f"{data.expression_type} {data.sub_string or '*'}"
            expressions.setdefault(topic, {}).setdefault(expression, []).append(broker)
        for each in answer.connection_set:
            known = members.get(each.client_id)
            members[each.client_id] = OnlineMember(
                client_id=each.client_id,
                address=each.client_addr,
                language=each.language or "",
                brokers=[*(known.brokers if known is not None else ()), broker],
            )
    models = sorted({each.message_model or "" for each in connections.values()} - {""})
    conflicts = [
        f"{topic}: the brokers know different subscriptions: "
        + "; ".join(f"{text} on {', '.join(brokers)}" for text, brokers in sorted(found.items()))
        for topic, found in sorted(expressions.items())
        if len(found) > 1
    ]
    if len(models) > 1:
        conflicts.append(f"the members consume in different models: {', '.join(models)}")
    return GroupPage(
        name=name,
        lags=lags_of(stats),
        members=[members[key] for key in sorted(members)],
        subscriptions=[
            (topic, text) for topic, found in sorted(expressions.items()) for text in sorted(found)
        ],
        conflicts=conflicts,
        model=", ".join(models),
    )


@define(slots=True, frozen=True, kw_only=True)
class SubscriptionsView:
    """What the members say that they subscribe to: ``rows`` are equal ones and who has them."""

    rows: Sequence[tuple[Sequence[str], Sequence[str]]]
    differs: bool
    silent: Sequence[str]
    not_asked: int


def subscriptions_view(
    infos: Mapping[str, ConsumerRunningInfo | None], online: int
) -> SubscriptionsView:
    """Return the answers of members by client id, None without one; ``online`` members exist."""
    answers = {client: info for client, info in sorted(infos.items()) if info is not None}
    clients: dict[tuple[str, ...], list[str]] = {}
    for client, info in answers.items():
        texts = tuple(f"{topic} {expression or '*'}" for topic, expression in subscribed(info))
        clients.setdefault(texts, []).append(client)
    return SubscriptionsView(
        rows=sorted(clients.items()),
        differs=bool(answers) and differ(answers.values()),
        silent=sorted(infos.keys() - answers.keys()),
        not_asked=online - len(infos),
    )


@define(slots=True, frozen=True, kw_only=True)
class DeadLetter:
    """A dead letter, the topic that it was sent to, and the beginning of its body."""

    message: MessageExt
    origin: str
    preview: str


def dead_letter(message: MessageExt) -> DeadLetter:
    origin = message.properties.get(PROPERTY_RETRY_TOPIC, "")
    return DeadLetter(message=message, origin=origin, preview=preview(message))
