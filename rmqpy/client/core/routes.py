"""Routes: the queues to send to, the queues to read, and the address of a broker. Pure.

=========  =================================================================================
send       per queue data with W permission whose broker name has a master: writeQueueNums
           queues; with an order configuration (``broker-a:4;broker-b:4``): exactly those
read       per queue data with R permission: readQueueNums queues
address    the given broker id; if that slave is down: the next id; otherwise any id
new topic  the route of the template topic, with at most the queues that the producer allows
=========  =================================================================================

A route with more than ``QUEUES_MAX`` queues per broker is refused before memory is spent on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from rmqpy.codec.hashes import java_string_hash
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.flags import PERM_READ, PERM_WRITE
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import MessageQueue, TopicRouteData

QUEUES_MAX = 65_536


def publish_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues that a producer may use, in order of rotation."""
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    with_master = {
        broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs
    }
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in with_master
        for queue_id in range(_checked_count(data.write_queue_nums))
    ]


def subscribe_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues that a consumer may read, sorted."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(_checked_count(data.read_queue_nums))
    )


def route_for_new_topic(template: TopicRouteData, queue_count: int) -> TopicRouteData:
    """Return the route that a topic will have after a broker has created it from ``template``."""
    return evolve(
        template,
        order_topic_conf=None,
        queue_datas=[
            evolve(
                data,
                read_queue_nums=min(data.read_queue_nums, queue_count),
                write_queue_nums=min(data.read_queue_nums, queue_count),
            )
            for data in template.queue_datas
        ],
    )


def broker_address(addresses: Mapping[int, str], broker_id: int) -> str | None:
    """Return the address to use for ``broker_id`` of one broker name, or None if it has none."""
    if broker_id in addresses:
        return addresses[broker_id]
    if broker_id != MASTER_ID and broker_id + 1 in addresses:
        return addresses[broker_id + 1]
    return addresses[min(addresses)] if addresses else None


def next_queue(
    queues: list[MessageQueue], index: int, last_broker: str | None
) -> tuple[MessageQueue, int]:
    """Return the queue to use at rotation ``index``, and the next index.

    A broker that has just failed (``last_broker``) is skipped as long as there is another.
    """
    assert queues
    for step in range(len(queues)):
        queue = queues[(index + step) % len(queues)]
        if queue.broker_name != last_broker:
            return queue, index + step + 1
    return queues[index % len(queues)], index + 1


def queue_of(queues: list[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue for this key, the one that Java's SelectMessageQueueByHash selects for a
    string.
    """
    assert queues
    value = java_string_hash(sharding_key)
    return queues[abs(value) % len(queues)]


def _ordered_queues(topic: str, configuration: str) -> list[MessageQueue]:
    queues = []
    for part in configuration.split(";"):
        broker_name, colon, count = part.strip().rpartition(":")
        if not colon and not count:
            continue
        if not broker_name or not count.isascii() or not count.isdigit():
            raise RemoteProtocolError(
                f"the order configuration of {topic} is {configuration!r}, expected broker:count;…"
            )
        for queue_id in range(_checked_count(int(count[:10]))):
            queues.append(MessageQueue(topic, broker_name, queue_id))
    return queues


def _checked_count(queue_count: int) -> int:
    if queue_count > QUEUES_MAX:
        raise RemoteProtocolError(
            f"a route has {queue_count} queues on one broker, more than {QUEUES_MAX}"
        )
    return queue_count
