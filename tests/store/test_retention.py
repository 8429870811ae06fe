"""Cleaning: what goes, when, in which order; and what a crash in the middle leaves."""

from __future__ import annotations

import errno
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from harness.store import CrashingFiles, KilledError, MakeStoreRig, StoreRig, bodies_of, read_all

from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.store.message_store import MessageStore
from rmqpy.store.retention import FILES_A_ROUND, HOUR_MS, MANUAL_ROUNDS, CleaningPause

DAY_MS = 24 * HOUR_MS
NEVER = 23 * HOUR_MS
DATA = "dledger-n0/data/"
BODY = b"x" * 700


@pytest.fixture
def rig(make_rig: MakeStoreRig) -> StoreRig:
    return make_rig(changes={"delete_when": (), "file_reserved_time": 72})


def fill(rig: StoreRig, store: MessageStore, numbers: range) -> None:
    for number in numbers:
        rig.files.now_ms = rig.clock.now_ms()
        rig.put(store, number, body=BODY + b"%d" % number)
    rig.flush(store)
    store.flush_tracker.flush_queues()


def clean(rig: StoreRig, store: MessageStore) -> list[int]:
    """A whole round; the pauses it made."""
    steps = store.retention.round(rig.settings(), rig.clock.now_ms())
    pauses, error = [], None
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


def names(rig: StoreRig, part: str = "commitlog/") -> list[int]:
    return [int(path.rpartition("/")[2]) for path in sorted(rig.tree()) if path.startswith(part)]


def use(rig: StoreRig, ratio: float) -> None:
    rig.files.free_bytes = int(rig.files.total_bytes * (1 - ratio))


def test_nothing_goes_before_its_time(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store, range(30))
    before = rig.tree()
    rig.clock.advance(4 * DAY_MS)
    assert clean(rig, store) == []
    assert rig.tree() == before, "expired, but it is not the hour"
    store.shutdown()


def test_expired_files_go_at_the_hour(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store, range(30))
    files = names(rig)
    rig.changes["delete_when"] = (datetime.fromtimestamp(rig.clock.now_ms() / 1000).hour,)
    clean(rig, store)
    assert names(rig) == files, "not expired"
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


def test_ten_files_a_round(rig: StoreRig) -> None:
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
    assert 1 <= len(left) <= 2, "never the file that is written"
    fill(rig, store, range(80, 120))
    rig.clock.advance(4 * DAY_MS)
    assert clean(rig, store) == [] and names(rig)[0] == left[0], "twenty rounds, no more"
    store.shutdown()


def test_the_disk_decides(rig: StoreRig) -> None:
    store = rig.open()
    fill(rig, store, range(40))
    count = len(names(rig))
    use(rig, 0.80)
    clean(rig, store)
    assert len(names(rig)) == count, "above diskMaxUsedSpaceRatio, but nothing is expired"
    rig.changes["clean_file_forcibly_enable"] = False
    use(rig, 0.88)
    clean(rig, store)
    assert len(names(rig)) == count and store.health.writeable
    use(rig, 0.95)
    clean(rig, store)
    assert len(names(rig)) == count
    (result,) = store.appender.put([rig.draft(0)])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    rig.changes["clean_file_forcibly_enable"] = True
    use(rig, 0.88)
    clean(rig, store)
    assert len(names(rig)) <= max(2, count - FILES_A_ROUND) and store.health.writeable
    rig.changes |= {"disk_space_warning_level_ratio": 40}
    use(rig, 0.50)
    clean(rig, store)
    assert not store.health.writeable
    store.shutdown()


def test_queues_and_index_follow(rig: StoreRig) -> None:
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
        unit = store.queues.find("Topic", queue_id).unit(first + 19)
        assert unit is None or unit[0] >= low or len(names(rig, folder)) == 1
    assert 1 <= len(names(rig, "index/")) <= 2
    assert not store.reader.query_message("Topic", "key0", 64, 0, 1 << 50).messages
    assert store.reader.query_message("Topic", "key133", 64, 0, 1 << 50).messages
    before = read_all(store)
    rig = rig.after(rig.files.kill())
    store = rig.open()
    assert read_all(store) == before
    store.shutdown()


