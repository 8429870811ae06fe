"""Tests of incomplete consume queues and index files: they are rebuilt, never served."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from harness.store import MemoryRig, read_all

from rmqpy.codec.layout import QUEUE_FILLER_SIZE
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.errors import StoreError
from rmqpy.store.message_store import MessageStore
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.testing.memory_files import MemoryFiles

QUEUE = "consumequeue/Topic/1"


def filled(
    make_rig: type[MemoryRig], count: int = 100
) -> tuple[MemoryRig, dict[tuple[str, int], list[bytes]]]:
    """Return a cleanly stopped store and its records by queue."""
    rig = make_rig()
    store = rig.open()
    for number in range(count):
        rig.put(store, number)
    found = read_all(store)
    store.shutdown()
    return rig, found


def cut(rig: MemoryRig, path: str, size: int) -> None:
    """Truncate a file."""
    content = rig.files.read_bytes(f"{rig.root}/{path}")
    rig.files.unlink(f"{rig.root}/{path}")
    rig.files.put(f"{rig.root}/{path}", content[:size])


def files_of(rig: MemoryRig, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in rig.files.list_dir(f"{rig.root}/{folder}")]


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("size", [7, 200, 399])
def test_a_truncated_queue_file_is_rebuilt(
    make_rig: type[MemoryRig], which: int, size: int
) -> None:
    rig, found = filled(make_rig)
    path = files_of(rig, QUEUE)[which]
    cut(rig, path, size)
    store = rig.open()
    assert read_all(store) == found
    assert any(f"{QUEUE} is incomplete" in note for note in store.opened.notes)
    kept = f"{rig.root}/rmqpy/quarantine/consumequeue-Topic-1/{path.rpartition('/')[2]}"
    assert rig.files.size_of(kept) == size
    store.shutdown()
    assert read_all(rig.open()) == found


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_missing_first_file_of_a_queue_is_rebuilt(
    make_rig: type[MemoryRig], count: int, clean: bool, flag: bool
) -> None:
    """It is not taken for one that cleaning has removed: the log has the messages in it."""
    rig = make_rig(flag=flag)
    store = rig.open()
    for number in range(100):
        rig.put(store, number)
    found = read_all(store)
    store.shutdown()
    for path in files_of(rig, QUEUE)[:count]:
        rig.files.unlink(f"{rig.root}/{path}")
    if not clean:
        rig.files.put(f"{rig.root}/abort", b"")
    store = rig.open()
    assert read_all(store) == found
    assert any(f"{QUEUE} is incomplete" in note for note in store.opened.notes)
    store.shutdown()
    store = rig.open()
    assert read_all(store) == found and not any("incomplete" in n for n in store.opened.notes)


def test_a_queue_that_was_cleaned_is_not_rebuilt(make_rig: type[MemoryRig]) -> None:
    """Whatever remains of the log, and wherever its start falls in the files of the queue."""
    rig, _ = filled(make_rig)
    log_files = files_of(rig, "commitlog")
    for path in log_files[:-1]:
        rig.files.unlink(f"{rig.root}/{path}")
        low = int(files_of(rig, "commitlog")[0].rpartition("/")[2])
        for name in ("0", "1"):
            folder = f"consumequeue/Topic/{name}"
            for queue_file in files_of(rig, folder)[:-1]:
                last = rig.files.read_bytes(f"{rig.root}/{queue_file}")[-20:]
                if int.from_bytes(last[:8]) >= low:
                    break
                rig.files.unlink(f"{rig.root}/{queue_file}")
        rig.files.put(f"{rig.root}/rmqpy/.keep", b"")
        store = rig.open()
        assert not any("incomplete" in note for note in store.opened.notes), path
        store.shutdown()


def test_a_queue_file_missing_between_two_others_is_rebuilt(make_rig: type[MemoryRig]) -> None:
    rig, found = filled(make_rig)
    rig.files.unlink(f"{rig.root}/{files_of(rig, QUEUE)[1]}")
    store = rig.open()
    assert read_all(store) == found


def test_another_size_of_all_queue_files_is_refused_as_a_setting(make_rig: type[MemoryRig]) -> None:
    rig, _ = filled(make_rig)
    rig.changes["mapped_file_size_consume_queue"] = 800
    with pytest.raises(StoreError, match="set mappedFileSizeConsumeQueue=400 if the whole store"):
        rig.open()
    assert len(files_of(rig, QUEUE)) == 3


def keys(store: MessageStore, count: int) -> list[int]:
    """Return for each key the number of its messages."""
    return [
        len(store.reader.query_message("Topic", f"key{number}", 10, 0, 1 << 62).messages)
        for number in range(count)
    ]


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_truncated_index_file_is_rebuilt(make_rig: type[MemoryRig], which: int) -> None:
    rig, found = filled(make_rig)
    cut(rig, files_of(rig, "index")[which], 50)
    store = rig.open()
    while store.catch_up_index():
        pass
    assert keys(store, 100) == [1] * 100
    assert read_all(store) == found


def test_another_size_of_all_index_files_is_refused_as_a_setting(make_rig: type[MemoryRig]) -> None:
    rig, _ = filled(make_rig)
    rig.changes["max_index_num"] = 40
    with pytest.raises(StoreError, match="maxIndexNum=40 say; set these keys as the store was"):
        rig.open()


UNITS = [(100 * number, 90, number) for number in range(120)]
"""The units of a queue: physical offset, size, tags code."""
LOST: tuple[set[int], ...] = (set(), {3}, {4}, {3, 4})


def torn(units: Sequence[tuple[int, int, int]], old: int, lost: set[int]) -> ConsumeQueue:
    """Return a queue after a power failure: ``old`` units were durable, and of the sectors that
    changed since, those in ``lost`` are as they were.
    """
    encoded = b"".join(QUEUE_UNIT.pack(*unit) for unit in units)
    before = encoded[: old * QUEUE_UNIT.size].ljust(len(encoded), b"\0")
    data = bytearray(encoded)
    for sector in lost:
        data[sector * 512 : sector * 512 + 512] = before[sector * 512 : sector * 512 + 512]
    files = MemoryFiles()
    files.put("/queue/0/00000000000000000000", bytes(data).ljust(QUEUE_UNIT.size * 130, b"\0"))
    queue = ConsumeQueue(files, "/queue/0", QUEUE_UNIT.size * 130)
    queue.load()
    queue.finish_recovery()
    return queue


@pytest.mark.parametrize("old", range(100, 104))
def test_a_torn_unit_is_dropped_with_all_that_were_not_synced(old: int) -> None:
    """Unit 102 crosses the sectors 3 and 4: whichever of the sectors is lost, the units that were
    durable remain, and nothing else.
    """
    for count in range(5):
        for lost in LOST:
            units = UNITS[: old + count]
            queue = torn(units, old, lost)
            queue.drop_unsynced(UNITS[old][0])
            kept = [queue.unit(number) for number in range(queue.max_offset)]
            assert kept == UNITS[:old], (count, lost)
            for number in range(old, len(UNITS)):
                assert queue.put(number, *UNITS[number])
            assert queue.unit(102) == UNITS[102] and not queue.hidden


@pytest.mark.parametrize("first", [25, 76, 102])
def test_synced_units_that_cross_a_sector_are_kept(first: int) -> None:
    """Messages up to the last durable point are not dispatched again. Fillers are kept, too."""
    for end in range(first, first + 3):
        fillers = [(0, QUEUE_FILLER_SIZE, 0)] * (first - 1)
        units = [*fillers, *UNITS[first - 1 :]]
        queue = torn(units, len(units), set())
        queue.drop_unsynced(UNITS[end][0] + 90)
        assert queue.max_offset == end + 1
