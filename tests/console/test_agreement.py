"""What is compared of the logs of replicas, in which order, and how long that is believed."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest

from rmqpy.console.agreement import UNITS_MAX, LogAgreement, LogExtent
from rmqpy.ha.compare import DIGEST_SIZE, SPAN_MAX, CompareRange

MIB = 1 << 20
HOUR_MS = 3_600_000
NAMES = ("n0", "n1", "n2")


def observed(
    end: int, begin: int = 0, life: str = "1", names: tuple[str, ...] = NAMES
) -> LogAgreement:
    found = LogAgreement()
    see(found, end, begin, life, names)
    return found


def see(
    found: LogAgreement, end: int, begin: int = 0, life: str = "1", names: tuple[str, ...] = NAMES
) -> None:
    found.observe({name: LogExtent(begin, end, life) for name in names})


def digests_of(span: CompareRange, damage: int = -1) -> bytes:
    """Return digests of the blocks of a log, one byte of which may be damaged."""
    return b"".join(
        hashlib.blake2b(b"%d %d" % (begin, begin <= damage < end), digest_size=DIGEST_SIZE).digest()
        for begin, end in span.blocks
    )


def compare(found: LogAgreement, now_ms: int = 0, **damage: int) -> list[tuple[int, int]]:
    """Compare until there is nothing to do, and return the ranges."""
    ranges: list[tuple[int, int]] = []
    while (span := found.next(now_ms)) is not None:
        assert span.end - span.begin <= SPAN_MAX and len(ranges) <= UNITS_MAX
        ranges.append((span.begin, span.end))
        answers = {name: digests_of(span, damage.get(name, -1)) for name in found.replicas}
        found.take(span, answers, now_ms)
    return ranges


def test_a_short_log_is_compared_completely_the_newest_part_first() -> None:
    found = observed(4 * MIB + 5)
    ranges = compare(found)
    assert ranges[0] == (4 * MIB, 4 * MIB + 5) and ranges[1] == (0, MIB)
    ordered = sorted(ranges)
    assert all(before[1] == after[0] for before, after in pairwise(ordered))
    assert (ordered[0][0], ordered[-1][1]) == (0, 4 * MIB + 5)
    assert found.differences() == [] and {*found.blocks_of("n0").values()} == {("", MIB), ("", 5)}


def test_a_long_log_is_compared_in_spread_samples() -> None:
    found = observed(1 << 40)
    ranges = sorted(compare(found))
    gaps = {after[0] - before[0] for before, after in pairwise(ranges)}
    assert UNITS_MAX // 2 <= len(ranges) <= UNITS_MAX and len(gaps) == 1


@pytest.mark.parametrize("place", [0, 3 * MIB + 70_000, 4 * MIB + 4])
def test_a_different_block_is_found_and_so_is_its_replica(place: int) -> None:
    found = observed(4 * MIB + 5)
    compare(found, n1=place)
    (block,) = found.differences()
    assert block.offset <= place < block.offset + MIB // 64 and block.replicas == {"n1"}


def test_of_two_replicas_neither_is_blamed() -> None:
    found = observed(MIB, names=("n0", "n1"))
    compare(found, n1=5)
    (block,) = found.differences()
    assert (block.offset, block.size, block.replicas) == (0, MIB // 64, frozenset())


def test_a_full_range_is_compared_again_after_an_hour() -> None:
    found = observed(2 * MIB)
    assert len(compare(found)) == 2
    assert compare(found, HOUR_MS - 1) == []
    assert sorted(compare(found, HOUR_MS, n2=MIB)) == [(0, MIB), (MIB, 2 * MIB)]
    assert [each.replicas for each in found.differences()] == [{"n2"}]


def test_the_end_of_a_log_that_grows_is_compared_again_after_a_while() -> None:
    found = observed(MIB + 10)
    compare(found)
    see(found, MIB + 20)
    assert compare(found, 29_999) == [] and compare(found, 30_000) == [(MIB, MIB + 20)]
    see(found, 2 * MIB + 1)
    assert compare(found, 30_000) == [(2 * MIB, 2 * MIB + 1)]


@pytest.mark.parametrize(
    ("end", "begin", "life", "names", "again"),
    [
        (2 * MIB, 0, "2", NAMES, [(0, MIB), (MIB, 2 * MIB)]),  # started again
        (2 * MIB, 0, "1", ("n0", "n1"), [(0, MIB), (MIB, 2 * MIB)]),  # one left
        (2 * MIB - 5, 0, "1", NAMES, [(MIB, 2 * MIB - 5)]),  # cut
        (2 * MIB, MIB, "1", NAMES, []),  # expired
    ],
)
def test_what_may_have_changed_is_forgotten(
    end: int, begin: int, life: str, names: tuple[str, ...], again: list[tuple[int, int]]
) -> None:
    found = observed(2 * MIB)
    compare(found, n1=5)
    see(found, end, begin, life, names)
    assert sorted(compare(found)) == again


@pytest.mark.parametrize(
    ("end", "begin", "names"), [(0, 0, NAMES), (5, 5, NAMES), (5, 9, NAMES), (5, 0, ("n0",))]
)
def test_nothing_in_common_is_nothing_to_compare(
    end: int, begin: int, names: tuple[str, ...]
) -> None:
    assert observed(end, begin, names=names).next(0) is None


def test_a_malformed_answer_is_refused() -> None:
    found = observed(MIB)
    span = found.next(0)
    assert span is not None
    good = digests_of(span)
    with pytest.raises(ValueError, match="from n1, expected 1024"):
        found.take(span, {"n0": good, "n1": good[:-1], "n2": good}, 0)
    found.fail("n1 is odd", 0)
    assert found.next(29_999) is None and found.next(30_000) == span


def test_answers_of_another_group_are_not_taken() -> None:
    found = observed(MIB)
    span = found.next(0)
    assert span is not None
    see(found, MIB, names=("n0", "n3"))
    found.take(span, dict.fromkeys(NAMES, digests_of(span)), 0)
    assert found.compared == []
