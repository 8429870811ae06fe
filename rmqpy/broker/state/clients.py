"""The connected producers and consumers by group and connection; codes 34, 35, 38 and the notice
40.

A heartbeat registers its connection in each of its groups. A consumer group that gains or loses a
member, or whose topics change, is notified (NOTIFY_CONSUMER_IDS_CHANGED) and rebalances its queues.

=======================  ==========================================
a member is removed by   UNREGISTER_CLIENT, the end of its connection,
                         ``CLIENT_LIVE_MS`` without a heartbeat
a group is removed       with its last member
a subscription ends      when a heartbeat no longer names its topic
=======================  ==========================================

A client that another broker relays has no connection of its own here. A :class:`StandIn` takes the
place of its connection until the client registers itself (:mod:`.handed_clients`).

Invariants: a connection is in ``_groups_of`` exactly with the groups that list it; a subscription
is only replaced by one with a larger version; no client is a member both by a stand-in and by a
connection after its heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from attrs import field

from rmqpy.model.clock import Clock
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.recent_changes import RecentChanges
from rmqpy.model.values import define
from rmqpy.remoting.bodies import (
    BROADCASTING,
    CLUSTERING,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    SubscriptionData,
)
from rmqpy.remoting.channel import Channel

CLIENT_LIVE_MS: Final = 120_000
SCAN_PERIOD_MS: Final = 10_000
GROUPS_LIMIT: Final = 20_000
"""The maximum number of producer groups, and of consumer groups, that are online at once."""

STAND_INS_LIMIT: Final = 20_000
"""The maximum number of clients that are known without a connection."""

CLIENT_ID_LENGTH_MAX: Final = 512

logger = logging.getLogger(__name__)


@define(slots=True)
class Client:
    """One member of one group: a connection, and the content of its heartbeats."""

    client_id: str
    language: int
    version: int
    updated_ms: int
    updated_wall_ms: int


@define(slots=True)
class ConsumerGroup:
    """The members of a consumer group and their subscriptions."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Channel, Client] = field(factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(factory=dict)
    revision: int = 0
    """The number of changes of the settings and subscriptions."""
    _id_list: bytes = b""
    """The encoded ids of the members, kept until a member changes."""

    def subscription(self, topic: str) -> SubscriptionData | None:
        return self.subscriptions.get(topic)

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.members.values()]

    @property
    def id_list(self) -> bytes:
        """The ids of the members as the body of the reply to GET_CONSUMER_LIST_BY_GROUP."""
        if not self._id_list:
            self._id_list = GetConsumerListByGroupResponseBody(self.client_ids).encode()
        return self._id_list

    def add_member(self, channel: Channel, client: Client) -> bool:
        """Add or replace the client of a connection. Return whether it is a new member."""
        former = self.members.get(channel)
        if former is None or former.client_id != client.client_id:
            self._id_list = b""
        self.members[channel] = client
        return former is None

    def remove_member(self, channel: Channel) -> bool:
        """Remove the client of a connection. Return whether it was a member."""
        self._id_list = b""
        return self.members.pop(channel, None) is not None

    @property
    def is_broadcast(self) -> bool:
        return self.message_model == BROADCASTING

    @property
    def settings(self) -> tuple[str, str, str]:
        return self.consume_type, self.message_model, self.consume_from_where

    def take_settings(self, data: ConsumerData) -> None:
        """Apply the settings of the last heartbeat to the group."""
        self.consume_type = data.consume_type or self.consume_type
        self.message_model = data.message_model or self.message_model
        self.consume_from_where = data.consume_from_where or self.consume_from_where

    def take_subscriptions(self, named: Iterable[SubscriptionData]) -> bool:
        """Replace older subscriptions and remove those that are no longer named. Return whether the
        topics have changed.
        """
        now = {subscription.topic: subscription for subscription in named}
        changed = now.keys() != self.subscriptions.keys()
        for topic, subscription in now.items():
            former = self.subscriptions.get(topic)
            if former is not None and former.sub_version >= subscription.sub_version:
                now[topic] = former
        self.subscriptions = now
        return changed


def _are_same(one: Mapping[str, SubscriptionData], other: Mapping[str, SubscriptionData]) -> bool:
    """Return whether both contain the same objects."""
    return len(one) == len(other) and all(
        other.get(topic) is subscription for topic, subscription in one.items()
    )


def check_client_id(client_id: str) -> None:
    """Raise RequestRejectedError if a client id (``ip@instance[@unit]``) is too long."""
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            f"a client id of {len(client_id)} characters is longer than {CLIENT_ID_LENGTH_MAX}",
        )


