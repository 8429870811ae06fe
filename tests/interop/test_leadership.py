"""The leader of a DLedger group of Java members hands over to the member that an operator names."""

from __future__ import annotations

import time

import pytest
from harness.interop import InteropServers, start_cluster

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection

pytestmark = pytest.mark.interop

SECONDS_MAX = 120


def master(names: str, group: str) -> str | None:
    with BlockingConnection(names) as connection:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = ClusterInfo.decode(connection.call(request).body).broker_addr_table
    return table[group].broker_addrs.get(MASTER_ID) if group in table else None


@pytest.mark.parametrize("kind", ["java", "rmqpy"])
def test_a_leader_hands_over(
    servers: InteropServers, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    cluster = start_cluster(servers, kind, f"transfer-{kind}", "group", {})
    names, successor = cluster.namesrv.address, cluster.others[0]
    member = successor.name.rpartition("-")[2]
    words = ["-n", names, "-m", cluster.broker_name, "-t", member]
    assert main(["admin", "transfer", *words]) == 0, capsys.readouterr().err
    deadline = time.monotonic() + SECONDS_MAX
    while master(names, cluster.broker_name) != successor.address:
        assert time.monotonic() < deadline, master(names, cluster.broker_name)
        time.sleep(0.2)
    assert main(["admin", "transfer", *words]) == 1
    assert "leads already" in capsys.readouterr().err
    cluster.stop()
