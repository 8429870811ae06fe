"""Cleaning and full disks as a broker meets them: rounds on a timer, requests 306, 316 and 329."""

from __future__ import annotations

import errno

import pytest

from rmqpy.testing.harness import BrokerHarness, BuildBroker

HOUR_MS = 3_600_000


def log_files(kit: BrokerHarness) -> list[str]:
    return sorted(path for path in kit.files.nodes if "/commitlog/" in path)


def test_request_329_deletes_expired_files(build: BuildBroker) -> None:
    kit = build(mapped_file_size_commit_log=4096, delete_when=())
    kit.files.now_ms = kit.scheduler.now_ms()
    for _ in range(40):
        assert kit.send(b"x" * 500).code == 0
    before = log_files(kit)
    assert len(before) > 5
    kit.scheduler.jump_wall_clock(73 * HOUR_MS)
    assert log_files(kit) == before
    assert kit.call(329).code == 0
    kit.scheduler.advance(30_000)  # the first round lets the consume queues be made durable
    after = log_files(kit)
    assert after == before[-len(after) :] and len(after) <= 2
    info = kit.call(28)
    assert f'"commitLogMinOffset":"{int(after[0][-20:])}"' in info.body.decode()
    assert kit.send().code == 0


def test_files_wait_for_the_consume_queues_to_be_durable(build: BuildBroker) -> None:
    """A power failure takes what was not synced: the units of messages whose files have gone."""
    kit = build(
        mapped_file_size_commit_log=4096, delete_when=(), flush_interval_consume_queue=10**9
    )
    kit.files.now_ms = kit.scheduler.now_ms()
    for _ in range(40):
        assert kit.send(b"x" * 500).code == 0
    kit.scheduler.jump_wall_clock(73 * HOUR_MS)
    before = log_files(kit)
    durable_to = kit.store.flush_tracker.queues_durable_to
    rounds = []
    kit.broker.cleaning._flush_queues = lambda: rounds.append(kit.scheduler.now_ms())
    kit.call(329)
    kit.scheduler.advance(60_000)
    assert rounds, "a flush is asked for in each round"
    gone = set(before) - set(log_files(kit))
    assert all(int(path[-20:]) + 4096 <= durable_to for path in gone)
    assert len(log_files(kit)) > 2


def test_requests_306_and_316(build: BuildBroker) -> None:
    kit = build(mapped_file_size_commit_log=4096, delete_when=())
    kit.files.now_ms = kit.scheduler.now_ms()
    kit.send(topic="Idle")
    kit.send(topic="Unknown")
    for _ in range(40):
        kit.send(b"x" * 500)
    kit.broker.topics.delete("Unknown")
    assert kit.call(306).code == 0
    assert {topic for topic, _ in kit.store.reader.queue_names()} == {"Idle", "Unknown", "T"}
    assert kit.call(316).code == 0
    assert {topic for topic, _ in kit.store.reader.queue_names()} == {"Idle", "T"}
    kit.scheduler.jump_wall_clock(73 * HOUR_MS)
    kit.call(329)
    kit.scheduler.advance(20_000)
    assert kit.call(306).code == 0
    assert {topic for topic, _ in kit.store.reader.queue_names()} == {"T"}


def test_a_disk_without_room_and_with_room_again(kit: BrokerHarness) -> None:
    """Code 14 for those who wait and those who come, pulls go on, then everything by itself."""
    assert kit.send(b"first").code == 0
    kit.files.fail_write("/commitlog/", errno.ENOSPC)
    assert [kit.send().code, kit.send().code] == [14, 14]
    found = kit.pull()
    assert found.code == 0 and b"first" in found.body
    assert "storeRefusesPuts" in kit.call(28).body.decode()
    kit.scheduler.advance(5_000)
    assert kit.send().code == 14
    kit.files.heal()
    kit.scheduler.advance(2_000)
    assert kit.send(b"last").code == 0
    assert "storeRefusesPuts" not in kit.call(28).body.decode()
    page = kit.pull()
    assert b"last" in page.body


def test_a_failed_sync_is_the_end_of_writing(build: BuildBroker) -> None:
    """SYNC_FLUSH: the sender is told at once, not after a timeout; nobody is acknowledged later."""
    from rmqpy.config.loading import FlushDiskType

    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.files.fail_sync("/commitlog/")
    kit.deliver(kit.send_command(b"lost"))
    kit.scheduler.advance(10)
    assert kit.channel.take_one().code == 14
    kit.files.heal()
    kit.scheduler.advance(5_000)
    assert kit.send().code == 14
    assert "storeFailure" in kit.call(28).body.decode()


def test_offsets_are_not_decided_by_queues_that_are_not_whole(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = build()
    for _ in range(20):
        assert kit.send().code == 0
    monkeypatch.setattr("rmqpy.store.startup.DISPATCHED_AT_START", 0)
    monkeypatch.setattr("rmqpy.store.message_store.DISPATCHED_AT_ONCE", 1)
    monkeypatch.setattr("rmqpy.store.dispatcher.STEP_RECORDS", 1)
    kit = build(files=kit.files.kill(), scheduler=kit.scheduler)
    from rmqpy.remoting.headers import GetMaxOffsetRequestHeader

    asked = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
    answer = kit.call(30, asked)
    assert answer.code == 1 and "rebuilt from the log" in answer.remark
    assert kit.send().ext_fields["queueOffset"] == "20"
    kit.scheduler.advance(1_000)
    assert kit.call(30, asked).ext_fields["offset"] == "21"
