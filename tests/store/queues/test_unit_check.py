"""A consume queue unit that does not lead to its message: stepped over, told of, and made again by
the next start, whether the stop was clean or not.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from harness.store import MemoryRig, entries_of, read_all

from rmqpy.codec.message import decode_message
from rmqpy.model.codes import GetMessageStatus
from rmqpy.store.message_store import MessageStore

COUNT = 24
"""12 messages in each of two queues."""
UNIT = 20
FILE_SIZE = 4096
QUEUE = "consumequeue/Topic/0/00000000000000000000"
REBUILDS = "rmqpy/queue-rebuilds"

DAMAGES: dict[str, Any] = {
    "size one more": lambda offset, size, other: (offset, size + 1),
    "size one less": lambda offset, size, other: (offset, size - 1),
    "size zero": lambda offset, size, other: (offset, 0),
    "size negative": lambda offset, size, other: (offset, -size),
    "size beyond all": lambda offset, size, other: (offset, 0x7FFFFFFE),
    "offset in a message": lambda offset, size, other: (offset + 4, size),
    "offset behind the log": lambda offset, size, other: (offset + (1 << 40), size),
    "offset negative": lambda offset, size, other: (-offset - 1, size),
    "message of another queue": lambda offset, size, other: other,
}


@pytest.fixture(params=[False, True], ids=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=request.param)


def filled(rig: MemoryRig) -> Any:
    store = rig.open()
    for number in range(COUNT):
        rig.put(store, number)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    return store


def damage(rig: MemoryRig, store: MessageStore, how: str, *queue_offsets: int) -> None:
    for number in queue_offsets:
        offset, size, _ = store.reader.queue_units("Topic", 0, number, 1)[0]
        other = store.reader.queue_units("Topic", 1, number, 1)[0][:2]
        place = DAMAGES[how](offset, size, other)
        unit = place[0].to_bytes(8, signed=True) + place[1].to_bytes(4, signed=True)
        rig.edit(QUEUE, number * UNIT, unit)


def pulled(store: MessageStore, offset: int, count: int = 32) -> tuple[Any, list[int], int]:
    page = store.reader.get_message("Topic", 0, offset, count, None)
    found = [decode_message(message).queue_offset for message in page.messages]
    return page.status, found, page.next_begin_offset


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_the_pull_goes_on(rig: MemoryRig, how: str) -> None:
    store = filled(rig)
    whole = read_all(store)
    damage(rig, store, how, 5, 11)
    status, found, following = pulled(store, 0)
    assert status is GetMessageStatus.FOUND
    if following == 5:
        # It claims more bytes than a page has room for, and begins the next one.
        found += pulled(store, 5)[1]
    assert found == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert pulled(store, 5, 1) == (GetMessageStatus.FOUND, [6], 7)
    assert pulled(store, 11) == (GetMessageStatus.MESSAGE_WAS_REMOVING, [], 12)
    assert store.runtime_info()["queuesToBuildAgain"] == "1"
    assert rig.tree()[REBUILDS] == b'{"Topic": {"0": 5}}'
    store.shutdown()
    store = rig.open()
    assert any("queue offset 5" in note for note in store.opened.notes)
    assert read_all(store) == whole
    store.shutdown()
    assert REBUILDS not in rig.tree()
    store = rig.open()
    assert "queuesToBuildAgain" not in store.runtime_info()
    assert read_all(store) == whole
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
def test_after_a_kill(rig: MemoryRig, how: str) -> None:
    """Units in front of the one that was met are wrong, too; the start is killed once more."""
    store = filled(rig)
    whole = read_all(store)
    damage(rig, store, how, 6, 7, 8)
    assert pulled(store, 8)[1] == [9, 10, 11]
    rig = rig.after(rig.files.kill())
    rig.open().close_without_flush()
    rig = rig.after(rig.files.kill())
    assert rig.tree()[REBUILDS] == b'{"Topic": {"0": 8}}'
    store = rig.open()
    assert read_all(store) == whole
    assert pulled(store, 0)[1] == list(range(12))
    store.shutdown()
    assert REBUILDS not in rig.tree()


@pytest.mark.parametrize("how", DAMAGES)
def test_no_time_is_read_from_another_place(rig: MemoryRig, how: str) -> None:
    store = filled(rig)
    times = [store.reader.store_timestamp_at("Topic", 0, number) for number in range(12)]
    damage(rig, store, how, 5)
    assert store.reader.store_timestamp_at("Topic", 0, 5) == -1
    for number in (0, 3, 7, 11):
        assert store.reader.offset_by_time("Topic", 0, times[number]) == number
    store.shutdown()


def test_the_first_unit(rig: MemoryRig) -> None:
    store = filled(rig)
    whole = read_all(store)
    damage(rig, store, "size one more", 0)
    assert pulled(store, 0)[1] == list(range(1, 12))
    store.shutdown()
    store = rig.open()
    assert read_all(store) == whole
    store.shutdown()


def test_what_cannot_be_noted_is_noted_later(rig: MemoryRig) -> None:
    """A full disk: the pull goes on, and the next one that meets the unit keeps it."""
    store = filled(rig)
    damage(rig, store, "size one more", 5)
    rig.files.fail_write("queue-rebuilds", errno.ENOSPC)
    assert pulled(store, 5)[1] == [6, 7, 8, 9, 10, 11]
    assert (
        store.health.disk_full_reason is not None
        and "queuesToBuildAgain" not in store.runtime_info()
    )
    rig.files.heal()
    store.dispatch()
    assert pulled(store, 5)[1] == [6, 7, 8, 9, 10, 11]
    assert (
        store.health.disk_full_reason is None and store.runtime_info()["queuesToBuildAgain"] == "1"
    )
    store.shutdown()


def test_a_file_that_cannot_be_read_is_none(rig: MemoryRig) -> None:
    store = filled(rig)
    whole = read_all(store)
    store.shutdown()
    rig.files.put(f"{rig.root}/{REBUILDS}", b'{"Topic": 5')
    store = rig.open()
    assert read_all(store) == whole
    store.shutdown()


@pytest.mark.parametrize("place", [3, 87])
def test_nobody_steps_over_a_message_that_another_member_will_send_again(
    make_rig: type[MemoryRig], place: int
) -> None:
    """Damaged is the record (its size, that of its body), not the unit."""
    rig = make_rig(flag=True)
    store = filled(rig)
    offset = store.reader.queue_units("Topic", 0, 5, 1)[0][0]
    path = f"dledger-n0/data/{offset - offset % FILE_SIZE:020d}"
    node = rig.files.nodes[f"/store/{path}"]
    node.data[offset % FILE_SIZE + place] ^= 1
    assert pulled(store, 0)[1] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    told: list[int] = []
    entries_of(store).on_damage = lambda fault: told.append(fault.index) or True
    assert pulled(store, 0)[1:] == ([0, 1, 2, 3, 4], 5)
    assert pulled(store, 5)[1:] == ([], 5)
    assert len(told) == 2 and len(set(told)) == 1
    node.data[offset % FILE_SIZE + place] ^= 1
    assert pulled(store, 5)[1] == [5, 6, 7, 8, 9, 10, 11]
    store.close_without_flush()
