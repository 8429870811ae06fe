"""What an observer refuses, what it requests, and when it is connected."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rmqpy.rehearsal.rehearsed_group import LogEnds, RehearsedGroup
from rmqpy.rehearsal.suitability import FollowerWatch, first_request, refusals

MASTER = "10.0.0.1:10911"


def facts(end: int = 100, **settings: str) -> RehearsedGroup:
    return RehearsedGroup(
        name="a",
        master=MASTER,
        slaves=(),
        settings={"brokerRole": "ASYNC_MASTER", **settings},
        ends=LogEnds(0, end, {}),
        sends_per_second=0.0,
    )


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"enableDLegerCommitLog": "true"}, "found a DLedger group"),
        ({"enableAutoInSyncReplicas": "true"}, "found enableAutoInSyncReplicas"),
        ({"storeType": "defaultRocksDB"}, "found storeType=defaultRocksDB"),
        ({"brokerRole": "SLAVE"}, "found brokerRole=SLAVE"),
    ],
)
def test_a_master_that_cannot_be_observed_is_refused(
    settings: Mapping[str, str], found: str
) -> None:
    (refusal,) = refusals(facts(100, **settings))
    assert found in refusal and "expected" in refusal and ";" in refusal


def test_a_group_without_a_message_is_refused() -> None:
    (refusal,) = refusals(facts(end=0))
    assert "found an empty log, expected one with messages;" in refusal


def test_a_classic_master_is_accepted() -> None:
    assert not list(refusals(facts(100, storeType="default", enableControllerMode="false")))
    assert not list(refusals(facts(100, brokerRole="SYNC_MASTER", enableControllerMode="true")))
    assert not list(refusals(facts(100, brokerRole="SYNC_MASTER")))


def test_a_master_of_a_controller_does_not_wait_for_a_learner() -> None:
    assert facts(brokerRole="SYNC_MASTER").waits_for_slaves
    assert not facts(100, brokerRole="SYNC_MASTER", enableControllerMode="true").waits_for_slaves


def test_slaves_connect_at_brokerip2_and_the_port_above() -> None:
    assert facts().ha_address == "10.0.0.1:10912"
    assert facts(100, brokerIP2="10.1.0.1", haListenPort="9000").ha_address == "10.1.0.1:9000"


@pytest.mark.parametrize(
    ("own_end", "slaves", "requested"),
    [
        (0, {}, 1000),  # an empty copy
        (5000, {}, 4900),
        (5000, {"s": 9000}, 4900),
        (5000, {"s": 3000}, 2900),  # the master must not take 4900 for acknowledged
        (5000, {"s": 3000, "t": 2000}, 1900),
        (5000, {"s": 10}, 1000),  # a slave that has just begun
        (1020, {}, 1000),
    ],
)
def test_what_is_requested_is_acknowledged_already(
    own_end: int, slaves: Mapping[str, int], requested: int
) -> None:
    assert first_request(LogEnds(1000, 9000, slaves), own_end, overlap=100) == requested


def test_a_slave_follows_if_it_has_what_the_master_had_at_the_look_before() -> None:
    watch = FollowerWatch()
    assert watch.follows(LogEnds(0, 100, {"s": 100}))
    assert watch.follows(LogEnds(0, 200, {"s": 150}))  # 50 behind, as under load
    assert not watch.follows(LogEnds(0, 300, {"s": 150}))
    assert not watch.follows(LogEnds(0, 300, {}))
    assert watch.follows(LogEnds(0, 400, {"s": 300, "t": 0}))
