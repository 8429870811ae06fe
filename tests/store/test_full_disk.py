"""Tests with a full disk: puts are refused, reads continue, and everything resumes as soon as there
is space again.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.store import FILE_SIZE, MemoryRig, bodies_of, read_all

from rmqpy.model.codes import PutMessageStatus
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore

REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE


@pytest.fixture
def rig(any_mode_rig: MemoryRig) -> MemoryRig:
    return any_mode_rig


def log_part(rig: MemoryRig) -> str:
    return "/data/" if rig.flag else "/commitlog/"


def is_refused(store: MessageStore, rig: MemoryRig, number: int) -> bool:
    """Put a message and return whether it is refused because the disk is full."""
    (result,) = store.appender.put([rig.draft(number)])
    return result.status is REFUSED and "the disk is full" in result.remark


def all_bodies(store: MessageStore) -> list[bytes]:
    """Return the body of every message, those stored twice too."""
    return sorted(
        record[88 : 88 + int.from_bytes(record[84:88])]
        for records in read_all(store).values()
        for record in records
    )


def test_puts_are_refused_until_the_log_has_space(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 0, 1)
    before = bodies_of(store)
    (mark, *_) = store.log.acknowledged(False)
    acknowledged = mark.value
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    (staged,) = store.appender.put([rig.draft(2)])
    store.appender.commit()
    store.dispatch()
    assert mark.value == acknowledged < staged.end, "the put must not be acknowledged"
    reason = store.health.disk_full_reason
    assert store.health.failure is None and reason is not None and "planted" in reason
    assert is_refused(store, rig, 3)
    assert "storeRefusesPuts" in store.runtime_info()
    assert bodies_of(store) == before, "reads must continue"
    store.appender.commit()
    assert is_refused(store, rig, 3), "the disk is still full"

    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert store.health.disk_full_reason is None and "storeRefusesPuts" not in store.runtime_info()
    assert mark.value >= staged.end
    rig.put(store, 3)
    expected = sorted([*before, *(bytes(rig.draft(number).body) for number in (2, 3))])
    assert all_bodies(store) == expected
    store.shutdown()
    assert "abort" not in rig.tree()
    store = rig.open()
    assert all_bodies(store) == expected
    store.shutdown()


def test_a_file_that_cannot_be_created_is_space_that_is_missing(rig: MemoryRig) -> None:
    """Nothing is staged then. A DLedger log is out of space until the file can be created, so that
    its member does not lead; in a classic log, each put tries again.
    """
    store = rig.open()
    rig.put(store, 0)
    end = store.log.max_offset
    path = f"{log_part(rig)}{end + FILE_SIZE - end % FILE_SIZE:020d}"
    rig.files.fail_write(path, errno.ENOSPC)
    for number in range(1, 100):
        store.appender.put([rig.draft(number)])
        store.appender.commit()
        store.dispatch()
        if store.health.is_out_of_space:
            break
    for _ in range(3):
        store.appender.commit()
        assert store.health.is_out_of_space or not rig.flag
        assert is_refused(store, rig, number)
    rig.files.heal()
    store.appender.commit()
    assert not store.health.is_out_of_space
    rig.put(store, 200)
    store.shutdown()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_broker_that_ends_while_the_disk_is_full_loses_nothing(rig: MemoryRig, end: str) -> None:
    """Every acknowledged message is found by the next start."""
    store = rig.open()
    rig.put(store, 0, 1)
    rig.flush(store)
    before = all_bodies(store)
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    store.appender.put([rig.draft(2)])
    store.appender.commit()
    rig = rig.after_end(end)
    store = rig.open()
    assert all_bodies(store) == before
    rig.put(store, 3)
    store.shutdown()


def test_any_write_may_find_the_disk_full(rig: MemoryRig) -> None:
    """Records, the end of a file, a new file, a queue, the index: no message is lost or stored
    twice, and the store continues.
    """
    store = rig.open()
    rig.put(store, 0)
    files = rig.files
    stored = sorted(bodies_of(store))
    for number in range(1, 120):
        part = (log_part(rig), "/consumequeue/", "/index/")[number % 3]
        files.fail_write(part, errno.ENOSPC)
        body = b"%d " % number * (1 + number * 37 % 200)
        (result,) = store.appender.put([rig.draft(number, body=body, topic=b"T%d" % (number % 7))])
        store.appender.commit()
        store.dispatch()
        files.heal()
        store.appender.commit()
        store.dispatch()
        assert store.health.failure is None and store.health.disk_full_reason is None
        if result.status is PutMessageStatus.PUT_OK:
            stored.append(body)
        else:
            assert result.status is REFUSED
    while store.catch_up_index():
        pass
    assert all_bodies(store) == sorted(stored)
    assert len(stored) > 60
    for number in range(1, 120):
        found = store.reader.query_message(f"T{number % 7}", f"key{number}", 64, 0, 1 << 50)
        assert len(found.messages) == stored.count(b"%d " % number * (1 + number * 37 % 200))
    store.shutdown()
    assert "abort" not in rig.tree()
    store = rig.open()
    assert all_bodies(store) == sorted(stored)
    store.shutdown()


def test_a_batch_is_stored_as_a_whole_or_refused(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 0)
    before = all_bodies(store)
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    drafts = [rig.draft(number, body=b"x" * 900, queue_id=0) for number in range(1, 4)]
    statuses = [store.appender.put(drafts, batch=True)[0].status for _ in range(4)]
    assert statuses[-1] is REFUSED
    accepted = statuses.count(PutMessageStatus.PUT_OK)
    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert all_bodies(store) == sorted([*before, *[b"x" * 900] * (3 * accepted)])
    assert store.health.failure is None
    store.shutdown()


def test_a_checkpoint_that_cannot_be_written_is_written_later(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 0)
    rig.files.fail_write("/checkpoint", errno.ENOSPC)
    store.flush_tracker.flush_queues()
    assert store.health.failure is None and store.health.writeable
    rig.files.heal()
    store.flush_tracker.flush_queues()
    assert any(rig.tree()["checkpoint"])
    store.shutdown()


def test_a_file_that_could_not_be_replaced_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"old")

    def full(fd: int, parts: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rmqpy.store.files.disk.os.writev", full)
    with pytest.raises(OSError) as error:
        OsFileSystem().replace_bytes(str(path), b"new")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]