@define(slots=True, eq=False)
class StandIn:
    """A ``Channel`` without a connection: what is written to it is dropped."""

    peer: tuple[str, int]
    closed: bool = False
    congested: bool = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drop ``data``."""

    def close(self) -> None:
        self.closed = True


ChangeListener = Callable[[ConsumerGroup], None]
"""Called when the members or topics of a group have changed; the remaining members are notified."""


@define(slots=True, eq=False, repr=False)
class ClientTable:
    """The members of all groups."""

    clock: Clock
    changes: RecentChanges = field(factory=RecentChanges, init=False)
    """The consumer groups whose members or subscriptions have changed."""
    _consumers: dict[str, ConsumerGroup] = field(factory=dict, init=False)
    _producers: dict[str, dict[Channel, Client]] = field(factory=dict, init=False)
    _groups_of: dict[Channel, tuple[set[str], set[str]]] = field(factory=dict, init=False)
    _stand_ins: dict[str, StandIn] = field(factory=dict, init=False)
    """The stand-ins by client id."""
    _on_change: ChangeListener = field(default=lambda _group: None, init=False)

    def subscribe(self, listener: ChangeListener) -> None:
        """Call ``listener`` at each change that concerns the other members."""
        self._on_change = listener

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def producers(self, group: str) -> dict[Channel, Client]:
        """Return the members of a producer group; not to be changed."""
        return self._producers.get(group, {})

    @property
    def producer_groups(self) -> dict[str, dict[Channel, Client]]:
        """All producer groups; not to be changed."""
        return self._producers

    def consumers_of(self, topic: str) -> list[str]:
        """Return the groups that are online and subscribe to ``topic``."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def register_producer(self, group: str, channel: Channel, client: Client) -> None:
        members = self._producers.get(group)
        if members is None:
            if len(self._producers) >= GROUPS_LIMIT:
                logger.warning("producer group %s not registered: too many groups online", group)
                return
            members = self._producers[group] = {}
        members[channel] = client
        self._groups(channel)[0].add(group)

    def register_consumer(self, data: ConsumerData, channel: Channel, client: Client) -> None:
        group = self._consumers.get(data.group_name)
        if group is None:
            if len(self._consumers) >= GROUPS_LIMIT:
                logger.warning(
                    "consumer group %s not registered: too many groups online", data.group_name
                )
                return
            group = self._consumers[data.group_name] = ConsumerGroup(
                data.group_name,
                data.consume_type or "",
                data.message_model or CLUSTERING,
                data.consume_from_where or "",
            )
        settings, subscriptions = group.settings, group.subscriptions
        joined = group.add_member(channel, client)
        self._groups(channel)[1].add(group.name)
        group.take_settings(data)
        topics_changed = group.take_subscriptions(data.subscription_data_set)
        is_changed = settings != group.settings or not _are_same(subscriptions, group.subscriptions)
        if is_changed:
            group.revision += 1
        if joined or is_changed:
            self.changes.note(group.name)
        if topics_changed or joined:
            self._on_change(group)

    def unregister_producer(self, group: str, channel: Channel) -> None:
        self._leave_producers(group, channel)
        self._drop_if_idle(channel)

    def unregister_consumer(self, group: str, channel: Channel) -> None:
        self._leave_consumers(group, channel)
        self._drop_if_idle(channel)

    def stand_in(self, client_id: str, peer: tuple[str, int]) -> StandIn | None:
        """Return the stand-in of a client, a new one if it has none, or None if there are too many
        of them.
        """
        if client_id not in self._stand_ins and len(self._stand_ins) >= STAND_INS_LIMIT:
            return None
        return self._stand_ins.setdefault(client_id, StandIn(peer))

    def drop_stand_in(self, client_id: str) -> None:
        """Remove the stand-in of a client, which has registered itself or is no longer relayed."""
        found = self._stand_ins.pop(client_id, None)
        if found is not None:
            self.channel_closed(found)

    @property
    def registrations(self) -> Iterator[tuple[Channel, Mapping[str, Client], Mapping[str, Client]]]:
        """Each connection with its client by producer group, and by consumer group."""
        for channel, (producers, consumers) in self._groups_of.items():
            yield (
                channel,
                {name: self._producers[name][channel] for name in producers},
                {name: self._consumers[name].members[channel] for name in consumers},
            )

    def channel_closed(self, channel: Channel) -> None:
        """Remove the member of a closed connection from every group."""
        producers, consumers = self._groups_of.pop(channel, (set(), set()))
        for group in producers:
            self._leave_producers(group, channel)
        for group in consumers:
            self._leave_consumers(group, channel)

    def renew_all(self) -> None:
        """Count every member as heard of now, because the clock has been advanced."""
        now_ms = self.clock.monotonic_ms()
        groups = (group.members for group in self._consumers.values())
        for members in (*self._producers.values(), *groups):
            for client in members.values():
                client.updated_ms = now_ms

    def scan(self) -> None:
        """Close the connections of members that have been silent for too long."""
        stale_ms = self.clock.monotonic_ms() - CLIENT_LIVE_MS
        tables = [*self._producers.values(), *(group.members for group in self._consumers.values())]
        silent = {
            channel: client
            for members in tables
            for channel, client in members.items()
            if client.updated_ms < stale_ms
        }
        for channel, client in silent.items():
            logger.warning("closing client %s at %s: no heartbeat", client.client_id, channel.peer)
            self.channel_closed(channel)
            channel.close()
            if isinstance(channel, StandIn):
                self._stand_ins.pop(client.client_id, None)

    def _groups(self, channel: Channel) -> tuple[set[str], set[str]]:
        groups = self._groups_of.get(channel)
        if groups is None:
            groups = self._groups_of[channel] = (set(), set())
        return groups

    def _drop_if_idle(self, channel: Channel) -> None:
        if not any(self._groups_of.get(channel, ())):
            self._groups_of.pop(channel, None)

    def _leave_producers(self, group: str, channel: Channel) -> None:
        members = self._producers.get(group)
        if members is None or members.pop(channel, None) is None:
            return
        if not members:
            del self._producers[group]
        self._groups_of.get(channel, (set(), set()))[0].discard(group)

    def _leave_consumers(self, name: str, channel: Channel) -> None:
        group = self._consumers.get(name)
        if group is None or not group.remove_member(channel):
            return
        self.changes.note(name)
        if not group.members:
            del self._consumers[name]
        self._groups_of.get(channel, (set(), set()))[1].discard(name)
        self._on_change(group)
