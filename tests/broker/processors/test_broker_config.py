"""Changing and reading settings at run time: codes 25 and 26."""

from __future__ import annotations

import pytest

from rmqpy.config.properties_file import parse_properties
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import DataVersion
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker

UPDATE, READ = RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG


def settings(harness: BrokerHarness) -> dict[str, str]:
    body = harness.call(READ).body.decode()
    return {each.key: each.value for each in parse_properties(body)}


def test_a_change_is_in_effect_at_once_and_only_in_memory_without_a_file(
    harness: BrokerHarness,
) -> None:
    assert settings(harness)["maxMessageSize"] == "4194304"
    answer = harness.call(UPDATE, body=b"autoCreateTopicEnable=false\nmaxMessageSize=1000\n")
    assert answer.code == 0 and "there is no configuration file" in (answer.remark or "")
    assert settings(harness)["maxMessageSize"] == "1000"
    assert harness.send(topic="Fresh").code == 17
    assert harness.send(topic="TBW102", body=b"x" * 1001).code == 13
    assert harness.send(topic="TBW102", body=b"x" * 500).code == 0


def test_each_change_has_a_new_version(harness: BrokerHarness) -> None:
    def version() -> DataVersion:
        return DataVersion.decode(harness.call(READ).ext_fields["version"].encode())

    before = version()
    assert version() == before
    harness.call(UPDATE, body=b"traceOn=false")
    assert version() == DataVersion(before.timestamp, before.counter + 1)


def test_a_change_is_answered_once_it_is_in_the_file(build: BuildBroker) -> None:
    harness = build(settings_path="/conf/broker.conf")
    harness.deliver(RemotingCommand.request(UPDATE, None, b"fileReservedTime=48"))
    assert harness.channel.take() == []
    harness.scheduler.run_until_idle()
    assert harness.channel.take_one().code == 0
    text = harness.files.read_bytes("/conf/broker.conf").decode()
    assert "fileReservedTime=48\n" in text and "own=1\n" in text


def test_a_request_with_a_wrong_key_changes_nothing(harness: BrokerHarness) -> None:
    before = settings(harness)
    answer = harness.call(UPDATE, body=b"fileReservedTime=48\nstorePathRootDir=/elsewhere\n")
    assert answer.code == 16 and "storePathRootDir" in (answer.remark or "")
    assert settings(harness) == before
    answer = harness.call(UPDATE, body=b"traceOn=perhaps")
    assert answer.code == 1 and "traceOn" in (answer.remark or "")
    assert settings(harness) == before


def test_a_changed_permission_is_registered_with_the_name_servers(harness: BrokerHarness) -> None:
    harness.network.take()
    harness.call(UPDATE, body=b"brokerPermission=4")
    assert {command.code for _, command, _ in harness.network.take()} == {
        RequestCode.REGISTER_BROKER
    }
    assert settings(harness)["brokerPermission"] == "4"


@pytest.mark.parametrize("body", [b"", b"notAKey=1", b"traceOn=true"])
def test_a_request_without_effect_succeeds(harness: BrokerHarness, body: bytes) -> None:
    answer = harness.call(UPDATE, body=body)
    assert (answer.code, answer.remark) == (0, None)


def test_a_changed_period_takes_effect_after_the_current_one(build: BuildBroker) -> None:
    harness = build()
    harness.call(UPDATE, body=b"flushConsumerOffsetInterval=60000")
    harness.scheduler.advance(5_000)
    harness.broker.offsets.commit("G", "T", 0, 5)
    harness.scheduler.advance(30_000)
    assert not harness.files.exists("/store/config/consumerOffset.json")
    harness.scheduler.advance(40_000)
    assert harness.files.exists("/store/config/consumerOffset.json")
