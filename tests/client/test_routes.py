"""The queues and addresses of a route."""

from __future__ import annotations

import pytest
from harness.client import topic_route

from rmqpy.client.core.routes import (
    broker_address,
    next_queue,
    publish_queues,
    route_for_new_topic,
    subscribe_queues,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.bodies import MessageQueue


def names(queues: list[MessageQueue]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_a_route_has_write_and_read_queues() -> None:
    route = topic_route(write_queue_nums=1, read_queue_nums=3)
    assert names(publish_queues("T", route)) == ["a0", "b0"]
    assert names(subscribe_queues("T", route)) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_queues_depend_on_the_permission() -> None:
    assert publish_queues("T", topic_route(perm=4)) == []
    assert len(subscribe_queues("T", topic_route(perm=4))) == 4
    assert subscribe_queues("T", topic_route(perm=2)) == []
    assert len(publish_queues("T", topic_route(perm=2))) == 4


def test_a_broker_without_a_master_is_read_only() -> None:
    route = topic_route()
    del route.broker_datas[0].broker_addrs[0]
    assert names(publish_queues("T", route)) == ["b0", "b1"]
    assert names(subscribe_queues("T", route)) == ["a0", "a1", "b0", "b1"]


def test_an_order_configuration_replaces_the_queues() -> None:
    route = topic_route()
    route.order_topic_conf = "b:1;a:2;"
    assert names(publish_queues("T", route)) == ["b0", "a0", "a1"]


@pytest.mark.parametrize("text", ["b", "b:x", ":1", "b:-1", "b:99999999999999"])
def test_an_invalid_order_configuration_is_refused(text: str) -> None:
    route = topic_route()
    route.order_topic_conf = text
    with pytest.raises(RemoteProtocolError):
        publish_queues("T", route)


def test_the_number_of_queues_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="2147483647 queues"):
        publish_queues("T", topic_route(write_queue_nums=2**31 - 1))


def test_a_new_topic_gets_at_most_the_queues_of_its_template() -> None:
    template = topic_route(read_queue_nums=8, write_queue_nums=8, perm=7)
    assert len(publish_queues("N", route_for_new_topic(template, 4))) == 8
    assert len(publish_queues("N", route_for_new_topic(template, 16))) == 16
    assert template.queue_datas[0].write_queue_nums == 8


def test_the_address_of_a_broker_falls_back_to_another_id() -> None:
    addresses = {0: "m", 2: "s"}
    assert broker_address(addresses, 0) == "m"
    assert broker_address(addresses, 1) == "s"
    assert broker_address(addresses, 2) == "s"
    assert broker_address(addresses, 7) == "m"
    assert broker_address({2: "s", 1: "r"}, 0) == "r"
    assert broker_address({}, 0) is None


def test_the_rotation_skips_a_broker_that_failed() -> None:
    queues = publish_queues("T", topic_route())
    index, used = 0, []
    for _ in range(5):
        queue, index = next_queue(queues, index, None)
        used.append(queue)
    assert names(used) == ["a0", "a1", "b0", "b1", "a0"]
    queue, index = next_queue(queues, 0, "a")
    assert (names([queue]), index) == (["b0"], 3)
    queue, index = next_queue(queues[:2], 1, "a")
    assert (names([queue]), index) == (["a1"], 2)
