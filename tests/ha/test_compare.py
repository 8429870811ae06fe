"""Tests of the search for the first difference of two logs, against a plain comparison."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqpy.ha.compare import (
    BLOCKS_MAX,
    DIGEST_SIZE,
    PROBE_BYTES,
    SPAN_MAX,
    CompareRange,
    DivergenceSearch,
    digests,
)


def reader(log: bytes) -> Callable[[int, int], bytes]:
    """Return a function that reads ``size`` bytes of a log at an offset."""
    return lambda offset, size: log[offset : offset + size]


def search(ours: bytes, theirs: bytes, begin: int = 0) -> tuple[int | None, int]:
    """Return the first differing offset and the number of answers that the search took."""
    found = DivergenceSearch(begin, min(len(ours), len(theirs)), reader(ours))
    answers = 0
    while found.requested is not None:
        found.take(digests(found.requested, reader(theirs)))
        answers += 1
        assert answers < 80
    return found.parted, answers


MEGABYTES = random.Random(1).randbytes(5 << 20)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, len(MEGABYTES)), st.integers(0, len(MEGABYTES)), st.integers(0, len(MEGABYTES))
)
@example(1172038, 127524, 1470)  # The difference is in the first of the smaller blocks.
def test_the_first_differing_byte_is_found(end: int, place: int, begin: int) -> None:
    begin = min(begin, end)
    parted = begin + place % (end - begin) if end > begin else None
    ours = MEGABYTES[:end]
    theirs = ours
    if parted is not None:
        theirs = ours[:parted] + bytes(byte ^ 0xFF for byte in ours[parted:])
    assert search(ours, theirs, begin)[0] == parted


def test_equal_logs_take_one_answer() -> None:
    assert search(MEGABYTES, MEGABYTES) == (None, 1)
    assert search(MEGABYTES[: SPAN_MAX + 7], MEGABYTES) == (None, 1)
    assert search(b"", MEGABYTES) == (None, 0)


def test_a_difference_of_one_byte_in_the_tail_is_found() -> None:
    place = len(MEGABYTES) - 5
    other = bytearray(MEGABYTES)
    other[place] ^= 1
    assert search(MEGABYTES, bytes(other))[0] == place


def test_a_log_of_terabytes_takes_few_answers() -> None:
    parted = (1 << 41) + 12_345

    def ours(offset: int, size: int) -> bytes:
        return bytes(size)

    def theirs(offset: int, size: int) -> bytes:
        return bytes(1 if offset + i >= parted else 0 for i in range(size))

    found = DivergenceSearch(1 << 30, 1 << 42, ours)
    answers = 0
    while found.requested is not None:
        found.take(digests(found.requested, theirs))
        answers += 1
    assert found.parted == parted
    assert answers < 40


@pytest.mark.parametrize(
    "span", [(-1, 5, 1), (5, 5, 1), (0, SPAN_MAX + 1, SPAN_MAX), (0, BLOCKS_MAX + 1, 1), (0, 9, 0)]
)
def test_spans_are_bounded(span: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        CompareRange(*span)


def test_an_answer_of_the_wrong_length_is_refused() -> None:
    found = DivergenceSearch(0, 10, reader(bytes(10)))
    with pytest.raises(ValueError):
        found.take(bytes(DIGEST_SIZE))
    assert PROBE_BYTES < SPAN_MAX
