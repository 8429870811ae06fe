"""Queues without traffic need no descriptors and no mappings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.store import StoreRig

from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore

TOPICS, QUEUES = 30, 4


@pytest.fixture
def rig(tmp_path: Path) -> StoreRig:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc, which counts descriptors and mappings")
    return StoreRig(OsFileSystem(), str(tmp_path / "store"))


def topic_of(number: int) -> bytes:
    return f"T{number}".encode()


def fill(rig: StoreRig, store: MessageStore) -> None:
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            rig.put(store, number, topic=topic_of(number), queue_id=queue_id)


def open_queues(rig: StoreRig) -> tuple[set[str], set[str]]:
    """Return the consume queue files that this process has open, and those that it has mapped."""
    folder = f"{rig.root}/consumequeue/"
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = {line[line.index("/") :] for line in lines if "/" in line}
    return ({p for p in opened if folder in p}, {p for p in mapped if folder in p})


def file_of(rig: StoreRig, topic: str, queue_id: int) -> str:
    return f"{rig.root}/consumequeue/{topic}/{queue_id}/{0:020d}"


def test_the_files_of_unused_queues_are_closed(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store)
    opened, mapped = open_queues(rig)
    assert len(opened) == len(mapped) == TOPICS * QUEUES
    store.flush_tracker.flush_queues()
    assert len(open_queues(rig)[0]) == TOPICS * QUEUES, "they were used a moment ago"
    rig.put(store, 1, topic=b"T1", queue_id=1)
    queue = store.queues.find("T2", 2)
    assert queue is not None and queue.unit(0) is not None
    store.flush_tracker.flush_queues()
    used = {file_of(rig, "T1", 1), file_of(rig, "T2", 2)}
    assert open_queues(rig) == (used, used)
    rig.put(store, 3, topic=b"T3", queue_id=3)
    store.flush_tracker.flush_queues()
    rig.put(store, 3, topic=b"T3", queue_id=3)
    store.flush_tracker.flush_queues()
    used = {file_of(rig, "T3", 3)}
    assert open_queues(rig) == (used, used)
    fill(rig, store)
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            queue = store.queues.find(f"T{number}", queue_id)
            assert queue is not None
            units = [queue.unit(place) for place in range(queue.max_offset)]
            assert len(units) >= 2 and None not in units
    store.shutdown()
    assert open_queues(rig) == (set(), set())


def test_a_start_opens_no_queues(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store)
    store.shutdown()
    store = rig.open()
    assert open_queues(rig) == (set(), set())
    assert store.queues.open_count == 0
    store.shutdown()


def test_a_closed_file_is_synced(rig: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclean stop, what the killed process has written may only be in the page cache, and
    the start has closed the files again.
    """
    store = rig.open()
    fill(rig, store)
    store.close_without_flush()
    store = rig.open()
    synced: set[str] = set()
    sync = os.fdatasync

    def recorded(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr("rmqpy.store.files.disk._sync_data", recorded)
    store.flush_tracker.flush_queues()
    every = {file_of(rig, f"T{n}", q) for n in range(TOPICS) for q in range(QUEUES)}
    assert every <= synced
    store.shutdown()
