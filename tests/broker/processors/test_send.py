"""Sending: stored messages, responses, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import define
from harness.broker import stored_message

from rmqpy.broker.processors.put_status import remark_of, response_for
from rmqpy.broker.services.flush import COMPANY_MS
from rmqpy.codec.message import BatchItem, decode_message, encode_batch_body, offset_msg_id
from rmqpy.config.loading import BrokerRole, FlushDiskType
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage
from rmqpy.net.ha import SlaveView
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.results import PutResult
from rmqpy.testing.harness import BrokerHarness, BuildBroker

STORE_HOST = (bytes([10, 0, 0, 2]), 10911)


def batch(*bodies: bytes) -> bytes:
    return encode_batch_body(
        BatchItem(number, body, b"WAIT\x01true\x02KEYS\x01k%d" % number)
        for number, body in enumerate(bodies)
    )


@pytest.mark.parametrize("code", [10, 310])
def test_a_message_is_stored_and_answered(harness: BrokerHarness, code: int) -> None:
    answer = harness.send(b"hello", code=code, queue_id=1, flag=7, reconsume_times=2)
    assert answer.code == 0 and answer.remark is None
    assert answer.ext_fields == {
        "msgId": "0A00000200002A9F0000000000000000",
        "queueId": "1",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    message = stored_message(harness.store, 0)
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"hello")
    assert (message.flag, message.reconsume_times, message.sys_flag) == (7, 2, 0)
    assert message.born_host == (bytes([10, 0, 0, 1]), 1234)
    assert message.store_host == STORE_HOST
    assert message.born_timestamp_ms == 1_600_000_000_000
    assert message.store_timestamp_ms == harness.scheduler.now_ms()


def test_the_cluster_property_is_added_and_wait_removed(harness: BrokerHarness) -> None:
    harness.send(properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02seq\x010")
    assert (
        stored_message(harness.store, 0).raw_properties
        == b"UNIQ_KEY\x01U\x02CLUSTER\x01C\x02seq\x010"
    )


def test_the_sends_of_a_turn_are_answered_in_one_write(harness: BrokerHarness) -> None:
    harness.deliver(*(harness.send_command(b"%d" % number, queue_id=0) for number in range(5)))
    answers = harness.channel.take()
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1", "2", "3", "4"]
    counters = harness.broker.statistics.counters
    assert counters.put_messages == 5
    assert counters.put_bytes == harness.store.log.max_offset


def test_nothing_is_answered_before_the_turn_ends(harness: BrokerHarness) -> None:
    harness.broker.server.handle(harness.channel, [harness.send_command()])
    assert harness.channel.take() == []
    harness.broker.server.turn_ended()
    assert harness.channel.take_one().code == 0


def test_a_oneway_send_is_stored_and_not_answered(harness: BrokerHarness) -> None:
    harness.deliver(harness.send_command(b"quiet", oneway=True))
    assert harness.channel.take() == []
    assert stored_message(harness.store, 0).body == b"quiet"


def test_a_batch_gets_consecutive_offsets_and_the_properties_of_its_header(
    harness: BrokerHarness,
) -> None:
    harness.send(b"before")
    answer = harness.send(batch(b"b1", b"b2"), code=320, batch=True, properties="WAIT\x01true")
    assert answer.code == 0 and answer.ext_fields["queueOffset"] == "1"
    first, second = (int(part[16:], 16) for part in answer.ext_fields["msgId"].split(","))
    assert answer.ext_fields["msgId"].startswith(offset_msg_id(STORE_HOST, first) + ",")
    assert stored_message(harness.store, first).raw_properties == (
        b"WAIT\x01true\x02KEYS\x01k0\x02CLUSTER\x01C\x02WAIT\x01true"
    )
    assert (
        stored_message(harness.store, second).body,
        stored_message(harness.store, second).flag,
    ) == (b"b2", 1)
    assert stored_message(harness.store, second).queue_offset == 2


def test_the_batch_field_and_not_the_code_makes_a_batch(harness: BrokerHarness) -> None:
    answer = harness.send(batch(b"b1", b"b2"), code=310, batch=True)
    assert answer.ext_fields["msgId"].count(",") == 1
    answer = harness.send(b"no batch", code=320, batch=False)
    assert "," not in answer.ext_fields["msgId"]


def test_a_batch_between_single_messages_keeps_its_place(harness: BrokerHarness) -> None:
    harness.deliver(
        harness.send_command(b"1"),
        harness.send_command(batch(b"2", b"3"), code=320, batch=True),
        harness.send_command(b"4"),
    )
    offsets = [int(answer.ext_fields["queueOffset"]) for answer in harness.channel.take()]
    assert sorted(offsets) == [0, 1, 3]
    found = harness.store.reader.get_message("T", 0, 0, 32, None)
    assert [decode_message(view).body for view in found.messages] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x40rubbish", batch(b"a")[:-1]])
def test_a_batch_that_cannot_be_split_is_illegal(harness: BrokerHarness, body: bytes) -> None:
    assert harness.send(body, code=320, batch=True).code == 13
    assert harness.store.log.max_offset == 0


def test_an_unknown_topic_is_created_from_its_default_topic(harness: BrokerHarness) -> None:
    assert harness.send(topic="New", default_topic_queue_nums=3).code == 0
    topic = harness.broker.topics.topics["New"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)


def test_a_negative_queue_id_is_picked_at_random(harness: BrokerHarness) -> None:
    answer = harness.send(queue_id=-1)
    assert harness.picked_queue == [4]
    assert answer.ext_fields["queueId"] == "3"
    assert stored_message(harness.store, 0).queue_id == 3


def test_a_multi_tag_topic_marks_its_messages(harness: BrokerHarness) -> None:
    harness.send()
    harness.broker.topics.topics["T"].topic_filter_type = "MULTI_TAG"
    answer = harness.send()
    assert stored_message(harness.store, int(answer.ext_fields["msgId"][16:], 16)).sys_flag == 2


def test_ipv6_hosts_set_their_bits(harness: BrokerHarness) -> None:
    harness.channel.peer = ("2001:db8::1", 99)
    harness.send()
    message = stored_message(harness.store, 0)
    assert message.sys_flag == 0x10
    assert message.born_host == (bytes.fromhex("20010db8000000000000000000000001"), 99)


def test_an_ipv4_address_inside_an_ipv6_one_is_the_ipv4_address(harness: BrokerHarness) -> None:
    harness.channel.peer = ("::ffff:10.0.0.7", 99)
    harness.send()
    assert stored_message(harness.store, 0).born_host == (bytes([10, 0, 0, 7]), 99)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a/b"}, 1),
        ({"topic": "../x"}, 1),
        ({"topic": "x\0"}, 1),
        ({"topic": " "}, 1),
        ({"topic": "t" * 128}, 1),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16),
        ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, 16),
        ({"topic": "TRANS_CHECK_MAX_TIME_TOPIC"}, 16),
        ({"topic": "SELF_TEST_TOPIC"}, 16),
        ({"topic": "OFFSET_MOVED_EVENT"}, 16),
        ({"topic": "Unknown", "default_topic": "Nowhere"}, 17),
        ({"topic": "Unknown", "default_topic": "BenchmarkTest"}, 17),
        ({"queue_id": 4}, 1),
        ({"sys_flag": 4}, 13),
        ({"properties": "DELAY\x01soon"}, 1),
        ({"properties": "K\x01" + "v" * 32760}, 13),
    ],
)
def test_invalid_requests_are_refused(
    harness: BrokerHarness, fields: dict[str, Any], code: int
) -> None:
    answer = harness.send(**fields)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert harness.store.log.max_offset == 0
    assert "commitlog/.." not in " ".join(harness.files.nodes)


def test_delay_level_zero_is_no_delay(harness: BrokerHarness) -> None:
    assert harness.send(properties="DELAY\x010").code == 0


def test_the_body_may_not_be_larger_than_the_limit(build: BuildBroker) -> None:
    harness = build(max_message_size=1000)
    answer = harness.send(b"x" * 1001)
    assert answer.code == 13 and "limit 1000B" in (answer.remark or "")
    assert harness.send(batch(*[b"x" * 400] * 3), code=320, batch=True).code == 13


def test_transactions_can_be_forbidden(build: BuildBroker) -> None:
    harness = build(reject_transaction_message=True)
    assert harness.send(properties="TRAN_MSG\x01true").code == 16


def test_automatic_creation_can_be_forbidden(build: BuildBroker) -> None:
    harness = build(auto_create_topic_enable=False)
    assert harness.send().code == 17


def test_a_broker_that_does_not_accept_yet_returns_the_time_from_which_it_will(
    build: BuildBroker,
) -> None:
    harness = build(start_accept_send_request_time_stamp=1_700_000_001_000)
    answer = harness.send()
    assert answer.code == 1 and "1700000001000" in (answer.remark or "")
    harness.scheduler.advance(1000)
    assert harness.send().code == 0


def test_without_write_permission_only_ordered_topics_are_refused(build: BuildBroker) -> None:
    harness = build(broker_permission=4)
    assert harness.send().code == 0
    harness.broker.topics.set_ordered(["T"])
    assert harness.send().code == 16


def test_missing_and_wrong_fields_are_named(harness: BrokerHarness) -> None:
    command = harness.send_command()
    del command.ext_fields["b"]
    harness.deliver(command)
    answer = harness.channel.take_one()
    assert answer.code == 1 and " b " in (answer.remark or "")


# -------------------------------------------------------------------------------------- statuses


def test_every_put_status_has_its_answer() -> None:
    assert {status: int(response_for(status).code) for status in PutMessageStatus} == {
        PutMessageStatus.PUT_OK: 0,
        PutMessageStatus.FLUSH_DISK_TIMEOUT: 10,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT: 12,
        PutMessageStatus.SLAVE_NOT_AVAILABLE: 11,
        PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: 1,
        PutMessageStatus.SERVICE_NOT_AVAILABLE: 14,
        PutMessageStatus.CREATE_MAPEDFILE_FAILED: 1,
        PutMessageStatus.MESSAGE_ILLEGAL: 13,
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: 13,
        PutMessageStatus.OS_PAGECACHE_BUSY: 1,
        PutMessageStatus.UNKNOWN_ERROR: 1,
    }
    assert remark_of(PutMessageStatus.OS_PAGECACHE_BUSY, 1) == (
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    )
    assert "limit 4194304B" in (remark_of(PutMessageStatus.MESSAGE_ILLEGAL, 4194304) or "")


def test_a_warning_of_the_store_has_the_id_of_the_message(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = harness.store.appender.put

    def without_slave(drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]:
        return [
            PutResult(
                PutMessageStatus.SLAVE_NOT_AVAILABLE,
                result.queue_offset,
                result.physical_offsets,
                result.end,
            )
            for result in put(drafts, batch)
        ]

    monkeypatch.setattr(harness.store.appender, "put", without_slave)
    answer = harness.send()
    assert answer.code == 11
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"


def test_a_slave_creates_no_topics(harness: BrokerHarness) -> None:
    harness.broker.identity.role = BrokerRole.SLAVE
    assert harness.send(topic="New").code == 14
    assert "New" not in harness.broker.topics


def test_a_refusal_of_the_store_is_answered_at_once(harness: BrokerHarness) -> None:
    harness.store.set_role(slave=True)
    answer = harness.send()
    assert answer.code == 14
    assert harness.broker.statistics.counters.put_failed == 1


def test_a_failing_put_is_answered_and_the_broker_continues(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store.appender, "put", broken)
        answer = harness.send()
        assert (answer.code, answer.remark) == (1, "RuntimeError: planted")
        answer = harness.send(batch(b"a"), code=320, batch=True)
        assert (answer.code, answer.remark) == (1, "RuntimeError: planted")
    assert harness.send().code == 0


def test_a_failed_write_refuses_all_waiting_senders(harness: BrokerHarness) -> None:
    harness.send()
    harness.files.fail_write("commitlog")
    answer = harness.send()
    assert answer.code == 14
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    harness.files.heal()
    assert harness.send().code == 14, "messages are no longer accepted"


def test_too_many_waiting_senders_are_refused(harness: BrokerHarness) -> None:
    harness.broker.gate._limit = 2
    harness.broker.server.handle(harness.channel, [harness.send_command(), harness.send_command()])
    harness.broker.server.handle(harness.channel, [harness.send_command()])
    assert harness.channel.take_one().code == 2
    harness.broker.server.turn_ended()
    assert [answer.code for answer in harness.channel.take()] == [0, 0]


# ----------------------------------------------------------------------------------- SYNC_MASTER


def test_a_synchronous_master_without_slaves_warns(build: BuildBroker) -> None:
    """The message is stored, as by Java; the response has its id, and the code is a warning."""
    harness = build(broker_role=BrokerRole.SYNC_MASTER)
    answer = harness.send()
    assert answer.code == 11
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"
    assert harness.store.reader.max_queue_offset("T", 0) == 1
    assert harness.send(properties="WAIT\x01false").code == 0


@define
class Slaves:
    """The slaves of a master."""

    replicated: Watermark
    count: int = 1
    last_refused: str = ""
    slaves: tuple[SlaveView, ...] = ()

    def count_at(self, offset: int) -> int:
        return self.count if self.replicated.value >= offset else 0


def with_slaves(build: BuildBroker, **settings: Any) -> tuple[Any, Slaves]:
    harness = build(broker_role=BrokerRole.SYNC_MASTER, **settings)
    slaves = Slaves(Watermark("replicated"))
    harness.broker.replication.serve(slaves)
    return harness, slaves


def test_a_synchronous_master_answers_once_a_slave_has_the_message(build: BuildBroker) -> None:
    harness, slaves = with_slaves(build)
    harness.deliver(harness.send_command(b"first"), harness.send_command(b"second"))
    assert answers(harness) == []
    first_end = harness.store.log.max_offset // 2
    slaves.replicated.advance(first_end + 10)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["0"]
    slaves.replicated.advance(harness.store.log.max_offset)
    assert [answer.code for answer in answers(harness)] == [0]


def test_a_send_with_wait_false_does_not_wait_for_slaves(build: BuildBroker) -> None:
    harness, _ = with_slaves(build)
    assert harness.send(properties="WAIT\x01false").code == 0


def test_a_slave_that_does_not_acknowledge_in_time_is_a_warning(build: BuildBroker) -> None:
    harness, _ = with_slaves(build, slave_timeout=700)
    harness.deliver(harness.send_command())
    harness.scheduler.advance(699)
    assert answers(harness) == []
    harness.scheduler.advance(1)
    (late,) = answers(harness)
    assert late.code == 12
    assert late.ext_fields["queueOffset"] == "0"


def test_a_slave_that_lags_too_far_is_not_waited_for(build: BuildBroker) -> None:
    harness, slaves = with_slaves(build, ha_slave_fallbehind_max=300)
    harness.deliver(harness.send_command(b"x" * 50))
    slaves.replicated.advance(harness.store.log.max_offset)
    assert [answer.code for answer in answers(harness)] == [0]
    assert harness.send(b"x" * 300).code == 11
    slaves.count = 0
    slaves.replicated.advance(harness.store.log.max_offset)
    assert harness.send().code == 11


def test_a_returning_slave_is_waited_for_again(build: BuildBroker) -> None:
    harness, slaves = with_slaves(build)
    slaves.count = 0
    assert harness.send().code == 11
    slaves.count = 1
    slaves.replicated.advance(harness.store.log.max_offset)
    harness.deliver(harness.send_command())
    assert answers(harness) == []
    slaves.replicated.advance(harness.store.log.max_offset)
    assert [answer.code for answer in answers(harness)] == [0]


def test_a_send_that_needs_more_slaves_than_there_are_is_a_warning(build: BuildBroker) -> None:
    """It is stored, as with one slave too few in 4.9."""
    harness, slaves = with_slaves(build, in_sync_replicas=3)
    assert harness.send().code == 11
    slaves.count = 2
    harness.deliver(harness.send_command())
    assert answers(harness) == []
    slaves.replicated.advance(harness.store.log.max_offset)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["1"]


def test_too_few_replicas_refuse_a_send_that_waits(build: BuildBroker) -> None:
    """Code and remark are those of Java 5.3.3; nothing is stored."""
    harness, slaves = with_slaves(build, in_sync_replicas=3, min_in_sync_replicas=2)
    slaves.count = 0
    answer = harness.send()
    assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
    assert harness.store.log.max_offset == 0
    assert harness.broker.statistics.counters.put_failed == 1
    assert harness.send(properties="WAIT\x01false").code == 0
    slaves.count = 1
    assert harness.send().code == 11


def test_a_send_waits_for_the_replicas_in_sync_with_the_automatic_number(
    build: BuildBroker,
) -> None:
    harness, slaves = with_slaves(
        build, in_sync_replicas=3, min_in_sync_replicas=1, enable_auto_in_sync_replicas=True
    )
    slaves.count = 0
    assert harness.send().code == 0
    slaves.count = 1
    harness.deliver(harness.send_command())
    assert answers(harness) == []
    slaves.replicated.advance(harness.store.log.max_offset)
    assert [answer.code for answer in answers(harness)] == [0]


def test_a_master_that_counts_only_itself_does_not_wait(build: BuildBroker) -> None:
    """``inSyncReplicas=1`` of 5.x."""
    harness, slaves = with_slaves(build, in_sync_replicas=1)
    slaves.count = 0
    assert harness.send().code == 0


def test_the_runtime_information_describes_the_slaves(build: BuildBroker) -> None:
    harness, slaves = with_slaves(build)
    slaves.slaves = (SlaveView("10.0.0.3:5000", 12_000, 0, 100),)
    harness.deliver(harness.send_command())
    end = harness.store.log.max_offset
    assert harness.broker.replication.runtime_info() == {
        "haSlaveCount": "1",
        "haInSyncReplicas": "2",
        "haReplicatedOffset": "0",
        "haSlave_10.0.0.3:5000": (f"acknowledged 0, sent 100, behind {end} B, connected 12 s"),
    }


# ------------------------------------------------------------------------------------ SYNC_FLUSH


def answers(harness: BrokerHarness) -> list[RemotingCommand]:
    taken: list[RemotingCommand] = harness.channel.take()
    return taken


def test_sync_flush_answers_after_the_flush_that_it_starts(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.scheduler.blocking_ms = 7
    harness.deliver(harness.send_command(b"first"))
    harness.scheduler.advance(6)
    assert answers(harness) == []
    harness.deliver(harness.send_command(b"second"))
    harness.scheduler.advance(1)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["0"]
    harness.scheduler.advance(COMPANY_MS + 7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["1"]
    assert harness.store.log.flushed_offset == harness.store.log.max_offset


def test_the_next_flush_starts_when_as_many_replies_wait(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.scheduler.blocking_ms = 7
    harness.deliver(harness.send_command(b"first"))
    harness.deliver(harness.send_command(b"second"))
    harness.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["0"]
    harness.deliver(harness.send_command(b"third"))
    harness.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["1", "2"]


def test_a_reply_that_waits_for_a_group_commit_is_flushed_before_the_stop(
    build: BuildBroker,
) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.scheduler.blocking_ms = 7
    harness.deliver(harness.send_command(b"first"))
    harness.deliver(harness.send_command(b"second"))
    harness.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["0"]
    stopped: list[int] = []
    flushing = harness.broker.log_flusher
    flushing.stop(lambda: stopped.append(harness.store.log.flushed_offset))
    assert stopped == []
    harness.scheduler.advance(7)
    assert stopped == [harness.store.log.max_offset]
    assert [answer.ext_fields["queueOffset"] for answer in answers(harness)] == ["1"]


def test_a_send_with_wait_false_does_not_wait_for_the_flush(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert harness.send(properties="WAIT\x01false").code == 0


def test_a_slow_flush_is_a_warning_with_the_id_of_the_message(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=3000)
    harness.scheduler.blocking_ms = 4000
    harness.deliver(harness.send_command())
    harness.scheduler.advance(3000)
    (answer,) = answers(harness)
    assert answer.code == 10
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"
    harness.scheduler.advance(10_000)
    assert answers(harness) == []


def test_a_failed_flush_is_final(build: BuildBroker) -> None:
    harness = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    harness.files.fail_sync("commitlog")
    harness.deliver(harness.send_command())
    harness.scheduler.run_until_idle()
    (answer,) = answers(harness)
    assert answer.code == 14 and "msgId" not in answer.ext_fields
    harness.files.heal()
    assert harness.send().code == 14


def test_async_flush_runs_on_its_interval(harness: BrokerHarness) -> None:
    harness.send()
    assert harness.store.log.flushed_offset == 0
    harness.scheduler.advance(500)
    assert harness.store.log.flushed_offset == harness.store.log.max_offset


def test_a_send_after_a_slow_write_is_refused(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build(os_page_cache_busy_time_out_mills=300)
    commit = harness.store.log.commit

    def slow() -> None:
        commit()
        harness.scheduler._monotonic_ms += 301

    harness.send(b"before")
    monkeypatch.setattr(harness.store.log, "commit", slow)
    assert harness.send(b"slow").code == 0
    monkeypatch.undo()
    answer = harness.send(b"refused")
    assert answer.code == 2
    assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    assert harness.send(b"after").code == 0
    assert harness.store.reader.max_queue_offset("T", 0) == 3


def test_a_full_reply_queue_refuses_sends(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.broker.gate), "has_room", lambda _gate, _count: False)
        answer = harness.send(b"too many")
    assert answer.code == 2
    assert answer.remark == "[OVERLOAD]system busy, start flow control for a while"
    assert harness.send(b"after").code == 0
