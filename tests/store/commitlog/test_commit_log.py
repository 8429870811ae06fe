"""One contract, every commit log: classic, DLedger, joined; in memory and on the disk."""

from __future__ import annotations

from typing import Any

import pytest
from harness.store import FILE_SIZE, MakeStoreRig, StoreRig, bodies_of

from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import encode_messages
from rmqpy.codec.scan import StopReason
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.files import FileSystem
from rmqpy.store.message_store import MessageStore

MODES = ("classic", "dledger", "joined")


@pytest.fixture(params=MODES)
def rig(
    request: pytest.FixtureRequest, make_rig: MakeStoreRig, any_files: tuple[FileSystem, str]
) -> StoreRig:
    files, root = any_files
    made = make_rig(files, root)
    if request.param == "joined":
        store = made.open()
        made.put(store, 9001, 9002)
        store.shutdown()
    made.flag = request.param != "classic"
    return made


@pytest.fixture
def store(rig: StoreRig) -> MessageStore:
    opened = rig.open()
    yield opened
    opened.close_without_flush()


def framed(log_flag: bool, record: bytearray) -> int:
    return len(record) + (48 if log_flag else 0)


def append(rig: StoreRig, store: MessageStore, *numbers: int) -> tuple[Any, list[bytearray]]:
    records = encode_messages([rig.draft(number) for number in numbers])
    return store.log.append(records, 1_700_000_000_123), records


