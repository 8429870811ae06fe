"""What a route means: the queues to send to, the queues to read, the address to ask. Pure.

=========  =================================================================================
send       per queue data with W permission whose broker name has a master: writeQueueNums
           queues; with an order configuration (``broker-a:4;broker-b:4``): exactly those
read       per queue data with R permission: readQueueNums queues
address    the wanted broker id; a slave that is gone: the next id; else any id
new topic  as the route of the template topic, at most the queues that the producer wants
=========  =================================================================================

A route with more than ``QUEUES_MAX`` queues a broker is refused before memory is spent on it.
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
    """The queues that a producer may use, in the order of rotation."""
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    with_master = {
        broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs
    }
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in with_master
        for queue_id in range(_checked(data.write_queue_nums))
    ]


def subscribe_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that a consumer may read, sorted."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(_checked(data.read_queue_nums))
    )


def route_for_new_topic(template: TopicRouteData, queue_count: int) -> TopicRouteData:
    """The route that a topic will have once a broker has created it after ``template``."""
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
    """Which of a broker name's addresses to ask for ``broker_id``; None when there is none."""
    if broker_id in addresses:
        return addresses[broker_id]
    if broker_id != MASTER_ID and broker_id + 1 in addresses:
        return addresses[broker_id + 1]
    return addresses[min(addresses)] if addresses else None


def next_queue(
    queues: list[MessageQueue], index: int, last_broker: str | None
) -> tuple[MessageQueue, int]:
    """The queue to use at rotation ``index`` and the index after it.

    A broker that just failed (``last_broker``) is passed over as long as there is another.
    """
    assert queues
    for step in range(len(queues)):
        queue = queues[(index + step) % len(queues)]
        if queue.broker_name != last_broker:
            return queue, index + step + 1
    return queues[index % len(queues)], index + 1


def queue_of(queues: list[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue of everything with this key, the same that Java's SelectMessageQueueByHash takes
    for a string.
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
                f"the order configuration of {topic}, {configuration!r}, is not broker:count;…"
            )
        for queue_id in range(_checked(int(count[:10]))):
            queues.append(MessageQueue(topic, broker_name, queue_id))
    return queues


def _checked(queue_count: int) -> int:
    if queue_count > QUEUES_MAX:
        raise RemoteProtocolError(
            f"a route has {queue_count} queues on one broker, more than {QUEUES_MAX}"
        )
    return queue_count
