"""Registrations compared with the previous one of the same name: the tables are the same as after
decoding everything, in few turns of bounded size.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from harness.namesrv import NameServerHarness
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.namesrv import server as server_module
from rmqpy.namesrv.registration import read_registration
from rmqpy.namesrv.topic_rows import ChangedRows, RegistrationText
from rmqpy.remoting.bodies import (
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    body_crc32,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import RegisterBrokerRequestHeader
from rmqpy.testing.memory_channel import MemoryChannel

ADDRESS = "10.0.0.1:10911"
JAVA_5X = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,'
    b'"stateVersion":0,"timestamp":5},"mappingDataVersion":{"counter":0,"stateVersion":0,'
    b'"timestamp":5},"topicConfigTable":{"A":{"attributes":{"+message.type":"DELAY"},'
    b'"order":true,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"A",'
    b'"topicSysFlag":2,"writeQueueNums":4},"B":{"attributes":{},"order":false,"perm":4,'
    b'"readQueueNums":1,"topicFilterType":"SINGLE_TAG","topicName":"B","topicSysFlag":0,'
    b'"writeQueueNums":1}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)


def encoded(configs: Sequence[TopicConfig], counter: int = 0) -> bytes:
    table = {each.topic_name: each for each in configs}
    version = DataVersion(1_700_000_000_000, counter)
    return RegisterBrokerBody(TopicConfigSerializeWrapper(version, table)).encode()


def request(body: bytes, opaque: int = 1) -> RemotingCommand:
    header = RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr=ADDRESS,
        cluster_name="C",
        ha_server_addr="10.0.0.1:10912",
        broker_id=0,
        body_crc32=body_crc32(body),
    )
    command = RemotingCommand.request(103, header, body)
    command.opaque = opaque
    return command


def rows_of(body: bytes) -> bytes:
    text = RegistrationText.read(body)
    assert text is not None
    return text.rows


def changed_topics(before: bytes, after: bytes, rows_max: int = 1 << 30) -> dict[str, QueueData]:
    changed = ChangedRows("broker-a", rows_of(after), rows_of(before))
    while changed.step(rows_max) == rows_max:
        pass
    return changed.topics


CONFIGS = st.builds(
    TopicConfig,
    st.text("ab1.%-", min_size=1, max_size=3),
    read_queue_nums=st.integers(1, 12),
    perm=st.sampled_from([2, 4, 6]),
    attributes=st.sampled_from([None, {}, {"+a": "x"}]),
)
TABLES = st.lists(CONFIGS, max_size=8, unique_by=lambda config: config.topic_name)


@given(TABLES, TABLES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_tables_are_those_of_the_general_reader(
    first: list[TopicConfig], other: list[TopicConfig], rows_max: int, random: random.Random
) -> None:
    """Two tables that share rows, which may be replaced, inserted, removed, or reordered."""
    second = [each for each in first if random.random() < 0.8] + other
    if random.random() < 0.5:
        random.shuffle(second)
    before, after = encoded(first), encoded(second, 1)
    expected = read_registration(request(after))
    expected._text = None  # the general reader
    expected.decode(b"", 1)
    all_topics = expected.registration.topics
    assert all_topics is not None
    assert changed_topics(b"%b" % encoded([]), after, rows_max) == all_topics
    known = changed_topics(encoded([]), before)
    assert known | changed_topics(before, after, rows_max) == known | dict(all_topics)


def table(count: int) -> list[TopicConfig]:
    return [TopicConfig(f"topic-{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"replaced": [0, 250, 499]}, ["topic-0", "topic-250", "topic-499"]),
        ({"inserted": [0, 250, 500]}, ["new-0", "new-250", "new-500"]),
        ({"removed": [0, 250, 499]}, []),
    ],
)
def test_only_changed_rows_are_decoded(change: dict[str, list[int]], expected: list[str]) -> None:
    before = table(500)
    after = list(before)
    for index in change.get("replaced", ()):
        after[index] = TopicConfig(f"topic-{index}", read_queue_nums=4)
    for index in reversed(change.get("inserted", ())):
        after.insert(index, TopicConfig(f"new-{index}"))
    for index in reversed(change.get("removed", ())):
        del after[index]
    found = changed_topics(encoded(before), encoded(after, 1))
    # The row next to a difference at the end of the table may be decoded as well.
    assert set(expected) <= found.keys()
    assert len(found) <= len(expected) + 1


def test_rows_of_java_5x_are_read() -> None:
    text = RegistrationText.read(JAVA_5X)
    assert text is not None
    assert (text.data_version.counter, text.topic_count) == (7, 2)
    assert text.exceeds(1)
    assert not text.exceeds(2)
    changed = ChangedRows("broker-a", text.rows, b"")
    assert changed.step(10) == 2
    assert changed.topics == {
        "A": QueueData("broker-a", 8, 4, 6, 2),
        "B": QueueData("broker-a", 1, 1, 4, 0),
    }


@pytest.mark.parametrize(
    "damage",
    [
        (b'"perm":6', b'"perm":"6"'),
        (b'"topic-1":{', b'"t\\u0031":{'),
        (b'"topic-1":{', b'"\xc3\xa4":{'),
        (b'"order":false', b'"order":false,"order":true'),
        (b'},"topic-1"', b'} ,"topic-1"'),
    ],
)
def test_another_form_is_decoded_by_the_general_reader(
    world: NameServerHarness, damage: tuple[bytes, bytes]
) -> None:
    body = encoded(table(3)).replace(*damage)
    names = [
        name
        for name, value in json.loads(body)["topicConfigSerializeWrapper"][
            "topicConfigTable"
        ].items()
        if value
    ]
    assert world.send(request(body)).code == 0
    assert topic_list(world) == {*names, "C", "broker-a"} - {"C", "broker-a"}


def topic_list(world: NameServerHarness) -> set[str]:
    found: Any = json.loads(world.request(206).body)
    return set(found["topicList"])


def turns_of(world: NameServerHarness, channel: MemoryChannel, body: bytes) -> int:
    """Return the number of turns that a registration takes."""
    rest: Sequence[RemotingCommand] = [request(body)]
    turns = 0
    while rest:
        rest = world.server.handle(channel, rest)
        world.server.turn_ended()
        turns += 1
    assert channel.take_one().code == 0
    return turns


def test_a_large_table_is_decoded_over_several_turns(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ROWS_PER_TURN", 100)
    world.server.turn_ended()
    channel = MemoryChannel()
    before = table(950)
    assert turns_of(world, channel, encoded(before)) >= 10
    assert len(topic_list(world)) == 950
    before[17] = TopicConfig("topic-17", read_queue_nums=3)
    assert turns_of(world, channel, encoded(before, 1)) == 1
    assert world.route("topic-17").queue_datas[0].read_queue_nums == 3
    assert turns_of(world, channel, encoded(before, 1)) == 1


def test_nothing_is_registered_before_all_is_decoded_or_if_the_channel_closes(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ROWS_PER_TURN", 100)
    world.server.turn_ended()
    channel = MemoryChannel()
    command = request(encoded(table(500)))
    assert world.server.handle(channel, [command]) == [command]
    assert topic_list(world) == set()
    world.server.channel_closed(channel)
    world.server.turn_ended()
    assert turns_of(world, MemoryChannel(), encoded(table(500))) >= 5


def test_a_topic_deleted_meanwhile_returns_with_the_registration(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts that were compared no longer are those of the tables."""
    monkeypatch.setattr(server_module, "ROWS_PER_TURN", 100)
    world.server.turn_ended()
    channel = MemoryChannel()
    turns_of(world, channel, encoded(table(300)))
    command = request(encoded(list(reversed(table(300))), 1))
    rest = world.server.handle(channel, [command])
    assert rest
    world.request(216, topic="topic-150")
    assert "topic-150" not in topic_list(world)
    while rest:
        rest = world.server.handle(channel, rest)
        world.server.turn_ended()
    assert "topic-150" in topic_list(world)


@pytest.mark.parametrize("code", [205, 327])
def test_permissions_return_with_the_next_changed_registration(
    world: NameServerHarness, code: int
) -> None:
    world.send(request(encoded(table(3))))
    world.request(code, brokerName="broker-a")
    world.send(request(encoded([TopicConfig("topic-1", perm=4), TopicConfig("topic-2")], 1)))
    assert world.route("topic-1").queue_datas[0].perm == 4
    assert world.route("topic-2").queue_datas[0].perm == 6


def test_texts_beyond_the_limit_are_not_kept(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.namesrv.route_info.KNOWN_ROWS_BYTES_MAX", 100)
    world.send(request(encoded(table(3))))
    assert world.server.routes.known_rows("broker-a") == b""
    world.send(request(encoded([TopicConfig("topic-1", perm=4)], 1)))
    assert world.route("topic-1").queue_datas[0].perm == 4


def test_a_kept_topic_list_follows_every_change(world: NameServerHarness) -> None:
    world.send(request(encoded(table(1))))
    assert topic_list(world) == {"topic-0"}
    world.send(request(encoded(table(2), 1)))
    assert topic_list(world) == {"topic-0", "topic-1"}
    world.request(216, topic="topic-0")
    assert topic_list(world) == {"topic-1"}
