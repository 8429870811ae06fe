"""The leader's search for the last entry that it shares with a follower."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.dledger.replication import IndexRange, MatchSearch, PeerState, next_comparison

LAST = 6
Step = tuple[int, MatchSearch]


def following(step: Step) -> Iterator[Step]:
    """Yield the comparisons that may follow, for every answer that a follower can give."""
    index, search = step
    for begin in range(LAST + 1):
        for end in range(begin, LAST + 1):
            for equal in (True, False):
                leader, follower = IndexRange(0, LAST), IndexRange(begin, end)
                state, index_, search_ = next_comparison(index, equal, search, leader, follower)
                if state is PeerState.COMPARE:
                    yield index_, search_


def test_the_comparisons_end_whatever_a_follower_answers() -> None:
    ended: set[Step] = set()
    path: dict[Step, Iterator[Step]] = {(LAST, MatchSearch()): following((LAST, MatchSearch()))}
    while path:
        last = next(reversed(path))
        for step in path[last]:
            assert step not in path, f"{step} leads to itself: {list(path)}"
            if step not in ended:
                path[step] = following(step)
                break
        else:
            ended.add(last)
            del path[last]
    assert len(ended) > LAST
