"""The files of queues need no descriptors, and those of queues without traffic no mappings."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from harness.store import StoreRig

from rmqpy.codec.backend import implementation
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store import flush_tracker
from rmqpy.store.files import lost_pages
from rmqpy.store.files.disk import DiskFile, OsFileSystem
from rmqpy.store.files.mapped_files import MappedFile
from rmqpy.store.files.mapping import KEEPS_DESCRIPTOR, map_file
from rmqpy.store.message_store import MessageStore
from rmqpy.store.queues.consume_queue import ConsumeQueue

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


def mapped_queues(rig: StoreRig) -> set[str]:
    """Return the consume queue files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = {line[line.index("/") :] for line in lines if "/" in line}
    return {path for path in mapped if f"{rig.root}/consumequeue/" in path}


def descriptors(rig: StoreRig) -> list[str]:
    """Return the files of the store that the descriptors of this process lead to."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in opened if path.startswith(f"{rig.root}/")]


def flags_of_mappings(rig: StoreRig) -> dict[str, set[str]]:
    """Return the flags of the mappings of files by the folder of the store (VmFlags of smaps)."""
    flags: dict[str, set[str]] = {}
    folder = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if f" {rig.root}/" in line:
            folder = line.partition(f" {rig.root}/")[2].partition("/")[0]
        elif line.startswith("VmFlags:"):
            if folder is not None:
                flags.setdefault(folder, set()).update(line.split()[1:])
            folder = None
    return flags


def file_of(rig: StoreRig, topic: str, queue_id: int) -> str:
    return f"{rig.root}/consumequeue/{topic}/{queue_id}/{0:020d}"


@pytest.mark.parametrize("can_sync_all", [True, False])
def test_many_queues_are_synced_at_once(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch, can_sync_all: bool
) -> None:
    synced: list[str] = []

    def sync_all(_files: OsFileSystem, path: str) -> bool:
        synced.append(path)
        return can_sync_all

    monkeypatch.setattr(flush_tracker, "SYNC_EACH_MAX", TOPICS * QUEUES - 1)
    monkeypatch.setattr(OsFileSystem, "sync_all", sync_all)
    monkeypatch.setattr(MappedFile, "sync", lambda file: synced.append(file.path))
    store = rig.open()
    fill(rig, store)
    synced.clear()
    store.flush_tracker.flush_queues()
    folder = f"{rig.root}/consumequeue"
    files = {
        file_of(rig, f"T{number}", queue) for number in range(TOPICS) for queue in range(QUEUES)
    }
    assert synced[0] == folder
    assert set(synced[1:]) == (set() if can_sync_all else files)
    assert not store.queues.touched, "all are durable"
    store.shutdown()


def test_a_file_that_is_closed_during_its_sync_is_synced_nevertheless(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.open()
    rig.put(store, 1, topic=b"T1", queue_id=1)
    queue = store.queues.find("T1", 1)
    assert queue is not None
    synced: list[str] = []

    def sync(file: DiskFile) -> None:
        if file._is_closed:
            return
        synced.append(file.path)

    def closed_by_another_thread(file: DiskFile) -> None:
        monkeypatch.setattr(DiskFile, "sync", sync)
        queue.close()
        sync(file)

    monkeypatch.setattr(DiskFile, "sync", closed_by_another_thread)
    queue.segments.last.sync()
    assert synced == [file_of(rig, "T1", 1)]
    store.shutdown()


def test_no_more_queues_are_open_than_the_system_has_mappings_for(rig: StoreRig) -> None:
    assert isinstance(rig.files, OsFileSystem)
    rig.files.mappings_max = 100
    store = rig.open()
    fill(rig, store)
    assert len(mapped_queues(rig)) == 10
    for queue in store.queues:
        assert queue.unit(0) is not None
        assert len(mapped_queues(rig)) == 10
    fill(rig, store)
    store.flush_tracker.flush_queues()
    assert not store.queues.touched, "all are durable"
    assert {int(queue.max_offset) for queue in store.queues} == {2}
    store.shutdown()


def test_counting_messages_maps_no_queue(rig: StoreRig) -> None:
    """Neither one that is closed, nor one that is open, which stays open."""
    store = rig.open()
    fill(rig, store)
    for _ in range(2):
        store.flush_tracker.flush_queues()
    assert mapped_queues(rig) == set()
    rig.put(store, 7, topic=b"T7", queue_id=3)
    before = mapped_queues(rig)
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            queue = store.queues.of(f"T{number}", queue_id)
            for first, count in ((0, 1), (0, 9), (1, 9), (2, 1), (-1, 1)):
                units = queue.read_units(first, count)
                found = store.reader.queue_bytes(f"T{number}", queue_id, first, count)
                assert (found[0], bool(found[1])) == (len(units) // QUEUE_UNIT_SIZE, bool(units))
                if (number, queue_id) == (7, 3):
                    assert units == queue.units(first, count)
    assert before == mapped_queues(rig) == {file_of(rig, "T7", 3)}
    open_queues = {path for path in descriptors(rig) if "/consumequeue/" in path}
    # mmap objects of Python keep descriptors before 3.13.
    assert open_queues == (set() if implementation == "c" else {file_of(rig, "T7", 3)})
    store.shutdown()


def test_the_files_of_unused_queues_are_closed(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store)
    assert len(mapped_queues(rig)) == TOPICS * QUEUES
    store.flush_tracker.flush_queues()
    assert len(mapped_queues(rig)) == TOPICS * QUEUES, "they were used a moment ago"
    rig.put(store, 1, topic=b"T1", queue_id=1)
    queue = store.queues.find("T2", 2)
    assert queue is not None and queue.unit(0) is not None
    store.flush_tracker.flush_queues()
    used = {file_of(rig, "T1", 1), file_of(rig, "T2", 2)}
    assert mapped_queues(rig) == used
    rig.put(store, 3, topic=b"T3", queue_id=3)
    store.flush_tracker.flush_queues()
    rig.put(store, 3, topic=b"T3", queue_id=3)
    store.flush_tracker.flush_queues()
    used = {file_of(rig, "T3", 3)}
    assert mapped_queues(rig) == used
    fill(rig, store)
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            queue = store.queues.find(f"T{number}", queue_id)
            assert queue is not None
            units = [queue.unit(place) for place in range(queue.max_offset)]
            assert len(units) >= 2 and None not in units
    store.shutdown()
    assert mapped_queues(rig) == set()


def test_only_log_files_have_descriptors(rig: StoreRig) -> None:
    """One for each, and none for the mappings: 10,000 queues would exceed the usual limits."""
    if KEEPS_DESCRIPTOR:
        pytest.skip("mmap objects of Python keep descriptors before 3.13")
    rig.changes["mapped_file_size_commit_log"] = 1 << 20
    store = rig.open()
    fill(rig, store)
    store.dispatch()
    queue = store.queues.find("T2", 2)
    assert queue is not None and queue.unit(0) is not None
    assert store.log.read(PhysicalOffset(0), 100)
    found = descriptors(rig)
    assert not [path for path in found if "/consumequeue/" in path or "/index/" in path]
    assert [path for path in found if "/commitlog/" in path] == [f"{rig.root}/commitlog/{0:020d}"]
    store.flush_tracker.flush_queues()
    assert descriptors(rig) == found
    store.shutdown()
    store = rig.open()
    queue = store.queues.find("T2", 2)
    assert queue is not None and queue.unit(0) is not None, "a queue that is only read"
    assert not [path for path in descriptors(rig) if "/consumequeue/" in path]
    store.shutdown()


def test_queues_and_index_are_not_read_ahead(rig: StoreRig) -> None:
    """With read-ahead, the first access to a queue reads its whole file (6 MB), and displaces other
    files from the page cache. The log is read in sequence.
    """
    store = rig.open()
    fill(rig, store)
    assert store.log.read(PhysicalOffset(0), 100)
    flags = flags_of_mappings(rig)
    if not flags:
        pytest.skip("this kernel does not show the flags of mappings")
    assert "rr" in flags["consumequeue"] and "rr" in flags["index"]
    assert "rr" not in flags["commitlog"]
    store.shutdown()
    store = rig.open()
    queue = store.queues.find("T2", 2)
    assert queue is not None and queue.unit(0) is not None, "a queue that is only read"
    assert "rr" in flags_of_mappings(rig)["consumequeue"]
    store.shutdown()


def test_a_start_opens_no_queues(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store)
    store.shutdown()
    store = rig.open()
    assert mapped_queues(rig) == set()
    assert not any(queue.is_open for queue in store.queues)
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


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_opens_each_queue_once(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """With 10,000 queues, the start consists of little else. C opens them below one folder."""
    store = rig.open()
    fill(rig, store)
    fill(rig, store)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    if killed:
        store.close_without_flush()
    else:
        store.shutdown()
    opened: list[str] = []
    mapped: list[int] = []
    open_file = os.open

    def recorded_open(path: str, *options: int) -> int:
        opened.append(path)
        return open_file(path, *options)

    def recorded_map(descriptor: int, length: int, **options: bool) -> memoryview:
        mapped.append(length)
        return map_file(descriptor, length, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", recorded_open)
        patched.setattr("rmqpy.store.files.disk.map_file", recorded_map)
        store = rig.open()
    queues = [path for path in opened if "/consumequeue" in path]
    if implementation == "c":
        assert queues == [f"{rig.root}/consumequeue"]
    else:
        assert sorted(queues) == sorted(
            file_of(rig, f"T{n}", q) for n in range(TOPICS) for q in range(QUEUES)
        )
    assert store.settings.mapped_file_size_consume_queue not in mapped
    for queue in store.queues:
        assert (queue.min_offset, queue.max_offset) == (0, 2)
        unit = queue.unit(1)
        assert unit is not None and queue.max_physical_offset == unit[0] + unit[1]
    store.shutdown()


@pytest.mark.parametrize("killed", [False, True])
def test_queues_beyond_the_limit_are_written_without_a_mapping(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Neither by a start, which drops their last units after a kill and writes them again."""
    assert isinstance(rig.files, OsFileSystem)
    rig.files.mappings_max = 0
    mapped: list[str] = []
    guard = lost_pages.guard

    def recorded(view: memoryview, path: str, *, is_written: bool) -> None:
        mapped.append(path)
        guard(view, path, is_written=is_written)

    monkeypatch.setattr(lost_pages, "guard", recorded)
    store = rig.open()
    fill(rig, store)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    fill(rig, store)
    if killed:
        store.close_without_flush()
    else:
        store.shutdown()
    store = rig.open()
    fill(rig, store)
    assert not any("/consumequeue/" in path for path in mapped)
    assert not any("/consumequeue/" in path for path in descriptors(rig))
    for queue in store.queues:
        units = [queue.unit(number) for number in range(3)]
        assert all(unit is not None for unit in units)
        assert (queue.min_offset, queue.max_offset) == (0, 3)
    store.shutdown()


