"""The clients that a broker hands over to the one to which it relays their requests.

A client finds the new broker of its group when it next asks for its route, and registers there with
its next heartbeat: with Java's defaults up to 60 s later. Until then the new broker has to know the
client's groups and subscriptions, because it refuses pulls of groups that are not online, and
consumers that ask it for the members of their group divide the queues among them.

What is handed over is what a heartbeat of the client would say, so that the same rules apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

from rmqpy.broker.state.clients import Client, ClientTable, StandIn
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.model.values import define
from rmqpy.remoting.bodies import ConsumerData, HeartbeatData, ProducerData
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

logger = logging.getLogger(__name__)


@frozen
class HandedClient:
    """The registrations of one client, as its heartbeat."""

    client_id: str
    peer: tuple[str, int]
    language: int
    version: int
    heartbeat: bytes

    def encode(self) -> dict[str, Any]:
        return {
            "client": self.client_id,
            "host": self.peer[0],
            "port": self.peer[1],
            "language": self.language,
            "version": self.version,
            "heartbeat": self.heartbeat.decode(),
        }

    @classmethod
    def decode(cls, value: object) -> HandedClient:
        """Raise ValueError unless ``value`` is the result of :meth:`encode`."""
        if not isinstance(value, dict):
            raise ValueError("expected a client")
        texts = [value.get(name) for name in ("client", "host", "heartbeat")]
        numbers = [value.get(name) for name in ("port", "language", "version")]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("expected client, host and heartbeat of a client")
        if not all(isinstance(each, int) for each in numbers):
            raise ValueError("expected port, language and version of a client")
        client_id, host, heartbeat = map(str, texts)
        port, language, version = (int(str(each)) for each in numbers)
        return cls(client_id, (host, port), language, version, heartbeat.encode())


@frozen
class ConnectedClient:
    """A client that has a connection, its groups, and when it was heard of, in ms."""

    channel: Channel
    client: Client
    updated_ms: int
    producers: frozenset[str]
    consumers: frozenset[str]

    def has_groups_of(self, other: ConnectedClient) -> bool:
        return (self.producers, self.consumers) == (other.producers, other.consumers)

    def handed(self, table: ClientTable) -> HandedClient:
        """Return what another broker has to know."""
        client, groups = self.client, map(table.consumer_group, sorted(self.consumers))
        heartbeat = HeartbeatData(
            client_id=client.client_id,
            producer_data_set=[ProducerData(group_name=name) for name in sorted(self.producers)],
            consumer_data_set=[
                ConsumerData(
                    group_name=group.name,
                    consume_type=group.consume_type,
                    message_model=group.message_model,
                    consume_from_where=group.consume_from_where,
                    subscription_data_set=list(group.subscriptions.values()),
                )
                for group in groups
                if group is not None
            ],
        )
        return HandedClient(
            client.client_id,
            self.channel.peer,
            client.language,
            client.version,
            heartbeat.encode(),
        )


def connected_clients(table: ClientTable) -> dict[str, ConnectedClient]:
    """Return the clients that have a connection, by their ids."""
    found = {}
    for channel, producers, consumers in table.registrations:
        clients = [*producers.values(), *consumers.values()]
        if clients and not isinstance(channel, StandIn):
            newest = max(clients, key=lambda each: each.updated_ms)
            found[newest.client_id] = ConnectedClient(
                *(channel, newest, newest.updated_ms),
                *(frozenset(producers), frozenset(consumers)),
            )
    return found


Heartbeat = Callable[[Channel, RemotingCommand], RemotingCommand]
"""Applies a heartbeat. Raises RequestRejectedError."""


@define(slots=True, frozen=True, eq=False, repr=False)
class HandedClients:
    """The clients that other brokers have handed over to this one."""

    _table: ClientTable
    _heartbeat: Heartbeat

    def take(self, clients: Iterable[HandedClient], gone: Iterable[str]) -> None:
        """Forget the clients in ``gone``, and register ``clients`` except those that have
        registered themselves.
        """
        for client_id in gone:
            self._table.drop_stand_in(client_id)
        connected = connected_clients(self._table)
        for client in clients:
            if client.client_id not in connected:
                try:
                    self._register(client)
                except RmqError as error:
                    logger.warning("client %s is not taken: %s", client.client_id, error)

    def _register(self, client: HandedClient) -> None:
        channel = self._table.stand_in(client.client_id, client.peer)
        if channel is None:
            logger.warning("client %s is not taken: too many are relayed", client.client_id)
            return
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=client.heartbeat)
        request.language, request.version = client.language, client.version
        self._heartbeat(channel, request)
