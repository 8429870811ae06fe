"""Positions of a stream: their JSON, and how a limit is shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.datasource.stream_offsets import (
    EARLIEST,
    LATEST,
    Position,
    limited,
    position_of,
    read_boundary,
    tree_of,
)
from rmqpy.remoting.bodies import MessageQueue


def queue(number: int) -> MessageQueue:
    return MessageQueue("topic", "broker-a", number)


def test_the_shape_is_that_of_the_old_connector() -> None:
    position = {queue(10): 7, queue(2): 0, MessageQueue("a", "b", 0): 5}
    tree = tree_of(position)
    assert tree == {"a": {"b": {"0": 5}}, "topic": {"broker-a": {"2": 0, "10": 7}}}
    assert list(tree["topic"]["broker-a"]) == ["2", "10"], "equal positions are equal texts"
    assert position_of(tree) == position


@pytest.mark.parametrize(
    "tree",
    [[], {"a": 1}, {"a": {"b": {"x": 1}}}, {"a": {"b": {"1": "2"}}}, {"a": {"b": {"1": -3}}}],
)
def test_another_shape_is_refused(tree: object) -> None:
    with pytest.raises(ConfigError, match="not have the shape"):
        position_of(tree)


def test_boundaries() -> None:
    assert read_boundary("startingOffsets", " Earliest ", LATEST).of(queue(0)) == EARLIEST
    assert read_boundary("startingOffsets", "latest", EARLIEST).of(queue(0)) == LATEST
    told = read_boundary("startingOffsets", '{"topic": {"broker-a": {"0": 9}}}', EARLIEST)
    assert (told.of(queue(0)), told.of(queue(1))) == (9, EARLIEST)


waits = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(waits, st.integers(1, 60), st.integers(0, 1000))
def test_a_limit_is_used_up_and_no_more(sizes: list[int], count: int, first: int) -> None:
    begin = {queue(number): first + number for number in range(len(sizes))}
    end = {queue(number): first + number + size for number, size in enumerate(sizes)}
    went = limited(begin, end, count)
    moved = {each: went[each] - begin[each] for each in begin}
    assert sum(moved.values()) == min(count, sum(sizes))
    assert all(0 <= moved[each] <= end[each] - begin[each] for each in begin)
    if count >= len(sizes):
        assert all(moved[each] for each in begin if end[each] > begin[each])


def test_no_queue_starves_below_the_number_of_queues() -> None:
    begin: Position = {queue(number): 0 for number in range(5)}
    end = {queue(0): 10**6} | {queue(number): 3 for number in range(1, 5)}
    now = begin
    for _ in range(10):
        now = limited(now, end, 2)
    assert all(now[queue(number)] == 3 for number in range(1, 5))
