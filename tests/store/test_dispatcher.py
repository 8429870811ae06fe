"""Tests of starts that do not wait for their derived files: what the store serves in the meantime
is correct.
"""

from __future__ import annotations

import json
from itertools import count

import pytest
from harness.store import MemoryRig, bodies_of

from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import Scan
from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.store.commitlog.interface import ScanRange
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.flush_tracker import UNSAVED_MAX, UNSAVED_MAX_PER_QUEUE
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.manual_scheduler import ManualScheduler

POINT = "rmqpy/recovery-point"
COUNT = 60


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatch nothing at a start, and only a few records per turn."""
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START", 0)
    monkeypatch.setattr("rmqpy.store.message_store.DISPATCHED_AT_ONCE", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 3)


def filled(rig: MemoryRig) -> MessageStore:
    store = rig.open()
    for number in range(COUNT):
        rig.put(store, number)
    return store


def lag_bytes(store: MessageStore) -> int:
    return store.dispatcher.behind_bytes


def is_rebuilding(store: MessageStore) -> bool:
    return store.dispatcher.is_rebuilding_queues


def settle(store: MessageStore) -> int:
    """Dispatch everything and return the number of turns that this took."""
    turns = 0
    while lag_bytes(store):
        store.dispatch()
        turns += 1
    return turns


def after_kill(rig: MemoryRig, *, flush: bool = False) -> MemoryRig:
    """Fill a store, optionally flush all but its tail, and return what a kill leaves."""
    store = filled(rig)
    if flush:
        rig.flush(store)
        store.flush_tracker.flush_queues()
        for number in range(COUNT, COUNT + 10):
            rig.put(store, number)
    return rig.after_end("kill")


@pytest.mark.usefixtures("slow")
def test_messages_are_accepted_at_once_with_the_correct_offsets(rig: MemoryRig) -> None:
    rig = after_kill(rig)
    store = rig.open()
    assert lag_bytes(store) and is_rebuilding(store)
    assert store.reader.max_queue_offset("Topic", 0) == 0, "no unit exists yet"
    results = store.appender.put([rig.draft(number) for number in (COUNT, COUNT + 1, COUNT + 2)])
    assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 3
    assert [result.queue_offset for result in results] == [30, 30, 31]
    store.appender.commit()
    assert settle(store) > 10
    assert not is_rebuilding(store)
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT + 3)}
    store.shutdown()


@pytest.mark.parametrize(("step_ms", "records"), [(0, COUNT), (2, 9), (9, 3)])
def test_a_turn_dispatches_for_some_milliseconds(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch, step_ms: int, records: int
) -> None:
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START", 0)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_BYTES", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 3)
    store = after_kill(rig).open()
    times = count(1, step_ms)
    monkeypatch.setattr(type(store._clock), "monotonic_ms", lambda _clock: next(times))
    store.dispatch()
    assert len(bodies_of(store)) == records
    settle(store)
    assert len(bodies_of(store)) == COUNT
    store.shutdown()


def test_a_start_dispatches_for_a_limited_time(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START_MS", 20)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_BYTES", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 3)
    rig = after_kill(rig)
    times = count(1, 6)
    with monkeypatch.context() as patched:
        patched.setattr(ManualScheduler, "monotonic_ms", lambda _clock: next(times))
        store = rig.open()
    assert len(bodies_of(store)) == 12
    settle(store)
    assert len(bodies_of(store)) == COUNT
    store.shutdown()


@pytest.mark.usefixtures("slow")
def test_no_consumer_gets_a_wrong_offset(rig: MemoryRig) -> None:
    """A consumer waits until the units at its offset exist."""
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
def test_messages_are_refused_while_dispatch_lags_far(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("SCANNED_AT_START", "SCANNED_IN_TURN"):
        monkeypatch.setattr(f"rmqpy.store.appender.{limit}", 2000)
    rig = after_kill(rig)
    store = rig.open()
    (result,) = store.appender.put([rig.draft(COUNT)])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "rebuilt" in result.remark and "KiB" in result.remark
    while lag_bytes(store) > 2000:
        store.dispatch()
    assert lag_bytes(store)
    (result,) = store.appender.put([rig.draft(COUNT)])
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 30)
    store.appender.commit()
    settle(store)
    store.shutdown()


def test_recovery_starts_at_the_recovery_point(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = after_kill(rig, flush=True)
    offset = json.loads(rig.tree()[POINT])["offset"]
    assert offset > 0
    scanned: list[int] = []

    def recording_scan(
        view: memoryview, base_offset: int, *, dledger: bool, check_crc: bool, topics: bool
    ) -> Scan:
        scanned.append(base_offset)
        return scan_records(view, base_offset, dledger=dledger, check_crc=check_crc, topics=topics)

    monkeypatch.setattr("rmqpy.store.files.log_recovery.scan_records", recording_scan)
    store = rig.open()
    assert min(scanned) == offset
    assert store.log.flushed_offset == offset, "the tail is not known to be durable"
    assert bodies_of(store) == {rig.draft(number).body for number in range(COUNT + 10)}
    store.shutdown()


@pytest.mark.parametrize("change", ["tail", "offset", "junk", "beyond"])
def test_a_recovery_point_of_another_log_is_ignored(rig: MemoryRig, change: str) -> None:
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


def test_a_flush_of_more_queues_is_due_after_more_bytes(rig: MemoryRig) -> None:
    """With 50,000 queues, flushes of all of them took half of a broker's time."""
    store = filled(rig)
    tracker = store.flush_tracker
    assert tracker.checkpoint_due_offset == UNSAVED_MAX
    rig.flush(store)
    tracker.flush_queues()
    end = store.log.max_offset
    assert tracker.checkpoint_due_offset == end + UNSAVED_MAX + 2 * UNSAVED_MAX_PER_QUEUE
    rig.put(store, COUNT)
    rig.flush(store)
    tracker.flush_queues()
    due = store.log.max_offset + UNSAVED_MAX + UNSAVED_MAX_PER_QUEUE
    assert tracker.checkpoint_due_offset == due, "one queue has changed"
    for queue in store.queues:
        store.queues.shared.add(queue)
    rig.put(store, COUNT + 1)
    rig.flush(store)
    tracker.flush_queues()
    due = store.log.max_offset + UNSAVED_MAX + 2 * UNSAVED_MAX_PER_QUEUE
    assert tracker.checkpoint_due_offset == due, "another one may have"
    store.shutdown()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("lost", ["queue", "topic", "last file", "all"])
