"""Sending: what is stored, what is answered, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define

from rmqpy.broker.processors.put_status import remark_of, response_for
from rmqpy.broker.services.flush import COMPANY_MS
from rmqpy.codec.message import BatchItem, decode_message, encode_batch_body, offset_msg_id
from rmqpy.config.loading import BrokerRole, FlushDiskType
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import StoredMessage
from rmqpy.net.ha import SlaveView
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.results import PutResult
from rmqpy.testing.harness import BrokerHarness, BuildBroker

STORE_HOST = (bytes([10, 0, 0, 2]), 10911)


def stored(kit: BrokerHarness, physical_offset: int) -> StoredMessage:
    record = kit.store.reader.message_at(physical_offset)
    assert record is not None
    return decode_message(record)


def batch(*bodies: bytes) -> bytes:
    return encode_batch_body(
        BatchItem(number, body, b"WAIT\x01true\x02KEYS\x01k%d" % number)
        for number, body in enumerate(bodies)
    )


@pytest.mark.parametrize("code", [10, 310])
def test_a_message_is_stored_and_answered(kit: BrokerHarness, code: int) -> None:
    answer = kit.send(b"hello", code=code, queue_id=1, flag=7, reconsume_times=2)
    assert answer.code == 0 and answer.remark is None
    assert answer.ext_fields == {
        "msgId": "0A00000200002A9F0000000000000000",
        "queueId": "1",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    message = stored(kit, 0)
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"hello")
    assert (message.flag, message.reconsume_times, message.sys_flag) == (7, 2, 0)
    assert message.born_host == (bytes([10, 0, 0, 1]), 1234)
    assert message.store_host == STORE_HOST
    assert message.born_timestamp_ms == 1_600_000_000_000
    assert message.store_timestamp_ms == kit.scheduler.now_ms()


def test_cluster_is_added_and_wait_is_taken_out(kit: BrokerHarness) -> None:
    kit.send(properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02seq\x010")
    assert stored(kit, 0).raw_properties == b"UNIQ_KEY\x01U\x02CLUSTER\x01C\x02seq\x010"


def test_the_sends_of_a_turn_are_answered_in_one_write(kit: BrokerHarness) -> None:
    kit.deliver(*(kit.send_command(b"%d" % number, queue_id=0) for number in range(5)))
    answers = kit.channel.take()
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1", "2", "3", "4"]
    counters = kit.broker.statistics.counters
    assert counters.put_messages == 5
    assert counters.put_bytes == kit.store.log.max_offset


def test_nothing_is_answered_before_the_turn_ends(kit: BrokerHarness) -> None:
    kit.broker.server.handle(kit.channel, [kit.send_command()])
    assert kit.channel.take() == []
    kit.broker.server.turn_ended()
    assert kit.channel.take_one().code == 0


def test_a_oneway_send_is_stored_and_not_answered(kit: BrokerHarness) -> None:
    kit.deliver(kit.send_command(b"quiet", oneway=True))
    assert kit.channel.take() == []
    assert stored(kit, 0).body == b"quiet"


def test_a_batch_gets_consecutive_offsets_and_the_headers_properties(kit: BrokerHarness) -> None:
    kit.send(b"before")
    answer = kit.send(batch(b"b1", b"b2"), code=320, batch=True, properties="WAIT\x01true")
    assert answer.code == 0 and answer.ext_fields["queueOffset"] == "1"
    first, second = (int(part[16:], 16) for part in answer.ext_fields["msgId"].split(","))
    assert answer.ext_fields["msgId"].startswith(offset_msg_id(STORE_HOST, first) + ",")
    assert stored(kit, first).raw_properties == (
        b"WAIT\x01true\x02KEYS\x01k0\x02CLUSTER\x01C\x02WAIT\x01true"
    )
    assert (stored(kit, second).body, stored(kit, second).flag) == (b"b2", 1)
    assert stored(kit, second).queue_offset == 2


def test_the_header_field_decides_on_the_batch_path_not_the_code(kit: BrokerHarness) -> None:
    answer = kit.send(batch(b"b1", b"b2"), code=310, batch=True)
    assert answer.ext_fields["msgId"].count(",") == 1
    answer = kit.send(b"no batch", code=320, batch=False)
    assert "," not in answer.ext_fields["msgId"]


def test_a_batch_between_single_messages_keeps_its_place(kit: BrokerHarness) -> None:
    kit.deliver(
        kit.send_command(b"1"),
        kit.send_command(batch(b"2", b"3"), code=320, batch=True),
        kit.send_command(b"4"),
    )
    offsets = [int(answer.ext_fields["queueOffset"]) for answer in kit.channel.take()]
    assert sorted(offsets) == [0, 1, 3]
    found = kit.store.reader.get_message("T", 0, 0, 32, None)
    assert [decode_message(view).body for view in found.messages] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x40rubbish", batch(b"a")[:-1]])
def test_a_batch_that_cannot_be_split_is_illegal(kit: BrokerHarness, body: bytes) -> None:
    assert kit.send(body, code=320, batch=True).code == 13
    assert kit.store.log.max_offset == 0


def test_an_unknown_topic_is_made_from_its_pattern(kit: BrokerHarness) -> None:
    assert kit.send(topic="New", default_topic_queue_nums=3).code == 0
    topic = kit.broker.topics.get("New")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)


def test_a_negative_queue_id_is_picked_at_random(kit: BrokerHarness) -> None:
    answer = kit.send(queue_id=-1)
    assert kit.picked_queue == [4]
    assert answer.ext_fields["queueId"] == "3"
    assert stored(kit, 0).queue_id == 3


def test_a_multi_tag_topic_marks_its_messages(kit: BrokerHarness) -> None:
    kit.send()
    kit.broker.topics.get("T").topic_filter_type = "MULTI_TAG"
    answer = kit.send()
    assert stored(kit, int(answer.ext_fields["msgId"][16:], 16)).sys_flag == 2


def test_ipv6_hosts_set_their_bits(kit: BrokerHarness) -> None:
    kit.channel.peer = ("2001:db8::1", 99)
    kit.send()
    message = stored(kit, 0)
    assert message.sys_flag == 0x10
    assert message.born_host == (bytes.fromhex("20010db8000000000000000000000001"), 99)


def test_an_ipv4_address_inside_an_ipv6_one_is_the_ipv4_address(kit: BrokerHarness) -> None:
    kit.channel.peer = ("::ffff:10.0.0.7", 99)
    kit.send()
    assert stored(kit, 0).born_host == (bytes([10, 0, 0, 7]), 99)


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
def test_refusals(kit: BrokerHarness, fields: dict[str, Any], code: int) -> None:
    answer = kit.send(**fields)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert kit.store.log.max_offset == 0
    assert "commitlog/.." not in " ".join(kit.files.nodes)


def test_delay_level_zero_is_no_delay(kit: BrokerHarness) -> None:
    assert kit.send(properties="DELAY\x010").code == 0


def test_the_body_may_not_be_larger_than_the_limit(build: BuildBroker) -> None:
    kit = build(max_message_size=1000)
    answer = kit.send(b"x" * 1001)
    assert answer.code == 13 and "limit 1000B" in answer.remark
    assert kit.send(batch(*[b"x" * 400] * 3), code=320, batch=True).code == 13


def test_transactions_can_be_forbidden(build: BuildBroker) -> None:
    kit = build(reject_transaction_message=True)
    assert kit.send(properties="TRAN_MSG\x01true").code == 16


def test_automatic_creation_can_be_forbidden(build: BuildBroker) -> None:
    kit = build(auto_create_topic_enable=False)
    assert kit.send().code == 17


def test_a_broker_that_does_not_accept_yet_says_until_when(build: BuildBroker) -> None:
    kit = build(start_accept_send_request_time_stamp=1_700_000_001_000)
    answer = kit.send()
    assert answer.code == 1 and "1700000001000" in answer.remark
    kit.scheduler.advance(1000)
    assert kit.send().code == 0


def test_without_write_permission_only_ordered_topics_are_refused(build: BuildBroker) -> None:
    kit = build(broker_permission=4)
    assert kit.send().code == 0
    kit.broker.topics.set_ordered(["T"])
    assert kit.send().code == 16


def test_missing_and_wrong_fields_are_named(kit: BrokerHarness) -> None:
    command = kit.send_command()
    del command.ext_fields["b"]
    kit.deliver(command)
    answer = kit.channel.take_one()
    assert answer.code == 1 and " b " in answer.remark


# -------------------------------------------------------------------------------------- statuses


def test_every_put_status_has_its_answer() -> None:
    assert {status: int(response_for(status).code) for status in PutMessageStatus} == {
        PutMessageStatus.PUT_OK: 0,
        PutMessageStatus.FLUSH_DISK_TIMEOUT: 10,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT: 12,
        PutMessageStatus.SLAVE_NOT_AVAILABLE: 11,
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


def test_a_warning_of_the_store_carries_the_place_of_the_message(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = kit.store.appender.put

    def without_slave(drafts: Any, batch: bool = False) -> list[PutResult]:
        return [
            PutResult(
                PutMessageStatus.SLAVE_NOT_AVAILABLE,
                result.queue_offset,
                result.physical_offsets,
                result.end,
            )
            for result in put(drafts, batch)
        ]

    monkeypatch.setattr(kit.store.appender, "put", without_slave)
    answer = kit.send()
    assert answer.code == 11
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"


def test_a_slave_creates_no_topics(kit: BrokerHarness) -> None:
    kit.broker.identity.role = BrokerRole.SLAVE
    assert kit.send(topic="New").code == 14
    assert "New" not in kit.broker.topics


def test_a_refusal_of_the_store_is_answered_at_once(kit: BrokerHarness) -> None:
    kit.store.set_role(slave=True)
    answer = kit.send()
    assert answer.code == 14
    assert kit.broker.statistics.counters.put_failed == 1


def test_a_put_that_raises_is_answered_and_the_broker_lives(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(drafts: Any, batch: bool = False) -> list[PutResult]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(kit.store.appender, "put", broken)
        answer = kit.send()
        assert (answer.code, answer.remark) == (1, "RuntimeError: planted")
        answer = kit.send(batch(b"a"), code=320, batch=True)
        assert (answer.code, answer.remark) == (1, "RuntimeError: planted")
    assert kit.send().code == 0


def test_a_failed_write_fails_everybody_who_waits(kit: BrokerHarness) -> None:
    kit.send()
    kit.files.fail_write("commitlog")
    answer = kit.send()
    assert answer.code == 14
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    kit.files.heal()
    assert kit.send().code == 14, "nothing is accepted any more"


def test_too_many_waiting_senders_are_turned_away(kit: BrokerHarness) -> None:
    kit.broker.gate._limit = 2
    kit.broker.server.handle(kit.channel, [kit.send_command(), kit.send_command()])
    kit.broker.server.handle(kit.channel, [kit.send_command()])
    assert kit.channel.take_one().code == 2
    kit.broker.server.turn_ended()
    assert [answer.code for answer in kit.channel.take()] == [0, 0]


# ----------------------------------------------------------------------------------- SYNC_MASTER


def test_a_synchronous_master_without_slaves_says_so(build: BuildBroker) -> None:
    """As Java's: the message is stored, its place is told, the code is a warning."""
    kit = build(broker_role=BrokerRole.SYNC_MASTER)
    answer = kit.send()
    assert answer.code == 11
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"
    assert kit.store.reader.max_queue_offset("T", 0) == 1
    assert kit.send(properties="WAIT\x01false").code == 0