def test_no_file_goes_whose_units_are_not_on_disk(rig: StoreRig) -> None:
    """A power failure would leave a silent queue without its end, and no record to make it from."""
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


def test_a_reader_keeps_what_it_holds(make_rig: MakeStoreRig, tmp_path: Path) -> None:
    """On the real disk: a view into a file that is removed meanwhile."""
    from rmqpy.store.files.disk import OsFileSystem

    rig = make_rig(OsFileSystem(), str(tmp_path / "s"), changes={"delete_when": ()})
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


def test_a_file_that_cannot_be_removed_holds_up_the_others(rig: StoreRig) -> None:
    class Stubborn(CrashingFiles):  # type: ignore[misc]
        stubborn = True

        def unlink(self, path: str) -> None:
            if self.stubborn and "/commitlog/" in path:
                raise OSError(errno.EIO, "planted", path)
            super().unlink(path)

    rig.files = Stubborn()
    store = rig.open()
    fill(rig, store, range(40))
    files = names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert names(rig) == files
    assert store.log.min_offset == files[1], "it has left the log"
    assert "planted" in store.runtime_info()["cleaningFailure"]
    rig.files.stubborn = False
    clean(rig, store)
    assert names(rig) == files, "tried again after redeleteHangedFileInterval"
    rig.clock.advance(121_000)
    clean(rig, store)
    assert names(rig)[0] > files[0]
    assert "cleaningFailure" not in store.runtime_info()
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "crash"])
def test_dying_at_every_operation_of_a_round(make_rig: MakeStoreRig, end: str) -> None:
    """The next start finds a log without a gap, queues that agree with it, and goes on."""
    operations = 0
    while True:
        rig = make_rig(CrashingFiles(), changes={"delete_when": ()})
        store = rig.open()
        fill(rig, store, range(60))
        store.flush_tracker.flush_queues()
        rig.clock.advance(4 * DAY_MS)
        store.retention.delete_manually()
        rig.files.dies_at = rig.files.operations + operations
        try:
            clean(rig, store)
            done = True
        except KilledError:
            done = False
        after = rig.after(getattr(rig.files, end)())
        store = after.open()
        bodies = bodies_of(store)
        present = sorted(int(body[len(BODY) :]) for body in bodies)
        assert present == list(range(60 - len(present), 60))
        store.retention.delete_manually()
        clean(after, store)
        rig.put(store, 70)
        assert rig.draft(70).body in bodies_of(store)
        store.shutdown()
        if done:
            break
        operations += 1
    assert operations > 20


def test_a_log_that_changes_during_a_pause_is_looked_at_again(make_rig: MakeStoreRig) -> None:
    """The log of a member begins again with one file while its cleaning rests between two."""
    rig = make_rig(changes={"delete_when": ()})
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20))
    assert len(names(rig, DATA)) > 3
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    steps = store.retention.round(rig.settings(), rig.clock.now_ms())
    next(steps).run()
    assert isinstance(steps.send(None), CleaningPause)
    store.opened.entries.begin_again(50, 16 * store.opened.entries.file_size)
    with pytest.raises(StopIteration):
        while True:
            steps.send(None)
    assert names(rig, DATA) == [16 * store.opened.entries.file_size]
    store.close_without_flush()


def test_a_file_that_is_written_to_during_a_pause_stays(make_rig: MakeStoreRig) -> None:
    """A damaged entry of it was mended meanwhile."""
    rig = make_rig(changes={"delete_when": ()})
    store = rig.open()
    fill(rig, store, range(20))
    files = names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    steps = store.retention.round(rig.settings(), rig.clock.now_ms())
    next(steps).run()
    assert isinstance(steps.send(None), CleaningPause)
    rig.files.now_ms = rig.clock.now_ms()
    store.log.segments.first.file.write(100, b"x")
    with pytest.raises(StopIteration):
        while True:
            steps.send(None)
    assert names(rig) == files[1:]
    store.close_without_flush()


