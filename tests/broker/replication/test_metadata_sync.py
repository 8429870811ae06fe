"""The tables of a slave and its master: entries that are copied, kept, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from rmqpy.broker.replication.metadata_sync import FIRST_MS, LOOK_MS, MASTER_NAMED_MS, PERIOD_MS
from rmqpy.broker.services.registration import RegistrationAnswer
from rmqpy.broker.state.topics import TopicTable
from rmqpy.config.loading import BrokerRole
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import (
    DelayOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker

SERVER = "10.0.0.8:9876"
MASTER = "10.0.0.2:10911"
FAST = "10.0.0.2:10909"
SYNCED = (21, 43, 45, 201)
DLEDGER = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}


@define
class MasterAndSlave:
    """A master and a slave whose requests it answers."""

    master: BrokerHarness
    slave: BrokerHarness
    requested: list[tuple[str, int]]
    dead: bool = False
    is_java: bool = True
    """Whether the master ignores versions in requests."""
    registered: int = 0
    answered: list[int] = field(factory=list)
    """The lengths of the bodies of the responses."""

    def name_master(self, address: str = MASTER) -> None:
        """Let a name server name the master to the slave."""
        answer = RegistrationAnswer(f"{address[:-1]}2", address)
        now_ms = self.slave.scheduler.monotonic_ms()
        self.slave.broker.masters.on_registration_answer(SERVER, answer, now_ms)

    def run(self, duration_ms: int) -> None:
        """Let time pass while the master answers the slave's requests."""
        self.slave.scheduler.advance(duration_ms)
        while requests := self.slave.network.take():
            for address, command, done in requests:
                self.registered += command.code == RequestCode.REGISTER_BROKER
                if command.code not in SYNCED:
                    continue
                self.requested.append((address, int(command.code)))
                if self.dead:
                    done(None, NetworkError("connection refused"))
                else:
                    if self.is_java:
                        command = RemotingCommand.request(command.code)
                    self.master.deliver(command)
                    answer = self.master.channel.take_one()
                    self.answered.append(len(answer.body))
                    done(answer, None)
                self.slave.scheduler.run_until_idle()

    @property
    def topics(self) -> TopicTable:
        return self.slave.broker.topics


MakePair = Callable[..., MasterAndSlave]


@pytest.fixture
def pair(build: BuildBroker) -> MakePair:
    def make(**settings: Any) -> MasterAndSlave:
        master = build()
        role = {} if settings else {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
        slave = build(host="10.0.0.3", **role, **settings)
        if settings:
            slave.broker.identity.role = BrokerRole.SLAVE
            slave.broker.identity.broker_id = 1
        return MasterAndSlave(master, slave, [])

    return make


def test_every_table_is_fetched_from_the_port_that_java_uses(pair: MakePair) -> None:
    both = pair()
    master = both.master.broker
    master.topics.put(TopicConfig("T", 3, 3))
    master.groups.put(SubscriptionGroupConfig(group_name="G", which_broker_when_consume_slowly=2))
    master.offsets.commit("G", "T", 1, 17)
    master.delay_offsets.merge(DelayOffsetSerializeWrapper({1: 10, 3: 11}))
    both.name_master()
    both.run(0)
    assert sorted(both.requested, key=lambda each: each[1]) == [
        (FAST, 21),
        (MASTER, 43),
        (MASTER, 45),
        (MASTER, 201),
    ]
    slave = both.slave.broker
    assert slave.topics.wrapper() == master.topics.wrapper()
    assert slave.groups.wrapper() == master.groups.wrapper()
    assert slave.offsets.get("G", "T", 1) == 17
    assert slave.delay_offsets.wrapper().offset_table == {1: 10, 3: 11}
    both.slave.scheduler.advance(20_000)
    saved = both.slave.files.read_bytes("/store/config/topics.json")
    assert TopicConfigSerializeWrapper.decode(saved) == master.topics.wrapper()
    assert b"17" in both.slave.files.read_bytes("/store/config/consumerOffset.json")
    assert b"11" in both.slave.files.read_bytes("/store/config/delayOffset.json")
    assert slave.metadata_sync.runtime_info()["slaveSync"] == "20 s ago"


def test_the_tables_are_fetched_in_javas_intervals(pair: MakePair) -> None:
    both = pair()
    both.run(FIRST_MS)
    assert both.requested == [], "no master is named"
    both.name_master()
    both.run(0)
    assert len(both.requested) == 4
    both.run(PERIOD_MS - 1)
    assert len(both.requested) == 4
    both.run(1)
    assert len(both.requested) == 8
    both.name_master()
    both.run(1)
    assert len(both.requested) == 8, "the same master was named before"


def test_the_slave_registers_again_while_no_master_answers(pair: MakePair) -> None:
    both = pair()
    both.run(FIRST_MS - 1)
    servers = both.registered
    both.run(1)
    assert both.registered == 2 * servers, "no master is named"
    both.dead = True
    both.name_master()
    both.run(0)
    before = both.registered
    both.run(PERIOD_MS)
    assert both.registered >= before + servers, "the named master does not answer"
    both.dead = False
    both.run(2 * PERIOD_MS)
    before = both.registered
    both.run(PERIOD_MS)
    assert both.registered - before <= servers, "at most the periodic registration"


def test_a_fetch_at_once_waits_until_a_master_is_named(pair: MakePair) -> None:
    both, ended = pair(), list[str]()
    sync = both.slave.broker.metadata_sync
    registered = both.registered
    sync.fetch_now(lambda: ended.append("; ".join(sync.faults)), named_within_ms=MASTER_NAMED_MS)
    both.run(MASTER_NAMED_MS - 1)
    assert both.registered > registered, "the name servers are asked"
    assert not ended and not both.requested
    both.name_master()
    both.run(0)
    assert len(both.requested) == 4
    assert ended == [""]
    both.run(MASTER_NAMED_MS)
    assert ended == [""]


def test_a_fetch_at_once_ends_if_no_master_is_named(pair: MakePair) -> None:
    both, ended = pair(), list[str]()
    sync = both.slave.broker.metadata_sync
    sync.fetch_now(lambda: ended.extend(sync.faults))
    both.run(0)
    assert len(ended) == 4
    assert all(each.endswith("no master is known") for each in ended)


def test_a_master_syncs_nothing(pair: MakePair) -> None:
    both = pair()
    both.slave.broker.identity.role = BrokerRole.ASYNC_MASTER
    both.name_master()
    both.run(30_000)
    assert both.requested == []
    assert both.slave.broker.metadata_sync.runtime_info() == {}


def test_a_topic_that_the_master_deletes_is_deleted(pair: MakePair) -> None:
    both = pair()
    both.master.broker.topics.put(TopicConfig("T"))
    both.name_master()
    both.run(0)
    assert "T" in both.topics
    both.master.scheduler.advance(5)
    both.master.broker.topics.delete("T")
    both.run(PERIOD_MS)
    assert "T" not in both.topics
    assert both.topics.wrapper() == both.master.broker.topics.wrapper()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, DLEDGER], ids=["classic", "dledger"])
