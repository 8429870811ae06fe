"""Tests of quorum arithmetic against a naive version."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rmqpy.dledger.quorum import is_quorum, quorum_index

watermarks = st.lists(st.integers(-1, 50), min_size=1, max_size=9)


def test_the_smallest_quorums() -> None:
    smallest = {n: next(c for c in range(n + 2) if is_quorum(c, n)) for n in range(1, 8)}
    assert smallest == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4}


@given(st.integers(1, 99), st.integers(0, 99))
def test_two_majorities_share_a_member(members: int, count: int) -> None:
    assert is_quorum(count, members) == (2 * count > members)


@given(watermarks)
def test_the_index_is_the_highest_that_a_majority_has(marks: list[int]) -> None:
    def have(index: int) -> int:
        return sum(1 for mark in marks if mark >= index)

    reached = quorum_index(marks)
    naive = max(index for index in range(-1, 51) if is_quorum(have(index), len(marks)))
    assert reached == naive


@given(watermarks, st.data())
def test_it_never_falls_when_a_watermark_grows(marks: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(marks) - 1))
    grown = list(marks)
    grown[number] += data.draw(st.integers(0, 20))
    assert quorum_index(grown) >= quorum_index(marks)


@given(watermarks, st.randoms())
def test_the_order_of_the_members_does_not_matter(marks: list[int], random: Random) -> None:
    shuffled = list(marks)
    random.shuffle(shuffled)
    assert quorum_index(shuffled) == quorum_index(marks)
