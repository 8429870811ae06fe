"""Topics and groups: defaults, automatic creation, administration, and the saved tables."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.broker.state import topics as topics_module
from rmqpy.config.loading import BrokerRole
from rmqpy.model import names
from rmqpy.model.steps import finish
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


def put_topic(harness: BrokerHarness, topic: str = "T", **values: Any) -> RemotingCommand:
    fields: dict[str, Any] = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }
    harness.network.take()
    harness.deliver(RemotingCommand.request(17, CreateTopicRequestHeader(**{**fields, **values})))
    harness.scheduler.run_until_idle()
    for _, command, done in harness.network.take():
        done(RemotingCommand.response_to(command), None)
    return harness.channel.take_one()


def test_system_topics_at_the_start(build: BuildBroker) -> None:
    harness = build(trace_topic_enable=True)
    found = {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for name, topic in harness.broker.topics.topics.items()
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
    listed = TopicList.decode(harness.call(305).body).topic_list
    assert set(listed) == set(found) | names.SYSTEM_TOPICS


def test_disabled_default_topics_are_not_created(build: BuildBroker) -> None:
    harness = build(
        auto_create_topic_enable=False, cluster_topic_enable=False, broker_topic_enable=False
    )
    assert "TBW102" not in harness.broker.topics
    assert harness.broker.topics.topics["C"].perm == 1
    assert harness.broker.topics.topics["broker-a"].perm == 1


def test_the_table_is_returned_with_every_change(harness: BrokerHarness) -> None:
    for change in (
        lambda: put_topic(harness, topic="One"),
        lambda: put_topic(harness, topic="One", perm=4),
        lambda: harness.broker.topics.set_ordered(["One"]),
        lambda: harness.call(215, DeleteTopicRequestHeader(topic="One")),
    ):
        change()
        harness.channel.take()
        for _ in range(2):
            assert harness.call(21).body == harness.broker.topics.wrapper().encode()


def test_an_administrator_can_create_a_topic(harness: BrokerHarness) -> None:
    before = harness.broker.topics.data_version
    harness.scheduler.advance(5)
    assert put_topic(harness, read_queue_nums=2, write_queue_nums=3, perm=4, order=True).code == 0
    assert harness.broker.topics.get("T") == TopicConfig("T", 2, 3, 4)
    after = harness.broker.topics.data_version
    assert (after.counter, after.timestamp) == (before.counter + 1, harness.scheduler.now_ms())
    wrapper = TopicConfigSerializeWrapper.decode(harness.call(21).body)
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
def test_wrong_topics_are_refused(
    harness: BrokerHarness, topic: str, values: dict[str, Any]
) -> None:
    version = harness.broker.topics.data_version
    answer = put_topic(harness, topic, **values)
    assert answer.code == 1 and answer.remark
    assert harness.broker.topics.data_version == version


def test_a_slave_changes_nothing(harness: BrokerHarness) -> None:
    harness.broker.identity.role = BrokerRole.SLAVE
    assert put_topic(harness).code == 1
    assert harness.call(200, None, SubscriptionGroupConfig("G").encode()).code == 1
    assert harness.call(215, DeleteTopicRequestHeader(topic="T")).code == 1
    assert "T" not in harness.broker.topics


def test_deleting_a_topic_deletes_its_queues(harness: BrokerHarness) -> None:
    harness.send()
    assert ("T", 0) in harness.store.reader.queue_names()
    assert harness.call(215, DeleteTopicRequestHeader(topic="T")).code == 0
    assert "T" not in harness.broker.topics
    assert ("T", 0) not in harness.store.reader.queue_names()
    assert harness.call(215, DeleteTopicRequestHeader(topic="TBW102")).code == 1


def test_topics_are_saved_with_a_backup_and_restored(build: BuildBroker) -> None:
    harness = build()
    harness.send(topic="One")
    harness.scheduler.run_until_idle()
    harness.send(topic="Two")
    harness.scheduler.run_until_idle()
    assert b'"Two"' in harness.files.read_bytes(TOPICS)
    assert b'"Two"' not in harness.files.read_bytes(TOPICS + ".bak")
    version = harness.broker.topics.data_version
    harness.store.shutdown()
    again = build(files=harness.files)
    assert again.broker.topics.data_version == version
    assert again.broker.topics.topics["Two"].write_queue_nums == 4
    again.store.shutdown()
    harness.files.replace_bytes(TOPICS, b"{")
    assert "One" in build(files=harness.files).broker.topics


def test_a_start_encodes_the_rows_of_its_tables(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the first change does not encode all of them in one turn."""
    harness = build()
    put_topic(harness, "One")
    harness.broker.groups.put(SubscriptionGroupConfig("a-group"))
    harness.scheduler.run_until_idle()
    harness.store.shutdown()
    again = build(files=harness.files).broker
    assert "One" in again.topics.topics and "a-group" in again.groups.groups
    encoded: list[str] = []
    for kind in (TopicConfig, SubscriptionGroupConfig):
        monkeypatch.setattr(kind, "to_json", lambda self: encoded.append(repr(self)))
    finish(again.topics.file_steps())
    finish(again.groups.file_steps())
    assert encoded == []


@pytest.mark.parametrize("later", ["Three", ""], ids=["after a change", "without a change"])
def test_a_damaged_table_does_not_replace_its_backup(build: BuildBroker, later: str) -> None:
    """The backup is used, and is still there if the file is damaged, or half written, once more."""
    harness = build()
    files = harness.files
    for topic in ("One", "Two"):
        put_topic(harness, topic)
    harness.store.shutdown()
    damaged = files.read_bytes(TOPICS).replace(b'"Two"', b'"T\xf7o"')
    for count in range(2):
        files.replace_bytes(TOPICS, damaged)
        again = build(files=files)
        assert "One" in again.broker.topics and "Two" not in again.broker.topics
        if later:
            put_topic(again, f"{later}{count}")
        again.store.shutdown()
        assert b'"One"' in files.read_bytes(TOPICS + ".bak")
    names = ["topics.json", "topics.json.1"]
    assert [files.read_bytes(f"/store/rmqpy/quarantine/{name}") for name in names] == [damaged] * 2


