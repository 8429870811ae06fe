"""Delayed messages: where they wait, when they are delivered, and how progress is saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.broker import flip_body, queue_messages

from rmqpy.broker.services import schedule
from rmqpy.codec.hashes import crc32
from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import DelayOffsetSerializeWrapper
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.reader import QueueMessageReader
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def send_delayed(
    harness: BrokerHarness, level: int, name: str = "U", **fields: Any
) -> RemotingCommand:
    properties = f"UNIQ_KEY\x01{name}\x02WAIT\x01true\x02DELAY\x01{level}"
    return harness.send(name.encode(), properties=properties, **fields)


def saved_offsets(harness: BrokerHarness, root: str = "/store") -> dict[int, int]:
    raw = harness.files.read_bytes(f"{root}/config/delayOffset.json")
    return DelayOffsetSerializeWrapper.decode(raw).offset_table


def stop(harness: BrokerHarness) -> None:
    """Stop the broker: the name servers answer, and the tables are saved."""
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    for _, command, done in harness.network.take():
        if command.code == 104:
            done(RemotingCommand.response_to(command), None)
    assert stopped


def test_a_delayed_message_waits_in_the_queue_of_its_level(harness: BrokerHarness) -> None:
    answer = send_delayed(harness, 3, queue_id=2)
    assert answer.code == 0
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("2", "0")
    (waiting,) = queue_messages(harness.store, SCHEDULE, 2)
    assert waiting.raw_properties == (
        b"REAL_TOPIC\x01T\x02UNIQ_KEY\x01U\x02CLUSTER\x01C\x02DELAY\x013\x02WAIT\x01true"
        b"\x02REAL_QID\x012"
    )
    ((_, _, due_ms),) = harness.store.reader.queue_units(SCHEDULE, 2, 0, 9)
    assert due_ms == waiting.store_timestamp_ms + 10_000
    assert queue_messages(harness.store, "T", 2) == []


def test_a_delayed_message_is_delivered_unchanged_when_due(harness: BrokerHarness) -> None:
    send_delayed(harness, 2, queue_id=1, flag=7)
    harness.scheduler.advance(4_990)
    assert queue_messages(harness.store, "T", 1) == []
    harness.scheduler.advance(10 + schedule.POLL_MS)
    (waiting,) = queue_messages(harness.store, SCHEDULE, 1)
    (delivered,) = queue_messages(harness.store, "T", 1)
    assert delivered.store_timestamp_ms >= waiting.store_timestamp_ms + 5_000
    for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_host"):
        assert getattr(delivered, name) == getattr(waiting, name), name
    assert delivered.raw_properties == waiting.raw_properties


def test_a_damaged_message_that_will_be_repaired_is_not_skipped(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a DLedger group its entry is fetched from another member."""
    monkeypatch.setattr(QueueMessageReader, "is_awaiting_repair", lambda self, offset: True)
    for name in ("damaged", "next"):
        send_delayed(harness, 1, name)
    flip_body(harness, 0)
    harness.scheduler.advance(10_000)
    assert queue_messages(harness.store, "T") == []
    assert harness.broker.delay_offsets.get(1) == 0
    flip_body(harness, 0)
    harness.scheduler.advance(1_000)
    assert [each.body for each in queue_messages(harness.store, "T")] == [b"damaged", b"next"]
    assert harness.broker.delay_offsets.get(1) == 2


def test_a_damaged_message_is_not_copied(harness: BrokerHarness) -> None:
    """The copy would have a valid CRC. The log has no other copy, so the message is skipped."""
    for name in ("damaged", "next"):
        send_delayed(harness, 1, name)
    flip_body(harness, 0)
    harness.scheduler.advance(10_000)
    assert [each.body for each in queue_messages(harness.store, "T")] == [b"next"]


def test_a_delivery_resumes_a_held_pull(harness: BrokerHarness) -> None:
    send_delayed(harness, 1)
    harness.deliver(harness.pull_command(sys_flag=6))
    assert harness.channel.take() == []
    harness.scheduler.advance(1_200)
    answer = harness.channel.take_one()
    assert answer.code == 0 and decode_message(answer.body).body == b"U"


def test_levels_above_the_last_count_as_the_last(harness: BrokerHarness) -> None:
    send_delayed(harness, 99)
    (waiting,) = queue_messages(harness.store, SCHEDULE, 17)
    assert waiting.properties["DELAY"] == "18"


def test_other_levels_can_be_configured(build: BuildBroker) -> None:
    harness = build(message_delay_level="2s 1m")
    send_delayed(harness, 1)
    harness.scheduler.advance(2_100)
    assert len(queue_messages(harness.store, "T")) == 1


def test_a_level_is_delivered_in_order_and_in_small_steps(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "STEP_MESSAGES", 4)
    for number in range(10):
        send_delayed(harness, 1, f"U{number}")
    harness.scheduler.advance(1_000)
    seen = []
    while len(queue_messages(harness.store, "T")) < 10:
        seen.append(len(queue_messages(harness.store, "T")))
        harness.scheduler.advance(1)
    assert {later - sooner for sooner, later in itertools.pairwise(seen)} <= {0, 4}
    assert [m.body for m in queue_messages(harness.store, "T")] == [b"U%d" % n for n in range(10)]
    assert harness.broker.delay_offsets.get(1) == 10


def test_progress_is_saved_and_returned(harness: BrokerHarness) -> None:
    send_delayed(harness, 1)
    harness.scheduler.advance(11_000)
    assert saved_offsets(harness) == {1: 1}
    assert harness.call(45).body == b'{"offsetTable":{1:1}}'
    send_delayed(harness, 1)
    harness.scheduler.advance(2_000)
    stop(harness)
    assert saved_offsets(harness) == {1: 2}


