"""Queues and addresses of a route."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqpy.client.core.routes import (
    broker_address,
    next_queue,
    publish_queues,
    route_for_new_topic,
    subscribe_queues,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.bodies import MessageQueue, TopicRouteData

MakeRoute = Callable[..., TopicRouteData]


def names(queues: list[MessageQueue]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_write_and_read_queues(make_route: MakeRoute) -> None:
    route = make_route(write_queue_nums=1, read_queue_nums=3)
    assert names(publish_queues("T", route)) == ["a0", "b0"]
    assert names(subscribe_queues("T", route)) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_permissions(make_route: MakeRoute) -> None:
    assert publish_queues("T", make_route(perm=4)) == []
    assert len(subscribe_queues("T", make_route(perm=4))) == 4
    assert subscribe_queues("T", make_route(perm=2)) == []
    assert len(publish_queues("T", make_route(perm=2))) == 4


def test_without_master_read_only(make_route: MakeRoute) -> None:
    route = make_route()
    del route.broker_datas[0].broker_addrs[0]
    assert names(publish_queues("T", route)) == ["b0", "b1"]
    assert names(subscribe_queues("T", route)) == ["a0", "a1", "b0", "b1"]


def test_order_configuration(make_route: MakeRoute) -> None:
    route = make_route()
    route.order_topic_conf = "b:1;a:2;"
    assert names(publish_queues("T", route)) == ["b0", "a0", "a1"]


@pytest.mark.parametrize("text", ["b", "b:x", ":1", "b:-1", "b:99999999999999"])
def test_wrong_order_configuration(make_route: MakeRoute, text: str) -> None:
    route = make_route()
    route.order_topic_conf = text
    with pytest.raises(RemoteProtocolError):
        publish_queues("T", route)


def test_too_many_queues(make_route: MakeRoute) -> None:
    with pytest.raises(RemoteProtocolError, match="2147483647 queues"):
        publish_queues("T", make_route(write_queue_nums=2**31 - 1))


def test_new_topic_gets_the_fewer_queues(make_route: MakeRoute) -> None:
    template = make_route(read_queue_nums=8, write_queue_nums=8, perm=7)
    assert len(publish_queues("N", route_for_new_topic(template, 4))) == 8
    assert len(publish_queues("N", route_for_new_topic(template, 16))) == 16
    assert template.queue_datas[0].write_queue_nums == 8


def test_addresses() -> None:
    addresses = {0: "m", 2: "s"}
    assert broker_address(addresses, 0) == "m"
    assert broker_address(addresses, 1) == "s"
    assert broker_address(addresses, 2) == "s"
    assert broker_address(addresses, 7) == "m"
    assert broker_address({2: "s", 1: "r"}, 0) == "r"
    assert broker_address({}, 0) is None


def test_rotation_passes_over_a_broker_that_failed(make_route: MakeRoute) -> None:
    queues = publish_queues("T", make_route())
    index, used = 0, []
    for _ in range(5):
        queue, index = next_queue(queues, index, None)
        used.append(queue)
    assert names(used) == ["a0", "a1", "b0", "b1", "a0"]
    queue, index = next_queue(queues, 0, "a")
    assert (names([queue]), index) == (["b0"], 3)
    queue, index = next_queue(queues[:2], 1, "a")
    assert (names([queue]), index) == (["a1"], 2)
