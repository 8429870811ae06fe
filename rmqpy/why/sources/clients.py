"""The online members of a consumer group, as a running broker and they themselves show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.bodies import ConsumerRunningInfo, SubscriptionData
from rmqpy.why.sources.connection import BrokerConnection
from rmqpy.why.sources.interface import ClientGroup, OrderlyQueue

__all__ = ["locks_of", "members_of"]

CLIENTS_ASKED_MAX = 20


def members_of(broker: BrokerConnection, group: str, topic: str) -> ClientGroup | None:
    """Return the online members of a group; None if the broker refuses to say."""
    try:
        found = broker.run(broker.admin.consumer_connections(broker.address, group))
    except RequestRejectedError as refusal:
        offline = refusal.code == ResponseCode.CONSUMER_NOT_ONLINE
        return ClientGroup() if offline else None
    registered = found.subscription_table.get(topic)
    clients = tuple(sorted(each.client_id for each in found.connection_set))
    infos = _running_infos(broker, group, clients)
    return ClientGroup(
        clients=clients,
        message_model=found.message_model or "",
        consume_type=found.consume_type or "",
        consume_from=found.consume_from_where or "",
        expression=registered.sub_string if registered is not None else None,
        expression_type=registered.expression_type if registered is not None else "TAG",
        subscriptions=tuple(_subscriptions(infos, topic)),
        locks=tuple(locks_of(infos, topic, broker.settings()[0].get("brokerName", ""))),
    )


def _running_infos(
    broker: BrokerConnection, group: str, clients: tuple[str, ...]
) -> dict[str, ConsumerRunningInfo]:
    """Return what the clients say of themselves; those that do not answer are left out, as clients
    in other languages often do not.
    """
    found = {}
    for client in clients[:CLIENTS_ASKED_MAX]:
        with suppress(RmqError):
            found[client] = broker.run(broker.admin.running_info(broker.address, group, client))
    return found


def _subscriptions(
    infos: Mapping[str, ConsumerRunningInfo], topic: str
) -> Iterator[tuple[str, str]]:
    """Yield each client and its subscription to the topic."""
    for client, info in infos.items():
        mine = [each for each in info.subscription_set if each.topic == topic]
        yield client, _expression(mine[0]) if mine else "none"


def locks_of(
    infos: Mapping[str, ConsumerRunningInfo], topic: str, broker: str
) -> Iterator[OrderlyQueue]:
    """Yield the queues of the topic at a broker that orderly clients have."""
    for client, info in infos.items():
        if info.properties.get("PROP_CONSUMEORDERLY") != "true":
            continue
        for queue, state in info.mq_table.items():
            if (queue.topic, queue.broker_name) == (topic, broker) and not state.droped:
                yield OrderlyQueue(
                    client=client,
                    queue_id=queue.queue_id,
                    is_locked=state.locked,
                    last_lock_ms=state.last_lock_timestamp,
                )


def _expression(subscription: SubscriptionData) -> str:
    if subscription.tags_set:
        return " || ".join(sorted(subscription.tags_set))
    return subscription.sub_string or "*"