def test_lost_queues_are_rebuilt(rig: MemoryRig, clean: bool, lost: str) -> None:
    """Java rebuilds a queue only from the largest physical offset that any queue contains."""
    store = filled(rig)
    if clean:
        store.shutdown()
        rig = rig.after(rig.files)
    else:
        rig.flush(store)
        store.flush_tracker.flush_queues()
        rig = rig.after_end("kill")
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


def test_a_deleted_topic_is_not_rebuilt(rig: MemoryRig) -> None:
    store = filled(rig)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    store.delete_topic_queues("Topic")
    store.shutdown()
    store = rig.open()
    assert ("Topic", 0) not in list(store.reader.queue_names())
    store.shutdown()


def test_a_queue_offset_that_was_assigned_twice_is_reported(
    rig: MemoryRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A Java member of a group may do that; the later message stays in the log, unseen."""
    store = filled(rig)
    settle(store)
    assert "hiddenMessages" not in store.runtime_info()
    draft = rig.draft(COUNT)
    topic, queue_id = draft.topic.decode(), draft.queue_id
    end = store.reader.max_queue_offset(topic, queue_id)
    store.appender.tails.replace({(draft.topic, queue_id): 3})
    rig.put(store, COUNT)
    store.dispatch()
    assert store.runtime_info()["hiddenMessages"] == "1"
    assert f"queue {queue_id} of {topic}: no reader sees the message at offset" in caplog.text
    assert store.reader.max_queue_offset(topic, queue_id) == end
    assert len(bodies_of(store)) == COUNT
    store.shutdown()


class IdleAccelerator:
    """An accelerator that leaves everything to Python."""

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> None:
        return None

    def register_queues(self, scan: Scan) -> None:
        return None


def test_a_lagging_index_is_built_in_large_steps_beside_an_accelerator(
    make_rig: type[MemoryRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step runs every 10 ms: with the few records of a step that leads to the accelerator, an
    index file of 20 million keys would take 7 hours, all that time without the accelerator.
    """
    rig = make_rig(changes={"message_index_enable": False, "mapped_file_size_commit_log": 1 << 20})
    filled(rig).shutdown()
    rig.changes["message_index_enable"] = True
    monkeypatch.setattr("rmqpy.store.dispatcher.SMALL_LAG_BYTES", 0)
    store = rig.open()
    store.dispatcher.install_accelerator(IdleAccelerator())
    rig.put(store, COUNT)
    assert store.dispatcher.index_behind_bytes
    assert not store.catch_up_index(), "one step is enough for so few records"
    store.shutdown()
