"""Majorities, against a version that counts on its fingers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.dledger.quorum import is_quorum, quorum_index


def has_majority(count: int, member_count: int) -> bool:
    """More are for it than not."""
    return count > member_count - count


def highest_held_by_a_majority(watermarks: list[int]) -> int:
    for index in sorted(set(watermarks), reverse=True):
        if has_majority(len([mark for mark in watermarks if mark >= index]), len(watermarks)):
            return index
    raise AssertionError("somebody has the lowest")


@pytest.mark.parametrize("member_count", range(1, 12))
def test_is_quorum(member_count: int) -> None:
    for count in range(member_count + 1):
        assert is_quorum(count, member_count) == has_majority(count, member_count)


@pytest.mark.parametrize(
    ("watermarks", "index"),
    [
        ([7], 7),
        ([-1], -1),
        ([3, 9], 3),
        ([3, 9, 5], 5),
        ([3, 9, 5, 5], 5),
        ([1, 2, 3, 4], 2),
        ([0, 10, 10], 10),
        ([0, 0, 10], 0),
    ],
)
def test_known_groups(watermarks: list[int], index: int) -> None:
    assert quorum_index(watermarks) == index


@given(st.lists(st.integers(-1, 20), min_size=1, max_size=9))
def test_any_group(watermarks: list[int]) -> None:
    assert quorum_index(watermarks) == highest_held_by_a_majority(watermarks)


def test_nobody() -> None:
    with pytest.raises(AssertionError):
        quorum_index([])
