"""Tests of retention: which files are removed, when and in which order, also after a crash."""

from __future__ import annotations

import errno
from datetime import datetime
from pathlib import Path

import pytest
from harness.store import (
    CrashingFiles,
    KilledError,
    MemoryRig,
    StoreRig,
    bodies_of,
    entries_of,
    queue_of,
    read_all,
)

from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.model.ids import LedgerIndex
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.message_store import MessageStore
from rmqpy.store.retention import (
    FILES_A_ROUND,
    HOUR_MS,
    MANUAL_ROUNDS,
    CleaningPause,
    DeletionTask,
    Round,
)
from rmqpy.testing.memory_files import MemoryFiles

DAY_MS = 24 * HOUR_MS
NEVER = 23 * HOUR_MS
DATA = "dledger-n0/data/"
BODY = b"x" * 700


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(changes={"delete_when": (), "file_reserved_time": 72})


def fill(rig: MemoryRig, store: MessageStore, numbers: range) -> None:
    """Put messages, with files that have their times, and flush everything."""
    for number in numbers:
        rig.files.now_ms = rig.clock.now_ms()
        rig.put(store, number, body=BODY + b"%d" % number)
    rig.flush(store)
    store.flush_tracker.flush_queues()


def clean(rig: StoreRig, store: MessageStore) -> list[int]:
    """Run a whole round and return its pauses in milliseconds."""
    steps = store.retention.round(rig.settings(), rig.clock.now_ms())
    pauses: list[int] = []
    error: OSError | None = None
    while True:
        try:
            step = steps.send(error)
        except StopIteration:
            return pauses
        error = None
        if isinstance(step, CleaningPause):
            pauses.append(step.delay_ms)
            continue
        try:
            step.run()
        except OSError as failed:
            error = failed


def pause_after_first_file(rig: MemoryRig, store: MessageStore) -> Round:
    """Start a round and return it in the pause after its first removed file."""
    steps = store.retention.round(rig.settings(), rig.clock.now_ms())
    deletion = next(steps)
    assert isinstance(deletion, DeletionTask)
    deletion.run()
    assert isinstance(steps.send(None), CleaningPause)
    return steps


def names(rig: MemoryRig, part: str = "commitlog/") -> list[int]:
    """Return the first offsets of the files of a folder."""
    return [int(path.rpartition("/")[2]) for path in sorted(rig.tree()) if path.startswith(part)]


def use(rig: MemoryRig, ratio: float) -> None:
    """Set the used part of the disk."""
    rig.files.free_bytes = int(rig.files.total_bytes * (1 - ratio))


def is_writeable(store: MessageStore) -> bool:
    return store.health.writeable


def test_expired_files_stay_until_the_hour_of_deletion(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, range(30))
    before = rig.tree()
    rig.clock.advance(4 * DAY_MS)
    assert clean(rig, store) == []
    assert rig.tree() == before, "the files are expired, but it is not the hour"
    store.shutdown()


def test_expired_files_are_removed_at_the_hour(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, range(30))
    files = names(rig)
    rig.changes["delete_when"] = (datetime.fromtimestamp(rig.clock.now_ms() / 1000).hour,)
    clean(rig, store)
    assert names(rig) == files, "no file is expired yet"
    rig.clock.advance(3 * DAY_MS)
    fill(rig, store, range(30, 32))
    last = names(rig)
    pauses = clean(rig, store)
    kept = names(rig)
    assert kept == last[-len(kept) :] and 1 <= len(kept) <= 2
    assert pauses[: len(files) - 3] == [100] * (len(files) - 3)
    assert store.log.min_offset == kept[0]
    for records in read_all(store).values():
        assert records
    for queue_id in range(2):
        low = store.reader.min_queue_offset("Topic", queue_id)
        assert low > 0
        page = store.reader.get_message("Topic", queue_id, low - 1, 1, None)
        assert (page.status, page.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, low)
    store.shutdown()
    store = rig.open()
    assert names(rig)[0] == store.log.min_offset == kept[0]
    fill(rig, store, range(40, 44))
    store.shutdown()


def test_a_round_removes_at_most_ten_files(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, range(80))
    count = len(names(rig))
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert len(names(rig)) == count - FILES_A_ROUND
    for _ in range(MANUAL_ROUNDS - 1):
        clean(rig, store)
    left = names(rig)
    assert 1 <= len(left) <= 2, "the file that is written must stay"
    fill(rig, store, range(80, 120))
    rig.clock.advance(4 * DAY_MS)
    assert clean(rig, store) == []
    assert names(rig)[0] == left[0], "a manual request lasts twenty rounds"
    store.shutdown()


