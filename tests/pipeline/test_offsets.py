"""The positions of a stream: their JSON, and the distribution of a limit over queues."""

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
    read_times,
    tree_of,
)
from rmqpy.remoting.bodies import MessageQueue


def queue(number: int) -> MessageQueue:
    return MessageQueue("topic", "broker-a", number)


def test_positions_have_the_json_of_the_old_connector() -> None:
    position = {queue(10): 7, queue(2): 0, MessageQueue("a", "b", 0): 5}
    tree = tree_of(position)
    assert tree == {"a": {"b": {"0": 5}}, "topic": {"broker-a": {"2": 0, "10": 7}}}
    assert list(tree["topic"]["broker-a"]) == ["2", "10"], "equal positions have equal texts"
    assert position_of(tree) == position


@pytest.mark.parametrize(
    "tree",
    [[], {"a": 1}, {"a": {"b": {"x": 1}}}, {"a": {"b": {"1": "2"}}}, {"a": {"b": {"1": -3}}}],
)
def test_another_shape_is_refused(tree: object) -> None:
    with pytest.raises(ConfigError, match="not have the shape"):
        position_of(tree)


def test_boundaries_are_names_or_positions() -> None:
    assert read_boundary("startingOffsets", " Earliest ", LATEST).of(queue(0)) == EARLIEST
    assert read_boundary("startingOffsets", "latest", EARLIEST).of(queue(0)) == LATEST
    given = read_boundary("startingOffsets", '{"topic": {"broker-a": {"0": 9}}}', EARLIEST)
    assert (given.of(queue(0)), given.of(queue(1))) == (9, EARLIEST)


def test_offsets_may_have_the_shape_of_kafka() -> None:
    given = read_boundary("startingOffsets", '{"topic": {"0": 9, "1": -1}}', EARLIEST)
    assert [given.of(queue(number)) for number in range(3)] == [9, LATEST, EARLIEST]
    given.check([queue(0), queue(1), MessageQueue("other", "broker-b", 0)])
    with pytest.raises(ConfigError, match="brokers broker-a, broker-b, expected one"):
        given.check([queue(1), MessageQueue("topic", "broker-b", 1)])
    times = read_times("startingOffsetsByTimestamp", '{"topic": {"1": 5}}', LATEST)
    assert (times.time_of(queue(0)), times.of(queue(0))) == (None, LATEST)
    assert times.time_of(queue(1)) == 5
    for text in ('{"topic": {"1": -1}}', '{"topic": 1}', "1", '{"topic": {"1": true}}'):
        with pytest.raises(ConfigError, match="not have the shape"):
            read_times("startingOffsetsByTimestamp", text, LATEST)


ranges = st.dictionaries(
    st.integers(0, 9).map(queue), st.tuples(st.integers(0, 99), st.integers(0, 20_000)), max_size=9
)


@given(ranges, st.none() | st.integers(1, 9_000), st.none() | st.integers(1, 40))
def test_parts_have_each_offset_once_and_keep_their_limits(
    sizes: dict[MessageQueue, tuple[int, int]], count_max: int | None, parts_min: int | None
) -> None:
    pytest.importorskip("pyarrow")
    from rmqpy.pipeline.datasource.queue_parts import PACKED_OFFSETS, PartSizes, queue_parts

    begin = {each: first for each, (first, _) in sizes.items()}
    end = {each: first + size for each, (first, size) in sizes.items()}
    total = sum(size for _, size in sizes.values())
    if (total // count_max if count_max else 0) > 5_000:
        count_max = None
    parts = list(queue_parts(begin, end, PartSizes(count_max=count_max, parts_min=parts_min)))
    assert len(parts) >= min(parts_min or 0, total)
    for each in sizes:
        own = [one for part in parts for one in part if one.queue == each]
        edges = [begin[each], *(one.end for one in own)]
        assert [one.begin for one in own] == edges[:-1] and edges[-1] == end[each]
    for part in parts:
        count = sum(one.end - one.begin for one in part)
        assert 0 < count <= (count_max or total)
        assert len(part) == 1 or count <= PACKED_OFFSETS


backlogs = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(backlogs, st.integers(1, 60), st.integers(0, 1000))
def test_a_limit_is_used_up_and_not_exceeded(sizes: list[int], count: int, first: int) -> None:
    start = {queue(number): first + number for number in range(len(sizes))}
    end = {queue(number): first + number + size for number, size in enumerate(sizes)}
    reached = limited(start, end, count)
    moved = {each: reached[each] - start[each] for each in start}
    assert sum(moved.values()) == min(count, sum(sizes))
    assert all(0 <= moved[each] <= end[each] - start[each] for each in start)
    if count >= len(sizes):
        assert all(moved[each] for each in start if end[each] > start[each])


def test_no_queue_starves_if_the_limit_is_below_the_number_of_queues() -> None:
    position: Position = {queue(number): 0 for number in range(5)}
    end = {queue(0): 10**6} | {queue(number): 3 for number in range(1, 5)}
    for _ in range(10):
        position = limited(position, end, 2)
    assert all(position[queue(number)] == 3 for number in range(1, 5))