def test_tables_are_merged_with_those_of_a_newer_master_that_lacks_entries(
    pair: MakePair, settings: dict[str, Any]
) -> None:
    both = pair(**settings)
    for number in range(6):
        both.topics.put(TopicConfig(f"T{number}"))
        both.slave.broker.groups.put(SubscriptionGroupConfig(group_name=f"G{number}"))
    both.slave.broker.offsets.commit("G1", "T1", 0, 5)
    both.slave.broker.offsets.commit("G1", "T1", 1, 6)
    both.slave.broker.delay_offsets.merge(DelayOffsetSerializeWrapper({1: 10, 2: 20}))
    both.master.broker.topics.put(TopicConfig("new"))
    both.master.broker.offsets.commit("G1", "T1", 1, 9)
    both.master.broker.delay_offsets.merge(DelayOffsetSerializeWrapper({2: 3}))
    both.name_master()
    both.run(0)
    slave = both.slave.broker
    assert {"new", *(f"T{number}" for number in range(6))} <= set(both.topics.topics)
    assert {f"G{number}" for number in range(6)} <= set(slave.groups.groups)
    assert (slave.offsets.get("G1", "T1", 0), slave.offsets.get("G1", "T1", 1)) == (5, 9)
    assert slave.delay_offsets.wrapper().offset_table == {1: 10, 2: 20}
    info = slave.metadata_sync.runtime_info()
    assert info["slaveSyncKept_21"] == "T0, T1, T2, T3, T4 and 1 more"
    version = both.topics.data_version
    both.run(5 * PERIOD_MS)
    assert both.topics.data_version == version, "the same answer changes nothing"
    for number in range(20):  # The newer master continues.
        both.master.broker.topics.put(TopicConfig(f"later{number}"))
        both.master.scheduler.jump_wall_clock(1_000_000)
        both.run(PERIOD_MS)
    assert {"new", "T0", "T5", "later0", "later19"} <= set(both.topics.topics)
    both.master.broker.topics.delete("later3")
    both.run(PERIOD_MS)
    assert "later3" not in both.topics and "T0" in both.topics


def test_in_a_dledger_group_only_entries_that_a_leader_had_are_deleted(pair: MakePair) -> None:
    """This holds whatever the version of the table is."""
    both = pair(**DLEDGER)
    both.topics.put(TopicConfig("T"))
    for number in range(50):
        both.master.scheduler.advance(1000)
        both.master.broker.topics.put(TopicConfig(f"other{number}"))
    both.name_master()
    both.run(0)
    assert {"T", "other49"} <= set(both.topics.topics)