def test_disk_use_determines_what_is_removed(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, range(40))
    count = len(names(rig))
    use(rig, 0.80)
    clean(rig, store)
    assert len(names(rig)) == count, "no file is expired"
    rig.changes["clean_file_forcibly_enable"] = False
    use(rig, 0.88)
    clean(rig, store)
    assert len(names(rig)) == count and is_writeable(store)
    use(rig, 0.95)
    clean(rig, store)
    assert len(names(rig)) == count
    (result,) = store.appender.put([rig.draft(0)])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    rig.changes["clean_file_forcibly_enable"] = True
    use(rig, 0.88)
    clean(rig, store)
    assert len(names(rig)) <= max(2, count - FILES_A_ROUND) and is_writeable(store)
    rig.changes |= {"disk_space_warning_level_ratio": 40}
    use(rig, 0.50)
    clean(rig, store)
    assert not is_writeable(store)
    store.shutdown()


def test_queues_and_index_lose_what_the_log_lost(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, range(130))
    rig.clock.advance(4 * DAY_MS)
    fill(rig, store, range(130, 134))
    store.retention.delete_manually()
    for _ in range(4):
        clean(rig, store)
    low = store.log.min_offset
    for queue_id in range(2):
        folder = f"consumequeue/Topic/{queue_id}/"
        first = names(rig, folder)[0] // 20
        assert 0 < first <= store.reader.min_queue_offset("Topic", queue_id)
        unit = queue_of(store, "Topic", queue_id).unit(first + 19)
        assert unit is None or unit[0] >= low or len(names(rig, folder)) == 1
    assert 1 <= len(names(rig, "index/")) <= 2
    assert not store.reader.query_message("Topic", "key0", 64, 0, 1 << 50).messages
    assert store.reader.query_message("Topic", "key133", 64, 0, 1 << 50).messages
    before = read_all(store)
    rig = rig.after_end("kill")
    store = rig.open()
    assert read_all(store) == before
    store.shutdown()


def test_a_file_stays_until_its_units_are_on_disk(rig: MemoryRig) -> None:
    """Otherwise a power loss could leave a queue without its end and the records to rebuild it."""
    store = rig.open()
    fill(rig, store, range(15))
    flushed_to = store.log.max_offset
    files = names(rig)
    for number in range(15, 30):
        rig.put(store, number, body=BODY)
    rig.flush(store)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert store.retention.wants_flush
    assert names(rig)[0] == max(name for name in files if name <= flushed_to)
    store.flush_tracker.flush_queues()
    clean(rig, store)
    assert len(names(rig)) == 1
    store.close_without_flush()


def test_a_view_of_a_message_outlives_its_file(tmp_path: Path) -> None:
    """The file is removed from the real disk while a reader holds the view."""
    rig = StoreRig(OsFileSystem(), str(tmp_path / "s"), changes={"delete_when": ()})
    store = rig.open()
    for number in range(20):
        rig.put(store, number, body=BODY)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    page = store.reader.get_message("Topic", 0, 0, 3, None)
    held, copied = list(page.messages), [bytes(message) for message in page.messages]
    rig.clock.advance(10**9 * 1000)
    store.retention.delete_manually()
    clean(rig, store)
    assert store.log.min_offset > 0
    assert [bytes(message) for message in held] == copied
    page = store.reader.get_message("Topic", 0, 0, 3, None)
    assert page.status is GetMessageStatus.OFFSET_TOO_SMALL
    del held, page
    store.shutdown()


class UndeletableFiles(MemoryFiles):
    """Memory files whose commit log files cannot be removed."""

    is_failing = True

    def unlink(self, path: str) -> None:
        if self.is_failing and "/commitlog/" in path:
            raise OSError(errno.EIO, "planted", path)
        super().unlink(path)


