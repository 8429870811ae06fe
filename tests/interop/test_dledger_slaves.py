"""Classic slaves, Java's and rmqpy's, follow a DLedger group of rmqpy under load, through the loss
of its leader; their logs are what ``rmqpy upgrade leave`` writes. A Java slave becomes the master
by hand, and the group switches again.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from harness.interop import (
    PATIENCE_SECONDS,
    InteropServers,
    create_topic_when_ready,
    events_of,
)
from harness.java_load import JavaLoad
from harness.mixed_group import configure, follower, registered, start_group, until
from harness.takeover import WAIT_S, take_over_from_java
from harness.upgrade import LeaveOptions, plan_leave

from rmqpy.cli import main
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.blocking_connection import BlockingConnection, read_queue
from rmqpy.testing.java import Event, Probe
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.ledger import read_ledger
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan

pytestmark = pytest.mark.interop

LOAD = 1500
SLAVES = ["java", "java-5.3.3", "rmqpy"]
MARKER_BYTES_MAX = 400
"""A marker, which is the last record of an idle group and not in the view, and its header."""


def status(broker: ServerProcess) -> dict[str, str]:
    """Return the runtime information; an empty one if the broker does not answer."""
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        with BlockingConnection(broker.address) as connection:
            answer = connection.call(request)
    except NetworkError:
        return {}
    if answer.code:  # It is starting.
        return {}
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def messages_of(broker: ServerProcess) -> list[tuple[int, int, bytes]]:
    """Return what readers of topic T get from a broker, which may be a slave."""
    with BlockingConnection(broker.address) as connection:
        read = [message for queue in range(4) for message in read_queue(connection, "T", queue)]
    return [(each.queue_id, each.queue_offset, each.body) for each in read]


def wait_until_followed(leader: ServerProcess, slave: ServerProcess) -> int:
    """Wait until the slave runs and has all messages, and return the end of its log."""
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while True:
        ends = [int(status(broker).get("commitLogMaxOffset", -1)) for broker in (slave, leader)]
        if 0 <= ends[1] - ends[0] <= MARKER_BYTES_MAX and ends[0] > 0:
            time.sleep(1)  # A marker may follow, and make the last message visible.
            if int(status(leader)["commitLogMaxOffset"]) == ends[1]:
                return int(status(slave)["commitLogMaxOffset"])
        assert time.monotonic() < deadline, (ends, status(leader))
        time.sleep(0.2)


def leave(broker: ServerProcess) -> bytes:
    """Turn the store of a stopped member into a classic one, and return its log."""
    conf = next(Path(word) for word in broker.argv if word.endswith("broker.conf"))
    settings = load_broker_configuration(str(conf)).configuration.store
    store = Path(settings.store_path_root_dir)
    work = NodeContext(OsFileSystem(), upgrade_work(str(store)), settings, now_ms=lambda: 0)
    options = LeaveOptions(replica="n0", cut_index=read_ledger(work.files, settings).end_index)
    plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(work, options),))
    apply_plan(work, plan, "n0")
    return log_of(store)


def log_of(store: Path) -> bytes:
    files = sorted((store / "commitlog").iterdir())
    assert int(files[0].name) == 0, "the slave has the log from its begin"
    return b"".join(file.read_bytes() for file in files)


@pytest.mark.parametrize("kind", SLAVES)
def test_a_slave_follows_a_group_through_the_loss_of_its_leader(
    servers: InteropServers, kind: str
) -> None:
    name = f"follow-{kind}"
    group = start_group(servers, name, ["rmqpy"] * 3)
    probe, members = servers.probe.at(group.namesrv.address), group.servers
    first = group.leader()
    create_topic_when_ready(probe, "T", members[first])
    slave = follower(servers, group.namesrv, kind, f"{name}-slave").launch()
    sent: list[Event] = []
    # A slave with an empty store starts with the last file.
    events = probe.run("send", topic="T", count=20, keys="k-", retryMs=60_000)
    sent += events_of(events, "sent")
    wait_until_followed(members[first], slave)

    def send() -> None:
        events = probe.run(
            "send",
            timeout_s=240,
            topic="T",
            count=LOAD,
            first=20,
            sizes="40,900,5000,3",
            retryMs=90_000,
        )
        sent.extend(events_of(events, "sent"))

    grown = int(status(members[first])["commitLogMaxOffset"]) + LOAD * 1000 // 10
    load = threading.Thread(target=send)
    load.start()
    until(lambda: int(status(members[first])["commitLogMaxOffset"]) > grown)
    members[first].kill()
    second = group.leader()
    assert second != first
    load.join(250)
    assert not load.is_alive()
    assert {event["index"] for event in sent} == set(range(20 + LOAD))
    until(lambda: sum(key.startswith("haSlave_") for key in status(members[second])) == 1)
    end = wait_until_followed(members[second], slave)

    # A Java slave asks for new topics every ten seconds.
    expected = messages_of(members[second])
    until(lambda: messages_of(slave) == expected)
    acknowledged = {event["index"] for event in sent}
    assert len(expected) >= len(acknowledged)
    assert slave.stop() in (0, 143)
    members[second].stop()
    assert slave.store is not None
    reading = read_store(slave.store)
    assert reading.problems == []
    assert {message.topic for message in reading.messages} >= {"T", LEADER_MARKER_TOPIC}
    followed = log_of(slave.store)[:end]
    written = leave(members[second])
    assert written[: len(followed)] == followed
    last = written[len(followed) :]
    assert LEADER_MARKER_TOPIC.encode() in last and len(last.rstrip(b"\0")) <= MARKER_BYTES_MAX
    for each in (*members.values(), group.namesrv):
        each.stop()


@pytest.mark.parametrize("kind", ["java", "java-5.3.3"])
def test_a_java_slave_becomes_the_master_and_the_group_switches_again(
    servers: InteropServers, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DLedger of rmqpy, then a Java master, then a rmqpy master, then DLedger, under one load."""
    name = f"again-{kind}"
    group = start_group(servers, name, ["rmqpy"] * 3)
    probe, members = servers.probe.at(group.namesrv.address), group.servers
    leader = members[group.leader()]
    create_topic_when_ready(probe, "T", leader)
    java = follower(servers, group.namesrv, kind, f"{name}-slave").launch()
    probe.run("send", topic="T", count=20, retryMs=60_000)
    wait_until_followed(leader, java)

    def admin(verb: str, *words: str) -> int:
        own = ["-n", group.namesrv.address, "-m", "broker-a"]
        return main(["admin", verb, *own, *words])

    with JavaLoad(probe, "T", tmp_path / "over") as load:
        load.wait_for_more()
        # The Java slave cannot take over while the group runs; by hand it can.
        all_of_them = {each.address for each in (*members.values(), java)}
        until(lambda: registered(group.namesrv) == all_of_them)
        assert admin("leave", "-t", java.address) == 2, capsys.readouterr()
        assert "is a Java broker, expected rmqpy; fence the members" in capsys.readouterr().out
        until(lambda: admin("fence", "--seconds", "600") == 0)
        assert java.stop() in (0, 143)
        for each in members.values():
            assert each.stop() == 0
        capsys.readouterr()
        stores = [f"{each}={members[each].store}" for each in members]
        code = main(["upgrade", "verify", f"java={java.store}", *stores])
        verdict = capsys.readouterr().out
        assert code == 0 and verdict.endswith("EQUAL\n"), verdict
        configure(java, brokerRole="ASYNC_MASTER", brokerId="0")
        java.start()
        load.wait_for_more()

        # Slaves of rmqpy copy its log, and one of them takes over.
        slaves = [
            follower(servers, group.namesrv, "rmqpy", f"{name}-{each}", each).start()
            for each in (1, 2)
        ]
        until(lambda: registered(group.namesrv) >= {each.address for each in slaves})
        words = ["--quiet", "5", "--seconds", str(WAIT_S)]
        take_over_from_java(group.namesrv.address, java, slaves[0], *words)
        load.wait_for_more()
        until(lambda: registered(group.namesrv) == {each.address for each in slaves})
        ports = servers.block(2)
        peers = f"n0-127.0.0.1:{ports[0]};n1-127.0.0.1:{ports[1]}"
        until(lambda: admin("switch", "--peers", peers, "--apply") == 0)
        load.wait_for_more()
        sent = load.stop()
    check_acknowledged(probe, sent)
    until(lambda: admin("fence", "--seconds", "600") == 0)
    for slave in slaves:
        assert slave.stop() == 0
        assert slave.store is not None
        assert read_store(slave.store).problems == []
    stores = [f"n{number}={slave.store}" for number, slave in enumerate(slaves)]
    assert main(["upgrade", "verify", *stores]) == 0, capsys.readouterr()
    group.namesrv.stop()


def check_acknowledged(probe: Probe, sent: list[Event]) -> None:
    """Assert that each message is where its acknowledgement says."""
    found = {
        (event["queueId"], event["queueOffset"]): (event["msgId"], event["crc"])
        for event in probe.run("dump", topic="T", timeout_s=200)
        if event["event"] == "message"
    }
    for event in sent:
        assert found[event["queueId"], event["queueOffset"]] == (event["msgId"], event["crc"])
    print(f"{len(sent)} messages acknowledged, {len(found)} stored")
