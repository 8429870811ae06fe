"""Flushes of the consume queues in slices: any number of queues may need one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from rmqpy.broker.base.scheduling import SLICE_PAUSE_MS
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import ConsumeQueueTable
from rmqpy.testing.harness import BrokerHarness

QUEUES = 12


@pytest.fixture
def examined(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of the queues that flushes have examined, each of which takes a millisecond."""
    topics: list[str] = []
    begin_flush = ConsumeQueueTable.begin_flush

    def slow(table: ConsumeQueueTable) -> Iterator[ConsumeQueue | None]:
        for queue in begin_flush(table):
            if queue is not None:
                topics.append(queue.name[0])
            harness.scheduler.advance(1)
            yield queue

    monkeypatch.setattr(ConsumeQueueTable, "begin_flush", slow)
    return topics


def test_queues_are_examined_in_slices(harness: BrokerHarness, examined: list[str]) -> None:
    for number in range(QUEUES):
        harness.send(topic=f"T{number}")
    flusher, store = harness.broker.queue_flusher, harness.store
    flusher.begin()
    counts = [len(examined)]
    while flusher.running:
        harness.scheduler.advance(SLICE_PAUSE_MS)
        counts.append(len(examined))
    assert all(after - before <= 3 for before, after in pairwise(counts))
    assert sorted(examined) == sorted(f"T{number}" for number in range(QUEUES))
    assert not store.queues.touched
    assert store.flush_tracker.queues_durable_to == store.log.max_offset


def test_messages_between_slices_belong_to_the_next_flush(
    harness: BrokerHarness, examined: list[str]
) -> None:
    for number in range(QUEUES):
        harness.send(topic=f"T{number}")
    flusher, store = harness.broker.queue_flusher, harness.store
    covered = store.log.max_offset
    flusher.begin()
    late = examined[0]
    harness.send(topic=late)
    while flusher.running:
        harness.scheduler.advance(SLICE_PAUSE_MS)
    assert store.flush_tracker.queues_durable_to == covered
    assert {queue.name[0] for queue in store.queues.touched} == {late}
    store.flush_tracker.flush_queues()
    assert not store.queues.touched
    assert store.flush_tracker.queues_durable_to == store.log.max_offset


def test_a_queue_deleted_between_slices_is_in_no_recovery_point(
    harness: BrokerHarness, examined: list[str]
) -> None:
    for number in range(QUEUES):
        harness.send(topic=f"T{number}")
    flusher, store = harness.broker.queue_flusher, harness.store
    flusher.begin()
    store.delete_topic_queues(examined[0])
    while flusher.running:
        harness.scheduler.advance(SLICE_PAUSE_MS)
    assert not harness.files.exists("/store/rmqpy/recovery-point")


def test_a_stop_waits_for_the_slices(harness: BrokerHarness, examined: list[str]) -> None:
    for number in range(QUEUES):
        harness.send(topic=f"T{number}")
    flusher = harness.broker.queue_flusher
    flusher.begin()
    stopped: list[int] = []
    flusher.stop(lambda: stopped.append(len(examined)))
    assert not stopped
    harness.scheduler.advance(20 * SLICE_PAUSE_MS)
    assert stopped == [QUEUES]