def test_a_file_that_cannot_be_removed_holds_up_the_others(rig: MemoryRig) -> None:
    files_layer = rig.files = UndeletableFiles()
    store = rig.open()
    fill(rig, store, range(40))
    files = names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert names(rig) == files
    assert store.log.min_offset == files[1], "the file has left the log"
    assert "planted" in store.runtime_info()["cleaningFailure"]
    files_layer.is_failing = False
    clean(rig, store)
    assert names(rig) == files, "it is tried again after redeleteHangedFileInterval"
    rig.clock.advance(121_000)
    clean(rig, store)
    assert names(rig)[0] > files[0]
    assert "cleaningFailure" not in store.runtime_info()
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_process_may_end_at_every_operation_of_a_round(
    make_rig: type[MemoryRig], end: str
) -> None:
    """The next start finds a log without a gap and queues that agree with it."""
    operations = 0
    while True:
        files = CrashingFiles()
        rig = make_rig(files=files, changes={"delete_when": ()})
        store = rig.open()
        fill(rig, store, range(60))
        store.flush_tracker.flush_queues()
        rig.clock.advance(4 * DAY_MS)
        store.retention.delete_manually()
        files.dies_at = files.operations + operations
        try:
            clean(rig, store)
            is_complete = True
        except KilledError:
            is_complete = False
        after = rig.after_end(end)
        store = after.open()
        bodies = bodies_of(store)
        present = sorted(int(body[len(BODY) :]) for body in bodies)
        assert present == list(range(60 - len(present), 60))
        store.retention.delete_manually()
        clean(after, store)
        rig.put(store, 70)
        assert rig.draft(70).body in bodies_of(store)
        store.shutdown()
        if is_complete:
            break
        operations += 1
    assert operations > 20


def test_a_round_notices_a_log_that_is_reset_during_a_pause(make_rig: type[MemoryRig]) -> None:
    rig = make_rig(changes={"delete_when": ()})
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20))
    assert len(names(rig, DATA)) > 3
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    steps = pause_after_first_file(rig, store)
    entries_of(store).begin_again(50, 16 * entries_of(store).file_size)
    with pytest.raises(StopIteration):
        while True:
            steps.send(None)
    assert names(rig, DATA) == [16 * entries_of(store).file_size]
    store.close_without_flush()


def test_a_file_that_is_written_during_a_pause_stays(make_rig: type[MemoryRig]) -> None:
    """A repair of a damaged entry writes to an old file."""
    rig = make_rig(changes={"delete_when": ()})
    store = rig.open()
    fill(rig, store, range(20))
    files = names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    steps = pause_after_first_file(rig, store)
    rig.files.now_ms = rig.clock.now_ms()
    assert isinstance(store.log, ClassicCommitLog)
    store.log.segments.first.file.write(100, b"x")
    with pytest.raises(StopIteration):
        while True:
            steps.send(None)
    assert names(rig) == files[1:]
    store.close_without_flush()


def first_index(entries: EntryStore, offset: int) -> LedgerIndex:
    """Return the index of the entry at the start of a file."""
    unit = entries._index.find(offset)
    assert unit is not None
    return unit.index


@pytest.mark.parametrize("damaged", ["header", "unit"])
def test_damage_at_the_start_of_a_file_does_not_stop_retention(
    make_rig: type[MemoryRig], damaged: str
) -> None:
    """The first entry of a file is known from its header or from its index unit."""
    rig = make_rig(changes={"delete_when": ()})
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20))
    entries = entries_of(store)
    second = entries.data[1]
    index = first_index(entries, second.first_offset)
    if damaged == "header":
        second.file.write(4, b"\xff")
    else:
        entries._index.put(index, bytes(32))
    released = entries.release_first_file()
    assert released.first_offset == 0 and entries.begin_index == index
    if damaged == "header":
        entries.data[1].file.write(4, b"\xff")
        entries._index.put(first_index(entries, entries.data[1].first_offset), bytes(32))
        rig.clock.advance(4 * DAY_MS)
        store.retention.delete_manually()
        clean(rig, store)
        assert "is damaged" in store.runtime_info()["cleaningFailure"]
        assert entries.begin_index == index
    store.close_without_flush()


# ------------------------------------------------------------------------------- joined logs


def joined(make_rig: type[MemoryRig]) -> tuple[MemoryRig, MessageStore]:
    """Return an open store with 20 messages before the divided offset and 20 after it."""
    rig = make_rig(changes={"delete_when": ()})
    store = rig.open()
    fill(rig, store, range(20))
    store.shutdown()
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20, 40))
    return rig, store


def test_old_files_are_removed_first_and_the_divided_offset_stays(
    make_rig: type[MemoryRig],
) -> None:
    rig, store = joined(make_rig)
    divided = store.opened.divided_offset
    assert divided is not None
    new = names(rig, DATA)
    assert len(new) > 3 and names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert len(names(rig)) == 1, "the last old file is removed in a round of its own"
    assert names(rig, DATA) == new, "the new log waits for the old one"
    store.shutdown()
    store = rig.open()
    assert store.opened.divided_offset == divided
    store.retention.delete_manually()
    clean(rig, store)
    assert names(rig) == []
    assert store.log.min_offset >= divided
    assert names(rig, DATA)[0] == divided or not names(rig)
    before = read_all(store)
    store.shutdown()
    store = rig.open()
    assert read_all(store) == before
    fill(rig, store, range(40, 42))
    store.shutdown()


