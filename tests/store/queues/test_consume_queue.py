"""Tests of one consume queue: files, gaps, holes, truncation, expiry."""

from __future__ import annotations

import re
import struct
from mmap import mmap
from pathlib import Path

import pytest

from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.retention import DeletionTask
from rmqpy.testing.memory_files import MemoryFiles

UNIT = struct.Struct(">qiq")
FILLER = UNIT.pack(0, 0x7FFFFFFF, 0)
FOLDER = "/store/consumequeue/Topic/0"
PER_FILE = 10


def expire(files: MemoryFiles, queue: ConsumeQueue, log_min_offset: int) -> int:
    """Delete the expired files, as retention does, and return their number."""
    count = 0
    for file in queue.pop_expired(log_min_offset):
        DeletionTask(files, file).run()
        count += 1
    return count


def open_queue(files: MemoryFiles) -> ConsumeQueue:
    queue = ConsumeQueue(files, FOLDER, PER_FILE * 20)
    queue.load()
    queue.finish_recovery()
    return queue


def filled(first: int, count: int) -> tuple[MemoryFiles, ConsumeQueue]:
    """Return a queue whose unit n has physical offset 1000 + 100 n, size 100 and tags code n."""
    files = MemoryFiles()
    queue = open_queue(files)
    for number in range(first, first + count):
        assert queue.put(number, 1000 + 100 * number, 100, number)
    return files, queue


def data(files: MemoryFiles, number: int = 0) -> bytearray | mmap:
    """Return the content of a file of the queue."""
    return files.nodes[f"{FOLDER}/{number * PER_FILE * 20:020d}"].data


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_start_does_not_read_what_was_never_written(tmp_path: Path) -> None:
    """A file of a queue is a hole of 6 MB with a few units; reading it would allocate its pages."""

    def mapped_bytes() -> int:
        found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    size, count = 6_000_000, 8
    queues = [ConsumeQueue(OsFileSystem(), str(tmp_path / str(n)), size) for n in range(count)]
    for queue in queues:
        queue.load()
        assert queue.put(0, 1000, 100, 0)
        queue.close()
    queues = [ConsumeQueue(OsFileSystem(), str(tmp_path / str(n)), size) for n in range(count)]
    before = mapped_bytes()
    for queue in queues:
        queue.load()
        queue.finish_recovery()
        assert queue.max_offset == 1
    assert mapped_bytes() - before < size
    for queue in queues:
        queue.close()


def test_units_have_the_expected_bytes() -> None:
    files, _ = filled(0, 12)
    expected = b"".join(UNIT.pack(1000 + 100 * n, 100, n) for n in range(12))
    assert bytes(data(files, 0)) == expected[:200]
    assert bytes(data(files, 1)) == expected[200:].ljust(200, b"\0")


@pytest.mark.parametrize("first", [1, 9, 10, 13, 25])
def test_a_queue_may_begin_at_any_offset(first: int) -> None:
    """The file of its first unit begins with filler."""
    files, queue = filled(first, 15)
    assert (queue.min_offset, queue.max_offset) == (first, first + 15)
    number = first // PER_FILE
    assert min(files.nodes) == f"{FOLDER}/{number * 200:020d}"
    assert bytes(data(files, number))[: first % PER_FILE * 20] == FILLER * (first % PER_FILE)
    assert queue.unit(first) == (1000 + 100 * first, 100, first)
    assert first % PER_FILE == 0 or queue.unit(first - 1) is None
    reopened = open_queue(files)
    reopened.correct_min_offset(1000)
    assert (reopened.min_offset, reopened.max_offset) == (first, first + 15)
    assert reopened.max_physical_offset == queue.max_physical_offset


def test_a_unit_is_put_only_once() -> None:
    _, queue = filled(0, 12)
    assert not queue.put(11, 2100, 100, 11)
    assert not queue.put(3, 1300, 100, 3)
    assert not queue.put(3, 9000, 100, 3), "its queue offset is already used"
    assert queue.max_offset == 12


def test_a_run_of_units_may_span_files() -> None:
    files, queue = filled(0, 7)
    units = b"".join(UNIT.pack(1000 + 100 * n, 100, n) for n in range(7, 33))
    queue.put_run(7, units)
    assert queue.max_offset == 33
    assert queue.max_physical_offset == 1000 + 100 * 33
    assert [queue.unit(n) for n in range(33)] == [(1000 + 100 * n, 100, n) for n in range(33)]
    assert open_queue(files).max_offset == 33


