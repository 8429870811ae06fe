"""Settings changed and read at run time: codes 25 and 26."""

from __future__ import annotations

import pytest

from rmqpy.config.properties_file import parse_properties
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import DataVersion
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker

UPDATE, READ = RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG


def settings(kit: BrokerHarness) -> dict[str, str]:
    body = kit.call(READ).body.decode()
    return {each.key: each.value for each in parse_properties(body)}


def test_a_change_is_in_effect_at_once_and_only_in_memory_without_a_file(
    kit: BrokerHarness,
) -> None:
    assert settings(kit)["maxMessageSize"] == "4194304"
    answer = kit.call(UPDATE, body=b"autoCreateTopicEnable=false\nmaxMessageSize=1000\n")
    assert answer.code == 0 and "there is no configuration file" in answer.remark
    assert settings(kit)["maxMessageSize"] == "1000"
    assert kit.send(topic="Fresh").code == 17
    assert kit.send(topic="TBW102", body=b"x" * 1001).code == 13
    assert kit.send(topic="TBW102", body=b"x" * 500).code == 0


def test_the_version_tells_changes_apart(kit: BrokerHarness) -> None:
    def version() -> DataVersion:
        return DataVersion.decode(kit.call(READ).ext_fields["version"].encode())

    before = version()
    assert version() == before
    kit.call(UPDATE, body=b"traceOn=false")
    assert version() == DataVersion(before.timestamp, before.counter + 1)


def test_it_is_answered_when_it_stands_in_the_file(build: BuildBroker) -> None:
    kit = build(settings_path="/conf/broker.conf")
    kit.deliver(RemotingCommand.request(UPDATE, None, b"fileReservedTime=48"))
    assert kit.channel.take() == []
    kit.scheduler.run_until_idle()
    assert kit.channel.take_one().code == 0
    text = kit.files.read_bytes("/conf/broker.conf").decode()
    assert "fileReservedTime=48\n" in text and "own=1\n" in text


def test_all_or_nothing(kit: BrokerHarness) -> None:
    before = settings(kit)
    answer = kit.call(UPDATE, body=b"fileReservedTime=48\nstorePathRootDir=/elsewhere\n")
    assert answer.code == 16 and "storePathRootDir" in answer.remark
    assert settings(kit) == before
    answer = kit.call(UPDATE, body=b"traceOn=perhaps")
    assert answer.code == 1 and "traceOn" in answer.remark
    assert settings(kit) == before


def test_name_servers_hear_of_a_changed_permission(kit: BrokerHarness) -> None:
    kit.network.take()
    kit.call(UPDATE, body=b"brokerPermission=4")
    assert {command.code for _, command, _ in kit.network.take()} == {RequestCode.REGISTER_BROKER}
    assert settings(kit)["brokerPermission"] == "4"


@pytest.mark.parametrize("body", [b"", b"notAKey=1", b"traceOn=true"])
def test_what_changes_nothing_is_done(kit: BrokerHarness, body: bytes) -> None:
    answer = kit.call(UPDATE, body=body)
    assert (answer.code, answer.remark) == (0, None)


def test_a_changed_period_counts_from_its_next_turn(build: BuildBroker) -> None:
    kit = build()
    kit.call(UPDATE, body=b"flushConsumerOffsetInterval=60000")
    kit.scheduler.advance(5_000)
    kit.broker.offsets.commit("G", "T", 0, 5)
    kit.scheduler.advance(30_000)
    assert not kit.files.exists("/store/config/consumerOffset.json")
    kit.scheduler.advance(40_000)
    assert kit.files.exists("/store/config/consumerOffset.json")
