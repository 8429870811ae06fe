"""The last heartbeat of each connection: clients repeat the same bytes every 30 s.

A heartbeat is applied again if its bytes, its sender's language or version, a group that it names,
the settings of that group, or its retry topic have changed since it was applied. Otherwise it only
renews the times of its members. Heartbeats with filters other than tags are always applied.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from hashlib import blake2b
from typing import Final
from weakref import WeakKeyDictionary

from attrs import define, field

from rmqpy.broker.filter.tags import is_tag_expression
from rmqpy.broker.state.clients import Client, ClientTable, ConsumerGroup
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.remoting.bodies import HeartbeatData, SubscriptionGroupConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

DIGEST_BYTES: Final = 16


@define(slots=True, frozen=True, eq=False, repr=False)
class _Consumer:
    """What a heartbeat has left behind in a consumer group."""

    client: Client
    group: ConsumerGroup
    revision: int
    config: SubscriptionGroupConfig
    retry_topic: str


@define(slots=True, frozen=True, eq=False, repr=False)
class _KnownHeartbeat:
    digest: bytes
    language: int
    version: int
    consumers: Sequence[_Consumer]
    producers: Sequence[tuple[str, Client]]


@define(slots=True, eq=False, repr=False)
class KnownHeartbeats:
    """The heartbeats that change nothing if they are repeated."""

    clock: Clock
    clients: ClientTable
    topics: TopicTable
    groups: SubscriptionGroupTable
    _known: MutableMapping[Channel, _KnownHeartbeat] = field(factory=WeakKeyDictionary, init=False)

    def renew(self, channel: Channel, request: RemotingCommand) -> bool:
        """Renew the members that a repeated heartbeat names. Return False, and change nothing, if
        it must be applied.
        """
        known = self._known.get(channel)
        if (
            known is None
            or known.digest != _digest(request.body)
            or known.version != request.version
            or known.language != request.language
        ):
            return False
        for each in known.consumers:
            group = each.group
            if (
                group.revision != each.revision
                or group.members.get(channel) is not each.client
                or self.groups.get(group.name) is not each.config
                or each.retry_topic not in self.topics
            ):
                return False
        for name, client in known.producers:
            if self.clients.producers(name).get(channel) is not client:
                return False
        monotonic_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        for each in known.consumers:
            each.client.updated_ms, each.client.updated_wall_ms = monotonic_ms, wall_ms
        for _, client in known.producers:
            client.updated_ms, client.updated_wall_ms = monotonic_ms, wall_ms
        return True

    def remember(self, channel: Channel, request: RemotingCommand, data: HeartbeatData) -> None:
        """Remember a heartbeat that was applied, if repeating it has no effect."""
        self._known.pop(channel, None)
        consumers = []
        for consumer in data.consumer_data_set:
            group = self.clients.consumer_group(consumer.group_name)
            config = self.groups.get(consumer.group_name)
            retry_topic = names.retry_topic(consumer.group_name)
            client = group.members.get(channel) if group is not None else None
            is_plain = all(
                is_tag_expression(each.expression_type) for each in consumer.subscription_data_set
            )
            if group is None or config is None or client is None:
                return
            if retry_topic not in self.topics or not is_plain:
                return
            consumers.append(_Consumer(client, group, group.revision, config, retry_topic))
        producers = []
        for producer in data.producer_data_set:
            client = self.clients.producers(producer.group_name).get(channel)
            if client is None:
                return
            producers.append((producer.group_name, client))
        digest = _digest(request.body)
        self._known[channel] = _KnownHeartbeat(
            digest, request.language, request.version, consumers, producers
        )


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()
