"""What a group with a Java member or slave cannot do while it runs is refused, and it goes on."""

from __future__ import annotations

import pytest
from harness.interop import InteropServers, create_topic_when_ready, events_of
from harness.mixed_group import classic, follower, registered, start_group, until

from rmqpy.cli import main

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", ["java", "java-5.3.3"])
def test_a_group_with_a_java_member_does_not_leave_while_it_runs(
    servers: InteropServers, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"member-{kind}"
    group = start_group(servers, name, ["rmqpy", "rmqpy", kind])
    probe = servers.probe.at(group.namesrv.address)
    until(lambda: group.leader() == "n0")
    create_topic_when_ready(probe, "T", group.servers["n0"])
    slave = follower(servers, group.namesrv, "rmqpy", f"{name}-slave").start()
    addresses = {each.address for each in (*group.servers.values(), slave)}
    until(lambda: registered(group.namesrv) == addresses)
    words = ["admin", "leave", "-n", group.namesrv.address, "-m", "broker-a", "-t", slave.address]
    for more in ([], ["--apply"]):
        assert main([*words, *more]) == 2
        expected = f"{group.servers['n2'].address} is a Java broker, expected rmqpy; fence"
        assert expected in capsys.readouterr().out
    events = probe.run("send", topic="T", count=20, retryMs=60_000)
    assert len(events_of(events, "sent")) == 20
    for each in (slave, *group.servers.values(), group.namesrv):
        each.stop()


@pytest.mark.parametrize("kind", ["java", "java-5.3.3"])
def test_a_group_with_a_java_slave_does_not_switch_while_it_runs(
    servers: InteropServers, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It switches without it: docs/how-to/switch-a-running-group.md."""
    name = f"slave-{kind}"
    namesrv = servers.namesrv("rmqpy", f"{name}-namesrv")
    probe = servers.probe.at(namesrv.address)
    master = classic(servers, namesrv, "rmqpy", f"{name}-master", "ASYNC_MASTER", 0).start()
    slave = follower(servers, namesrv, kind, f"{name}-slave", 1).start()
    create_topic_when_ready(probe, "T", master)
    until(lambda: registered(namesrv) == {master.address, slave.address})
    ports = servers.block(2)
    peers = [f"n{number}-127.0.0.1:{ports[number]}" for number in range(2)]
    words = ["admin", "switch", "-n", namesrv.address, "-m", "broker-a", "--peers"]
    for more in ([], ["--apply"]):
        assert main([*words, ";".join(peers), *more]) == 1
        expected = f"{slave.address}: found a Java broker or an older rmqpy, expected rmqpy"
        assert expected in capsys.readouterr().err
    assert len(events_of(probe.run("send", topic="T", count=20, retryMs=60_000), "sent")) == 20
    slave.stop()
    until(lambda: registered(namesrv) == {master.address})
    until(lambda: main([*words, peers[0], "--apply"]) == 0)
    assert len(events_of(probe.run("send", topic="T", count=20, retryMs=60_000), "sent")) == 20
    master.stop()
    namesrv.stop()