def test_an_empty_log(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    base = store.opened.divided_offset or 0
    assert log.max_offset == log.confirm_offset == base
    assert log.flushed_offset == base
    assert log.min_offset == 0
    assert log.flush_task() is None
    assert log.read(base, 1) is None
    assert list(log.ranges(base)) == []


def test_nothing_is_readable_before_commit(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    base = log.max_offset
    appended, records = append(rig, store, 1, 2)
    assert appended.status is PutMessageStatus.PUT_OK
    first = appended.physical_offsets[0]
    assert first == base + (48 if rig.flag else 0)
    assert appended.end == log.max_offset == base + sum(framed(rig.flag, r) for r in records)
    assert log.confirm_offset == base
    assert log.read(first, len(records[0])) is None
    log.commit()
    assert log.confirm_offset == log.max_offset == appended.end
    for offset, record in zip(appended.physical_offsets, records, strict=True):
        assert bytes(log.read(offset, len(record))) == bytes(record)
        assert int.from_bytes(record[28:36]) == offset
        assert int.from_bytes(record[56:64]) == 1_700_000_000_123
    assert log.read(appended.physical_offsets[1], len(records[1]) + 1) is None


def test_what_was_written_last_is_read_without_its_file(rig: StoreRig, store: MessageStore) -> None:
    """As long as nothing else is staged, and for just these bytes."""
    log = store.log
    staging = log.staging if not rig.flag else store.opened.dledger.entries.staging
    for numbers in (1, 2), (3,):
        start = log.max_offset
        append(rig, store, *numbers)
        assert log.recent(start) is None
        log.commit()
        (piece,) = log.ranges(start)
        recent = log.recent(start)
        assert bytes(recent.view) == bytes(piece.view)
        assert (recent.offset, recent.file_end) == (start, piece.file_end)
        assert recent.dledger == piece.dledger
        assert log.recent(start - 1) is None
        assert log.recent(start + 1) is None
    log.commit()
    assert log.recent(start) is not None, "a commit of nothing"
    staging.kept = 0
    assert log.recent(start) is None
    append(rig, store, 4)
    log.commit()
    staging.restart(log.max_offset)
    assert log.recent(start) is None


def test_the_watermark_that_a_reply_waits_for(rig: StoreRig, store: MessageStore) -> None:
    (mark,) = store.log.acknowledged(True)
    assert mark.name == ("committed" if rig.flag else "written")
    news: list[int] = []
    mark.subscribe(news.append)
    appended, _ = append(rig, store, 1)
    assert news == []
    store.log.commit()
    assert news[-1] == mark.value == appended.end


def test_rolling_to_the_next_file(rig: StoreRig, store: MessageStore) -> None:
    """Every file is closed by a filler, no record straddles two files or touches the last 8 bytes,
    and what ``ranges`` shows is exactly what was appended.
    """
    log = store.log
    start = log.max_offset
    offsets, sizes = [], []
    for number in range(110):
        appended, (record,) = append(rig, store, number)
        offsets.append(int(appended.physical_offsets[0]))
        sizes.append(len(record))
        if number % 7 == 0:
            log.commit()
    log.commit()
    assert log.max_offset - start > 3 * FILE_SIZE
    for offset, size in zip(offsets, sizes, strict=True):
        assert offset // FILE_SIZE == (offset + size + 7) // FILE_SIZE
    seen = []
    for piece in log.ranges(start):
        assert piece.file_end % FILE_SIZE == 0
        assert piece.offset // FILE_SIZE == (piece.file_end - 1) // FILE_SIZE
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=True)
        assert scan.stop in (StopReason.BLANK, StopReason.END)
        assert scan.misplaced() == []
        seen += list(scan.offset)
    assert seen == offsets


def test_ranges_begin_at_any_record(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    start = log.max_offset
    for number in range(60):
        append(rig, store, number)
    log.commit()
    offsets = []
    for piece in log.ranges(start):
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=False)
        offsets += list(scan.frame_offset)
    for number, offset in enumerate(offsets):
        piece = next(iter(log.ranges(offset)))
        assert piece.offset == offset
        scan = scan_records(piece.view, offset, dledger=piece.dledger, check_crc=False)
        assert scan.frame_offset[0] == offsets[number]


@pytest.mark.parametrize(("extra", "same_file"), [(0, True), (1, False)])
def test_a_record_fits_exactly(
    rig: StoreRig, store: MessageStore, extra: int, same_file: bool
) -> None:
    """A record may leave 8 bytes and no less: one byte more and it goes to the next file."""
    log = store.log
    append(rig, store, 3)
    first = log.max_offset
    room = FILE_SIZE - first % FILE_SIZE
    overhead = 91 + len(b"Topic") + (48 if rig.flag else 0)
    draft = rig.draft(1, body=b"x" * (room - 8 - overhead + extra), properties=b"")
    appended = log.append(encode_messages([draft]), 1)
    assert appended.status is PutMessageStatus.PUT_OK
    assert (appended.physical_offsets[0] // FILE_SIZE == first // FILE_SIZE) is same_file
    assert (appended.end % FILE_SIZE == FILE_SIZE - 8) is same_file
    append(rig, store, 2)
    log.commit()
    found, stops = 0, []
    for piece in log.ranges(store.opened.divided_offset or 0):
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=True)
        found += len(scan)
        stops.append(scan.stop)
    assert found == 3
    assert stops == [StopReason.BLANK, StopReason.END]


def test_a_record_larger_than_a_file_is_refused(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    before = log.max_offset
    draft = rig.draft(1, body=b"x" * FILE_SIZE)
    appended = log.append(encode_messages([draft]), 1)
    assert appended.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert str(FILE_SIZE) in appended.remark or str(FILE_SIZE - 8) in appended.remark
    assert log.max_offset == before
    appended, _ = append(rig, store, 1)
    assert appended.status is PutMessageStatus.PUT_OK


def test_a_batch_is_all_or_none(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    before = log.max_offset
    drafts = [rig.draft(1), rig.draft(2, body=b"x" * FILE_SIZE)]
    appended = log.append(encode_messages(drafts), 1)
    assert appended.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert log.max_offset == before
    appended, records = append(rig, store, 1, 2, 3, 4)
    log.commit()
    assert len(appended.physical_offsets) == 4
    for offset, record in zip(appended.physical_offsets, records, strict=True):
        assert bytes(log.read(offset, len(record))) == bytes(record)


def test_a_batch_that_rolls(store: MessageStore, rig: StoreRig) -> None:
    """Classic: the batch goes to the next file as a whole. DLedger: entry by entry, as every member
    places entries by the same rule.
    """
    log = store.log
    log.append(encode_messages([rig.draft(0, body=b"x" * 3000)]), 1)
    batch = encode_messages([rig.draft(number, body=b"y" * 500) for number in range(3)])
    appended = log.append(batch, 1)
    log.commit()
    files = [offset // FILE_SIZE for offset in appended.physical_offsets]
    assert len(set(files)) == (2 if rig.flag else 1)
    for offset, record in zip(appended.physical_offsets, batch, strict=True):
        assert bytes(log.read(offset, len(record))) == bytes(record)


def test_flushing(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    before = log.flushed_offset
    appended, _ = append(rig, store, 1)
    assert log.flush_task() is None, "staged bytes are not written yet"
    log.commit()
    task = log.flush_task()
    assert task is not None and task.offset == appended.end
    append(rig, store, 2)
    log.commit()
    task.run()
    assert log.flushed_offset == before
    log.flushed(task.offset)
    assert log.flushed_offset == appended.end
    later = log.flush_task()
    assert later is not None and later.offset == log.max_offset
    later.run()
    log.flushed(later.offset)
    assert log.flush_task() is None


def test_flushing_over_many_files(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    for number in range(110):
        append(rig, store, number)
    log.commit()
    task = log.flush_task()
    assert task is not None
    assert len(task.parts) > 3
    if hasattr(rig.files, "crash"):
        task.run()
        log.flushed(task.offset)
        after = rig.after(rig.files.crash()).open()
        assert after.log.max_offset == log.max_offset


def test_reopening_gives_the_same_log(rig: StoreRig) -> None:
    store = rig.open()
    offsets = []
    for number in range(50):
        offsets += rig.put(store, number)
    end, bodies = store.log.max_offset, bodies_of(store)
    divided = store.opened.divided_offset
    store.shutdown()
    assert store.health.failure is None
    again = rig.open()
    assert again.log.max_offset == end == again.log.confirm_offset
    assert again.opened.divided_offset == divided
    assert bodies_of(again) == bodies
    for offset in offsets:
        record = again.reader.message_at(offset)
        assert record is not None and int.from_bytes(record[28:36]) == offset
    more = rig.put(again, 50)
    assert more[0] >= end
    again.shutdown()


def test_an_empty_log_reopened(rig: StoreRig) -> None:
    """Twice: the first DLedger file is there, without an entry."""
    store = rig.open()
    divided, end = store.opened.divided_offset, store.log.max_offset
    store.shutdown()
    for _ in range(2):
        store = rig.open()
        assert (store.opened.divided_offset, store.log.max_offset) == (divided, end)
        store.shutdown()
    store = rig.open()
    rig.put(store, 1)
    assert bodies_of(store) >= {rig.draft(1).body}
    store.shutdown()


def test_puts_in_the_turn_of_a_kill(rig: StoreRig) -> None:
    """What was committed is there, what was only staged is not, and its queue offset is given to
    the next message.
    """
    if not hasattr(rig.files, "kill"):
        pytest.skip("a file layer that can be killed")
    store = rig.open()
    before = store.reader.max_queue_offset("Topic", 0)
    rig.put(store, 0, 1, 2)
    store.appender.put([rig.draft(4)])
    after = rig.after(rig.files.kill()).open()
    assert after.reader.max_queue_offset("Topic", 0) == before + 2
    (result,) = after.appender.put([rig.draft(6)])
    assert result.queue_offset == before + 2
