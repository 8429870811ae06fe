"""Starts that do not wait for their derived files: what is served meanwhile, and that nothing of it
is wrong.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.store import MakeStoreRig, StoreRig, bodies_of

from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.store.message_store import MessageStore

POINT = "rmqpy/recovery-point"
COUNT = 60


@pytest.fixture
def rig(make_rig: MakeStoreRig) -> StoreRig:
    return make_rig()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dispatched at a start, and a turn takes one step of a few records."""
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START", 0)
    monkeypatch.setattr("rmqpy.store.message_store.DISPATCHED_AT_ONCE", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 3)


def filled(rig: StoreRig) -> MessageStore:
    store = rig.open()
    for number in range(COUNT):
        rig.put(store, number)
    return store


def settle(store: MessageStore) -> int:
    turns = 0
    while store.dispatcher.behind_bytes:
        store.dispatch()
        turns += 1
    return turns


def after_kill(rig: StoreRig, *, flush: bool = False) -> StoreRig:
    store = filled(rig)
    if flush:
        rig.flush(store)
        store.flush_tracker.flush_queues()
        for number in range(COUNT, COUNT + 10):
            rig.put(store, number)
    return rig.after(rig.files.kill())


@pytest.mark.usefixtures("slow")
def test_messages_are_taken_at_once_with_the_right_offsets(rig: StoreRig) -> None:
    rig = after_kill(rig)
    store = rig.open()
    assert store.dispatcher.behind_bytes and store.dispatcher.is_rebuilding_queues
    assert store.reader.max_queue_offset("Topic", 0) == 0, "not one unit is there yet"
    results = store.appender.put([rig.draft(number) for number in (COUNT, COUNT + 1, COUNT + 2)])
    assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 3
    assert [result.queue_offset for result in results] == [30, 30, 31]
    store.appender.commit()
    assert settle(store) > 10
    assert not store.dispatcher.is_rebuilding_queues
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT + 3)}
    store.shutdown()


@pytest.mark.usefixtures("slow")
def test_nobody_is_told_a_wrong_offset(rig: StoreRig) -> None:
    """A consumer in the middle waits; one whose messages are there gets them."""
    rig = after_kill(rig)
    store = rig.open()
    for offset in (0, 17, 29, 400):
        page = store.reader.get_message("Topic", 0, offset, 9, None)
        assert (page.status, page.next_begin_offset) == (
            GetMessageStatus.OFFSET_OVERFLOW_ONE,
            offset,
        )
    store.dispatch()
    page = store.reader.get_message("Topic", 0, 0, 9, None)
    assert page.status is GetMessageStatus.FOUND
    page = store.reader.get_message("Topic", 0, 29, 9, None)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 29)
    settle(store)
    page = store.reader.get_message("Topic", 0, 400, 9, None)
    assert page.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
    store.shutdown()


@pytest.mark.usefixtures("slow")
def test_far_behind_messages_wait(rig: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqpy.store.appender.SCANNED_AHEAD", 2000)
    rig = after_kill(rig)
    store = rig.open()
    (result,) = store.appender.put([rig.draft(COUNT)])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "rebuilt" in result.remark and "KiB" in result.remark
    while store.dispatcher.behind_bytes > 2000:
        store.dispatch()
    assert store.dispatcher.behind_bytes
    (result,) = store.appender.put([rig.draft(COUNT)])
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 30)
    store.appender.commit()
    settle(store)
    store.shutdown()


def test_a_point_spares_the_walk(rig: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = after_kill(rig, flush=True)
    offset = json.loads(rig.tree()[POINT])["offset"]
    assert offset > 0
    scanned = []
    import rmqpy.store.files.log_recovery as recovery

    def watched(view: Any, base_offset: int, **options: Any) -> Any:
        scanned.append(base_offset)
        return original(view, base_offset, **options)

    original = recovery.scan_records
    monkeypatch.setattr(recovery, "scan_records", watched)
    store = rig.open()
    assert min(scanned) == offset
    assert store.log.flushed_offset == offset, "the rest is not known to be durable"
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT + 10)}
    store.shutdown()


@pytest.mark.parametrize("change", ["tail", "offset", "junk", "beyond"])
def test_a_point_that_is_not_about_this_log(rig: StoreRig, change: str) -> None:
    rig = after_kill(rig, flush=True)
    point = json.loads(rig.tree()[POINT])
    if change == "tail":
        point["tail"] ^= 1
    elif change == "offset":
        point["offset"] += 1
    elif change == "beyond":
        point["offset"] = 1 << 40
    text = b"{" if change == "junk" else json.dumps(point).encode()
    rig.files.put(f"{rig.root}/{POINT}", text)
    store = rig.open()
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT + 10)}
    store.shutdown()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("lost", ["queue", "topic", "last file", "all"])
def test_lost_queues_are_built_again(rig: StoreRig, clean: bool, lost: str) -> None:
    """Java builds a queue again only from the furthest offset that any queue knows."""
    store = filled(rig)
    if clean:
        store.shutdown()
        rig = rig.after(rig.files)
    else:
        rig.flush(store)
        store.flush_tracker.flush_queues()
        rig = rig.after(rig.files.kill())
    folder = {
        "queue": "consumequeue/Topic/1/",
        "topic": "consumequeue/Topic/",
        "last file": "consumequeue/Topic/1/00000000000000000400",
        "all": "consumequeue/",
    }[lost]
    for path in list(rig.files.nodes):
        if path.startswith(f"{rig.root}/{folder}"):
            del rig.files.nodes[path]
    if lost != "last file":
        rig.files.remove_tree(f"{rig.root}/{folder}".rstrip("/"))
    store = rig.open()
    assert any("rebuilt" in note for note in store.opened.notes)
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT)}
    (result,) = store.appender.put([rig.draft(COUNT + 1)])
    assert result.queue_offset == COUNT // 2
    store.shutdown()


def test_a_deleted_topic_does_not_come_back(rig: StoreRig) -> None:
    store = filled(rig)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    store.delete_topic_queues("Topic")
    store.shutdown()
    store = rig.open()
    assert ("Topic", 0) not in list(store.reader.queue_names())
    store.shutdown()
