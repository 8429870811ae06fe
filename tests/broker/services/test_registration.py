"""Registration with name servers, and the addresses that a broker chooses."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmqpy.broker.assembly.addresses import Addresses, AddressSettings, choose_addresses
from rmqpy.config.loading import BrokerRole
from rmqpy.model.errors import ConfigError, NetworkError
from rmqpy.remoting.bodies import KVTable, RegisterBrokerBody, TopicConfig, body_crc32
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps_member
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker

TOPIC = CreateTopicRequestHeader(
    topic="Made",
    default_topic="TBW102",
    read_queue_nums=4,
    write_queue_nums=4,
    perm=6,
    topic_filter_type="SINGLE_TAG",
    topic_sys_flag=0,
    order=False,
)
SERVERS = ["10.0.0.8:9876", "10.0.0.9:9876"]


def test_a_broker_registers_at_once_with_all_name_servers(harness: BrokerHarness) -> None:
    taken = harness.network.take()
    assert [address for address, _, _ in taken] == SERVERS
    command = taken[0][1]
    assert command.code == 103
    header = RegisterBrokerRequestHeader.decode(command.ext_fields)
    assert header == RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr="10.0.0.2:10911",
        cluster_name="C",
        ha_server_addr="10.0.0.2:10912",
        broker_id=0,
        compressed=False,
        body_crc32=body_crc32(command.body),
    )
    wrapper = RegisterBrokerBody.decode(command.body).topic_config_serialize_wrapper
    assert wrapper.topic_config_table["TBW102"].perm == 7
    assert wrapper.data_version == harness.broker.topics.data_version


def test_it_registers_again_after_ten_seconds_and_then_each_period(harness: BrokerHarness) -> None:
    harness.network.take()
    harness.scheduler.advance(9_999)
    assert harness.network.take() == []
    harness.scheduler.advance(1)
    assert len(harness.network.take()) == 2
    harness.scheduler.advance(29_999)
    assert harness.network.take() == []
    harness.scheduler.advance(1)
    assert len(harness.network.take()) == 2


def test_a_name_server_that_does_not_answer_delays_no_other(harness: BrokerHarness) -> None:
    (_, _, fail), (_, command, answer) = harness.network.take()
    header = RegisterBrokerResponseHeader(ha_server_addr="h:1", master_addr="m:2")
    answer(RemotingCommand.response_to(command, header=header), None)
    last = harness.broker.registration.last_answer
    assert last is not None and last.master_address == "m:2"
    fail(None, NetworkError("timed out"))
    harness.scheduler.advance(10_000)
    assert len(harness.network.take()) == 2


def test_the_first_answer_of_a_round_counts(harness: BrokerHarness) -> None:
    harness.send(topic="A")
    harness.send(topic="B")
    (_, first, answer_first), (_, second, answer_second) = harness.network.take()
    answer_first(
        RemotingCommand.response_to(first, body=KVTable({"A": "broker-a:4"}).encode()), None
    )
    later = RegisterBrokerResponseHeader(ha_server_addr="h:1", master_addr="m:2")
    body = KVTable({"B": "broker-a:4"}).encode()
    answer_second(RemotingCommand.response_to(second, header=later, body=body), None)
    assert harness.broker.topics.is_ordered("A") and not harness.broker.topics.is_ordered("B")
    last = harness.broker.registration.last_answer
    assert last is not None and last.master_address == ""


def test_refusals_and_invalid_answers_are_ignored(harness: BrokerHarness) -> None:
    (_, first, answer_first), (_, second, answer_second) = harness.network.take()
    answer_first(RemotingCommand.response_to(first, 1, "crc32 not match"), None)
    answer_second(RemotingCommand.response_to(second, body=b"["), None)
    assert harness.broker.registration.last_answer is None


def test_new_topics_are_registered_once_per_turn(harness: BrokerHarness) -> None:
    harness.deliver(harness.send_command(topic="A"), harness.send_command(topic="B"))
    harness.scheduler.run_until_idle()
    assert [address for address, _ in harness.network.oneways] == SERVERS
    wrapper = RegisterBrokerBody.decode(harness.network.oneways[0][1].body)
    table = wrapper.topic_config_serialize_wrapper.topic_config_table
    assert {"A", "B"} <= set(table)


def test_creating_a_topic_is_answered_when_all_name_servers_know_it(
    harness: BrokerHarness,
) -> None:
    harness.network.take()
    harness.deliver(RemotingCommand.request(17, TOPIC))
    harness.scheduler.run_until_idle()
    (_, first, know), (_, _, fail) = harness.network.take()
    table = RegisterBrokerBody.decode(first.body).topic_config_serialize_wrapper
    assert "Made" in table.topic_config_table
    assert harness.channel.take() == [] and harness.network.oneways == []
    know(RemotingCommand.response_to(first), None)
    assert harness.channel.take() == []
    fail(None, NetworkError("timed out"))
    assert harness.channel.take_one().code == 0


def test_a_name_server_that_refuses_a_new_topic_is_named(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.network.take()
    harness.deliver(RemotingCommand.request(17, TOPIC))
    harness.scheduler.run_until_idle()
    for _, command, done in harness.network.take():
        done(RemotingCommand.response_to(command, 1, "not you"), None)
    assert harness.channel.take_one().code == 0
    assert [SERVERS[0] in each and "not you" in each for each in caplog.messages] == [True, False]


def test_creating_a_topic_is_answered_when_the_broker_stops(harness: BrokerHarness) -> None:
    harness.network.take()
    harness.deliver(RemotingCommand.request(17, TOPIC))
    harness.broker.registration.stop(lambda: None)
    harness.scheduler.run_until_idle()
    assert harness.channel.take_one().code == 0


def test_creating_a_topic_without_name_servers_is_answered(build: BuildBroker) -> None:
    harness = build(namesrv_addr=None)
    harness.deliver(RemotingCommand.request(17, TOPIC))
    harness.scheduler.run_until_idle()
    assert harness.channel.take_one().code == 0


def test_compressed_registration(build: BuildBroker) -> None:
    harness = build(compressed_register=True)
    _, command, _ = harness.network.take()[0]
    header = RegisterBrokerRequestHeader.decode(command.ext_fields)
    assert header.compressed and header.body_crc32 == body_crc32(command.body)
    body = RegisterBrokerBody.decode_compressed(command.body)
    assert "TBW102" in body.topic_config_serialize_wrapper.topic_config_table


def test_the_permission_of_the_broker_covers_its_topics(build: BuildBroker) -> None:
    harness = build(broker_permission=4)
    _, command, _ = harness.network.take()[0]
    table = RegisterBrokerBody.decode(
        command.body
    ).topic_config_serialize_wrapper.topic_config_table
    assert {topic.perm for topic in table.values()} == {4}
    assert harness.broker.topics.topics["TBW102"].perm == 7


def test_without_force_only_outdated_name_servers_get_the_table(build: BuildBroker) -> None:
    harness = build(force_register=False)
    (_, first, answer_first), (_, second, answer_second) = harness.network.take()
    assert (first.code, second.code) == (322, 322)
    for command, answer, changed in ((first, answer_first, False), (second, answer_second, True)):
        header = QueryDataVersionResponseHeader(changed=changed)
        answer(RemotingCommand.response_to(command, header=header), None)
    ((address, command, _),) = harness.network.take()
    assert (address, command.code) == (SERVERS[1], 103)


def test_a_slave_registers_with_its_id_and_learns_its_master(build: BuildBroker) -> None:
    harness = build(broker_role=BrokerRole.SLAVE, broker_id=1)
    _, command, answer = harness.network.take()[0]
    assert command.ext_fields["brokerId"] == "1"
    addresses: list[str] = []
    harness.broker.registration.subscribe(lambda _server, found: addresses.append(found.ha_address))
    header = RegisterBrokerResponseHeader(ha_server_addr="h:1", master_addr="m:2")
    answer(RemotingCommand.response_to(command, header=header), None)
    assert addresses == ["h:1"]


def test_a_master_always_has_id_zero(build: BuildBroker) -> None:
    assert build(broker_id=3).broker.identity.broker_id == 0


def test_a_member_of_a_group_registers_once_it_has_a_role(build: BuildBroker) -> None:
    harness = build(
        start=False,
        enable_dledger_commit_log=True,
        dledger_group="g",
        dledger_peers="n0-10.0.0.2:40911",
        dledger_self_id="n0",
    )
    harness.broker.start()
    assert harness.network.take() == []
    harness.broker.identity.broker_id = 0
    harness.broker.registration.register()
    assert len(harness.network.take()) == 2


def test_stopping_unregisters_and_waits_for_the_answers(harness: BrokerHarness) -> None:
    harness.network.take()
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    (_, first, answer_first), (_, second, answer_second) = harness.network.take()
    assert (first.code, second.code) == (104, 104)
    assert first.ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.2:10911",
        "clusterName": "C",
        "brokerId": "0",
    }
    answer_first(RemotingCommand.response_to(first), None)
    assert stopped == []
    answer_second(None, NetworkError("gone"))
    assert stopped == [True]
    harness.scheduler.advance(100_000)
    assert harness.network.take() == []


def test_without_name_servers_a_broker_runs_alone(build: BuildBroker) -> None:
    harness = build(namesrv_addr=None)
    assert harness.network.take() == []
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    harness.scheduler.run_until_idle()
    assert stopped == [True]


# ------------------------------------------------------------------------------------- addresses

LOCAL = ("127.0.0.1", "10.0.0.2", "::1")


@pytest.mark.parametrize(
    ("broker_ip1", "bind", "servers", "expected"),
    [
        (None, None, [], ("127.0.0.1", "127.0.0.1", None)),
        (None, None, ["127.0.0.1:9876"], ("127.0.0.1", "127.0.0.1", None)),
        (None, None, ["localhost:9876"], ("127.0.0.1", "127.0.0.1", None)),
        (None, None, ["10.0.0.2:9876"], ("127.0.0.1", "127.0.0.1", None)),
        (None, None, ["10.0.0.9:9876"], ("127.0.0.1", "127.0.0.1", "10.0.0.9")),
        ("10.0.0.2", None, ["10.0.0.9:9876"], ("10.0.0.2", "10.0.0.2", None)),
        ("10.9.9.9", None, [], ("10.9.9.9", "127.0.0.1", "10.9.9.9")),
        ("10.9.9.9", "0.0.0.0", ["10.0.0.9:9876"], ("10.9.9.9", "0.0.0.0", None)),
        (None, "10.0.0.2", ["10.0.0.9:9876"], ("10.0.0.2", "10.0.0.2", None)),
        (None, "0.0.0.0", [], ("127.0.0.1", "0.0.0.0", None)),
        ("::1", None, [], ("::1", "::1", None)),
    ],
)
def test_addresses(
    broker_ip1: str | None,
    bind: str | None,
    servers: list[str],
    expected: tuple[str, str, str | None],
) -> None:
    chosen = choose_addresses(
        AddressSettings(
            broker_ip1=broker_ip1, bind_address=bind, name_servers=servers, local_addresses=LOCAL
        )
    )
    advertised, bound, named = expected
    assert (chosen.told, chosen.bind) == (advertised, bound)
    if named is None:
        assert chosen == Addresses(told=advertised, bind=bound)
    else:
        assert chosen.warning is not None and named in chosen.warning


def test_the_advertised_address_must_be_an_ip_address(build: BuildBroker) -> None:
    from rmqpy.broker.base.context import BrokerContext

    harness = build()
    with pytest.raises(ValueError):
        BrokerContext.from_configuration(harness.broker.identity.configuration, "broker.example")
    assert issubclass(ConfigError, Exception)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_the_body_is_that_of_the_whole_table(
    build: BuildBroker, limited: bool, compressed: bool
) -> None:
    harness = build(compressed_register=compressed, broker_permission=4 if limited else 6)
    topics = harness.broker.topics
    for perm in (2, 6):
        topics.put(TopicConfig("A%b", perm=perm))
        body = harness.broker.registration._register_command().body
        decode = RegisterBrokerBody.decode_compressed if compressed else RegisterBrokerBody.decode
        table = decode(bytes(body)).topic_config_serialize_wrapper
        assert table.data_version == topics.data_version
        expected = {
            name: evolve(topic, perm=4) if limited else topic
            for name, topic in topics.topics.items()
        }
        assert table.topic_config_table == expected
        if not compressed:
            assert bytes(body) == RegisterBrokerBody(table).encode()


def test_only_changed_topics_are_encoded_again(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration, topics = harness.broker.registration, harness.broker.topics
    registration._register_command()
    encoded: list[str] = []

    def recorded(name: str, value: object, depth: int) -> bytes:
        encoded.append(name)
        return dumps_member(name, value, depth)

    monkeypatch.setattr("rmqpy.broker.state.topics.dumps_member", recorded)
    topics.put(TopicConfig("One"))
    topics.put(TopicConfig("Two"))
    topics.delete("One")
    for _ in range(2):
        registration._register_command()
    assert encoded == ["One", "Two"], "each once, for topics.json"
