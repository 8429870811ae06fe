"""Pulling and long polling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqpy.broker.services.pull_hold import HeldPullRequest, PullRequestHold
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.message import decode_message
from rmqpy.config.loading import BrokerRole
from rmqpy.remoting.bodies import SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.results import Arrival
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

SUSPEND = 2
SUBSCRIPTION = 4
COMMIT = 1


def bodies(answer: RemotingCommand) -> list[bytes]:
    found, position = [], 0
    while position < len(answer.body):
        message = decode_message(answer.body, position)
        found.append(message.body)
        position += message.size
    return found


def subscription(topic: str, *tags: str, version: int = 10) -> SubscriptionData:
    return SubscriptionData(
        topic,
        " || ".join(tags) or "*",
        list(tags),
        [java_string_hash(tag) for tag in tags],
        version,
    )


# -------------------------------------------------------------------------------------- outcomes


def test_found(kit: BrokerHarness) -> None:
    for number in range(3):
        kit.send(b"m%d" % number)
    answer = kit.pull(queue_offset=1)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }
    assert bodies(answer) == [b"m1", b"m2"]


def test_a_lite_pull_is_a_pull(kit: BrokerHarness) -> None:
    kit.send(b"m")
    command = kit.pull_command()
    command.code = 361
    kit.deliver(command)
    assert bodies(kit.channel.take_one()) == [b"m"]


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
    kit: BrokerHarness, sent: int, offset: int, code: int, status: str, next_offset: str
) -> None:
    kit.broker.topics.create_for_group("T", 4)
    for _ in range(sent):
        kit.send()
    answer = kit.pull(queue_offset=offset)
    assert (answer.code, answer.remark) == (code, status)
    assert answer.ext_fields["nextBeginOffset"] == next_offset
    assert answer.body == b""


def test_no_matched_message_asks_to_go_on(kit: BrokerHarness) -> None:
    kit.send(properties="TAGS\x01TagA")
    answer = kit.pull(subscription="TagB")
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_tags_select_by_their_hash(kit: BrokerHarness) -> None:
    for tag in ("TagA", "TagB", "TagC"):
        kit.send(tag.encode(), properties=f"TAGS\x01{tag}")
    assert bodies(kit.pull(subscription="TagA || TagC")) == [b"TagA", b"TagC"]
    kit.heartbeat(subscriptions=(subscription("T", "TagB"),))
    assert bodies(kit.pull(sys_flag=0, sub_version=10)) == [b"TagB"]


def test_a_moved_offset_is_recorded_as_an_event(kit: BrokerHarness) -> None:
    kit.send()
    assert kit.pull(queue_offset=9).code == 21
    found = kit.store.reader.get_message("OFFSET_MOVED_EVENT", 0, 0, 32, None)
    event = decode_message(found.messages[0])
    assert json.loads(event.body) == {
        "consumerGroup": "CG",
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "offsetNew": 1,
        "offsetRequest": 9,
    }
    assert event.properties["TAGS"] == event.properties["KEYS"] == "CG"


def test_the_first_pass_commits_the_offset(kit: BrokerHarness) -> None:
    kit.send()
    kit.pull(sys_flag=SUBSCRIPTION, commit_offset=1)
    assert kit.broker.offsets.get("CG", "T", 0) == -1
    kit.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)
    assert kit.broker.offsets.get("CG", "T", 0) == 1


def test_a_resumed_pull_commits_no_offset(kit: BrokerHarness) -> None:
    kit.send()
    flags = SUBSCRIPTION | SUSPEND | COMMIT
    kit.deliver(kit.pull_command(sys_flag=flags, queue_offset=1, commit_offset=1))
    kit.broker.offsets.commit("CG", "T", 0, 7)
    kit.deliver(kit.send_command(), channel=MemoryChannel())
    assert kit.channel.take_one().code == 0
    assert kit.broker.offsets.get("CG", "T", 0) == 7


def test_a_slave_gives_what_it_has_and_names_the_master(build: BuildBroker) -> None:
    kit = build()
    kit.send(b"m")
    kit.broker.identity.role = BrokerRole.SLAVE
    kit.store.set_role(slave=True)
    answer = kit.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)
    assert bodies(answer) == [b"m"]
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert kit.broker.offsets.get("CG", "T", 0) == -1


def test_a_reader_that_waits_at_a_leader_misses_nothing_when_it_follows(build: BuildBroker) -> None:
    """The message that wakes it comes when the broker is a slave already."""
    kit = build()
    kit.send(b"first")
    kit.deliver(kit.pull_command(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1))
    kit.broker.identity.role = BrokerRole.SLAVE
    kit.deliver(kit.send_command(b"second"), channel=MemoryChannel())
    kit.scheduler.advance(20_000)
    answer = kit.channel.take_one()
    end = answer.ext_fields["nextBeginOffset"]
    assert (bodies(answer), end) in (([b"second"], "2"), ([], "1"))


def test_a_slave_that_may_be_read_answers_but_moves_nobody(build: BuildBroker) -> None:
    kit = build(slave_read_enable=True)
    kit.send(b"m")
    kit.broker.identity.role = BrokerRole.SLAVE
    kit.store.set_role(slave=True)
    answer = kit.pull()
    assert bodies(answer) == [b"m"]
    answer = kit.pull(queue_offset=9)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "9")


# ---------------------------------------------------------------------------------------- checks


def test_checks_in_order(build: BuildBroker) -> None:
    kit = build(auto_create_subscription_group=False, broker_permission=2)
    broker = kit.broker

    def code(**fields: Any) -> int:
        answer = kit.pull(**fields)
        assert answer.remark
        return int(answer.code)

    everything_wrong: dict[str, Any] = {"sys_flag": 0, "queue_id": 9}
    assert code(**everything_wrong) == 16
    kit.broker.identity.change_configuration(build_readable(kit))
    assert code(**everything_wrong) == 26
    broker.groups.put(group("CG", consume_enable=False))
    assert code(**everything_wrong) == 16
    broker.groups.put(group("CG", consume_broadcast_enable=False))
    assert code(**everything_wrong) == 17
    broker.topics.create_for_group("T", 4)
    broker.topics.get("T").perm = 2
    assert code(**everything_wrong) == 16
    broker.topics.get("T").perm = 6
    assert code(**everything_wrong) == 1
    assert code(sys_flag=0, queue_id=-1) == 1
    assert code(sys_flag=SUBSCRIPTION, subscription="||") == 23
    assert code(sys_flag=SUBSCRIPTION, subscription="a > 1", expression_type="SQL92") == 1
    assert code(sys_flag=0) == 24
    kit.heartbeat(message_model="BROADCASTING")
    assert code(sys_flag=0) == 16
    kit.heartbeat()
    assert code(sys_flag=0) == 24
    kit.heartbeat(subscriptions=(subscription("T"),))
    assert code(sys_flag=0, sub_version=11) == 25
    assert kit.pull(sys_flag=0, sub_version=10).code == 19


def group(name: str, **values: Any) -> Any:
    from rmqpy.remoting.bodies import SubscriptionGroupConfig

    return SubscriptionGroupConfig(name, **values)


def build_readable(kit: BrokerHarness) -> Any:
    from attrs import evolve

    configuration = kit.broker.identity.configuration
    return evolve(configuration, broker=evolve(configuration.broker, broker_permission=6))


def test_a_wrong_group_name_creates_nothing(kit: BrokerHarness) -> None:
    kit.send()
    assert kit.pull(consumer_group="../x").code == 1
    assert "../x" not in kit.broker.groups.groups


def test_an_sql_subscription_of_a_heartbeat_is_refused(kit: BrokerHarness) -> None:
    kit.send()
    wanted = subscription("T")
    wanted.expression_type = "SQL92"
    kit.heartbeat(subscriptions=(wanted,))
    assert kit.pull(sys_flag=0).code == 27


# ---------------------------------------------------------------------------------- long polling


def suspended(kit: BrokerHarness, **fields: Any) -> None:
    kit.deliver(kit.pull_command(**{"sys_flag": SUBSCRIPTION | SUSPEND, **fields}))
    assert kit.channel.take() == []
    assert kit.broker.hold.count == 1


def test_an_arrival_wakes_who_waits_once_with_all_messages_of_the_turn(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1)
    sender = MemoryChannel()
    kit.deliver(kit.send_command(b"a"), kit.send_command(b"b"), channel=sender)
    answer = kit.channel.take_one()
    assert (answer.code, bodies(answer)) == (0, [b"a", b"b"])
    assert kit.broker.hold.count == 0


def test_messages_of_other_queues_and_tags_wake_nobody(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1, subscription="TagB")
    sender = MemoryChannel()
    kit.deliver(
        kit.send_command(b"other queue", queue_id=1, properties="TAGS\x01TagB"),
        kit.send_command(b"other tag", properties="TAGS\x01TagA"),
        channel=sender,
    )
    assert kit.channel.take() == []
    kit.deliver(kit.send_command(b"mine", properties="TAGS\x01TagB"), channel=sender)
    assert bodies(kit.channel.take_one()) == [b"mine"]


def test_the_sweep_tells_who_is_behind_that_nothing_matched(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1, subscription="TagB")
    kit.deliver(kit.send_command(b"other", properties="TAGS\x01TagA"), channel=MemoryChannel())
    assert kit.channel.take() == []
    kit.scheduler.advance(5000)
    answer = kit.channel.take_one()
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "2")


def test_a_pull_waits_as_long_as_it_said(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1, suspend_timeout_millis=12_000)
    kit.scheduler.advance(14_999)
    assert kit.channel.take() == []
    kit.scheduler.advance(1)
    answer = kit.channel.take_one()
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_short_polling(build: BuildBroker) -> None:
    kit = build(long_polling_enable=False)
    kit.send()
    suspended(kit, queue_offset=1)
    kit.scheduler.advance(1000)
    assert kit.channel.take_one().code == 19


def test_an_empty_queue_can_be_waited_for(kit: BrokerHarness) -> None:
    kit.broker.topics.create_for_group("T", 4)
    suspended(kit)
    kit.deliver(kit.send_command(b"first"), channel=MemoryChannel())
    assert bodies(kit.channel.take_one()) == [b"first"]


def test_without_the_flag_nobody_waits(kit: BrokerHarness) -> None:
    kit.send()
    assert kit.pull(queue_offset=1).code == 19
    assert kit.broker.hold.count == 0


def test_errors_do_not_wait(kit: BrokerHarness) -> None:
    assert kit.pull(sys_flag=SUBSCRIPTION | SUSPEND, topic="Nowhere").code == 17
    kit.send()
    assert kit.pull(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=9).code == 21


def test_a_closed_connection_is_forgotten(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1)
    kit.channel.close()
    kit.broker.server.channel_closed(kit.channel)
    before = kit.broker.statistics.counters.get_miss
    kit.scheduler.advance(5000)
    assert kit.broker.hold.count == 0
    assert kit.broker.statistics.counters.get_miss == before, "nothing is read for nobody"


def test_a_topic_that_vanished_meanwhile_is_an_error(kit: BrokerHarness) -> None:
    kit.send()
    suspended(kit, queue_offset=1)
    kit.broker.topics.delete("T")
    kit.scheduler.advance(15_000)
    assert kit.channel.take_one().code == 17


def test_a_full_hold_answers_at_once(kit: BrokerHarness) -> None:
    kit.send()
    kit.broker.hold._limit = 1
    suspended(kit, queue_offset=1)
    assert kit.pull(sys_flag=SUBSCRIPTION | SUSPEND, queue_offset=1).code == 19


def test_a_message_confirmed_outside_of_a_turn_wakes_too(kit: BrokerHarness) -> None:
    """As when a quorum confirms: the watermark grows without a request."""
    kit.send()
    suspended(kit, queue_offset=1)
    kit.broker.server.handle(MemoryChannel(), [kit.send_command(b"late")])
    kit.broker.server._turning = False
    kit.store.appender.commit()
    assert kit.channel.take() == []
    kit.scheduler.run_until_idle()
    assert bodies(kit.channel.take_one()) == [b"late"]


def test_hold_resumes_each_pull_once() -> None:
    scheduler = ManualScheduler()
    resumed: list[int] = []
    hold = PullRequestHold(scheduler)

    def resume(pull: HeldPullRequest) -> None:
        resumed.append(pull.offset)

    for offset in (5, 7):
        pull = HeldPullRequest(MemoryChannel(), RemotingCommand.request(11), offset, None, 15_000)
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
