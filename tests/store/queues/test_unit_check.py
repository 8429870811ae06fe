"""Tests of consume queue units that do not lead to their messages: a pull skips and records them,
and the next start rebuilds them, whether the stop was clean or not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from harness.store import MemoryRig, entries_of, read_all

from rmqpy.codec.message import decode_message
from rmqpy.model.codes import GetMessageStatus
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.message_store import MessageStore

COUNT = 24
"""The number of messages: 12 in each of two queues."""
UNIT = 20
FILE_SIZE = 4096
QUEUE = "consumequeue/Topic/0/00000000000000000000"
REBUILDS = "rmqpy/queue-rebuilds"

Place = tuple[int, int]
"""Offset and size in a unit."""

DAMAGES: dict[str, Callable[[int, int, Place], Place]] = {
    "size one more": lambda offset, size, other: (offset, size + 1),
    "size one less": lambda offset, size, other: (offset, size - 1),
    "size zero": lambda offset, size, other: (offset, 0),
    "size negative": lambda offset, size, other: (offset, -size),
    "size beyond the log": lambda offset, size, other: (offset, 0x7FFFFFFE),
    "offset in a message": lambda offset, size, other: (offset + 4, size),
    "offset after the log": lambda offset, size, other: (offset + (1 << 40), size),
    "offset negative": lambda offset, size, other: (-offset - 1, size),
    "message of another queue": lambda offset, size, other: other,
}


@pytest.fixture(params=[False, True], ids=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=request.param)


def filled(rig: MemoryRig) -> MessageStore:
    store = rig.open()
    for number in range(COUNT):
        rig.put(store, number)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    return store


def damage(rig: MemoryRig, store: MessageStore, how: str, *queue_offsets: int) -> None:
    """Damage units of queue 0."""
    for number in queue_offsets:
        offset, size, _ = store.reader.queue_units("Topic", 0, number, 1)[0]
        other = store.reader.queue_units("Topic", 1, number, 1)[0][:2]
        place = DAMAGES[how](offset, size, other)
        unit = place[0].to_bytes(8, signed=True) + place[1].to_bytes(4, signed=True)
        rig.edit(QUEUE, number * UNIT, unit)


def pulled(
    store: MessageStore, offset: int, count: int = 32
) -> tuple[GetMessageStatus, list[int], int]:
    """Pull from queue 0 and return status, queue offsets, and the next offset."""
    page = store.reader.get_message("Topic", 0, offset, count, None)
    found = [int(decode_message(message).queue_offset) for message in page.messages]
    return page.status, found, page.next_begin_offset


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_a_pull_skips_a_damaged_unit(rig: MemoryRig, how: str) -> None:
    store = filled(rig)
    expected = read_all(store)
    damage(rig, store, how, 5, 11)
    status, found, following = pulled(store, 0)
    assert status is GetMessageStatus.FOUND
    if following == 5:
        # The unit has a size larger than the rest of the page, and starts the next one.
        found += pulled(store, 5)[1]
    assert found == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert pulled(store, 5, 1) == (GetMessageStatus.FOUND, [6], 7)
    assert pulled(store, 11) == (GetMessageStatus.MESSAGE_WAS_REMOVING, [], 12)
    assert store.runtime_info()["queuesToBuildAgain"] == "1"
    assert rig.tree()[REBUILDS] == b'{"Topic": {"0": 5}}'
    store.shutdown()
    store = rig.open()
    assert any("queue offset 5" in note for note in store.opened.notes)
    assert read_all(store) == expected
    store.shutdown()
    assert REBUILDS not in rig.tree()
    store = rig.open()
    assert "queuesToBuildAgain" not in store.runtime_info()
    assert read_all(store) == expected
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_units_are_rebuilt_after_a_kill(rig: MemoryRig, how: str) -> None:
    """Units before the recorded one are damaged too, and the first start is killed."""
    store = filled(rig)
    expected = read_all(store)
    damage(rig, store, how, 6, 7, 8)
    assert pulled(store, 8)[1] == [9, 10, 11]
    rig = rig.after_end("kill")
    rig.open().close_without_flush()
    rig = rig.after_end("kill")
    assert rig.tree()[REBUILDS] == b'{"Topic": {"0": 8}}'
    store = rig.open()
    assert read_all(store) == expected
    assert pulled(store, 0)[1] == list(range(12))
    store.shutdown()
    assert REBUILDS not in rig.tree()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_unit_has_no_time(rig: MemoryRig, how: str) -> None:
    store = filled(rig)
    times = [store.reader.store_timestamp_at("Topic", 0, number) for number in range(12)]
    damage(rig, store, how, 5)
    assert store.reader.store_timestamp_at("Topic", 0, 5) == -1
    for number in (0, 3, 7, 11):
        assert store.reader.offset_by_time("Topic", 0, times[number]) == number
    store.shutdown()


def test_a_damaged_first_unit_is_rebuilt(rig: MemoryRig) -> None:
    store = filled(rig)
    expected = read_all(store)
    damage(rig, store, "size one more", 0)
    assert pulled(store, 0)[1] == list(range(1, 12))
    store.shutdown()
    store = rig.open()
    assert read_all(store) == expected
    store.shutdown()


def is_disk_full(store: MessageStore) -> bool:
    return store.health.disk_full_reason is not None


def test_a_damaged_unit_is_recorded_as_soon_as_the_disk_has_space(rig: MemoryRig) -> None:
    """On a full disk the pull continues; the next one that reads the unit records it."""
    store = filled(rig)
    damage(rig, store, "size one more", 5)
    rig.files.fail_write("queue-rebuilds", errno.ENOSPC)
    assert pulled(store, 5)[1] == [6, 7, 8, 9, 10, 11]
    assert is_disk_full(store) and "queuesToBuildAgain" not in store.runtime_info()
    rig.files.heal()
    store.dispatch()
    assert pulled(store, 5)[1] == [6, 7, 8, 9, 10, 11]
    assert not is_disk_full(store) and store.runtime_info()["queuesToBuildAgain"] == "1"
    store.shutdown()


def test_an_unreadable_record_of_damaged_units_is_ignored(rig: MemoryRig) -> None:
    store = filled(rig)
    expected = read_all(store)
    store.shutdown()
    rig.files.put(f"{rig.root}/{REBUILDS}", b'{"Topic": 5')
    store = rig.open()
    assert read_all(store) == expected
    store.shutdown()


@pytest.mark.parametrize("place", [3, 87])
def test_a_pull_waits_for_a_damaged_message_that_another_member_has(
    make_rig: type[MemoryRig], place: int
) -> None:
    """The record (its size, that of its body) is damaged, not the unit."""
    rig = make_rig(flag=True)
    store = filled(rig)
    offset = store.reader.queue_units("Topic", 0, 5, 1)[0][0]
    path = f"dledger-n0/data/{offset - offset % FILE_SIZE:020d}"
    node = rig.files.nodes[f"/store/{path}"]
    node.data[offset % FILE_SIZE + place] ^= 1
    assert pulled(store, 0)[1] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    reported: list[int] = []

    def on_damage(fault: CorruptEntryError) -> bool:
        reported.append(fault.index)
        return True

    entries_of(store).subscribe(damaged=on_damage)
    assert pulled(store, 0)[1:] == ([0, 1, 2, 3, 4], 5)
    assert pulled(store, 5)[1:] == ([], 5)
    assert len(reported) == 2 and len(set(reported)) == 1
    node.data[offset % FILE_SIZE + place] ^= 1
    assert pulled(store, 5)[1] == [5, 6, 7, 8, 9, 10, 11]
    store.close_without_flush()
