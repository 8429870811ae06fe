"""Contract tests of every commit log (classic, DLedger, joined), in memory and on the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.store import FILE_SIZE, StoreRig, bodies_of, entries_of

from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import encode_message
from rmqpy.codec.scan import StopReason
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.interface import Appended, CommitLog, read_span
from rmqpy.store.files.staging import Staging
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.memory_files import MemoryFiles


@pytest.fixture(params=["classic", "dledger", "joined"])
def rig(
    request: pytest.FixtureRequest, small_ledger_index: None, any_files: tuple[FileSystem, str]
) -> StoreRig:
    files, root = any_files
    rig = StoreRig(files, root)
    if request.param == "joined":
        rig.write(9001, 9002)
    rig.flag = request.param != "classic"
    return rig


@pytest.fixture
def store(rig: StoreRig) -> Iterator[MessageStore]:
    opened = rig.open()
    yield opened
    opened.close_without_flush()


def framed_size(rig: StoreRig, record: bytearray) -> int:
    """Return the size of a record in the log, with its entry header."""
    return len(record) + (48 if rig.flag else 0)


def append(rig: StoreRig, store: MessageStore, *numbers: int) -> tuple[Appended, list[bytearray]]:
    """Append messages to the log and return the result and the records."""
    records = [encode_message(rig.draft(number)) for number in numbers]
    return store.log.append(records, 1_700_000_000_123), records


def read(log: CommitLog, offset: PhysicalOffset, size: int) -> bytes:
    """Return bytes of the log that are readable."""
    view = log.read(offset, size)
    assert view is not None
    return bytes(view)


def test_an_empty_log_has_no_data(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    base = store.opened.divided_offset or PhysicalOffset(0)
    assert log.max_offset == log.confirm_offset == base
    assert log.flushed_offset == base
    assert log.min_offset == 0
    assert log.flush_task() is None
    assert log.read(base, 1) is None
    assert list(log.ranges(base)) == []


def test_nothing_is_readable_before_the_commit(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    base = log.max_offset
    appended, records = append(rig, store, 1, 2)
    assert appended.status is PutMessageStatus.PUT_OK
    first = appended.physical_offsets[0]
    assert first == base + (48 if rig.flag else 0)
    assert appended.end == log.max_offset == base + sum(framed_size(rig, r) for r in records)
    assert log.confirm_offset == base
    assert log.read(first, len(records[0])) is None
    log.commit()
    assert log.confirm_offset == log.max_offset == appended.end
    for offset, record in zip(appended.physical_offsets, records, strict=True):
        assert read(log, offset, len(record)) == bytes(record)
        assert int.from_bytes(record[28:36]) == offset
        assert int.from_bytes(record[56:64]) == 1_700_000_000_123
    assert log.read(appended.physical_offsets[1], len(records[1]) + 1) is None


def staging_of(store: MessageStore) -> Staging:
    if isinstance(store.log, ClassicCommitLog):
        return store.log.staging
    return entries_of(store).staging


def test_the_last_commit_is_read_from_memory(rig: StoreRig, store: MessageStore) -> None:
    """This holds only from its first byte on, and only while nothing else is staged."""
    log = store.log
    staging = staging_of(store)
    for numbers in (1, 2), (3,):
        start = log.max_offset
        append(rig, store, *numbers)
        assert log.recent(start) is None
        log.commit()
        (piece,) = log.ranges(start)
        recent = log.recent(start)
        assert recent is not None
        assert bytes(recent.view) == bytes(piece.view)
        assert (recent.offset, recent.file_end) == (start, piece.file_end)
        assert recent.dledger == piece.dledger
        assert log.recent(PhysicalOffset(start - 1)) is None
        assert log.recent(PhysicalOffset(start + 1)) is None
    log.commit()
    assert log.recent(start) is not None, "a commit of nothing changes nothing"
    staging.kept = 0
    assert log.recent(start) is None
    append(rig, store, 4)
    log.commit()
    staging.restart(log.max_offset)
    assert log.recent(start) is None


def test_a_commit_advances_the_watermark_of_replies(rig: StoreRig, store: MessageStore) -> None:
    (mark,) = store.log.acknowledged(True)
    assert mark.name == ("committed" if rig.flag else "written")
    advances: list[int] = []
    mark.subscribe(advances.append)
    appended, _ = append(rig, store, 1)
    assert advances == []
    store.log.commit()
    assert advances[-1] == mark.value == appended.end


def test_a_log_rolls_to_the_next_file(rig: StoreRig, store: MessageStore) -> None:
    """Every file is closed by a filler, no record straddles two files or touches the last 8 bytes,
    and ``ranges`` yields exactly the appended records.
    """
    log = store.log
    start = log.max_offset
    offsets: list[int] = []
    sizes: list[int] = []
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
    seen: list[int] = []
    for piece in log.ranges(start):
        assert piece.file_end % FILE_SIZE == 0
        assert piece.offset // FILE_SIZE == (piece.file_end - 1) // FILE_SIZE
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=True)
        assert scan.stop in (StopReason.BLANK, StopReason.END)
        assert scan.misplaced() == []
        seen += list(scan.offset)
    assert seen == offsets


def test_ranges_start_at_any_record(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    start = log.max_offset
    for number in range(60):
        append(rig, store, number)
    log.commit()
    offsets: list[int] = []
    for piece in log.ranges(start):
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=False)
        offsets += list(scan.frame_offset)
    for number, offset in enumerate(offsets):
        piece = next(iter(log.ranges(PhysicalOffset(offset))))
        assert piece.offset == offset
        scan = scan_records(piece.view, offset, dledger=piece.dledger, check_crc=False)
        assert scan.frame_offset[0] == offsets[number]


@pytest.mark.parametrize(("extra", "same_file"), [(0, True), (1, False)])
def test_a_record_leaves_at_least_8_bytes_of_its_file(
    rig: StoreRig, store: MessageStore, extra: int, same_file: bool
) -> None:
    """A record that is one byte longer is written to the next file."""
    log = store.log
    append(rig, store, 3)
    first = log.max_offset
    room = FILE_SIZE - first % FILE_SIZE
    overhead = 91 + len(b"Topic") + (48 if rig.flag else 0)
    draft = rig.draft(1, body=b"x" * (room - 8 - overhead + extra), properties=b"")
    appended = log.append([encode_message(draft)], 1)
    assert appended.status is PutMessageStatus.PUT_OK
    assert (appended.physical_offsets[0] // FILE_SIZE == first // FILE_SIZE) is same_file
    assert (appended.end % FILE_SIZE == FILE_SIZE - 8) is same_file
    append(rig, store, 2)
    log.commit()
    found, stops = 0, []
    for piece in log.ranges(store.opened.divided_offset or PhysicalOffset(0)):
        scan = scan_records(piece.view, piece.offset, dledger=piece.dledger, check_crc=True)
        found += len(scan)
        stops.append(scan.stop)
    assert found == 3
    assert stops == [StopReason.BLANK, StopReason.END]


def test_a_record_larger_than_a_file_is_refused(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    before = log.max_offset
    draft = rig.draft(1, body=b"x" * FILE_SIZE)
    appended = log.append([encode_message(draft)], 1)
    assert appended.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert str(FILE_SIZE) in appended.remark or str(FILE_SIZE - 8) in appended.remark
    assert log.max_offset == before
    appended, _ = append(rig, store, 1)
    assert appended.status is PutMessageStatus.PUT_OK


def test_a_batch_is_appended_as_a_whole_or_not_at_all(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    before = log.max_offset
    drafts = [rig.draft(1), rig.draft(2, body=b"x" * FILE_SIZE)]
    appended = log.append([encode_message(draft) for draft in drafts], 1)
    assert appended.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert log.max_offset == before
    appended, records = append(rig, store, 1, 2, 3, 4)
    log.commit()
    assert len(appended.physical_offsets) == 4
    for offset, record in zip(appended.physical_offsets, records, strict=True):
        assert read(log, offset, len(record)) == bytes(record)


def test_only_a_classic_batch_rolls_as_a_whole(store: MessageStore, rig: StoreRig) -> None:
    """Every DLedger member places entries following the same rule, one after the other."""
    log = store.log
    log.append([encode_message(rig.draft(0, body=b"x" * 3000))], 1)
    batch = [encode_message(rig.draft(number, body=b"y" * 500)) for number in range(3)]
    appended = log.append(batch, 1)
    log.commit()
    files = [offset // FILE_SIZE for offset in appended.physical_offsets]
    assert len(set(files)) == (2 if rig.flag else 1)
    for offset, record in zip(appended.physical_offsets, batch, strict=True):
        assert read(log, offset, len(record)) == bytes(record)


def test_a_flush_covers_what_was_committed_before_it(rig: StoreRig, store: MessageStore) -> None:
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


def test_a_flush_covers_many_files(rig: StoreRig, store: MessageStore) -> None:
    log = store.log
    for number in range(110):
        append(rig, store, number)
    log.commit()
    task = log.flush_task()
    assert task is not None
    assert len(task.parts) > 3
    if isinstance(rig.files, MemoryFiles):
        task.run()
        log.flushed(task.offset)
        after = rig.after(rig.files.crash()).open()
        assert after.log.max_offset == log.max_offset


def test_a_reopened_log_is_the_same(rig: StoreRig) -> None:
    store = rig.open()
    offsets: list[int] = []
    for number in range(50):
        offsets += rig.put(store, number)
    end, bodies = store.log.max_offset, bodies_of(store)
    divided = store.opened.divided_offset
    store.shutdown()
    assert store.health.failure is None
    reopened = rig.open()
    assert reopened.log.max_offset == end == reopened.log.confirm_offset
    assert reopened.opened.divided_offset == divided
    assert bodies_of(reopened) == bodies
    for offset in offsets:
        record = reopened.reader.message_at(offset)
        assert record is not None and int.from_bytes(record[28:36]) == offset
    more = rig.put(reopened, 50)
    assert more[0] >= end
    reopened.shutdown()


def test_a_reopened_empty_log_is_the_same(rig: StoreRig) -> None:
    """The first DLedger file exists then, without an entry."""
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


def test_a_kill_loses_only_staged_messages(rig: StoreRig) -> None:
    """Their queue offsets are assigned to the next messages."""
    if not isinstance(rig.files, MemoryFiles):
        pytest.skip("only memory files can be killed")
    store = rig.open()
    before = store.reader.max_queue_offset("Topic", 0)
    rig.put(store, 0, 1, 2)
    store.appender.put([rig.draft(4)])
    after = rig.after(rig.files.kill()).open()
    assert after.reader.max_queue_offset("Topic", 0) == before + 2
    (result,) = after.appender.put([rig.draft(6)])
    assert result.queue_offset == before + 2


def test_a_slave_that_was_master_keeps_the_file_that_it_had_prepared() -> None:
    """The next file of a log is created early; raw bytes of a master must claim it."""
    rig, other = (StoreRig(MemoryFiles(), f"/{name}") for name in ("store", "master"))
    rig.flag = other.flag = False
    store, master = rig.open(), other.open()
    log, number = store.log, 0
    assert isinstance(log, ClassicCommitLog)
    while master.log.max_offset < 2 * FILE_SIZE - 1000:
        append(other, master, number)
        master.log.commit()
        if log._prepared is None:
            append(rig, store, number)
            log.commit()
        number += 1
    store.set_role(slave=True)
    for end in (FILE_SIZE, master.log.max_offset):
        begin = log.max_offset
        store.append_raw(begin, read(master.log, begin, end - begin))
    store.shutdown()
    again = rig.open()
    end = master.log.max_offset
    assert again.log.max_offset == end
    assert read_span(again.log, 0, end) == read_span(master.log, 0, end)
    master.close_without_flush()
    again.close_without_flush()