@define
class Slaves:
    """Slaves as a master sees them."""

    replicated: Watermark
    has_slaves: bool = True
    last_refused: str = ""
    slaves: tuple[SlaveView, ...] = ()


def with_slaves(build: BuildBroker, **settings: Any) -> tuple[Any, Slaves]:
    kit = build(broker_role=BrokerRole.SYNC_MASTER, **settings)
    slaves = Slaves(Watermark("replicated"))
    kit.broker.replication.serve(slaves)
    return kit, slaves


def test_a_synchronous_master_answers_when_a_slave_has_it(build: BuildBroker) -> None:
    kit, slaves = with_slaves(build)
    kit.deliver(kit.send_command(b"first"), kit.send_command(b"second"))
    assert answers(kit) == []
    first_end = kit.store.log.max_offset // 2
    slaves.replicated.advance(first_end + 10)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["0"]
    slaves.replicated.advance(kit.store.log.max_offset)
    assert [answer.code for answer in answers(kit)] == [0]


def test_a_send_that_waits_for_nothing_does_not_wait_for_slaves(build: BuildBroker) -> None:
    kit, _ = with_slaves(build)
    assert kit.send(properties="WAIT\x01false").code == 0


def test_a_slave_that_does_not_acknowledge_in_time_costs_a_warning(build: BuildBroker) -> None:
    kit, _ = with_slaves(build, slave_timeout=700)
    kit.deliver(kit.send_command())
    kit.scheduler.advance(699)
    assert answers(kit) == []
    kit.scheduler.advance(1)
    (late,) = answers(kit)
    assert late.code == 12
    assert late.ext_fields["queueOffset"] == "0"


