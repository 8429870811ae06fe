"""File cleaning and full disks in a broker: periodic rounds, requests 306, 316, and 329."""

from __future__ import annotations

import errno

import pytest

from rmqpy.codec.properties import encode_properties
from rmqpy.model.flags import TRANSACTION_PREPARED
from rmqpy.testing.harness import BrokerHarness, BuildBroker

HOUR_MS = 3_600_000


def log_files(harness: BrokerHarness) -> list[str]:
    return sorted(path for path in harness.files.nodes if "/commitlog/" in path)


def test_request_329_deletes_expired_files(build: BuildBroker) -> None:
    harness = build(mapped_file_size_commit_log=4096, delete_when=())
    harness.files.now_ms = harness.scheduler.now_ms()
    for _ in range(40):
        assert harness.send(b"x" * 500).code == 0
    before = log_files(harness)
    assert len(before) > 5
    harness.scheduler.jump_wall_clock(73 * HOUR_MS)
    assert log_files(harness) == before
    assert harness.call(329).code == 0
    harness.scheduler.advance(30_000)  # The first round flushes the consume queues.
    after = log_files(harness)
    assert after == before[-len(after) :] and len(after) <= 2
    info = harness.call(28)
    assert f'"commitLogMinOffset":"{int(after[0][-20:])}"' in info.body.decode()
    assert harness.send().code == 0


def test_files_are_deleted_only_once_the_consume_queues_are_durable(build: BuildBroker) -> None:
    """A power failure would lose unsynced units, which deleted files could not restore."""
    harness = build(
        mapped_file_size_commit_log=4096, delete_when=(), flush_interval_consume_queue=10**9
    )
    harness.files.now_ms = harness.scheduler.now_ms()
    for _ in range(40):
        assert harness.send(b"x" * 500).code == 0
    harness.scheduler.jump_wall_clock(73 * HOUR_MS)
    before = log_files(harness)
    durable_to = harness.store.flush_tracker.queues_durable_to
    rounds = []
    harness.broker.cleaning._flush_queues = lambda: rounds.append(harness.scheduler.now_ms())
    harness.call(329)
    harness.scheduler.advance(60_000)
    assert rounds, "each round requests a flush"
    deleted = set(before) - set(log_files(harness))
    assert all(int(path[-20:]) + 4096 <= durable_to for path in deleted)
    assert len(log_files(harness)) > 2


def test_requests_306_and_316(build: BuildBroker) -> None:
    harness = build(mapped_file_size_commit_log=4096, delete_when=())
    harness.files.now_ms = harness.scheduler.now_ms()
    harness.send(topic="Idle")
    harness.send(topic="Unknown")
    for _ in range(40):
        harness.send(b"x" * 500)
    harness.broker.topics.delete("Unknown")
    assert harness.call(306).code == 0
    assert {topic for topic, _ in harness.store.reader.queue_names()} == {"Idle", "Unknown", "T"}
    assert harness.call(316).code == 0
    assert {topic for topic, _ in harness.store.reader.queue_names()} == {"Idle", "T"}
    harness.scheduler.jump_wall_clock(73 * HOUR_MS)
    harness.call(329)
    harness.scheduler.advance(20_000)
    assert harness.call(306).code == 0
    assert {topic for topic, _ in harness.store.reader.queue_names()} == {"T"}


def test_request_316_keeps_the_queues_of_the_broker_itself(build: BuildBroker) -> None:
    """Half messages, their decisions, waiting and traced messages, and retries with messages; even
    if the topic table does not contain them. Nothing else keeps an open transaction.
    """
    harness = build(trace_topic_enable=True)
    topics = harness.broker.topics
    half = {"TRAN_MSG": "true", "PGROUP": "PG"}
    for number in range(5):
        properties = encode_properties({**half, "UNIQ_KEY": str(number)}).decode()
        assert harness.send(sys_flag=TRANSACTION_PREPARED, properties=properties).code == 0
    assert harness.send(properties=encode_properties({"DELAY": "3"}).decode()).code == 0
    kept = {"RMQ_SYS_TRANS_HALF_TOPIC": 5, "SCHEDULE_TOPIC_XXXX": 1}
    for name in ("RMQ_SYS_TRACE_TOPIC", "%RETRY%G", "%DLQ%G", "Plain", "rmq_sys_other"):
        topics.create_for_group(name, 1)
        assert harness.send(topic=name).code == 0
        if name != "Plain":
            kept[name] = 1
    for name in list(topics.topics):
        topics.delete(name)
    assert harness.call(316).code == 0
    found: dict[str, int] = {}
    for topic, queue_id in harness.store.reader.queue_names():
        end = harness.store.reader.max_queue_offset(topic, queue_id)
        found[topic] = found.get(topic, 0) + end
    assert found == kept


def test_request_306_keeps_the_queues_of_system_topics(build: BuildBroker) -> None:
    harness = build(mapped_file_size_commit_log=4096, delete_when=())
    harness.files.now_ms = harness.scheduler.now_ms()
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "PG"}).decode()
    assert harness.send(sys_flag=TRANSACTION_PREPARED, properties=properties).code == 0
    for _ in range(40):
        harness.send(b"x" * 500)
    harness.scheduler.jump_wall_clock(73 * HOUR_MS)
    harness.call(329)
    harness.scheduler.advance(20_000)
    assert harness.call(306).code == 0
    assert ("RMQ_SYS_TRANS_HALF_TOPIC", 0) in harness.store.reader.queue_names()


def test_a_full_disk_refuses_messages_and_accepts_them_again_later(harness: BrokerHarness) -> None:
    """Waiting and new sends get code 14, pulls continue, and sends succeed again without an
    operator.
    """
    assert harness.send(b"first").code == 0
    harness.files.fail_write("/commitlog/", errno.ENOSPC)
    assert [harness.send().code, harness.send().code] == [14, 14]
    found = harness.pull()
    assert found.code == 0 and b"first" in found.body
    assert "storeRefusesPuts" in harness.call(28).body.decode()
    harness.scheduler.advance(5_000)
    assert harness.send().code == 14
    harness.files.heal()
    harness.scheduler.advance(2_000)
    assert harness.send(b"last").code == 0
    assert "storeRefusesPuts" not in harness.call(28).body.decode()
    page = harness.pull()
    assert b"last" in page.body


def test_a_failed_sync_ends_writing(build: BuildBroker) -> None:
    """With SYNC_FLUSH the sender is refused at once, not after a timeout, and no send succeeds
    later.
    """
    from rmqpy.config.loading import FlushDiskType

    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.files.fail_sync("/commitlog/")
    harness.deliver(harness.send_command(b"lost"))
    harness.scheduler.advance(10)
    assert harness.channel.take_one().code == 14
    harness.files.heal()
    harness.scheduler.advance(5_000)
    assert harness.send().code == 14
    assert "storeFailure" in harness.call(28).body.decode()


def test_offsets_of_incomplete_queues_are_not_answered(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build()
    for _ in range(20):
        assert harness.send().code == 0
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START", 0)
    monkeypatch.setattr("rmqpy.store.message_store.DISPATCHED_AT_ONCE", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 1)
    harness = build(files=harness.files.kill(), scheduler=harness.scheduler)
    from rmqpy.remoting.headers import GetMaxOffsetRequestHeader

    request = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
    answer = harness.call(30, request)
    assert answer.code == 1 and "rebuilt from the log" in (answer.remark or "")
    assert harness.send().ext_fields["queueOffset"] == "20"
    harness.scheduler.advance(1_000)
    assert harness.call(30, request).ext_fields["offset"] == "21"
