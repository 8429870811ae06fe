"""Recorded offsets, and those of the target."""

from __future__ import annotations

from rmqpy.traffic.offset_map import OffsetMap

QUEUE = ("Orders", 0)


def test_a_copy_of_the_store_keeps_all_offsets() -> None:
    offsets = OffsetMap()
    offsets.add(QUEUE, 100, 100)
    assert [offsets.get(QUEUE, each) for each in (3, 100, 101)] == [3, 100, 101]


def test_a_new_broker_has_nothing_from_before_the_recording() -> None:
    offsets = OffsetMap()
    offsets.add(QUEUE, 100, 0)
    offsets.add(QUEUE, 102, 1)
    offsets.add(QUEUE, 101, 2)
    assert [offsets.get(QUEUE, each) for each in (99, 100, 101, 102)] == [None, 0, 2, 1]
    assert offsets.get(("Orders", 1), 7) == 7