def test_a_table_in_another_character_set_is_read_if_the_backup_is_no_better(
    build: BuildBroker,
) -> None:
    harness = build()
    put_topic(harness, "One")
    harness.store.shutdown()
    written = harness.files.read_bytes(TOPICS)
    harness.files.replace_bytes(TOPICS, written[:-1] + b',"note":"\xfc"}')
    harness.files.unlink(TOPICS + ".bak")
    assert "One" in build(files=harness.files).broker.topics


def test_invalid_names_in_a_saved_table_are_left_out(build: BuildBroker) -> None:
    harness = build()
    wrapper = harness.broker.topics.wrapper()
    wrapper.topic_config_table = {"../x": TopicConfig("../x"), "good": TopicConfig("good")}
    groups = SubscriptionGroupWrapper(
        wrapper.data_version,
        {"a/b": SubscriptionGroupConfig("a/b"), "g": SubscriptionGroupConfig("g")},
    )
    harness.files.replace_bytes(TOPICS, wrapper.encode())
    harness.files.replace_bytes("/store/config/subscriptionGroup.json", groups.encode())
    harness.store.shutdown()
    again = build(files=harness.files).broker
    assert "good" in again.topics and "../x" not in again.topics
    assert "g" in again.groups.groups and "a/b" not in again.groups.groups


def test_the_number_of_topics_created_by_clients_is_limited(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "CREATED_TOPICS_LIMIT", 2)
    assert [harness.send(topic=name).code for name in ("a", "b", "c")] == [0, 0, 17]
    assert put_topic(harness, "c").code == 0, "an administrator can"


def test_the_default_topic_must_be_inheritable(build: BuildBroker) -> None:
    harness = build()
    harness.broker.topics.topics["TBW102"].perm = 6
    assert harness.send().code == 17


def test_the_name_servers_set_the_ordered_topics(harness: BrokerHarness) -> None:
    put_topic(harness, "A")
    put_topic(harness, "B")
    version = harness.broker.topics.data_version.counter
    harness.broker.topics.set_ordered(["A", "unknown"])
    assert harness.broker.topics.is_ordered("A") and not harness.broker.topics.is_ordered("B")
    harness.broker.topics.set_ordered(["A"])
    assert harness.broker.topics.data_version.counter == version + 1
    harness.broker.topics.set_ordered(["B"])
    assert not harness.broker.topics.is_ordered("A")


# ---------------------------------------------------------------------------------------- groups


def test_groups_at_the_start(harness: BrokerHarness) -> None:
    wrapper = SubscriptionGroupWrapper.decode(harness.call(201).body)
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


def test_an_administrator_can_create_and_delete_a_group(harness: BrokerHarness) -> None:
    config = SubscriptionGroupConfig("G", consume_broadcast_enable=False, retry_max_times=3)
    assert harness.call(200, None, config.encode()).code == 0
    assert harness.broker.groups.get("G") == config
    assert harness.broker.groups.data_version.counter == 1
    harness.scheduler.run_until_idle()
    assert b'"G"' in harness.files.read_bytes("/store/config/subscriptionGroup.json")
    harness.broker.offsets.commit("G", "T", 0, 5)
    header = DeleteSubscriptionGroupRequestHeader(group_name="G")
    assert harness.call(207, header).code == 0
    assert harness.broker.groups.get("G") is None
    assert harness.broker.offsets.get("G", "T", 0) == 5
    header.remove_offset = True
    harness.call(207, header)
    assert harness.broker.offsets.get("G", "T", 0) == -1


def test_wrong_groups_are_refused(harness: BrokerHarness) -> None:
    for body in (b"{}", b"[]", b'{"groupName":"a/b"}', b'{"groupName":"g","retryQueueNums":-1}'):
        assert harness.call(200, None, body).code == 1
    assert harness.broker.groups.data_version.counter == 0


def test_an_unreadable_topic_table_is_rebuilt_from_the_queues(build: BuildBroker) -> None:
    harness = build()
    put_topic(harness, "Orders", read_queue_nums=3, write_queue_nums=3)
    harness.send(topic="Orders", queue_id=2)
    harness.scheduler.run_until_idle()
    files, whole = harness.files, harness.files.read_bytes(TOPICS)
    harness.store.shutdown()
    for name, content in ((TOPICS, whole[: len(whole) // 2]), (TOPICS + ".bak", b"{")):
        files.replace_bytes(name, content)
    again = build(files=files)
    topic = again.broker.topics.topics["Orders"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)
    kept = "/store/rmqpy/quarantine/topics.json"
    assert files.read_bytes(kept) == whole[: len(whole) // 2]
    assert files.read_bytes(kept + ".bak") == b"{"
    assert again.pull(topic="Orders", queue_id=2).code == 0


def test_a_missing_topic_table_is_rebuilt_from_the_queues(build: BuildBroker) -> None:
    harness = build()
    harness.send(topic="Orders", default_topic_queue_nums=2, queue_id=1)
    harness.scheduler.run_until_idle()
    harness.store.shutdown()
    for name in (TOPICS, TOPICS + ".bak"):
        harness.files.unlink(name)
    topic = build(files=harness.files).broker.topics.topics["Orders"]
    assert topic.read_queue_nums == 2