def test_a_run_adds_only_what_the_queue_lacks() -> None:
    _, queue = filled(0, 7)
    queue.put_run(5, b"".join(UNIT.pack(1000 + 100 * n, 100, n) for n in range(5, 9)))
    assert [queue.unit(n) for n in range(9)] == [(1000 + 100 * n, 100, n) for n in range(9)]
    queue.put_run(9, UNIT.pack(1800, 100, 9))
    assert queue.max_offset == 9, "the message is before the last one"


def test_units_are_read_from_one_file_at_a_time() -> None:
    _, queue = filled(0, 25)
    assert len(queue.units(0, 99)) == 200
    assert len(queue.units(7, 99)) == 60
    assert len(queue.units(20, 99)) == 100
    assert len(queue.units(20, 2)) == 40
    for outside in (-1, 25, 1 << 40):
        assert len(queue.units(outside, 5)) == 0
    assert queue.next_file_start(7) == 10 and queue.next_file_start(10) == 20


def test_a_small_gap_becomes_filler() -> None:
    files, queue = filled(0, 5)
    assert queue.put(9, 5000, 100, 1)
    assert bytes(data(files))[100:180] == FILLER * 4
    assert queue.max_offset == 10
    with pytest.raises(StoreError, match="queue offset 4000"):
        queue.put(4000, 6000, 100, 1)
    assert queue.max_offset == 10


def test_a_search_skips_filler_in_the_middle() -> None:
    """A search may hit units before the filler, the filler, or units after it first."""
    for at in range(1, 30):
        _, queue = filled(0, at)
        assert queue.put(at + 6, 50_000, 100, 1)
        assert queue.put(at + 7, 50_100, 100, 1)
        for number in range(at):
            queue._min = 0
            queue.correct_min_offset(1000 + 100 * number)
            assert queue.min_offset == number, (at, number)
        queue._min = 0
        queue.correct_min_offset(50_000)
        assert queue.min_offset == at + 6
        queue.correct_min_offset(50_001)
        assert queue.min_offset == at + 7
        queue.correct_min_offset(60_000)
        assert queue.min_offset == queue.max_offset == at + 8
        assert queue.truncate(50_100)
        assert queue.max_offset == at + 7
        assert queue.truncate(50_000)
        assert queue.max_offset == at + 6, "the filler stays: its offsets are used"
        assert queue.truncate(1000 + 100 * (at - 1))
        assert queue.max_offset == at - 1


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25, 30])
def test_a_queue_can_be_truncated_at_every_unit(count: int) -> None:
    for keep in range(count + 1):
        files, queue = filled(0, count)
        assert queue.truncate(1000 + 100 * keep) == (keep < count)
        assert queue.max_offset == keep
        assert queue.max_physical_offset == (1000 + 100 * keep if keep else 0)
        for number in range(len(files.nodes)):
            used = max(0, min(keep - number * PER_FILE, PER_FILE)) * 20
            assert not any(data(files, number)[used:])
        reopened = open_queue(files)
        assert reopened.max_offset == keep
        assert reopened.put(keep, 7_000_000, 100, 1)


def test_a_queue_truncated_to_nothing_keeps_its_offsets() -> None:
    """A queue whose first files have expired does not start again at 0."""
    files, queue = filled(0, 35)
    assert expire(files, queue, 1000 + 100 * 25) == 2
    assert queue.truncate(0)
    assert queue.max_offset == queue.min_offset == 25 or queue.max_offset == 20
    assert open_queue(files).max_offset >= 20


@pytest.mark.parametrize("hole", range(24))
def test_a_queue_ends_at_a_hole(hole: int) -> None:
    """A unit never reached the disk; dispatch puts it and the following ones again."""
    files, _ = filled(0, 25)
    number, place = divmod(hole, PER_FILE)
    data(files, number)[place * 20 : place * 20 + 20] = bytes(20)
    before = {path: bytes(node.data) for path, node in files.nodes.items()}
    queue = ConsumeQueue(files, FOLDER, PER_FILE * 20)
    queue.load()
    assert queue.damaged
    assert queue.max_offset == hole
    assert {path: bytes(node.data) for path, node in files.nodes.items()} == before
    queue.finish_recovery()
    for number in range(25):
        assert queue.put(number, 1000 + 100 * number, 100, number) == (number >= hole)
    assert bytes(data(files, 2))[:100] == b"".join(
        UNIT.pack(1000 + 100 * n, 100, n) for n in range(20, 25)
    )


