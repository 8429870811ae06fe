"""Heartbeats, groups, notifications, and queue locks."""

from __future__ import annotations

from rmqpy.broker.state.queue_locks import QueueLockTable
from rmqpy.remoting.bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchRequestBody,
)
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel


def take_notices(channel: MemoryChannel) -> list[str]:
    commands = channel.take()
    assert all(command.code == 40 and command.flag == FLAG_ONEWAY for command in commands)
    return [command.ext_fields["consumerGroup"] for command in commands]


def consumer_ids(harness: BrokerHarness, group: str = "CG") -> list[str]:
    answer = harness.call(38, GetConsumerListByGroupRequestHeader(consumer_group=group))
    if answer.code == 1:
        return []
    return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list


def subscription(harness: BrokerHarness) -> SubscriptionData:
    """Return the subscription of group CG to topic T; there must be one."""
    group = harness.broker.clients.consumer_group("CG")
    assert group is not None
    found = group.subscription("T")
    assert found is not None
    return found


def test_a_heartbeat_registers_and_prepares_the_group(harness: BrokerHarness) -> None:
    answer = harness.heartbeat()
    assert (answer.code, answer.version) == (0, 407)
    assert consumer_ids(harness) == ["c1"]
    assert harness.broker.groups.groups["CG"].retry_max_times == 16
    retry = harness.broker.topics.topics["%RETRY%CG"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


def test_the_list_of_members_follows_each_change(harness: BrokerHarness) -> None:
    first, second = MemoryChannel(), MemoryChannel()
    harness.heartbeat(first, "c1")
    assert consumer_ids(harness) == ["c1"]
    harness.heartbeat(second, "c2")
    assert consumer_ids(harness) == ["c1", "c2"]
    harness.heartbeat(first, "c9")
    assert consumer_ids(harness) == ["c9", "c2"]
    group = harness.broker.clients.consumer_group("CG")
    assert group is not None and group.id_list is group.id_list, "encoded once"
    harness.broker.server.channel_closed(second)
    assert consumer_ids(harness) == ["c9"]


def test_a_group_without_members_is_an_error(harness: BrokerHarness) -> None:
    answer = harness.call(38, GetConsumerListByGroupRequestHeader(consumer_group="CG"))
    assert answer.code == 1 and "CG" in (answer.remark or "")


def test_members_are_notified_of_joining_leaving_and_changed_topics(harness: BrokerHarness) -> None:
    first, second = MemoryChannel(), MemoryChannel()
    harness.heartbeat(first, "c1")
    assert take_notices(first) == []
    harness.heartbeat(second, "c2")
    assert take_notices(first) == ["CG"]
    harness.heartbeat(second, "c2")
    assert take_notices(first) == []
    harness.heartbeat(second, "c2", subscriptions=(SubscriptionData("T", "*"),))
    assert take_notices(first) == ["CG"]
    harness.heartbeat(second, "c2", subscriptions=(SubscriptionData("T", "*", sub_version=9),))
    assert take_notices(first) == [], (
        "a newer version replaces the subscription without a notification"
    )
    assert subscription(harness).sub_version == 9
    harness.heartbeat(second, "c2")
    assert take_notices(first) == ["CG"], "a topic is no longer subscribed"
    harness.broker.server.channel_closed(second)
    assert take_notices(first) == ["CG"]
    assert consumer_ids(harness) == ["c1"]


def test_the_new_member_is_notified_too(harness: BrokerHarness) -> None:
    channel = MemoryChannel()
    harness.deliver(heartbeat_command("c1", "CG"), channel=channel)
    codes = [command.code for command in channel.take()]
    assert sorted(codes) == [0, 40]


def heartbeat_command(client_id: str, group: str) -> RemotingCommand:
    body = f'{{"clientID":"{client_id}","consumerDataSet":[{{"groupName":"{group}"}}]}}'
    return RemotingCommand.request(34, None, body.encode())


def test_an_older_subscription_does_not_replace_a_newer_one(harness: BrokerHarness) -> None:
    harness.heartbeat(subscriptions=(SubscriptionData("T", "new", sub_version=9),))
    harness.heartbeat(
        MemoryChannel(), "c2", subscriptions=(SubscriptionData("T", "old", sub_version=8),)
    )
    assert subscription(harness).sub_string == "new"
    harness.heartbeat(subscriptions=(SubscriptionData("T", "same version", sub_version=9),))
    assert subscription(harness).sub_string == "new"


def test_notices_can_be_switched_off(build: BuildBroker) -> None:
    harness = build(notify_consumer_ids_changed_enable=False)
    first = MemoryChannel()
    harness.heartbeat(first, "c1")
    harness.heartbeat(MemoryChannel(), "c2")
    assert first.take() == []
    harness = build()
    harness.broker.groups.put(
        SubscriptionGroupConfig("CG", notify_consumer_ids_changed_enable=False)
    )
    harness.heartbeat(first, "c1")
    harness.heartbeat(MemoryChannel(), "c2")
    assert first.take() == []


def test_unregistering_the_last_member_removes_the_group(harness: BrokerHarness) -> None:
    harness.heartbeat(producer="PG")
    harness.call(35, UnregisterClientRequestHeader(client_id="c1", consumer_group="CG"))
    assert harness.broker.clients.consumer_group("CG") is None
    assert harness.broker.clients.producers("PG")
    harness.call(35, UnregisterClientRequestHeader(client_id="c1", producer_group="PG"))
    assert harness.broker.clients.producer_groups == {}
    assert harness.broker.clients._groups_of == {}


def test_silent_clients_are_closed_after_two_minutes(harness: BrokerHarness) -> None:
    silent, active = MemoryChannel(), MemoryChannel()
    harness.heartbeat(silent, "c1", producer="PG")
    harness.heartbeat(active, "c2")
    take_notices(active)
    harness.scheduler.advance(100_000)
    harness.heartbeat(active, "c2")
    harness.scheduler.advance(30_000)
    assert silent.closed and not active.closed
    assert consumer_ids(harness) == ["c2"]
    assert harness.broker.clients.producer_groups == {}
    assert take_notices(active) == ["CG"]


def test_a_wrong_group_name_is_refused_and_leaves_no_trace(harness: BrokerHarness) -> None:
    answer = harness.heartbeat(group="../../x")
    assert answer.code == 1
    assert harness.broker.clients.consumer_group("../../x") is None
    assert "../../x" not in harness.broker.groups.groups
    assert not [path for path in harness.files.nodes if ".." in path]


def test_names_that_are_too_long_are_refused(harness: BrokerHarness) -> None:
    assert harness.heartbeat(client_id="c" * 513).code == 1
    for body in (
        LockBatchRequestBody("CG", "c" * 513, [QUEUE]),
        LockBatchRequestBody("g" * 256, "c", [QUEUE]),
        LockBatchRequestBody("CG", "c", [MessageQueue("t" * 128, "b", 0)]),
    ):
        assert harness.call(41, None, body.encode()).code == 1
    assert len(harness.broker.locks) == 0


def test_invalid_heartbeats_are_refused(harness: BrokerHarness) -> None:
    for body in (b"", b"[]", b'{"clientID":1', b'{"consumerDataSet":[{}],"clientID":"x"}'):
        answer = harness.call(34, None, body)
        assert answer.code == 1 and "HeartbeatData" in (answer.remark or "")


def test_a_group_name_too_long_for_a_retry_topic_still_registers(harness: BrokerHarness) -> None:
    group = "g" * 200
    assert harness.heartbeat(group=group).code == 0
    assert harness.broker.topics.get("%RETRY%" + group) is None


def test_a_client_can_check_an_expression_in_advance(harness: BrokerHarness) -> None:
    for kind, code in (("TAG", 0), ("SQL92", 1)):
        body = CheckClientRequestBody("c", "CG", SubscriptionData("T", "a", expression_type=kind))
        assert harness.call(46, None, body.encode()).code == code


# ----------------------------------------------------------------------------------------- locks

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


def lock(harness: BrokerHarness, client: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequestBody("CG", client, list(queues)).encode()
    return LockBatchResponseBody.decode(harness.call(41, None, body).body).lock_ok_mq_set


def test_a_queue_belongs_to_one_client_of_a_group(harness: BrokerHarness) -> None:
    assert lock(harness, "c1", QUEUE) == [QUEUE]
    assert lock(harness, "c2", QUEUE, OTHER) == [OTHER]
    assert lock(harness, "c1", QUEUE) == [QUEUE]
    body = UnlockBatchRequestBody("CG", "c2", [QUEUE]).encode()
    assert harness.call(42, None, body).code == 0
    assert lock(harness, "c2", QUEUE) == [], "only the owner can unlock"
    harness.call(42, None, UnlockBatchRequestBody("CG", "c1", [QUEUE]).encode())
    assert lock(harness, "c2", QUEUE) == [QUEUE]


def test_a_lock_lives_for_a_minute() -> None:
    scheduler = ManualScheduler()
    locks = QueueLockTable(scheduler)
    locks.lock("CG", "c1", [QUEUE])
    scheduler.advance(60_000)
    assert locks.lock("CG", "c2", [QUEUE]) == []
    assert locks.lock("other", "c2", [QUEUE]) == [QUEUE], "groups do not share locks"
    scheduler.advance(1)
    assert locks.lock("CG", "c2", [QUEUE]) == [QUEUE]
    scheduler.advance(60_001)
    locks.expire()
    assert len(locks) == 0
