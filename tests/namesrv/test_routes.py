"""Rules of registration, expiry and administration, tested through their requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.namesrv import NameServerHarness, remark_of
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.namesrv import NamesrvLimits
from rmqpy.namesrv.kv_config import ORDER_TOPIC_CONFIG
from rmqpy.namesrv.route_info import RouteInfoTable
from rmqpy.remoting.bodies import (
    ClusterInfo,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

A0, A1 = "10.0.0.1:10911", "10.0.0.2:10911"
B0, B1 = "10.0.1.1:10911", "10.0.1.2:10911"


def topics(answer: RemotingCommand) -> list[str]:
    return sorted(TopicList.decode(answer.body).topic_list)


def queues(world: NameServerHarness, topic: str, name: str = "broker-a") -> tuple[int, int, int]:
    """Return the read queues, write queues and permission of ``topic`` at a broker."""
    (found,) = [each for each in world.route(topic).queue_datas if each.broker_name == name]
    return (found.read_queue_nums, found.write_queue_nums, found.perm)


# -- registration


def test_a_master_registers_topics_and_a_slave_receives_its_master(
    world: NameServerHarness,
) -> None:
    assert world.register(A0, TopicConfig("T", 8, 4, 6)).ext_fields == {}
    answer = world.register(A1, "SlaveOnly", broker_id=1)
    assert answer.ext_fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": A0}
    assert world.addresses("T") == {"broker-a": {0: A0, 1: A1}}
    assert queues(world, "T") == (8, 4, 6)
    assert world.find_route("SlaveOnly") is None


def test_topics_are_replaced_only_with_another_data_version(world: NameServerHarness) -> None:
    world.register(A0, TopicConfig("T", 4, 4, 6))
    world.register(A0, TopicConfig("T", 8, 8, 6), "New")
    assert queues(world, "T") == (4, 4, 6)
    assert world.find_route("New") is None
    world.register(A0, TopicConfig("T", 8, 8, 6), "New", counter=1)
    assert queues(world, "T") == (8, 8, 6)
    assert world.find_route("New") is not None
    world.register(
        A0, TopicConfig("T", 2, 2, 4), counter=0
    )  # Versions are only compared for equality.
    assert queues(world, "T") == (2, 2, 4)
    assert world.find_route("New") is not None, "topics missing from the body stay"


def test_a_role_change_leaves_no_stale_entry(world: NameServerHarness) -> None:
    old, new = MemoryChannel(), MemoryChannel()
    world.register(A0, "T", channel=old)
    world.register(A1, "T", broker_id=1, channel=new)
    world.register(A1, "T", "FromNew", broker_id=0, channel=new)
    assert world.addresses("T") == {"broker-a": {0: A1}}
    assert world.find_route("FromNew") is not None, "the address is new as the master"
    answer = world.register(A0, "T", broker_id=1, channel=old)
    assert answer.ext_fields["masterAddr"] == A1
    assert world.addresses("T") == {"broker-a": {0: A1, 1: A0}}


def test_a_slave_without_a_master_receives_none(world: NameServerHarness) -> None:
    assert world.register(A1, broker_id=1).ext_fields == {}


def test_an_address_with_a_new_name_leaves_the_old_one(world: NameServerHarness) -> None:
    world.register(A0, "T", name="broker-a")
    world.register(A0, "U", name="broker-z")
    assert world.find_route("T") is None
    assert world.addresses("U") == {"broker-z": {0: A0}}


def test_a_compressed_registration_is_the_same_without_flags(world: NameServerHarness) -> None:
    world.register(A0, TopicConfig("T", 3, 5, 6, topic_sys_flag=1), compressed=True)
    assert queues(world, "T") == (3, 5, 6)
    assert world.route("T").queue_datas[0].topic_sys_flag == 0


def test_before_version_37_the_body_is_the_bare_topic_table(world: NameServerHarness) -> None:
    wrapper = TopicConfigSerializeWrapper(DataVersion(1, 1), {"T": TopicConfig("T", 3, 3)})
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": A0,
        "clusterName": "C",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }
    assert world.request(103, wrapper.encode(), 36, **fields).code == 0
    assert queues(world, "T") == (3, 3, 6)
    fields = {**fields, "brokerAddr": B0, "brokerName": "broker-b"}
    assert world.request(103, wrapper.encode(), 37, **fields).code == 0
    assert world.server.routes.data_version(B0) == DataVersion(0, 0)


def test_a_registration_without_a_body_has_no_topics(world: NameServerHarness) -> None:
    assert (
        world.request(
            103, brokerName="b", brokerAddr=A0, clusterName="C", haServerAddr="", brokerId="0"
        ).code
        == 0
    )
    assert topics(world.request(304)) == ["C", "b"]
    assert topics(world.request(206)) == []


def test_filter_servers_are_replaced_as_a_whole(world: NameServerHarness) -> None:
    world.register(A0, "T", filter_servers=("10.0.0.9:1", "10.0.0.9:2"))
    assert world.route("T").filter_server_table == {A0: ["10.0.0.9:1", "10.0.0.9:2"]}
    world.register(A0, "T")
    assert world.route("T").filter_server_table == {}


def test_a_damaged_body_is_refused_and_changes_nothing(world: NameServerHarness) -> None:
    header = {
        "brokerName": "broker-a",
        "brokerAddr": A0,
        "clusterName": "C",
        "haServerAddr": "h:1",
        "brokerId": "0",
    }
    answer = world.request(103, b"{}", bodyCrc32="5", **header)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    for body in (b"[]", b"{", b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}'):
        assert world.request(103, body, **header).code == 1
    bad_topic = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}'
    answer = world.request(103, bad_topic, **header)
    assert answer.code == 1
    assert "topicConfigTable" in remark_of(answer)
    assert world.request(103, b"junk", compressed="true", **header).code == 1
    assert topics(world.request(304)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("brokerName", ""),
        ("brokerName", "../../etc"),
        ("brokerName", "a b"),
        ("brokerName", "a\x00b"),
        ("brokerName", "n" * 263),
        ("clusterName", ".."),
        ("clusterName", "a\\b"),
        ("brokerAddr", "no-port"),
        ("brokerAddr", "10.0.0.1:65536"),
        ("brokerAddr", "/etc/passwd:1"),
        ("haServerAddr", "a\nb"),
        ("brokerId", "zero"),
    ],
)
def test_invalid_fields_of_a_broker_are_refused_by_name(
    world: NameServerHarness, field: str, value: str
) -> None:
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": A0,
        "clusterName": "C",
        "haServerAddr": "h:1",
        "brokerId": "0",
        field: value,
    }
    answer = world.request(103, **fields)
    assert answer.code == 1
    assert field in remark_of(answer)
    assert topics(world.request(304)) == []


def test_a_missing_field_is_named(world: NameServerHarness) -> None:
    answer = world.request(103, brokerName="b")
    assert answer.code == 1
    assert "brokerAddr" in remark_of(answer)


def test_invalid_topics_are_ignored_and_the_others_registered(world: NameServerHarness) -> None:
    world.register(A0, "../../x", "a/b", "..", "a\x00b", "%RETRY%" + "g" * 255, "host.name", "Good")
    assert topics(world.request(206)) == ["%RETRY%" + "g" * 255, "Good", "host.name"]


def test_the_tables_are_bounded_and_a_refusal_changes_nothing() -> None:
    world = NameServerHarness(limits=NamesrvLimits(addresses=2, topics=3, filter_servers=1))
    assert world.register(A0, "T1", "T2").code == 0
    answer = world.register(B0, "T3", "T4", name="broker-b")
    assert answer.code == 2
    assert "3 topics" in remark_of(answer)
    assert topics(world.request(304)) == ["C", "broker-a"]
    assert world.register(B0, "T1", "T3", name="broker-b").code == 0
    assert world.register("10.9.9.9:1", name="broker-c").code == 2
    assert world.register(B0, "T1", name="broker-b", filter_servers=("a", "b")).code == 2
    assert world.register(B0, "T1", name="broker-b", counter=1).code == 0


# -- the end of brokers


def test_a_broker_expires_120_s_after_its_last_registration(world: NameServerHarness) -> None:
    channel = MemoryChannel()
    world.register(A0, "T", channel=channel)
    world.scheduler.advance(60_000)
    world.register(A0, "T", channel=channel)
    world.scheduler.advance(120_000)
    assert world.find_route("T") is not None
    world.scheduler.advance(10_001)  # the next scan
    assert world.find_route("T") is None
    assert topics(world.request(304)) == []
    assert channel.closed
    assert world.server.counts.expired == 1


def test_a_5x_broker_sets_its_own_expiry(world: NameServerHarness) -> None:
    world.register(A0, "T", expiry_ms=20_000)
    world.register(B0, "T", name="broker-b")
    world.scheduler.advance(31_000)
    assert world.addresses("T") == {"broker-b": {0: B0}}
    world.register(A0, "T", expiry_ms=10**12)
    world.scheduler.advance(3_700_000)
    assert world.find_route("T") is None, "the expiry is bounded"


def test_a_closed_channel_removes_its_broker_immediately(world: NameServerHarness) -> None:
    channel, other = MemoryChannel(), MemoryChannel()
    world.register(A0, "T", "OnlyA", channel=channel)
    world.register(B0, "T", name="broker-b", channel=other)
    world.server.channel_closed(channel)
    assert world.addresses("T") == {"broker-b": {0: B0}}
    assert world.find_route("OnlyA") is None
    assert topics(world.request(206)) == ["T"]


def test_the_old_channel_of_a_reconnected_broker_is_ignored(world: NameServerHarness) -> None:
    old, new = MemoryChannel(), MemoryChannel()
    world.register(A0, "T", channel=old)
    world.register(A0, "T", channel=new)
    world.server.channel_closed(old)
    assert world.addresses("T") == {"broker-a": {0: A0}}


def test_the_route_of_a_name_without_master_keeps_its_slaves(world: NameServerHarness) -> None:
    world.register(A0, "T", channel=(master := MemoryChannel()))
    world.register(A1, broker_id=1)
    world.server.channel_closed(master)
    assert world.addresses("T") == {"broker-a": {1: A1}}


def test_unregister_removes_the_id_and_with_the_last_id_the_name(
    world: NameServerHarness,
) -> None:
    world.register(A0, "T")
    world.register(A1, broker_id=1)
    fields = {"brokerName": "broker-a", "clusterName": "C"}
    assert world.request(104, brokerAddr=A0, brokerId="0", **fields).code == 0
    assert world.addresses("T") == {"broker-a": {1: A1}}
    assert world.request(104, brokerAddr=A1, brokerId="1", **fields).code == 0
    assert world.find_route("T") is None
    assert topics(world.request(304)) == []
    assert world.request(104, brokerAddr=A1, brokerId="1", **fields).code == 0


def test_unregistering_an_id_of_another_address_is_ignored(world: NameServerHarness) -> None:
    world.register(A0, "T")
    world.register(A1, "T", broker_id=1)
    world.register(A1, "T", broker_id=0)
    world.request(104, brokerName="broker-a", clusterName="C", brokerAddr=A0, brokerId="0")
    assert world.addresses("T") == {"broker-a": {0: A1}}


# -- the owner of a name


def test_an_unknown_address_does_not_replace_a_live_master(
    world: NameServerHarness,
) -> None:
    world.register(A0, "T")
    fields = {"brokerName": "broker-a", "clusterName": "C", "haServerAddr": "", "brokerId": "0"}
    answer = world.request(103, brokerAddr=A1, **fields)
    assert answer.code == 16
    assert A0 in remark_of(answer)
    assert world.addresses("T") == {"broker-a": {0: A0}}


def test_a_member_of_the_broker_may_become_its_master(world: NameServerHarness) -> None:
    """A new leader registers while the old one is still connected."""
    world.register(A0, "T")
    world.register(A1, "T", broker_id=1)
    world.register(A1, "T", broker_id=0)
    assert world.addresses("T") == {"broker-a": {0: A1}}


def test_a_silent_master_is_replaced(world: NameServerHarness) -> None:
    world.register(A0, "T")
    world.scheduler.advance(46_000)
    world.register(A1, "T", broker_id=0)
    assert world.addresses("T") == {"broker-a": {0: A1}}


# -- data versions


def test_query_data_version_reports_a_change(world: NameServerHarness) -> None:
    fields = {"brokerName": "broker-a", "brokerAddr": A0, "clusterName": "C", "brokerId": "0"}
    same = DataVersion(1_700_000_000_000, 0).encode()
    answer = world.request(322, same, **fields)
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
    world.register(A0, "T")
    answer = world.request(322, same, **fields)
    assert answer.ext_fields == {"changed": "false"}
    assert answer.body == b'{"counter":0,"timestamp":1700000000000}'
    answer = world.request(322, DataVersion(1_700_000_000_000, 1).encode(), **fields)
    assert answer.ext_fields == {"changed": "true"}
    assert answer.body == b'{"counter":0,"timestamp":1700000000000}'


def test_only_a_query_with_the_current_version_renews_a_registration(
    world: NameServerHarness,
) -> None:
    fields = {"brokerName": "broker-a", "brokerAddr": A0, "clusterName": "C", "brokerId": "0"}
    world.register(A0, "T")
    world.scheduler.advance(100_000)
    world.request(322, DataVersion(1_700_000_000_000, 0).encode(), **fields)
    world.scheduler.advance(100_000)
    assert world.find_route("T") is not None
    world.request(322, DataVersion(1_700_000_000_000, 9).encode(), **fields)
    world.scheduler.advance(40_000)
    assert world.find_route("T") is None


# -- routes and lists


def test_route_keys_are_quoted_if_the_request_needs_it(world: NameServerHarness) -> None:
    world.register(A0, "T")
    quoted, bare = b'"brokerAddrs":{"0":"10.0.0.1:10911"}', b'"brokerAddrs":{0:"10.0.0.1:10911"}'
    assert quoted in world.request(105, b"", 401, topic="T").body
    assert bare in world.request(105, b"", 400, topic="T").body
    assert quoted in world.request(105, b"", 400, topic="T", acceptStandardJsonOnly="true").body
    assert bare in world.request(106, b"", 479).body


def test_a_client_of_5x_gets_the_fields_of_5x(world: NameServerHarness) -> None:
    """Without this one, the Rust client reads no route. The body is that of Java's 5.3.3."""
    world.register(A0, TopicConfig("T", 4, 4, 6))
    assert world.request(105, b"", 412, topic="T").body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":['
        b'{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )
    assert b"enableActingMaster" not in world.request(105, b"", 411, topic="T").body