def test_slaves_that_keep_different_entries_have_different_versions(pair: MakePair) -> None:
    """Each of them can be the next master, from which the others take only another version."""
    one, other = pair(**DLEDGER), pair(**DLEDGER)
    other.master = one.master
    one.master.scheduler.advance(5)
    one.master.broker.topics.put(TopicConfig("M"))
    one.master.broker.groups.put(SubscriptionGroupConfig(group_name="M"))
    for both, own in ((one, "A"), (other, "B")):
        both.topics.put(TopicConfig(own))
        both.slave.broker.groups.put(SubscriptionGroupConfig(group_name=own))
        both.name_master()
        both.run(0)
        assert {own, "M"} <= set(both.topics.topics)
    assert not one.topics.data_version.same_as(other.topics.data_version)
    groups = one.slave.broker.groups, other.slave.broker.groups
    assert not groups[0].data_version.same_as(groups[1].data_version)
    one.master = other.slave
    one.name_master("10.0.0.4:10911")
    one.run(0)
    assert {"A", "B", "M"} <= set(one.topics.topics)
    assert {"A", "B", "M"} <= set(one.slave.broker.groups.groups)


def test_slaves_that_merge_to_equal_tables_have_the_same_version(pair: MakePair) -> None:
    one, other = pair(**DLEDGER), pair(**DLEDGER)
    other.master = one.master
    one.master.scheduler.advance(5)
    one.master.broker.topics.put(TopicConfig("M"))
    for both, names in ((one, "AB"), (other, "BA")):
        for name in names:
            both.topics.put(TopicConfig(name))
        both.name_master()
        both.run(0)
    assert one.topics.topics == other.topics.topics
    assert one.topics.data_version == other.topics.data_version


def test_a_returning_classic_slave_deletes_what_its_master_has_deleted(pair: MakePair) -> None:
    both = pair()
    both.master.broker.topics.put(TopicConfig("T"))
    both.topics.replace(both.master.broker.topics.wrapper(), (), both.topics.data_version.next(0))
    both.topics.data_version = both.master.broker.topics.data_version
    both.master.scheduler.advance(5)
    both.master.broker.topics.delete("T")
    both.name_master()
    both.run(0)
    assert "T" not in both.topics


def test_requests_are_independent_and_faults_are_shown(pair: MakePair) -> None:
    both = pair()
    both.dead = True
    both.name_master()
    both.run(0)
    info = both.slave.broker.metadata_sync.runtime_info()
    assert info["slaveSync"] == "nothing fetched yet"
    assert info["slaveSyncFault_21"] == f"{FAST}: connection refused"
    both.dead = False
    both.run(PERIOD_MS)
    assert list(both.slave.broker.metadata_sync.runtime_info()) == ["slaveSync"]


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"dataVersion":7}'])
def test_an_unreadable_table_changes_nothing(pair: MakePair, body: bytes) -> None:
    both = pair()
    both.topics.put(TopicConfig("T"))
    before = both.topics.wrapper()
    both.name_master()
    both.slave.scheduler.run_until_idle()
    for _, command, done in both.slave.network.take():
        if command.code in SYNCED:
            done(RemotingCommand.response_to(command, body=body), None)
    assert both.topics.wrapper() == before
    faults = both.slave.broker.metadata_sync.runtime_info()
    assert "slaveSyncFault_21" in faults


def test_the_refusal_of_a_master_is_shown(pair: MakePair) -> None:
    both = pair()
    both.name_master()
    both.slave.scheduler.run_until_idle()
    for _, command, done in both.slave.network.take():
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            refusal = RemotingCommand.response_to(
                command, ResponseCode.SYSTEM_ERROR, "No delay offset in this broker"
            )
            done(refusal, None)
    fault = both.slave.broker.metadata_sync.runtime_info()["slaveSyncFault_45"]
    assert "No delay offset in this broker" in fault


def test_an_rmqpy_master_is_polled_for_changes_each_second(pair: MakePair) -> None:
    both = pair(**DLEDGER)
    both.is_java = False
    both.name_master()
    both.run(0)
    before = len(both.requested)
    both.run(LOOK_MS)
    assert sorted(code for _, code in both.requested[before:]) == [21, 201]
    leader = both.master.broker
    leader.topics.put(TopicConfig("just-made", 3, 3))
    leader.groups.put(SubscriptionGroupConfig("just-made"))
    both.run(LOOK_MS)
    assert both.topics.get("just-made") == leader.topics.get("just-made")
    assert "just-made" in both.slave.broker.groups.groups


def test_unchanged_tables_are_not_sent_again(pair: MakePair) -> None:
    both = pair()
    both.is_java = False
    both.name_master()
    both.run(0)
    bodies = both.answered
    assert bodies[0] and bodies[3] and len(bodies) == 4
    for _ in range(9):
        both.run(LOOK_MS)
    assert bodies[4:] == [0] * 18
    both.run(LOOK_MS)
    assert len(bodies) == 28, "the periodic round of all tables"
    bodies.clear()
    both.topics.put(TopicConfig("own"))
    both.run(LOOK_MS)
    assert bodies[0] and bodies[1:] == [0], "the table that no longer equals the master's"
    bodies.clear()
    both.run(LOOK_MS)
    assert bodies == [0, 0]


def test_a_master_that_sends_whole_tables_is_polled_as_often_as_by_java(pair: MakePair) -> None:
    both = pair()
    both.name_master()
    both.run(0)
    for _ in range(9):
        both.run(LOOK_MS)
    assert len(both.requested) == 4