@pytest.mark.parametrize("first", range(5))
def test_truncation_drops_the_units_before_it_that_never_reached_the_disk(first: int) -> None:
    """They are in a file that the start does not search; dispatch puts them again."""
    files, _ = filled(0, 45)
    data(files)[first * 20 : 100] = bytes(100 - first * 20)
    queue = open_queue(files)
    assert queue.max_offset == 45
    assert queue.truncate(1000 + 100 * 5)
    assert queue.max_offset == first
    for number in range(45):
        assert queue.put(number, 1000 + 100 * number, 100, number) == (number >= first)
    assert not queue.hidden


def test_a_torn_unit_at_the_end_counts_as_a_unit() -> None:
    """Truncation and dispatch correct it."""
    files, _ = filled(0, 5)
    data(files)[90:100] = bytes(10)
    queue = open_queue(files)
    assert queue.max_offset == 5
    assert not queue.damaged


def test_expired_files_are_removed() -> None:
    files, queue = filled(0, 35)
    assert expire(files, queue, 1000) == 0
    assert expire(files, queue, 1000 + 100 * 9) == 0
    assert queue.min_offset == 9
    assert expire(files, queue, 1000 + 100 * 10) == 1
    assert queue.min_offset == 10
    assert expire(files, queue, 10_000_000) == 2
    assert queue.min_offset == queue.max_offset == 35
    assert list(files.nodes) == [f"{FOLDER}/{600:020d}"]
    assert queue.put(35, 20_000_000, 10, 0)
    assert open_queue(files).max_offset == 36


def test_a_sync_covers_the_units_since_the_last_one() -> None:
    files, queue = filled(0, 25)
    assert not any(node.durable for node in files.nodes.values())
    sync = queue.take_sync()
    assert sync is not None
    queue.put(25, 90_000, 10, 0)
    sync.run()
    queue.synced(sync)
    assert len(files.crash().nodes) == 3
    sync = queue.take_sync()
    assert sync is not None and len(sync.parts) == 1
    sync.run()
    queue.synced(sync)
    assert queue.take_sync() is None
    assert open_queue(files.crash()).max_offset == 26


def test_units_removed_during_a_sync_are_removed_by_the_next_one() -> None:
    """The sync in the background has written the units before they were cleared."""
    files, queue = filled(0, 15)
    sync = queue.take_sync()
    assert sync is not None
    sync.run()
    assert queue.truncate(1000 + 100 * 12)
    queue.synced(sync)
    again = queue.take_sync()
    assert again is not None
    again.run()
    queue.synced(again)
    assert queue.take_sync() is None
    assert open_queue(files.crash()).max_offset == 12


@pytest.mark.parametrize("removed", ["truncated", "destroyed"])
def test_units_written_again_during_a_sync_are_written_by_the_next_one(removed: str) -> None:
    """Other messages have taken the queue offsets of those that were removed."""
    files, queue = filled(0, 15)
    sync = queue.take_sync()
    assert sync is not None
    sync.run()
    if removed == "truncated":
        assert queue.truncate(1000 + 100 * 8)  # in the first of two files
    else:
        queue.destroy()
    for number in range(queue.max_offset, 16):
        assert queue.put(number, 50_000 + 100 * number, 100, 7)
    queue.synced(sync)
    again = queue.take_sync()
    assert again is not None
    again.run()
    queue.synced(again)
    found = open_queue(files.crash())
    assert found.max_offset == 16 and found.unit(8) == (50_800, 100, 7)


def test_a_failed_sync_is_repeated() -> None:
    files, queue = filled(0, 5)
    files.fail_sync("consumequeue")
    sync = queue.take_sync()
    assert sync is not None
    with pytest.raises(OSError, match="planted"):
        sync.run()
    assert queue.take_sync() is not None


def test_a_message_whose_queue_offset_is_taken_is_recorded() -> None:
    _, queue = filled(0, 7)
    assert not queue.put(3, 5000, 100, 3)
    assert not queue.put(3, 1300, 100, 3), "dispatched before"
    assert queue.hidden == ((3, 5000),)
