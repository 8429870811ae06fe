"""Groups whose members or slaves are brokers of rmqpy and of several versions of Java."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.interop import (
    ELECTION,
    MEMBERS,
    PATIENCE_SECONDS,
    Brokers,
    InteropServers,
    version_of,
)
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings


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
    servers: InteropServers, namesrv: ServerProcess, kind: str, name: str, broker_id: int = 9
) -> ServerProcess:
    """Return a classic slave of the group broker-a, which is not started."""
    return classic(servers, namesrv, kind, name, "SLAVE", broker_id)


def classic(
    servers: InteropServers,
    namesrv: ServerProcess,
    kind: str,
    name: str,
    role: str,
    broker_id: int,
) -> ServerProcess:
    """Return a classic member of the group broker-a, which is not started."""
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        settings={
            **ELECTION,
            "brokerRole": role,
            "brokerId": str(broker_id),
            "haSendHeartbeatInterval": "1000",
            "haFetchFromBeginning": "true",
            "slaveReadEnable": "true",
        },
    )
    return servers.take(version_of(servers, kind).broker(name, spec))


def configure(broker: ServerProcess, **settings: str) -> None:
    """Change lines of the broker.conf of a stopped broker."""
    conf = next(Path(word) for word in broker.argv if word.endswith("broker.conf"))
    lines = [line.split("=", 1) for line in conf.read_text().splitlines() if "=" in line]
    kept = {key: value for key, value in lines} | settings
    conf.write_text("".join(f"{key}={value}\n" for key, value in kept.items()))


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