def test_a_slave_too_far_behind_is_not_waited_for(build: BuildBroker) -> None:
    kit, slaves = with_slaves(build, ha_slave_fallbehind_max=300)
    kit.deliver(kit.send_command(b"x" * 50))
    slaves.replicated.advance(kit.store.log.max_offset)
    assert [answer.code for answer in answers(kit)] == [0]
    assert kit.send(b"x" * 300).code == 11
    slaves.has_slaves = False
    slaves.replicated.advance(kit.store.log.max_offset)
    assert kit.send().code == 11


def test_a_slave_that_comes_back_is_waited_for_again(build: BuildBroker) -> None:
    kit, slaves = with_slaves(build)
    slaves.has_slaves = False
    assert kit.send().code == 11
    slaves.has_slaves = True
    slaves.replicated.advance(kit.store.log.max_offset)
    kit.deliver(kit.send_command())
    assert answers(kit) == []
    slaves.replicated.advance(kit.store.log.max_offset)
    assert [answer.code for answer in answers(kit)] == [0]


def test_a_master_tells_of_its_slaves(build: BuildBroker) -> None:
    kit, slaves = with_slaves(build)
    slaves.slaves = (SlaveView("10.0.0.3:5000", 12_000, 0, 100),)
    kit.deliver(kit.send_command())
    end = kit.store.log.max_offset
    assert kit.broker.replication.runtime_info() == {
        "haSlaveCount": "1",
        "haReplicatedOffset": "0",
        "haSlave_10.0.0.3:5000": (f"acknowledged 0, sent 100, behind {end} B, connected 12 s"),
    }


