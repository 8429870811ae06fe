"""A disk that is full: puts are refused, reads go on, and once there is room everything goes on
where it stopped.
"""

from __future__ import annotations

import errno

import pytest
from harness.store import MakeStoreRig, StoreRig, bodies_of, read_all

from rmqpy.model.codes import PutMessageStatus
from rmqpy.store.message_store import MessageStore

MODES = ("classic", "dledger", "joined")
REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE


@pytest.fixture(params=MODES)
def rig(request: pytest.FixtureRequest, make_rig: MakeStoreRig) -> StoreRig:
    made = make_rig()
    if request.param == "joined":
        store = made.open()
        made.put(store, 9000)
        store.shutdown()
    made.flag = request.param != "classic"
    return made


def log_part(rig: StoreRig) -> str:
    return "/data/" if rig.flag else "/commitlog/"


def refused_for_room(store: MessageStore, rig: StoreRig, number: int) -> bool:
    (result,) = store.appender.put([rig.draft(number)])
    return result.status is REFUSED and "the disk is full" in result.remark


def everything(store: MessageStore) -> list[bytes]:
    return sorted(
        record[88 : 88 + int.from_bytes(record[84:88])]
        for records in read_all(store).values()
        for record in records
    )


def test_the_log_finds_no_room(rig: StoreRig) -> None:
    store = rig.open()
    rig.put(store, 0, 1)
    before = bodies_of(store)
    (mark, *_) = store.log.acknowledged(False)
    acknowledged = mark.value
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    (staged,) = store.appender.put([rig.draft(2)])
    store.appender.commit()
    store.dispatch()
    assert mark.value == acknowledged < staged.end, "not acknowledged"
    assert store.health.failure is None and "planted" in store.health.disk_full_reason
    assert refused_for_room(store, rig, 3)
    assert "storeRefusesPuts" in store.runtime_info()
    assert bodies_of(store) == before, "reads go on"
    store.appender.commit()
    assert refused_for_room(store, rig, 3), "as long as it is full"

    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert store.health.disk_full_reason is None and "storeRefusesPuts" not in store.runtime_info()
    assert mark.value >= staged.end
    rig.put(store, 3)
    expected = sorted([*before, *(rig.draft(number).body for number in (2, 3))])
    assert everything(store) == expected
    store.shutdown()
    assert "abort" not in rig.tree()
    store = rig.open()
    assert everything(store) == expected
    store.shutdown()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_the_broker_dies_while_the_disk_is_full(rig: StoreRig, end: str) -> None:
    """What was acknowledged is there; the next start, on the full disk, refuses nothing that it can
    read.
    """
    store = rig.open()
    rig.put(store, 0, 1)
    rig.flush(store)
    before = everything(store)
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    store.appender.put([rig.draft(2)])
    store.appender.commit()
    rig = rig.after(getattr(rig.files, end)())
    store = rig.open()
    assert everything(store) == before
    rig.put(store, 3)
    store.shutdown()


def test_every_write_of_a_run_finds_no_room_once(rig: StoreRig) -> None:
    """Whichever write it is (records, a file's end, a new file, a queue, the index): nothing is
    lost, nothing is there twice, and the store goes on.
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
    assert everything(store) == sorted(stored)
    assert len(stored) > 60
    for number in range(1, 120):
        found = store.reader.query_message(f"T{number % 7}", f"key{number}", 64, 0, 1 << 50)
        assert len(found.messages) == stored.count(b"%d " % number * (1 + number * 37 % 200))
    store.shutdown()
    assert "abort" not in rig.tree()
    store = rig.open()
    assert everything(store) == sorted(stored)
    store.shutdown()


def test_a_batch_goes_to_the_next_file_as_a_whole_or_waits(rig: StoreRig) -> None:
    store = rig.open()
    rig.put(store, 0)
    before = everything(store)
    rig.files.fail_write(log_part(rig), errno.ENOSPC)
    drafts = [rig.draft(number, body=b"x" * 900, queue_id=0) for number in range(1, 4)]
    statuses = [store.appender.put(drafts, batch=True)[0].status for _ in range(4)]
    assert statuses[-1] is REFUSED
    taken = statuses.count(PutMessageStatus.PUT_OK)
    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert everything(store) == sorted([*before, *[b"x" * 900] * (3 * taken)])
    assert store.health.failure is None
    store.shutdown()


def test_the_checkpoint_finds_no_room(rig: StoreRig) -> None:
    store = rig.open()
    rig.put(store, 0)
    rig.files.fail_write("/checkpoint", errno.ENOSPC)
    store.flush_tracker.flush_queues()
    assert store.health.failure is None and store.health.writeable
    rig.files.heal()
    store.flush_tracker.flush_queues()
    assert any(rig.tree()["checkpoint"])
    store.shutdown()