def test_the_last_old_file_stays_until_the_new_log_has_an_entry(make_rig: type[MemoryRig]) -> None:
    """Until then only that file determines the divided offset."""
    rig = make_rig(changes={"delete_when": ()})
    store = rig.open()
    fill(rig, store, range(20))
    store.shutdown()
    rig.flag = True
    store = rig.open()
    divided = store.opened.divided_offset
    rig.clock.advance(4 * DAY_MS)
    for _ in range(3):
        store.retention.delete_manually()
        clean(rig, store)
    assert len(names(rig)) == 1
    store.shutdown()
    store = rig.open()
    assert store.opened.divided_offset == divided
    fill(rig, store, range(20, 22))
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert names(rig) == []
    store.shutdown()
    store = rig.open()
    assert entries_of(store).base_offset == divided
    store.shutdown()


def test_the_new_log_is_kept_an_hour_longer(make_rig: type[MemoryRig]) -> None:
    rig, store = joined(make_rig)
    rig.clock.advance(3 * DAY_MS)
    store.retention.delete_manually()
    for _ in range(3):
        clean(rig, store)
    assert names(rig) == []
    new = names(rig, DATA)
    rig.clock.advance(HOUR_MS)
    clean(rig, store)
    left = names(rig, DATA)
    assert left == new[-len(left) :] and len(left) < len(new)
    assert entries_of(store).begin_index > 0
    before = read_all(store)
    for records in before.values():
        assert records
    store.shutdown()
    store = rig.open()
    assert read_all(store) == before
    assert store.log.min_offset == left[0]
    fill(rig, store, range(40, 44))
    store.shutdown()
    store = rig.open()
    store.shutdown()


def test_forced_cleaning_removes_old_files_of_any_age(make_rig: type[MemoryRig]) -> None:
    rig, store = joined(make_rig)
    use(rig, 0.88)
    new = names(rig, DATA)
    clean(rig, store)
    assert len(names(rig)) == 1 and names(rig, DATA) == new
    clean(rig, store)
    assert names(rig) == []
    clean(rig, store)
    assert len(names(rig, DATA)) < len(new)
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("is_deleting", [False, True])
def test_an_interrupted_drop_of_the_old_log_leaves_no_gap(
    make_rig: type[MemoryRig], is_deleting: bool
) -> None:
    """It is interrupted at each operation, also after the first file has left the log but not the
    disk.
    """
    operations = 0
    while True:
        files = CrashingFiles()
        rig = make_rig(files=files, changes={"delete_when": ()})
        store = rig.open()
        fill(rig, store, range(20))
        store.shutdown()
        rig.flag = True
        store = rig.open()
        fill(rig, store, range(20, 40))
        divided, old = store.opened.divided_offset, names(rig)
        assert len(old) > 3
        if is_deleting:
            rig.clock.advance(4 * DAY_MS)
            store.retention.delete_manually()
            next(store.retention.round(rig.settings(), rig.clock.now_ms()))
            assert names(rig) == old
        files.dies_at = files.operations + operations
        try:
            store.delete_classic_prefix()
            is_complete = True
        except KilledError:
            is_complete = False
        if is_complete:
            assert names(rig) == [] and store.log.min_offset == divided
        after = rig.after_end("kill")
        store = after.open()
        left = names(after)
        assert left == old[len(old) - len(left) :]
        assert store.log.min_offset == (left[0] if left else divided)
        fill(after, store, range(40, 42))
        assert {BODY + b"%d" % number for number in range(20, 42)} <= set(bodies_of(store))
        store.shutdown()
        if is_complete:
            break
        operations += 1
    assert operations >= 2 * len(old)


# ------------------------------------------------------------------------------- queues


def test_queues_without_messages_are_deleted(rig: MemoryRig) -> None:
    store = rig.open()
    for number in range(4):
        rig.put(store, number, topic=b"Idle", queue_id=0)
        rig.put(store, number, topic=b"SCHEDULE_TOPIC_XXXX", queue_id=1)
    fill(rig, store, range(30))
    assert store.delete_expired_queues() == 0
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert store.delete_expired_queues() == 1
    assert ("Idle", 0) not in list(store.reader.queue_names())
    assert not [path for path in rig.tree() if "/Idle/" in path]
    (result,) = store.appender.put([rig.draft(9, topic=b"Idle", queue_id=0)])
    assert result.queue_offset == 0
    store.appender.commit()
    store.dispatch()
    store.shutdown()
