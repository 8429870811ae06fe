"""Heartbeats, groups, notices, order locks."""

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


def consumer_ids(kit: BrokerHarness, group: str = "CG") -> list[str]:
    answer = kit.call(38, GetConsumerListByGroupRequestHeader(consumer_group=group))
    if answer.code == 1:
        return []
    return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list


def test_a_heartbeat_registers_and_prepares_the_group(kit: BrokerHarness) -> None:
    answer = kit.heartbeat()
    assert (answer.code, answer.version) == (0, 407)
    assert consumer_ids(kit) == ["c1"]
    assert kit.broker.groups.get("CG").retry_max_times == 16
    retry = kit.broker.topics.get("%RETRY%CG")
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


def test_nobody_online_is_an_error(kit: BrokerHarness) -> None:
    answer = kit.call(38, GetConsumerListByGroupRequestHeader(consumer_group="CG"))
    assert answer.code == 1 and "CG" in answer.remark


def test_members_hear_of_joining_leaving_and_changed_topics(kit: BrokerHarness) -> None:
    first, second = MemoryChannel(), MemoryChannel()
    kit.heartbeat(first, "c1")
    assert take_notices(first) == []
    kit.heartbeat(second, "c2")
    assert take_notices(first) == ["CG"]
    kit.heartbeat(second, "c2")
    assert take_notices(first) == []
    kit.heartbeat(second, "c2", subscriptions=(SubscriptionData("T", "*"),))
    assert take_notices(first) == ["CG"]
    kit.heartbeat(second, "c2", subscriptions=(SubscriptionData("T", "*", sub_version=9),))
    assert take_notices(first) == [], "a newer version replaces without a word"
    assert kit.broker.clients.consumer_group("CG").subscription("T").sub_version == 9
    kit.heartbeat(second, "c2")
    assert take_notices(first) == ["CG"], "a topic is gone"
    kit.broker.server.channel_closed(second)
    assert take_notices(first) == ["CG"]
    assert consumer_ids(kit) == ["c1"]


def test_the_newcomer_is_told_too(kit: BrokerHarness) -> None:
    channel = MemoryChannel()
    kit.deliver(heartbeat_command("c1", "CG"), channel=channel)
    codes = [command.code for command in channel.take()]
    assert sorted(codes) == [0, 40]


def heartbeat_command(client_id: str, group: str) -> RemotingCommand:
    body = f'{{"clientID":"{client_id}","consumerDataSet":[{{"groupName":"{group}"}}]}}'
    return RemotingCommand.request(34, None, body.encode())


def test_an_older_subscription_does_not_replace_a_newer_one(kit: BrokerHarness) -> None:
    kit.heartbeat(subscriptions=(SubscriptionData("T", "new", sub_version=9),))
    kit.heartbeat(
        MemoryChannel(), "c2", subscriptions=(SubscriptionData("T", "old", sub_version=8),)
    )
    group = kit.broker.clients.consumer_group("CG")
    assert group.subscription("T").sub_string == "new"
    kit.heartbeat(subscriptions=(SubscriptionData("T", "same version", sub_version=9),))
    assert group.subscription("T").sub_string == "new"


def test_notices_can_be_switched_off(build: BuildBroker) -> None:
    kit = build(notify_consumer_ids_changed_enable=False)
    first = MemoryChannel()
    kit.heartbeat(first, "c1")
    kit.heartbeat(MemoryChannel(), "c2")
    assert first.take() == []
    kit = build()
    kit.broker.groups.put(SubscriptionGroupConfig("CG", notify_consumer_ids_changed_enable=False))
    kit.heartbeat(first, "c1")
    kit.heartbeat(MemoryChannel(), "c2")
    assert first.take() == []


def test_unregister_takes_the_group_away_with_its_last_member(kit: BrokerHarness) -> None:
    kit.heartbeat(producer="PG")
    kit.call(35, UnregisterClientRequestHeader(client_id="c1", consumer_group="CG"))
    assert kit.broker.clients.consumer_group("CG") is None
    assert kit.broker.clients.producers("PG")
    kit.call(35, UnregisterClientRequestHeader(client_id="c1", producer_group="PG"))
    assert kit.broker.clients.producer_groups == {}
    assert kit.broker.clients._groups_of == {}


def test_silent_clients_are_closed_after_two_minutes(kit: BrokerHarness) -> None:
    silent, living = MemoryChannel(), MemoryChannel()
    kit.heartbeat(silent, "c1", producer="PG")
    kit.heartbeat(living, "c2")
    take_notices(living)
    kit.scheduler.advance(100_000)
    kit.heartbeat(living, "c2")
    kit.scheduler.advance(30_000)
    assert silent.closed and not living.closed
    assert consumer_ids(kit) == ["c2"]
    assert kit.broker.clients.producer_groups == {}
    assert take_notices(living) == ["CG"]


def test_a_wrong_group_name_is_refused_and_leaves_nothing_behind(kit: BrokerHarness) -> None:
    answer = kit.heartbeat(group="../../x")
    assert answer.code == 1
    assert kit.broker.clients.consumer_group("../../x") is None
    assert "../../x" not in kit.broker.groups.groups
    assert not [path for path in kit.files.nodes if ".." in path]


def test_names_without_measure_are_refused(kit: BrokerHarness) -> None:
    assert kit.heartbeat(client_id="c" * 513).code == 1
    for body in (
        LockBatchRequestBody("CG", "c" * 513, [QUEUE]),
        LockBatchRequestBody("g" * 256, "c", [QUEUE]),
        LockBatchRequestBody("CG", "c", [MessageQueue("t" * 128, "b", 0)]),
    ):
        assert kit.call(41, None, body.encode()).code == 1
    assert len(kit.broker.locks) == 0


def test_rubbish_is_refused(kit: BrokerHarness) -> None:
    for body in (b"", b"[]", b'{"clientID":1', b'{"consumerDataSet":[{}],"clientID":"x"}'):
        answer = kit.call(34, None, body)
        assert answer.code == 1 and "HeartbeatData" in answer.remark


def test_a_group_name_too_long_for_a_retry_topic_still_registers(kit: BrokerHarness) -> None:
    group = "g" * 200
    assert kit.heartbeat(group=group).code == 0
    assert kit.broker.topics.get("%RETRY%" + group) is None


def test_expressions_that_are_not_tags_are_told_before(kit: BrokerHarness) -> None:
    for kind, code in (("TAG", 0), ("SQL92", 1)):
        body = CheckClientRequestBody("c", "CG", SubscriptionData("T", "a", expression_type=kind))
        assert kit.call(46, None, body.encode()).code == code


# ----------------------------------------------------------------------------------------- locks

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


def lock(kit: BrokerHarness, client: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequestBody("CG", client, list(queues)).encode()
    return LockBatchResponseBody.decode(kit.call(41, None, body).body).lock_ok_mq_set


def test_a_queue_belongs_to_one_client_of_a_group(kit: BrokerHarness) -> None:
    assert lock(kit, "c1", QUEUE) == [QUEUE]
    assert lock(kit, "c2", QUEUE, OTHER) == [OTHER]
    assert lock(kit, "c1", QUEUE) == [QUEUE]
    body = UnlockBatchRequestBody("CG", "c2", [QUEUE]).encode()
    assert kit.call(42, None, body).code == 0
    assert lock(kit, "c2", QUEUE) == [], "only the owner can give up"
    kit.call(42, None, UnlockBatchRequestBody("CG", "c1", [QUEUE]).encode())
    assert lock(kit, "c2", QUEUE) == [QUEUE]


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
