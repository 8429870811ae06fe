"""Allocation of queues in a group: each queue once, as by Java's strategies."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from rmqpy.client.consuming.rebalance import (
    Strategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from rmqpy.remoting.bodies import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", number) for number in range(count)]


def shares(strategy: Strategy, count: int, ids: Collection[str]) -> list[list[int]]:
    return [[each.queue_id for each in strategy(name, queues(count), ids)] for name in sorted(ids)]


def test_allocate_averagely_gives_contiguous_ranges() -> None:
    assert shares(allocate_averagely, 8, ["c", "a", "b"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(allocate_averagely, 2, ["c", "a", "b"]) == [[0], [1], []]


def test_allocate_averagely_by_circle_deals_the_queues_out() -> None:
    assert shares(allocate_averagely_by_circle, 8, ["c", "a", "b"]) == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5],
    ]


@pytest.mark.parametrize("strategy", [allocate_averagely, allocate_averagely_by_circle])
def test_each_queue_is_allocated_once(strategy: Strategy) -> None:
    for count in range(17):
        for members in range(1, 8):
            ids = [f"c{number}" for number in range(members)]
            allocated = [queue for share in shares(strategy, count, ids) for queue in share]
            assert sorted(allocated) == list(range(count))


@pytest.mark.parametrize("strategy", [allocate_averagely, allocate_averagely_by_circle])
def test_the_order_of_queues_and_members_does_not_matter(strategy: Strategy) -> None:
    backwards = list(reversed(queues(5)))
    assert strategy("b", backwards, ["b", "a", "b"]) == strategy("b", queues(5), ["a", "b"])


@pytest.mark.parametrize("strategy", [allocate_averagely, allocate_averagely_by_circle])
def test_a_client_outside_the_group_gets_no_queues(strategy: Strategy) -> None:
    assert strategy("x", queues(5), ["a"]) == []