@pytest.mark.parametrize("damaged", ["header", "unit"])
def test_damage_at_the_begin_of_a_file_does_not_end_cleaning(
    make_rig: MakeStoreRig, damaged: str
) -> None:
    """Which entry comes first then is told by its header or by its index unit."""
    rig = make_rig(changes={"delete_when": ()})
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20))
    entries = store.opened.entries
    second = entries.data[1]
    index = entries._index.find(second.first_offset).index
    if damaged == "header":
        second.file.write(4, b"\xff")
    else:
        entries._index.put(index, bytes(32))
    file = entries.release_first_file()
    assert file.first_offset == 0 and entries.begin_index == index
    if damaged == "header":
        entries.data[1].file.write(4, b"\xff")
        entries._index.put(entries._index.find(entries.data[1].first_offset).index, bytes(32))
        rig.clock.advance(4 * DAY_MS)
        store.retention.delete_manually()
        clean(rig, store)
        assert "is damaged" in store.runtime_info()["cleaningFailure"]
        assert entries.begin_index == index
    store.close_without_flush()


# Across the divide


def joined(make_rig: MakeStoreRig, **changes: Any) -> tuple[StoreRig, MessageStore]:
    rig = make_rig(changes={"delete_when": (), **changes})
    store = rig.open()
    fill(rig, store, range(20))
    store.shutdown()
    rig.flag = True
    store = rig.open()
    fill(rig, store, range(20, 40))
    return rig, store


def test_old_files_go_first_and_the_divide_stays(make_rig: MakeStoreRig) -> None:
    rig, store = joined(make_rig)
    divided = store.opened.divided_offset
    new = names(rig, DATA)
    assert len(new) > 3 and names(rig)
    rig.clock.advance(4 * DAY_MS)
    store.retention.delete_manually()
    clean(rig, store)
    assert len(names(rig)) == 1, "the last of them goes in a round of its own"
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


def test_the_last_old_file_stays_until_the_new_log_has_an_entry(make_rig: MakeStoreRig) -> None:
    """An empty member whose old log has gone would have forgotten where the divide is."""
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
    assert store.opened.entries.base_offset == divided
    store.shutdown()


def test_the_new_log_is_kept_an_hour_longer(make_rig: MakeStoreRig) -> None:
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
    assert store.opened.entries.begin_index > 0
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


def test_force_takes_the_old_files_whatever_their_age(make_rig: MakeStoreRig) -> None:
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
@pytest.mark.parametrize("half_gone", [False, True])
def test_the_old_log_is_dropped_whole_and_leaves_no_gap(
    make_rig: MakeStoreRig, half_gone: bool
) -> None:
    """Wherever that is interrupted, the next start finds what it can go on with: also while the
    first file, which has left the row already, is on its way off the disk.
    """
    operations = 0
    while True:
        rig = make_rig(CrashingFiles(), changes={"delete_when": ()})
        store = rig.open()
        fill(rig, store, range(20))
        store.shutdown()
        rig.flag = True
        store = rig.open()
        fill(rig, store, range(20, 40))
        divided, old = store.opened.divided_offset, names(rig)
        assert len(old) > 3
        if half_gone:
            rig.clock.advance(4 * DAY_MS)
            store.retention.delete_manually()
            next(store.retention.round(rig.settings(), rig.clock.now_ms()))
            assert names(rig) == old
        rig.files.dies_at = rig.files.operations + operations
        try:
            store.delete_classic_prefix()
            done = True
        except KilledError:
            done = False
        if done:
            assert names(rig) == [] and store.log.min_offset == divided
        after = rig.after(rig.files.kill())
        store = after.open()
        left = names(after)
        assert left == old[len(old) - len(left) :]
        assert store.log.min_offset == (left[0] if left else divided)
        fill(after, store, range(40, 42))
        assert {BODY + b"%d" % number for number in range(20, 42)} <= set(bodies_of(store))
        store.shutdown()
        if done:
            break
        operations += 1
    assert operations >= 2 * len(old)


# Queues


def test_queues_whose_messages_are_gone(rig: StoreRig) -> None:
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