def restart_without_saving(
    harness: BrokerHarness, build: BuildBroker, **settings: Any
) -> BrokerHarness:
    """Return another broker on the same store; the first one does not save its tables."""
    harness.broker.services.stop()
    harness.store.shutdown()
    return build(files=harness.files, scheduler=harness.scheduler, **settings)


def test_delivered_messages_are_recognized_if_the_progress_was_not_saved(
    harness: BrokerHarness, build: BuildBroker
) -> None:
    for number in range(5):
        send_delayed(harness, 1, f"U{number}", queue_id=number % 2)
    send_delayed(harness, 1, "twin")
    send_delayed(harness, 1, "twin")
    harness.scheduler.advance(1_500)
    send_delayed(harness, 1, "late")
    second = restart_without_saving(harness, build)
    second.scheduler.advance(5_000)
    assert [m.body for m in queue_messages(second.store, "T")] == [
        b"U0", b"U2", b"U4", b"twin", b"twin", b"late"
    ]  # fmt: skip
    assert [m.body for m in queue_messages(second.store, "T", 1)] == [b"U1", b"U3"]
    assert second.broker.delay_offsets.get(1) == 8


def test_undelivered_messages_are_delivered_after_a_restart(
    harness: BrokerHarness, build: BuildBroker
) -> None:
    for number in range(3):
        send_delayed(harness, 1, f"U{number}")
    second = restart_without_saving(harness, build)
    second.scheduler.advance(5_000)
    assert [m.body for m in queue_messages(second.store, "T")] == [b"U0", b"U1", b"U2"]


def test_a_slave_delivers_nothing_until_it_is_a_master(harness: BrokerHarness) -> None:
    harness.broker.services.stop()
    send_delayed(harness, 1)
    harness.scheduler.advance(60_000)
    assert queue_messages(harness.store, "T") == []
    harness.broker.delay_offsets.merge(DelayOffsetSerializeWrapper(offset_table={1: 0, 2: 5}))
    harness.broker.services.start()
    harness.scheduler.advance(1_100)
    assert len(queue_messages(harness.store, "T")) == 1


def test_of_two_delay_offsets_the_larger_one_wins(harness: BrokerHarness) -> None:
    offsets = harness.broker.delay_offsets
    offsets.advance(1, 7)
    offsets.merge(DelayOffsetSerializeWrapper(offset_table={1: 3, 2: 4}))
    assert (offsets.get(1), offsets.get(2)) == (7, 4)


def test_an_offset_outside_of_the_queue_is_corrected(harness: BrokerHarness) -> None:
    harness.broker.services.stop()
    harness.broker.delay_offsets.advance(1, 9)
    send_delayed(harness, 1, "first")
    harness.broker.services.start()
    harness.scheduler.advance(2_000)
    send_delayed(harness, 1, "second")
    harness.scheduler.advance(2_000)
    assert [m.body for m in queue_messages(harness.store, "T")] == [b"second"]
    assert harness.broker.delay_offsets.get(1) == 2


def test_a_delivery_that_the_store_refuses_is_repeated(harness: BrokerHarness) -> None:
    send_delayed(harness, 1)
    harness.store.set_role(slave=True)
    harness.scheduler.advance(5_000)
    harness.store.set_role(slave=False)
    harness.scheduler.advance(200)
    assert len(queue_messages(harness.store, "T")) == 1
    assert harness.broker.delay_offsets.get(1) == 1


def test_a_clock_that_was_set_back_does_not_stop_delivery(harness: BrokerHarness) -> None:
    send_delayed(harness, 1)
    harness.scheduler.jump_wall_clock(-3_600_000)
    harness.scheduler.advance(1_100)
    assert len(queue_messages(harness.store, "T")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "waiting"),
    [("A-classic-clean-v497", "store", b"al"), ("B-master-slave-v497", "master", b"bl")],
)
def test_pending_delays_of_a_java_broker_are_delivered_as_java_delivers_them(
    build: BuildBroker,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    name: str,
    part: str,
    waiting: bytes,
) -> None:
    root = str(golden_copy(name) / part)
    last_ms = max(message["storeTimestamp"] for message in manifest(name)["messages"])
    harness = build(
        files=OsFileSystem(),
        scheduler=ManualScheduler(start_ms=last_ms),
        store_path_root_dir=root,
        store_path_commit_log=f"{root}/commitlog",
        max_message_size=32768,
        mapped_file_size_consume_queue=2000,
    )
    before = {q: harness.store.reader.max_queue_offset("Delay", q) for q in (0, 1)}
    harness.scheduler.advance(3_600_000)
    delivered = {q: queue_messages(harness.store, "Delay", q)[before[q] :] for q in (0, 1)}
    assert [m.body.startswith(b"Delay|" + waiting) for q in (0, 1) for m in delivered[q]] == [
        True
    ] * 2
    (first,), (second,) = delivered[0], delivered[1]
    java = manifest("C-upgraded-v497")["messages"]
    for ours in (first, second) if name.startswith("B") else ():
        (theirs,) = (
            m for m in java
            if m["topic"] == "Delay" and m["props"]["UNIQ_KEY"] == ours.properties["UNIQ_KEY"]
        )  # fmt: skip
        assert theirs["props"] == ours.properties
        assert (theirs["queueId"], theirs["queueOffset"]) == (ours.queue_id, ours.queue_offset)
        assert theirs["crc"] == crc32(ours.body)
        assert theirs["bornTimestamp"] == ours.born_timestamp_ms
    stop(harness)
    assert saved_offsets(harness, root)[5] == 2
    harness.store.shutdown()
