"""Tests of the consume queues of a store with many of them, at a start after a kill on a machine
that kept running: units that are proven to be those of the log stay, others are written again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.store import StoreRig, read_all

from rmqpy.codec import backend
from rmqpy.codec.properties import encode_properties
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.files.disk import DiskFile, OsFileSystem, boot_id
from rmqpy.store.queues import unit_proof

pytestmark = [
    pytest.mark.skipif(not boot_id(), reason="the system has no boot id"),
    pytest.mark.skipif(backend.implementation != "c", reason="the proof needs the C core"),
]

QUEUES, FLUSHED, UNFLUSHED = 6, 60, 150
Records = dict[tuple[str, int], list[bytes]]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreRig:
    monkeypatch.setattr(unit_proof, "QUEUES_MIN", 1)
    return StoreRig(OsFileSystem(), os.fspath(tmp_path / "store"))


def fill(rig: StoreRig) -> Records:
    """Write messages to all queues, the later ones without a flush; return them after a kill."""
    store = rig.open()
    for number in range(FLUSHED):
        rig.put(store, number, queue_id=number % QUEUES)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    for number in range(FLUSHED, FLUSHED + UNFLUSHED):
        rig.put(store, number, queue_id=number % QUEUES)
    rig.flush(store)
    records = read_all(store)
    store.close_without_flush()
    return records


def queue_files(rig: StoreRig) -> dict[str, bytes]:
    return {path: data for path, data in rig.tree().items() if path.startswith("consumequeue/")}


def last_file(rig: StoreRig, queue_id: int) -> tuple[str, int]:
    """Return the last file of a queue and the position after its last unit."""
    folder = f"consumequeue/Topic/{queue_id}/"
    path, data = max((p, data) for p, data in queue_files(rig).items() if p.startswith(folder))
    return path, -(-len(data.rstrip(b"\0")) // 20) * 20


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The consume queue files that are written through descriptors, or mapped to be written."""
    found: set[str] = set()
    write, mapping = DiskFile.write, DiskFile._mapping

    def recorded(file: DiskFile, position: int, data: bytes) -> None:
        found.add(file.path)
        write(file, position, data)

    def mapped(file: DiskFile, *, writable: bool) -> memoryview:
        if writable:
            found.add(file.path)
        return mapping(file, writable=writable)

    monkeypatch.setattr(DiskFile, "write", recorded)
    monkeypatch.setattr(DiskFile, "_mapping", mapped)
    return found


def of_queues(paths: set[str]) -> set[str]:
    return {path for path in paths if "/consumequeue/" in path}


