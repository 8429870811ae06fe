"""Topics and groups: what is there, what is created, what administrators change, what is saved."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.broker.state import topics as topics_module
from rmqpy.config.loading import BrokerRole
from rmqpy.model import names
from rmqpy.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker

TOPICS = "/store/config/topics.json"


def put_topic(kit: BrokerHarness, topic: str = "T", **values: Any) -> Any:
    fields: dict[str, Any] = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }
    kit.network.take()
    kit.deliver(RemotingCommand.request(17, CreateTopicRequestHeader(**{**fields, **values})))
    kit.scheduler.run_until_idle()
    for _, command, done in kit.network.take():
        done(RemotingCommand.response_to(command), None)
    return kit.channel.take_one()


def test_system_topics_at_the_start(build: BuildBroker) -> None:
    kit = build(trace_topic_enable=True)
    found = {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for name, topic in kit.broker.topics.topics.items()
    }
    assert found == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "C": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 1, 6),
        "C_REPLY_TOPIC": (1, 1, 6),
    }
    listed = TopicList.decode(kit.call(305).body).topic_list
    assert set(listed) == set(found) | names.SYSTEM_TOPICS


def test_topics_that_are_not_wanted_are_not_there(build: BuildBroker) -> None:
    kit = build(
        auto_create_topic_enable=False, cluster_topic_enable=False, broker_topic_enable=False
    )
    assert "TBW102" not in kit.broker.topics
    assert kit.broker.topics.get("C").perm == 1
    assert kit.broker.topics.get("broker-a").perm == 1


def test_the_table_is_told_as_it_is_after_each_change(kit: BrokerHarness) -> None:
    for change in (
        lambda: put_topic(kit, topic="One"),
        lambda: put_topic(kit, topic="One", perm=4),
        lambda: kit.broker.topics.set_ordered(["One"]),
        lambda: kit.call(215, DeleteTopicRequestHeader(topic="One")),
    ):
        change()
        kit.channel.take()
        for _ in range(2):
            assert kit.call(21).body == kit.broker.topics.wrapper().encode()


def test_an_administrators_topic(kit: BrokerHarness) -> None:
    before = kit.broker.topics.data_version
    kit.scheduler.advance(5)
    assert put_topic(kit, read_queue_nums=2, write_queue_nums=3, perm=4, order=True).code == 0
    assert kit.broker.topics.get("T") == TopicConfig("T", 2, 3, 4)
    after = kit.broker.topics.data_version
    assert (after.counter, after.timestamp) == (before.counter + 1, kit.scheduler.now_ms())
    wrapper = TopicConfigSerializeWrapper.decode(kit.call(21).body)
    assert wrapper.topic_config_table["T"].write_queue_nums == 3
    assert wrapper.data_version == after


@pytest.mark.parametrize(
    ("topic", "values"),
    [
        ("a/b", {}),
        ("..", {}),
        ("TBW102", {}),
        ("rmq_sys_x", {}),
        ("broker-a", {}),
        ("T", {"read_queue_nums": -1}),
        ("T", {"write_queue_nums": 1 << 20}),
        ("T", {"perm": 16}),
        ("T", {"topic_filter_type": "EVERYTHING"}),
    ],
)
def test_wrong_topics_are_refused(kit: BrokerHarness, topic: str, values: dict[str, Any]) -> None:
    version = kit.broker.topics.data_version
    answer = put_topic(kit, topic, **values)
    assert answer.code == 1 and answer.remark
    assert kit.broker.topics.data_version == version


def test_a_slave_changes_nothing(kit: BrokerHarness) -> None:
    kit.broker.identity.role = BrokerRole.SLAVE
    assert put_topic(kit).code == 1
    assert kit.call(200, None, SubscriptionGroupConfig("G").encode()).code == 1
    assert kit.call(215, DeleteTopicRequestHeader(topic="T")).code == 1
    assert "T" not in kit.broker.topics


def test_deleting_a_topic_takes_its_queues(kit: BrokerHarness) -> None:
    kit.send()
    assert ("T", 0) in kit.store.reader.queue_names()
    assert kit.call(215, DeleteTopicRequestHeader(topic="T")).code == 0
    assert "T" not in kit.broker.topics
    assert ("T", 0) not in kit.store.reader.queue_names()
    assert kit.call(215, DeleteTopicRequestHeader(topic="TBW102")).code == 1


def test_topics_are_saved_with_a_backup_and_come_back(build: BuildBroker) -> None:
    kit = build()
    kit.send(topic="One")
    kit.scheduler.run_until_idle()
    kit.send(topic="Two")
    kit.scheduler.run_until_idle()
    assert b'"Two"' in kit.files.read_bytes(TOPICS)
    assert b'"Two"' not in kit.files.read_bytes(TOPICS + ".bak")
    version = kit.broker.topics.data_version
    kit.store.shutdown()
    again = build(files=kit.files)
    assert again.broker.topics.data_version == version
    assert again.broker.topics.get("Two").write_queue_nums == 4
    again.store.shutdown()
    kit.files.replace_bytes(TOPICS, b"{")
    assert "One" in build(files=kit.files).broker.topics


def test_names_against_the_rule_in_a_saved_table_are_left_out(build: BuildBroker) -> None:
    kit = build()
    wrapper = kit.broker.topics.wrapper()
    wrapper.topic_config_table = {"../x": TopicConfig("../x"), "good": TopicConfig("good")}
    groups = SubscriptionGroupWrapper(
        wrapper.data_version,
        {"a/b": SubscriptionGroupConfig("a/b"), "g": SubscriptionGroupConfig("g")},
    )
    kit.files.replace_bytes(TOPICS, wrapper.encode())
    kit.files.replace_bytes("/store/config/subscriptionGroup.json", groups.encode())
    kit.store.shutdown()
    again = build(files=kit.files).broker
    assert "good" in again.topics and "../x" not in again.topics
    assert "g" in again.groups.groups and "a/b" not in again.groups.groups


def test_clients_cannot_create_topics_without_end(
    kit: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "CREATED_TOPICS_LIMIT", 2)
    assert [kit.send(topic=name).code for name in ("a", "b", "c")] == [0, 0, 17]
    assert put_topic(kit, "c").code == 0, "an administrator can"


def test_the_pattern_of_a_topic_must_be_inheritable(build: BuildBroker) -> None:
    kit = build()
    kit.broker.topics.get("TBW102").perm = 6
    assert kit.send().code == 17


def test_ordered_topics_come_from_the_name_servers(kit: BrokerHarness) -> None:
    put_topic(kit, "A")
    put_topic(kit, "B")
    version = kit.broker.topics.data_version.counter
    kit.broker.topics.set_ordered(["A", "unknown"])
    assert kit.broker.topics.is_ordered("A") and not kit.broker.topics.is_ordered("B")
    kit.broker.topics.set_ordered(["A"])
    assert kit.broker.topics.data_version.counter == version + 1
    kit.broker.topics.set_ordered(["B"])
    assert not kit.broker.topics.is_ordered("A")


# ---------------------------------------------------------------------------------------- groups


def test_groups_at_the_start(kit: BrokerHarness) -> None:
    wrapper = SubscriptionGroupWrapper.decode(kit.call(201).body)
    assert sorted(wrapper.subscription_group_table) == [
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "TOOLS_CONSUMER",
    ]
    assert wrapper.data_version.counter == 0


def test_an_administrators_group(kit: BrokerHarness) -> None:
    config = SubscriptionGroupConfig("G", consume_broadcast_enable=False, retry_max_times=3)
    assert kit.call(200, None, config.encode()).code == 0
    assert kit.broker.groups.get("G") == config
    assert kit.broker.groups.data_version.counter == 1
    kit.scheduler.run_until_idle()
    assert b'"G"' in kit.files.read_bytes("/store/config/subscriptionGroup.json")
    kit.broker.offsets.commit("G", "T", 0, 5)
    header = DeleteSubscriptionGroupRequestHeader(group_name="G")
    assert kit.call(207, header).code == 0
    assert kit.broker.groups.get("G") is None
    assert kit.broker.offsets.get("G", "T", 0) == 5
    header.remove_offset = True
    kit.call(207, header)
    assert kit.broker.offsets.get("G", "T", 0) == -1


def test_wrong_groups_are_refused(kit: BrokerHarness) -> None:
    for body in (b"{}", b"[]", b'{"groupName":"a/b"}', b'{"groupName":"g","retryQueueNums":-1}'):
        assert kit.call(200, None, body).code == 1
    assert kit.broker.groups.data_version.counter == 0


def test_without_a_readable_table_the_queues_tell_the_topics(build: BuildBroker) -> None:
    kit = build()
    put_topic(kit, "Orders", read_queue_nums=3, write_queue_nums=3)
    kit.send(topic="Orders", queue_id=2)
    kit.scheduler.run_until_idle()
    files, whole = kit.files, kit.files.read_bytes(TOPICS)
    kit.store.shutdown()
    for name, content in ((TOPICS, whole[: len(whole) // 2]), (TOPICS + ".bak", b"{")):
        files.replace_bytes(name, content)
    again = build(files=files)
    topic = again.broker.topics.get("Orders")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)
    kept = "/store/rmqpy/quarantine/topics.json"
    assert files.read_bytes(kept) == whole[: len(whole) // 2]
    assert files.read_bytes(kept + ".bak") == b"{"
    assert again.pull(topic="Orders", queue_id=2).code == 0


def test_a_table_that_is_gone_is_made_from_the_queues(build: BuildBroker) -> None:
    kit = build()
    kit.send(topic="Orders", default_topic_queue_nums=2, queue_id=1)
    kit.scheduler.run_until_idle()
    kit.store.shutdown()
    for name in (TOPICS, TOPICS + ".bak"):
        kit.files.unlink(name)
    topic = build(files=kit.files).broker.topics.get("Orders")
    assert topic.read_queue_nums == 2
