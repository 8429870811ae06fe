"""Classic slaves, Java's and rmqpy's, follow a DLedger group of rmqpy under load, through the loss
of its leader; their logs are what ``rmqpy upgrade leave`` writes.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

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
from harness.upgrade import LeaveOptions, plan_leave

from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.blocking_connection import BlockingConnection, read_queue
from rmqpy.testing.java import Event
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings
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
            table: dict[str, str] = json.loads(connection.call(request).body)["table"]
    except NetworkError:
        return {}
    return table


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
    namesrv = servers.namesrv("rmqpy", f"{name}-namesrv")
    probe = servers.probe.at(namesrv.address)
    ports = list(servers.block(len(MEMBERS)))
    members = {}
    for number, member in enumerate(MEMBERS):
        own = {**ELECTION, **group_settings("broker-a", ports, number), "haServeEntries": "true"}
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings=own,
        )
        members[member] = servers.take(servers.site("rmqpy").broker(f"{name}-{member}", spec))
    group = Brokers(servers.rmqpy.root, namesrv, members, "broker-a")
    group.launch(*MEMBERS)
    first = group.leader()
    create_topic_when_ready(probe, "T", members[first])
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        settings={
            "brokerRole": "SLAVE",
            "brokerId": "9",
            "haSendHeartbeatInterval": "1000",
            "slaveReadEnable": "true",
        },
    )
    slave = servers.take(version_of(servers, kind).broker(f"{name}-slave", spec).launch())
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

    load = threading.Thread(target=send)
    load.start()
    time.sleep(2)
    members[first].kill()
    second = group.leader()
    assert second != first
    load.join(250)
    assert not load.is_alive()
    assert {event["index"] for event in sent} == set(range(20 + LOAD))
    end = wait_until_followed(members[second], slave)
    slaves = [value for key, value in status(members[second]).items() if key.startswith("haSlave_")]
    assert len(slaves) == 1, "the slave has found the new leader"

    with BlockingConnection(slave.address) as connection:
        read = [message for queue in range(4) for message in read_queue(connection, "T", queue)]
    with BlockingConnection(members[second].address) as connection:
        expected = [message for queue in range(4) for message in read_queue(connection, "T", queue)]
    assert [(m.queue_id, m.queue_offset, m.body) for m in read] == [
        (m.queue_id, m.queue_offset, m.body) for m in expected
    ]
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