def test_units_stay_and_the_next_flush_syncs_them(
    rig: StoreRig, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, before = fill(rig), queue_files(rig)
    changed.clear()
    store = rig.open()
    assert not of_queues(changed) and queue_files(rig) == before
    assert store.dispatcher.behind_bytes == 0
    assert store.flush_tracker.queues_durable_to < store.log.max_offset
    assert read_all(store) == records
    synced: set[str] = set()
    sync = DiskFile.sync

    def recorded(file: DiskFile) -> None:
        synced.add(file.path)
        sync(file)

    monkeypatch.setattr(DiskFile, "sync", recorded)
    store.flush_tracker.flush_queues()
    units = {path: len(data.rstrip(b"\0")) for path, data in before.items()}
    young = {
        f"{rig.root}/{path}"
        for path, used in units.items()
        if int(path.rpartition("/")[2]) + used > FLUSHED // QUEUES * 20
    }
    assert len(young) == 2 * QUEUES and young <= synced
    rig.put(store, 900)
    assert sum(map(len, read_all(store).values())) == FLUSHED + UNFLUSHED + 1
    store.shutdown()


@pytest.mark.parametrize("per_queue", [0, 1 << 20])
def test_the_log_to_read_may_be_longer_the_more_queues_there_are(
    rig: StoreRig, changed: set[str], monkeypatch: pytest.MonkeyPatch, per_queue: int
) -> None:
    records = fill(rig)
    monkeypatch.setattr(unit_proof, "LOG_BYTES_MAX", 1)
    monkeypatch.setattr(unit_proof, "BYTES_MAX_PER_QUEUE", per_queue)
    changed.clear()
    store = rig.open()
    assert bool(of_queues(changed)) is not bool(per_queue), "without a proof, units are dropped"
    assert read_all(store) == records
    store.shutdown()


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(("unit_bytes", "kept"), [(100 * 20, True), (100 * 20 - 1, False)])
def test_only_queues_with_more_files_than_a_start_reads_are_read_for_the_proof(
    rig: StoreRig,
    changed: set[str],
    monkeypatch: pytest.MonkeyPatch,
    unit_bytes: int,
    kept: bool,
    torn: bool,
) -> None:
    """Before, one queue with a million messages made a start read, or drop, all of 200,000."""
    monkeypatch.setattr(unit_proof, "UNIT_BYTES_MAX", unit_bytes)
    monkeypatch.setattr(unit_proof, "BYTES_MAX_PER_QUEUE", 0)
    fill(rig)
    store = rig.open()
    for number in range(100):
        rig.put(store, number, queue_id=0, topic=b"Long")
    rig.flush(store)
    records = read_all(store)
    store.close_without_flush()
    if torn:  # in the first file, which the start does not read
        rig.edit(f"consumequeue/Long/0/{0:020d}", 5 * 20 + 8, bytes(12))
    changed.clear()
    store = rig.open()
    assert store.queues.young_units is not None
    assert store.queues.young_units.unread == ("Long",)
    assert bool(of_queues(changed)) is (torn or not kept)
    assert read_all(store) == records
    store.shutdown()


@pytest.mark.parametrize("written", [8, 12], ids=["offset", "offset and size"])
@pytest.mark.parametrize("back", [1, 3], ids=["last", "earlier"])
def test_a_torn_unit_is_written_again(rig: StoreRig, written: int, back: int) -> None:
    """A unit is copied to the mapping from its start on."""
    records, before = fill(rig), queue_files(rig)
    path, end = last_file(rig, 2)
    at = end - 20 * back
    assert before[path][at + 12 : at + 20] != bytes(8), "a tags code"
    rig.edit(path, at + written, bytes(20 - written))
    store = rig.open()
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before


def test_units_that_the_kill_prevented_are_added(rig: StoreRig) -> None:
    """The log has messages that no queue has yet."""
    records, before = fill(rig), queue_files(rig)
    for queue_id in (4, 5):  # of the last messages
        path, end = last_file(rig, queue_id)
        rig.edit(path, end - 20, bytes(20))
    store = rig.open()
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before


def test_a_unit_that_is_missing_before_others_is_added(rig: StoreRig) -> None:
    records, before = fill(rig), queue_files(rig)
    path, end = last_file(rig, 0)
    rig.edit(path, end - 20, bytes(20))
    store = rig.open()
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before


def remove_the_recovery_point(rig: StoreRig) -> None:
    os.unlink(f"{rig.root}/rmqpy/recovery-point")


def shorten_a_queue_file(rig: StoreRig) -> None:
    path, end = last_file(rig, 3)
    os.truncate(f"{rig.root}/{path}", end)


def remove_a_queue(rig: StoreRig) -> None:
    shutil.rmtree(f"{rig.root}/consumequeue/Topic/3")


def leave_a_unit_after_the_end(rig: StoreRig) -> None:
    path, end = last_file(rig, 3)
    rig.edit(path, end + 40, QUEUE_UNIT.pack(1000, 100, 0))


CHANGES: tuple[Callable[[StoreRig], None], ...] = (
    remove_the_recovery_point,
    shorten_a_queue_file,
    remove_a_queue,
    leave_a_unit_after_the_end,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_store_that_is_not_as_the_start_expected_is_served_entirely(
    rig: StoreRig, change: Callable[[StoreRig], None]
) -> None:
    records, before = fill(rig), queue_files(rig)
    change(rig)
    store = rig.open()
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before


def test_the_times_of_delayed_messages_are_written_again(rig: StoreRig) -> None:
    """The proof leaves them out."""
    store = rig.open()
    for number in range(20):
        rig.put(store, number, queue_id=number % QUEUES)
    properties = encode_properties({"DELAY": "3", "REAL_TOPIC": "Topic", "REAL_QID": "0"})
    rig.put(store, 20, topic=SCHEDULE_TOPIC.encode(), queue_id=2, properties=properties)
    rig.flush(store)
    records = read_all(store)
    store.close_without_flush()
    before = queue_files(rig)
    path = f"consumequeue/{SCHEDULE_TOPIC}/2/{0:020d}"
    assert before[path][12:20] != bytes(8)
    rig.edit(path, 12, bytes(8))
    store = rig.open()
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before


def test_after_a_failed_sync_every_unit_is_written_again(
    rig: StoreRig, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cache then has units that the disk does not have, and a sync does not write them."""
    store = rig.open()
    for number in range(UNFLUSHED):
        rig.put(store, number, queue_id=number % QUEUES)
    rig.flush(store)
    records = read_all(store)

    def fail(file: DiskFile) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFile, "sync", fail)
        store.flush_tracker.flush_queues()
    assert store.health.failure is not None and "consume queues" in store.health.failure
    store.close_without_flush()
    before = queue_files(rig)
    changed.clear()
    store = rig.open()
    assert of_queues(changed) == {f"{rig.root}/{path}" for path in before}
    assert read_all(store) == records
    store.shutdown()
    assert queue_files(rig) == before