def test_a_start_finds_the_first_unit_in_the_log(rig: StoreRig) -> None:
    """Whether the log still has the message of the first unit, or the queue starts with filler."""
    store = rig.open()
    offsets = rig.put(store, 0, 2, 4, queue_id=0)
    store.shutdown()
    for low, expected in ((0, 0), (offsets[0], 0), (offsets[0] + 1, 1), (offsets[2], 2)):
        queue = ConsumeQueue(rig.files, f"{rig.root}/consumequeue/Topic/0", 400)
        queue.load()
        queue.correct_min_offset(low)
        assert (queue.min_offset, queue.max_offset) == (expected, 3)
        queue.reset_to(0)
        assert queue.min_offset == 0
        queue.close()
    filled = ConsumeQueue(rig.files, f"{rig.root}/consumequeue/Topic/7", 400)
    assert filled.put(3, 1000, 100, 0)
    filled.close()
    filled = ConsumeQueue(rig.files, f"{rig.root}/consumequeue/Topic/7", 400)
    filled.load()
    filled.correct_min_offset(0)
    assert (filled.min_offset, filled.max_offset, filled.max_physical_offset) == (3, 4, 1100)
    filled.truncate(1000)
    filled.correct_min_offset(0)
    assert filled.max_offset == filled.min_offset
    filled.close()


def test_cleaning_opens_the_queues_whose_first_message_has_expired(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It visits all queues. If each stayed open until the flush after next, 65,530 of them would
    use up the mappings of the process.
    """
    store = rig.open()
    fill(rig, store)
    store.shutdown()
    store = rig.open()
    opened: list[str] = []
    open_file = os.open

    def recorded(path: str, *options: int) -> int:
        opened.append(path)
        return open_file(path, *options)

    monkeypatch.setattr(os, "open", recorded)
    assert [file for queue in store.queues for file in queue.pop_expired(0)] == []
    assert opened == []
    queue = store.queues.find("T0", 1)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    queue.close()
    opened.clear()
    assert [file for queue in store.queues for file in queue.pop_expired(unit[0])] == []
    assert opened == [file_of(rig, "T0", 0)]
    assert mapped_queues(rig) == set()
    store.shutdown()
