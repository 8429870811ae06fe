"""Pulling and long polling."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from harness.broker import response_bodies

from rmqpy.broker.services.pull_hold import HELD_BYTES, HeldPullRequest, PullRequestHold
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.message import decode_message
from rmqpy.config.loading import BrokerConfiguration, BrokerRole
from rmqpy.remoting.bodies import SubscriptionData, SubscriptionGroupConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.results import Arrival
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

SUSPEND = 2
SUBSCRIPTION = 4
COMMIT = 1


def subscription(topic: str, *tags: str, version: int = 10) -> SubscriptionData:
    return SubscriptionData(
        topic,
        " || ".join(tags) or "*",
        list(tags),
        [java_string_hash(tag) for tag in tags],
        version,
    )


# -------------------------------------------------------------------------------------- outcomes


def test_found(harness: BrokerHarness) -> None:
    for number in range(3):
        harness.send(b"m%d" % number)
    answer = harness.pull(queue_offset=1)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }
    assert response_bodies(answer) == [b"m1", b"m2"]


def test_a_broker_whose_log_is_not_that_of_its_group_serves_nothing(
    harness: BrokerHarness,
) -> None:
    harness.send(b"m")
    harness.broker.identity.note_diverged("n0 is refused: its old log contains other messages")
    answer = harness.pull()
    assert answer.code == 16 and "its old log contains other messages" in (answer.remark or "")
    assert not answer.body
    harness.broker.identity.change_configuration(harness.broker.identity.configuration)
    assert harness.pull().code == 16, "also after a change of settings"
    harness.broker.identity.note_diverged("")
    assert response_bodies(harness.pull()) == [b"m"]


def test_a_lite_pull_is_a_pull(harness: BrokerHarness) -> None:
    harness.send(b"m")
    command = harness.pull_command()
    command.code = 361
    harness.deliver(command)
    assert response_bodies(harness.channel.take_one()) == [b"m"]


@pytest.mark.parametrize(
    ("sent", "offset", "code", "status", "next_offset"),
    [
        (0, 0, 19, "NO_MATCHED_LOGIC_QUEUE", "0"),
        (0, 5, 21, "NO_MATCHED_LOGIC_QUEUE", "0"),
        (2, 2, 19, "OFFSET_OVERFLOW_ONE", "2"),
        (2, 9, 21, "OFFSET_OVERFLOW_BADLY", "2"),
        (2, -1, 21, "OFFSET_TOO_SMALL", "0"),
    ],
)
def test_outcomes(
    harness: BrokerHarness, sent: int, offset: int, code: int, status: str, next_offset: str
) -> None:
    harness.broker.topics.create_for_group("T", 4)
    for _ in range(sent):
        harness.send()
    answer = harness.pull(queue_offset=offset)
    assert (answer.code, answer.remark) == (code, status)
    assert answer.ext_fields["nextBeginOffset"] == next_offset
    assert answer.body == b""


def test_no_matched_message_returns_the_next_offset(harness: BrokerHarness) -> None:
    harness.send(properties="TAGS\x01TagA")
    answer = harness.pull(subscription="TagB")
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_tags_select_by_their_hash(harness: BrokerHarness) -> None:
    for tag in ("TagA", "TagB", "TagC"):
        harness.send(tag.encode(), properties=f"TAGS\x01{tag}")
    assert response_bodies(harness.pull(subscription="TagA || TagC")) == [b"TagA", b"TagC"]
    harness.heartbeat(subscriptions=(subscription("T", "TagB"),))
    assert response_bodies(harness.pull(sys_flag=0, sub_version=10)) == [b"TagB"]


def test_a_moved_offset_is_recorded_as_an_event(harness: BrokerHarness) -> None:
    harness.send()
    assert harness.pull(queue_offset=9).code == 21
    found = harness.store.reader.get_message("OFFSET_MOVED_EVENT", 0, 0, 32, None)
    event = decode_message(found.messages[0])
    assert json.loads(event.body) == {
        "consumerGroup": "CG",
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "offsetNew": 1,
        "offsetRequest": 9,
    }
    assert event.properties["TAGS"] == event.properties["KEYS"] == "CG"


def test_the_first_pass_commits_the_offset(harness: BrokerHarness) -> None:
    harness.send()
    harness.pull(sys_flag=SUBSCRIPTION, commit_offset=1)
    assert harness.broker.offsets.get("CG", "T", 0) == -1
    harness.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)
    assert harness.broker.offsets.get("CG", "T", 0) == 1


def test_a_resumed_pull_commits_no_offset(harness: BrokerHarness) -> None:
    harness.send()
    flags = SUBSCRIPTION | SUSPEND | COMMIT
    harness.deliver(harness.pull_command(sys_flag=flags, queue_offset=1, commit_offset=1))
    harness.broker.offsets.commit("CG", "T", 0, 7)
    harness.deliver(harness.send_command(), channel=MemoryChannel())
    assert harness.channel.take_one().code == 0
    assert harness.broker.offsets.get("CG", "T", 0) == 7


def test_a_slave_serves_its_messages_and_suggests_the_master(build: BuildBroker) -> None:
    harness = build()
    harness.send(b"m")
    harness.broker.identity.role = BrokerRole.SLAVE
    harness.store.set_role(slave=True)
    answer = harness.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)
    assert response_bodies(answer) == [b"m"]
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert harness.broker.offsets.get("CG", "T", 0) == -1


def test_a_held_pull_misses_nothing_when_the_leader_becomes_a_follower(build: BuildBroker) -> None:
    """The message that resumes it arrives when the broker is already a slave."""
    harness = build()
    harness.send(b"first")
    harness.deliver(harness.pull_command(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1))
    harness.broker.identity.role = BrokerRole.SLAVE
    harness.deliver(harness.send_command(b"second"), channel=MemoryChannel())
    harness.scheduler.advance(20_000)
    answer = harness.channel.take_one()
    end = answer.ext_fields["nextBeginOffset"]
    assert (response_bodies(answer), end) in (([b"second"], "2"), ([], "1"))


def test_a_slave_with_reads_enabled_answers_but_moves_no_offset(build: BuildBroker) -> None:
    harness = build(slave_read_enable=True)
    harness.send(b"m")
    harness.broker.identity.role = BrokerRole.SLAVE
    harness.store.set_role(slave=True)
    answer = harness.pull()
    assert response_bodies(answer) == [b"m"]
    answer = harness.pull(queue_offset=9)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "9")


# ---------------------------------------------------------------------------------------- checks


def test_the_checks_of_a_pull_have_a_fixed_order(build: BuildBroker) -> None:
    harness = build(auto_create_subscription_group=False, broker_permission=2)
    broker = harness.broker

    def code(**fields: Any) -> int:
        answer = harness.pull(**fields)
        assert answer.remark
        return int(answer.code)

    everything_wrong: dict[str, Any] = {"sys_flag": 0, "queue_id": 9}
    assert code(**everything_wrong) == 16
    harness.broker.identity.change_configuration(readable(harness))
    assert code(**everything_wrong) == 26
    broker.groups.put(SubscriptionGroupConfig("CG", consume_enable=False))
    assert code(**everything_wrong) == 16
    broker.groups.put(SubscriptionGroupConfig("CG", consume_broadcast_enable=False))
    assert code(**everything_wrong) == 17
    broker.topics.create_for_group("T", 4)
    broker.topics.topics["T"].perm = 2
    assert code(**everything_wrong) == 16
    broker.topics.topics["T"].perm = 6
    assert code(**everything_wrong) == 1
    assert code(sys_flag=0, queue_id=-1) == 1
    assert code(sys_flag=SUBSCRIPTION, subscription="||") == 23
    assert code(sys_flag=SUBSCRIPTION, subscription="a > 1", expression_type="SQL92") == 1
    assert code(sys_flag=0) == 24
    harness.heartbeat(message_model="BROADCASTING")
    assert code(sys_flag=0) == 16
    harness.heartbeat()
    assert code(sys_flag=0) == 24
    harness.heartbeat(subscriptions=(subscription("T"),))
    assert code(sys_flag=0, sub_version=11) == 25
    assert harness.pull(sys_flag=0, sub_version=10).code == 19


def readable(harness: BrokerHarness) -> BrokerConfiguration:
    """Return the configuration with read and write permission."""
    configuration = harness.broker.identity.configuration
    return evolve(configuration, broker=evolve(configuration.broker, broker_permission=6))


def test_a_wrong_group_name_creates_nothing(harness: BrokerHarness) -> None:
    harness.send()
    assert harness.pull(consumer_group="../x").code == 1
    assert "../x" not in harness.broker.groups.groups


def test_an_sql_subscription_of_a_heartbeat_is_refused(harness: BrokerHarness) -> None:
    harness.send()
    by_sql = subscription("T")
    by_sql.expression_type = "SQL92"
    harness.heartbeat(subscriptions=(by_sql,))
    assert harness.pull(sys_flag=0).code == 27


# ---------------------------------------------------------------------------------- long polling


def hold_pull(harness: BrokerHarness, **fields: Any) -> None:
    harness.deliver(harness.pull_command(**{"sys_flag": SUBSCRIPTION | SUSPEND, **fields}))
    assert harness.channel.take() == []
    assert harness.broker.hold.count == 1


def test_an_arrival_resumes_a_held_pull_once_with_all_messages_of_the_turn(
    harness: BrokerHarness,
) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1)
    sender = MemoryChannel()
    harness.deliver(harness.send_command(b"a"), harness.send_command(b"b"), channel=sender)
    answer = harness.channel.take_one()
    assert (answer.code, response_bodies(answer)) == (0, [b"a", b"b"])
    assert harness.broker.hold.count == 0


def test_messages_of_other_queues_and_tags_resume_no_pull(harness: BrokerHarness) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1, subscription="TagB")
    sender = MemoryChannel()
    harness.deliver(
        harness.send_command(b"other queue", queue_id=1, properties="TAGS\x01TagB"),
        harness.send_command(b"other tag", properties="TAGS\x01TagA"),
        channel=sender,
    )
    assert harness.channel.take() == []
    harness.deliver(harness.send_command(b"mine", properties="TAGS\x01TagB"), channel=sender)
    assert response_bodies(harness.channel.take_one()) == [b"mine"]


def test_the_sweep_answers_held_pulls_for_which_nothing_matched(harness: BrokerHarness) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1, subscription="TagB")
    harness.deliver(
        harness.send_command(b"other", properties="TAGS\x01TagA"), channel=MemoryChannel()
    )
    assert harness.channel.take() == []
    harness.scheduler.advance(5000)
    answer = harness.channel.take_one()
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "2")


def test_a_pull_is_held_for_its_suspend_time(harness: BrokerHarness) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1, suspend_timeout_millis=12_000)
    harness.scheduler.advance(14_999)
    assert harness.channel.take() == []
    harness.scheduler.advance(1)
    answer = harness.channel.take_one()
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_short_polling(build: BuildBroker) -> None:
    harness = build(long_polling_enable=False)
    harness.send()
    hold_pull(harness, queue_offset=1)
    harness.scheduler.advance(1000)
    assert harness.channel.take_one().code == 19


def test_a_pull_of_an_empty_queue_is_held(harness: BrokerHarness) -> None:
    harness.broker.topics.create_for_group("T", 4)
    hold_pull(harness)
    harness.deliver(harness.send_command(b"first"), channel=MemoryChannel())
    assert response_bodies(harness.channel.take_one()) == [b"first"]


def test_a_pull_without_the_flag_is_not_held(harness: BrokerHarness) -> None:
    harness.send()
    assert harness.pull(queue_offset=1).code == 19
    assert harness.broker.hold.count == 0


def test_errors_are_answered_at_once(harness: BrokerHarness) -> None:
    assert harness.pull(sys_flag=SUBSCRIPTION | SUSPEND, topic="Nowhere").code == 17
    harness.send()
    assert harness.pull(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=9).code == 21


def test_the_pulls_of_a_closed_connection_are_dropped(harness: BrokerHarness) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1)
    harness.channel.close()
    harness.broker.server.channel_closed(harness.channel)
    before = harness.broker.statistics.counters.get_miss
    harness.scheduler.advance(5000)
    assert harness.broker.hold.count == 0
    assert harness.broker.statistics.counters.get_miss == before, "nothing is read for it"


def test_a_topic_that_is_deleted_meanwhile_is_an_error(harness: BrokerHarness) -> None:
    harness.send()
    hold_pull(harness, queue_offset=1)
    harness.broker.topics.delete("T")
    harness.scheduler.advance(15_000)
    assert harness.channel.take_one().code == 17


def test_a_full_hold_answers_at_once(harness: BrokerHarness) -> None:
    harness.send()
    harness.broker.hold._limit = 1
    hold_pull(harness, queue_offset=1)
    assert harness.pull(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1).code == 19


def test_a_message_confirmed_outside_of_a_turn_resumes_pulls(harness: BrokerHarness) -> None:
    """When a quorum confirms, the watermark grows without a request."""
    harness.send()
    hold_pull(harness, queue_offset=1)
    harness.broker.server.handle(MemoryChannel(), [harness.send_command(b"late")])
    harness.broker.server._turning = False
    harness.store.appender.commit()
    assert harness.channel.take() == []
    harness.scheduler.run_until_idle()
    assert response_bodies(harness.channel.take_one()) == [b"late"]


def test_held_pulls_have_a_limit_of_bytes() -> None:
    hold = PullRequestHold(ManualScheduler())
    fields = {"subscription": "x" * 1_000_000}

    def held() -> bool:
        request = RemotingCommand(11, ext_fields=dict(fields))
        return hold.hold("T", 0, HeldPullRequest(MemoryChannel(), request, 0, None, 15_000))

    count = HELD_BYTES // 1_000_000
    assert [held() for _ in range(count + 1)] == [True] * count + [False]
    hold.sweep(lambda topic, queue_id: 1)
    hold.resume_ready(lambda channel, request: None)
    assert held() and hold.count == 1


def test_hold_resumes_each_pull_once() -> None:
    scheduler = ManualScheduler()
    resumed: list[int] = []
    hold = PullRequestHold(scheduler)

    def resume(_channel: Channel, request: RemotingCommand) -> None:
        resumed.append(request.opaque)

    for offset in (5, 7):
        pull = HeldPullRequest(
            MemoryChannel(), RemotingCommand(11, opaque=offset), offset, None, 15_000
        )
        assert hold.hold("T", 0, pull)
    hold.notify_message_arriving(Arrival("T", 0, 5, 0, 0, 0))
    hold.notify_message_arriving(Arrival("T", 0, 6, 0, 0, 0))
    assert resumed == []
    hold.resume_ready(resume)
    assert resumed == [5]
    hold.sweep(lambda topic, queue_id: 7)
    hold.resume_ready(resume)
    assert (resumed, hold.count) == ([5], 1)
    hold.sweep(lambda topic, queue_id: 8)
    hold.resume_ready(resume)
    assert (resumed, hold.count) == ([5, 7], 0)