def test_an_unknown_topic_has_the_remark_that_clients_know(world: NameServerHarness) -> None:
    answer = world.request(105, topic="Nope")
    assert answer.code == 17
    assert answer.remark == (
        "No topic route info in name server for the topic: Nope\n"
        "See http://rocketmq.apache.org/docs/faq/ for further details."
    )


def test_a_route_follows_every_change(world: NameServerHarness) -> None:
    world.register(A0, "T")
    assert world.addresses("T") == {"broker-a": {0: A0}}
    world.register(A1, broker_id=1)
    assert world.addresses("T") == {"broker-a": {0: A0, 1: A1}}
    world.register(A0, TopicConfig("T", 1, 1, 6), counter=1)
    assert queues(world, "T") == (1, 1, 6)
    world.request(205, brokerName="broker-a")
    assert queues(world, "T") == (1, 1, 4)


def encoded_routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that gets the topic of each route that is encoded from now on."""
    made: list[str] = []
    find = RouteInfoTable.route

    def counting(table: RouteInfoTable, topic: str) -> TopicRouteData | None:
        made.append(topic)
        return find(table, topic)

    monkeypatch.setattr(RouteInfoTable, "route", counting)
    return made


def test_a_change_leaves_the_encoded_routes_of_other_topics(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.register(A0, "T", "U")
    world.register(B0, "V", name="broker-b")
    made = encoded_routes(monkeypatch)
    changes: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: None, ["T", "U", "V"]),
        (lambda: None, []),
        (lambda: world.register(A0, "T", "U", "new", counter=1), []),
        (lambda: world.register(A0, "T", TopicConfig("U", 1, 1), "new", counter=2), ["U"]),
        (lambda: world.register(B1, broker_id=1, name="broker-b"), ["V"]),
        (lambda: world.register(B0, "V", name="broker-b", filter_servers=("f",)), ["V"]),
        (lambda: world.request(205, brokerName="broker-a"), ["T", "U"]),
        (lambda: world.request(100, namespace=ORDER_TOPIC_CONFIG, key="T", value="x"), ["T"]),
        (lambda: world.request(216, topic="new"), []),
    ]
    for change, expected in changes:
        change()
        made.clear()
        for topic in ("T", "U", "V"):
            world.route(topic)
        assert made == expected


def test_the_oldest_encoded_routes_are_removed_beyond_a_size(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"T{number}" for number in range(10)]
    world.register(A0, *names)
    size = len(world.request(105, topic="T0").body)
    monkeypatch.setattr("rmqpy.namesrv.server.ROUTES_CACHED_BYTES_MAX", 4 * size)
    for name in names:
        world.route(name)
    made = encoded_routes(monkeypatch)
    for name in reversed(names):
        world.route(name)
    assert made == ["T5", "T4", "T3", "T2", "T1", "T0"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 3)), max_size=25))
def test_a_kept_route_is_the_one_that_would_be_encoded_now(
    steps: list[tuple[int, int, int]],
) -> None:
    world = NameServerHarness(order_message_enable=True)
    for count, (step, broker, topic) in enumerate(steps):
        name, address = f"broker-{broker}", f"10.0.0.{broker}:10911"
        slave = f"10.0.1.{broker}:10911"
        configs = [TopicConfig(f"T{each}", 1 + count, 1, 6) for each in range(topic)]
        match step:
            case 0 | 1:
                world.register(address, *configs, name=name, counter=count)
            case 2:
                world.register(slave, name=name, broker_id=1, filter_servers=("f",) * topic)
            case 3:
                world.request(205, brokerName=name)
            case 4:
                world.request(216, topic=f"T{topic}", clusterName="C" if broker else "")
            case 5:
                world.request(100, namespace=ORDER_TOPIC_CONFIG, key=f"T{topic}", value=str(count))
            case 6:
                world.request(
                    104, brokerName=name, brokerAddr=address, clusterName="C", brokerId="0"
                )
            case 7:
                world.request(102, namespace=ORDER_TOPIC_CONFIG, key=f"T{topic}")
        for each in range(4):
            now = world.server.routes.route(f"T{each}")
            if now is not None:
                now.order_topic_conf = world.server.kv_config.get(ORDER_TOPIC_CONFIG, f"T{each}")
            assert world.find_route(f"T{each}") == now


def test_cluster_info_and_topic_lists_cover_all_brokers(world: NameServerHarness) -> None:
    world.register(A0, "T", "U")
    world.register(B0, "T", "V", name="broker-b", cluster="D")
    info = ClusterInfo.decode(world.request(106).body)
    assert info.cluster_addr_table == {"C": ["broker-a"], "D": ["broker-b"]}
    assert info.broker_addr_table["broker-b"].broker_addrs == {0: B0}
    assert topics(world.request(206)) == ["T", "U", "V"]
    assert topics(world.request(224, cluster="D")) == ["T", "V"]
    assert topics(world.request(224, cluster="X")) == []
    system = TopicList.decode(world.request(304).body)
    assert sorted(system.topic_list) == ["C", "D", "broker-a", "broker-b"]
    assert system.broker_addr == A0


def test_unit_topics_follow_the_flags_of_the_first_broker(world: NameServerHarness) -> None:
    world.register(A0, *(TopicConfig(f"F{flag}", topic_sys_flag=flag) for flag in range(4)))
    other = [TopicConfig(f"F{flag}", topic_sys_flag=3) for flag in range(4)]
    world.register(B0, *other, name="broker-b")
    assert topics(world.request(311)) == ["F1", "F3"]
    assert topics(world.request(312)) == ["F2", "F3"]
    assert topics(world.request(313)) == ["F2"]


# -- administration


def test_write_permission_is_removed_and_restored_in_memory_only(world: NameServerHarness) -> None:
    world.register(A0, TopicConfig("T", perm=6), TopicConfig("R", perm=4), TopicConfig("I", perm=7))
    world.register(B0, "T", name="broker-b")
    assert world.request(205, brokerName="broker-a").ext_fields == {"wipeTopicCount": "3"}
    assert [queues(world, each)[2] for each in "TRI"] == [4, 4, 5]
    assert queues(world, "T", "broker-b")[2] == 6
    assert world.request(327, brokerName="broker-a").ext_fields == {"addTopicCount": "3"}
    assert [queues(world, each)[2] for each in "TRI"] == [6, 6, 6]
    assert world.request(205, brokerName="unknown").ext_fields == {"wipeTopicCount": "0"}
    world.request(205, brokerName="broker-a")
    world.register(A0, "T")
    assert queues(world, "T")[2] == 4, "the same data version changes nothing"
    world.register(A0, "T", counter=1)
    assert queues(world, "T")[2] == 6


def test_a_deleted_topic_returns_with_the_next_changed_registration(
    world: NameServerHarness,
) -> None:
    world.register(A0, "T", "U")
    world.register(B0, "T", name="broker-b", cluster="D")
    assert world.request(216, topic="T", clusterName="D").code == 0
    assert world.addresses("T") == {"broker-a": {0: A0}}
    assert world.request(216, topic="T", clusterName="nowhere").code == 0
    assert world.request(216, topic="T").code == 0
    assert world.request(216, topic="T").code == 0
    assert topics(world.request(206)) == ["U"]
    world.register(A0, "T", "U")
    assert world.find_route("T") is None
    world.register(A0, "T", "U", counter=1)
    assert world.addresses("T") == {"broker-a": {0: A0}}


def test_a_oneway_request_has_its_effect_and_is_not_answered(world: NameServerHarness) -> None:
    world.register(A0, "T")
    frame_count = len(world.channel.written)
    unregister = RemotingCommand(
        104,
        flag=FLAG_ONEWAY,
        ext_fields={
            "brokerName": "broker-a",
            "brokerAddr": A0,
            "clusterName": "C",
            "brokerId": "0",
        },
    )
    world.server.handle(world.channel, [unregister, RemotingCommand(9999, flag=FLAG_ONEWAY)])
    assert len(world.channel.written) == frame_count
    assert world.find_route("T") is None


def test_a_route_body_is_that_of_the_typed_body(world: NameServerHarness) -> None:
    world.register(A0, TopicConfig("T", 4, 4, 6, topic_sys_flag=2))
    body = world.request(105, topic="T").body
    assert body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"C"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":2,"writeQueueNums":4}]}'
    )
    assert TopicRouteData.decode(body) == world.route("T")
