"""What a DLedger group with a Java member cannot do while it runs is refused; the group goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from harness.interop import (
    ELECTION,
    MEMBERS,
    PATIENCE_SECONDS,
    Brokers,
    InteropServers,
    create_topic_when_ready,
    events_of,
    version_of,
)

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings

pytestmark = pytest.mark.interop


def start_group(servers: InteropServers, name: str, kinds: Sequence[str]) -> Brokers:
    """Launch a DLedger group whose members are of these kinds, and serve slaves if they can."""
    namesrv = servers.namesrv("rmqpy", f"{name}-namesrv")
    ports = list(servers.block(len(MEMBERS)))
    members = {}
    for number, (member, kind) in enumerate(zip(MEMBERS, kinds, strict=True)):
        own = {**ELECTION, **group_settings("broker-a", ports, number), "haServeEntries": "true"}
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings={**own, "preferredLeaderId": "n0"} if len(set(kinds)) > 1 else own,
        )
        members[member] = servers.take(version_of(servers, kind).broker(f"{name}-{member}", spec))
    group = Brokers(servers.rmqpy.root, namesrv, members, "broker-a")
    group.launch(*MEMBERS)
    return group


def follower(
    servers: InteropServers, group: Brokers, kind: str, name: str, broker_id: int = 9
) -> ServerProcess:
    """Return a classic slave of a group, which is not started."""
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=group.namesrv.address,
        settings={
            **ELECTION,
            "brokerRole": "SLAVE",
            "brokerId": str(broker_id),
            "haSendHeartbeatInterval": "1000",
            "haFetchFromBeginning": "true",
            "slaveReadEnable": "true",
        },
    )
    return servers.take(version_of(servers, kind).broker(name, spec))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def registered(namesrv: ServerProcess) -> set[str]:
    """Return the addresses that the name server knows."""
    with BlockingConnection(namesrv.address) as connection:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = ClusterInfo.decode(connection.call(request).body).broker_addr_table
    return {each for data in table.values() for each in data.broker_addrs.values()}


@pytest.mark.parametrize("kind", ["java", "java-5.3.3"])
def test_a_group_with_a_java_member_does_not_leave_while_it_runs(
    servers: InteropServers, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"member-{kind}"
    group = start_group(servers, name, ["rmqpy", "rmqpy", kind])
    probe = servers.probe.at(group.namesrv.address)
    until(lambda: group.leader() == "n0")
    create_topic_when_ready(probe, "T", group.servers["n0"])
    slave = follower(servers, group, "rmqpy", f"{name}-slave").start()
    addresses = {each.address for each in (*group.servers.values(), slave)}
    until(lambda: registered(group.namesrv) == addresses)
    words = ["admin", "leave", "-n", group.namesrv.address, "-m", "broker-a", "-t", slave.address]
    for more in ([], ["--apply"]):
        assert main([*words, *more]) == 2
        expected = f"{group.servers['n2'].address} is a Java broker, expected rmqpy; fence"
        assert expected in capsys.readouterr().out
    events = probe.run("send", topic="T", count=20, retryMs=60_000)
    assert len(events_of(events, "sent")) == 20
