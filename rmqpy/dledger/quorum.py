"""The arithmetic of majorities. No other module repeats it."""

from __future__ import annotations

from collections.abc import Collection


def is_quorum(count: int, member_count: int) -> bool:
    """Return whether ``count`` of ``member_count`` members are a majority."""
    return count >= member_count // 2 + 1


def quorum_index(watermarks: Collection[int]) -> int:
    """Return the highest index that a majority has, given each member's highest index."""
    assert watermarks, "a group has at least one member"
    return sorted(watermarks, reverse=True)[len(watermarks) // 2]