# ------------------------------------------------------------------------------------ SYNC_FLUSH


def answers(kit: BrokerHarness) -> list[RemotingCommand]:
    taken: list[RemotingCommand] = kit.channel.take()
    return taken


def test_sync_flush_answers_after_the_flush_that_it_begins(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.scheduler.blocking_ms = 7
    kit.deliver(kit.send_command(b"first"))
    kit.scheduler.advance(6)
    assert answers(kit) == []
    kit.deliver(kit.send_command(b"second"))
    kit.scheduler.advance(1)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["0"]
    kit.scheduler.advance(COMPANY_MS + 7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["1"]
    assert kit.store.log.flushed_offset == kit.store.log.max_offset


def test_the_next_flush_begins_when_the_same_number_waits_again(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.scheduler.blocking_ms = 7
    kit.deliver(kit.send_command(b"first"))
    kit.deliver(kit.send_command(b"second"))
    kit.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["0"]
    kit.deliver(kit.send_command(b"third"))
    kit.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["1", "2"]


def test_who_waits_for_company_is_flushed_before_the_stop(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.scheduler.blocking_ms = 7
    kit.deliver(kit.send_command(b"first"))
    kit.deliver(kit.send_command(b"second"))
    kit.scheduler.advance(7)
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["0"]
    stopped: list[int] = []
    flushing = kit.broker.log_flusher
    flushing.stop(lambda: stopped.append(kit.store.log.flushed_offset))
    assert stopped == []
    kit.scheduler.advance(7)
    assert stopped == [kit.store.log.max_offset]
    assert [answer.ext_fields["queueOffset"] for answer in answers(kit)] == ["1"]


def test_sync_flush_does_not_make_wait_false_wait(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert kit.send(properties="WAIT\x01false").code == 0


def test_a_slow_flush_is_answered_as_a_warning_with_the_place(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=3000)
    kit.scheduler.blocking_ms = 4000
    kit.deliver(kit.send_command())
    kit.scheduler.advance(3000)
    (answer,) = answers(kit)
    assert answer.code == 10
    assert answer.ext_fields["msgId"] == "0A00000200002A9F0000000000000000"
    kit.scheduler.advance(10_000)
    assert answers(kit) == []


def test_a_failed_flush_is_final(build: BuildBroker) -> None:
    kit = build(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    kit.files.fail_sync("commitlog")
    kit.deliver(kit.send_command())
    kit.scheduler.run_until_idle()
    (answer,) = answers(kit)
    assert answer.code == 14 and "msgId" not in answer.ext_fields
    kit.files.heal()
    assert kit.send().code == 14


def test_async_flush_runs_on_its_interval(kit: BrokerHarness) -> None:
    kit.send()
    assert kit.store.log.flushed_offset == 0
    kit.scheduler.advance(500)
    assert kit.store.log.flushed_offset == kit.store.log.max_offset


def test_who_sends_behind_a_slow_write_is_refused(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = build(os_page_cache_busy_time_out_mills=300)
    commit = kit.store.log.commit

    def slow() -> None:
        commit()
        kit.scheduler._monotonic_ms += 301

    kit.send(b"before")
    monkeypatch.setattr(kit.store.log, "commit", slow)
    assert kit.send(b"slow").code == 0
    monkeypatch.undo()
    answer = kit.send(b"behind")
    assert answer.code == 2
    assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    assert kit.send(b"after").code == 0
    assert kit.store.reader.max_queue_offset("T", 0) == 3


def test_no_more_replies_wait_than_may(kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(kit.broker.gate), "has_room", lambda _gate, _count: False)
        answer = kit.send(b"too many")
    assert answer.code == 2
    assert answer.remark == "[OVERLOAD]system busy, start flow control for a while"
    assert kit.send(b"after").code == 0
