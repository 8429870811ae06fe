"""What is done for a flush, a change of role, and the deletion of a topic does not depend on the
number of queues: the queues that are touched are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from harness.store import MemoryRig

from rmqpy.store.message_store import MessageStore
from rmqpy.store.queues.consume_queue import ConsumeQueue, QueueSync
from rmqpy.store.queues.table import ConsumeQueueTable, QueueName
from rmqpy.store.queues.topic_queue_table import TopicQueueTable

TOPICS = 50
QUEUES = 4


def topic_of(number: int) -> bytes:
    return f"T{number % TOPICS}".encode()


def fill(rig: MemoryRig, store: MessageStore) -> None:
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            rig.put(store, number, topic=topic_of(number), queue_id=queue_id)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[QueueName]:
    """Return the list of the queues that flushes examine from now on."""
    names: list[QueueName] = []
    take_sync = ConsumeQueue.take_sync

    def recorded(queue: ConsumeQueue) -> QueueSync | None:
        names.append(queue.name)
        return take_sync(queue)

    monkeypatch.setattr(ConsumeQueue, "take_sync", recorded)
    return names


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[QueueName]:
    """Return the list of the queues that are looked up from now on."""
    names: list[QueueName] = []
    find, items = ConsumeQueueTable.find, ConsumeQueueTable.items

    def recorded(table: ConsumeQueueTable, topic: str, queue_id: int) -> ConsumeQueue | None:
        names.append((topic, queue_id))
        return find(table, topic, queue_id)

    def walked(table: ConsumeQueueTable) -> object:
        names.extend(name for name, _ in items(table))
        return items(table)

    monkeypatch.setattr(ConsumeQueueTable, "find", recorded)
    monkeypatch.setattr(ConsumeQueueTable, "items", walked)
    return names


@pytest.mark.parametrize("flag", [False, True], ids=["classic", "DLedger"])
def test_a_flush_examines_the_changed_queues(
    make_rig: type[MemoryRig], examined: list[QueueName], flag: bool
) -> None:
    rig = make_rig(flag=flag)
    store = rig.open()
    fill(rig, store)
    store.flush_tracker.flush_queues()
    examined.clear()
    rig.put(store, 7, topic=b"T7", queue_id=2)
    store.flush_tracker.flush_queues()
    assert set(examined) == {("T7", 2)}
    examined.clear()
    store.flush_tracker.flush_queues()
    assert examined == []
    store.shutdown()


def test_a_failed_flush_is_repeated_for_the_same_queues(
    make_rig: type[MemoryRig], examined: list[QueueName]
) -> None:
    rig = make_rig()
    store = rig.open()
    fill(rig, store)
    task = store.flush_tracker.queue_flush_task()
    assert task is not None and len(task.queues) == TOPICS * QUEUES
    again = store.flush_tracker.queue_flush_task()
    assert again is not None and set(again.queues) == set(task.queues)
    again.run()
    store.flush_tracker.queues_flushed(again)
    assert not store.queues.touched
    store.shutdown()


def test_the_recovery_point_has_the_ends_of_all_queues(make_rig: type[MemoryRig]) -> None:
    rig, choose = make_rig(), Random(3)
    store = rig.open()
    fill(rig, store)
    for number in range(300):
        what = choose.random()
        if what < 0.9:
            topic = topic_of(choose.randrange(TOPICS))
            rig.put(store, number, topic=topic, queue_id=choose.randrange(QUEUES))
        elif what < 0.95:
            store.delete_topic_queues(topic_of(choose.randrange(TOPICS)).decode())
        elif what < 0.97:
            store.shutdown()
            store = rig.open()
        else:
            rig.flush(store)
            store.flush_tracker.flush_queues()
            store.flush_tracker.save_point()
            point = json.loads(rig.files.read_bytes("/store/rmqpy/recovery-point"))
            ends: dict[str, dict[str, int]] = {}
            for (name, queue_id), queue in store.queues.items():
                ends.setdefault(name, {})[str(queue_id)] = queue.max_offset
            assert point["queues"] == ends
    store.shutdown()


def test_a_change_of_role_looks_up_the_queues_that_are_used(
    make_rig: type[MemoryRig], found: list[QueueName]
) -> None:
    rig = make_rig(flag=True)
    store = rig.open()
    fill(rig, store)
    found.clear()
    store.appender.forget_tails()
    assert store.appender.is_ready()
    assert found == []
    results = store.appender.put([rig.draft(8, topic=b"T8", queue_id=1)])
    assert [int(result.queue_offset) for result in results] == [1]
    assert found == [("T8", 1)]
    store.shutdown()


def test_a_deleted_topic_begins_again_and_others_keep_their_cells() -> None:
    table = TopicQueueTable(lambda key: 100 + key[1])
    cells = {key: table.index_of(key) for key in [(b"A", 0), (b"B", 0), (b"B", 1), (b"C", 0)]}
    assert [table.cells[cell] for cell in cells.values()] == [100, 100, 101, 100]
    generation = table.generation
    table.cells[cells[b"C", 0]] = 7
    table.forget_topic(b"B")
    assert table.generation == generation, "other cells are the same"
    assert dict(table.items()) == {(b"A", 0): 100, (b"C", 0): 7}
    assert table.index_of((b"B", 5)) in {cells[b"B", 0], cells[b"B", 1]}, "a free cell is used"
    assert dict(table.items()) == {(b"A", 0): 100, (b"C", 0): 7, (b"B", 5): 105}


def test_a_flush_examines_what_c_had(make_rig: type[MemoryRig]) -> None:
    """Without noting each of these queues, of which there may be 50,000, when C gives them back."""
    store = make_rig().open()
    queues = store.queues
    for number in range(4):
        queues.shared.add(queues.of("T", number))
        queues.release_shared()
    again = queues.of("T", 3)
    queues.shared.add(again)
    assert not queues.touched and set(queues.shared) == {again}
    for expected in (set(queues), {again}):
        found = [queue for queue in queues.begin_flush() if queue is not None]
        assert set(found) == expected and len(found) == len(expected)
        queues.touched.clear()
    store.shutdown()


def test_a_flush_examines_what_c_takes_or_gives_back_meanwhile(make_rig: type[MemoryRig]) -> None:
    store = make_rig().open()
    queues = store.queues
    first, second, third, unused = (queues.of("T", number) for number in range(4))

    def examined(meanwhile: Callable[[], object]) -> list[ConsumeQueue]:
        queues.touched |= {first, second}
        queues.shared |= {second, third}
        steps = queues.begin_flush()
        begun = next(step for step in steps if step is not None)
        meanwhile()
        return [begun, *(step for step in steps if step is not None)]

    def give_back() -> None:
        queues.shared.discard(third)
        queues.touched.add(third)

    for meanwhile in (
        lambda: None,
        lambda: queues.shared.add(first),
        lambda: queues.shared.add(unused),
        lambda: queues.shared.discard(second),
        lambda: queues.touched.discard(second),
        give_back,
        queues.release_shared,
    ):
        found = examined(meanwhile)
        assert {first, second, third} == set(found) - {unused}
        assert found.count(first) == found.count(third) == 1
        queues.touched.clear()
        queues.shared.clear()
    store.shutdown()
