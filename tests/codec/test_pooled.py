"""The units of queues as one sum: C and Python compute the same, and any change of a unit shows."""

from __future__ import annotations

import struct

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec.layout import QUEUE_FILLER_SIZE
from rmqpy.codec.tally import backend
from rmqpy.codec.tally.backend import pool_units
from rmqpy.codec.tally.kernel import queue_digest
from rmqpy.codec.tally.pooled import PooledUnits, pool_units_in_python

NUMBERS = st.integers(0, 40) | st.integers(-(1 << 63), (1 << 63) - 1)
SIZES = st.sampled_from([0, 91, QUEUE_FILLER_SIZE]) | st.integers(0, (1 << 31) - 1)
Unit = tuple[int, int, int]


def packed(units: list[Unit]) -> memoryview:
    return memoryview(b"".join(struct.pack(">qiq", *unit) for unit in units))


@given(
    st.lists(st.tuples(NUMBERS, SIZES, NUMBERS), max_size=20),
    st.integers(0, 1 << 40),
    st.booleans(),
    st.integers(0, 20),
    st.integers(20, 60),
    st.integers(0, 19),
)
def test_both_versions_pool_units_alike(
    units: list[Unit], number: int, any_tags: bool, low: int, high: int, cut: int
) -> None:
    queue = queue_digest(b"topic", 3)
    one = PooledUnits(queue=queue, any_tags=any_tags, low=low, high=high)
    two = evolve(one)
    view = packed(units)
    view = view[: max(len(view) - cut, 0)]
    assert pool_units(view, number, one) == pool_units_in_python(view, number, two)
    assert one == two


@given(st.binary(max_size=40), st.integers(-(1 << 31), (1 << 31) - 1))
def test_both_versions_hash_a_queue_alike(topic: bytes, queue_id: int) -> None:
    assert backend.queue_digest(topic, queue_id) == queue_digest(topic, queue_id)


@given(st.integers(0, 9), st.integers(0, 159))
def test_a_flipped_bit_changes_the_sum_or_the_order(row: int, bit: int) -> None:
    units = [(1000 + 100 * number, 100, number) for number in range(10)]
    data = bytearray(packed(units))
    right = PooledUnits(queue=queue_digest(b"topic", 0))
    assert pool_units(memoryview(bytes(data)), 5, right) == len(data)
    assert (right.count, right.first, right.irregular) == (10, 5, False)
    data[20 * row + bit // 8] ^= 1 << bit % 8
    wrong = PooledUnits(queue=queue_digest(b"topic", 0))
    pool_units(memoryview(bytes(data)), 5, wrong)
    assert wrong.irregular or (wrong.count, wrong.sum) != (right.count, right.sum)


def test_units_of_another_queue_or_order_have_another_sum() -> None:
    units = [(1000 + 100 * number, 100, number) for number in range(10)]
    sums = set()
    for topic, queue_id, rows in (
        (b"topic", 0, units),
        (b"topic", 1, units),
        (b"topid", 0, units),
        (b"topic", 0, [*units[1:], units[0]]),
        (b"topic", 0, [*units[:8], units[9], units[8]]),
    ):
        found = PooledUnits(queue=queue_digest(topic, queue_id))
        pool_units(packed(rows), 0, found)
        sums.add(found.sum)
    assert len(sums) == 5
