"""How far a DLedger group of rmqpy gets that feeds a controller group of 5.3.3 without a stop.

The whole way works when nothing fails meanwhile, with a stand-in for what no broker of rmqpy does
(harness.autoswitch). docs/explanation/from-4.9-to-5.x.md names what it lacks to be safe; the tests
show each of it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.autoswitch import BEAT_SECONDS, Controller, StandIn
from harness.interop import (
    ELECTION,
    MEMBERS,
    PATIENCE_SECONDS,
    Brokers,
    InteropServers,
    create_topic_when_ready,
    events_of,
)
from harness.power_cut import PowerCut
from harness.preload import SHADOW, build_preloaded

from rmqpy.cli import main
from rmqpy.codec.epochs import Epoch, decode_epochs
from rmqpy.model.codes import ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.java import JavaHome, JavaSite, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import LOOPBACK, BrokerSpec, ServerProcess, group_settings
from rmqpy.testing.store_reader import FoundMessage

pytestmark = pytest.mark.interop

GROUP = "broker-a"
COUNT = 100
GROUP_ID = 1
"""The one replica that the controller knows for all members of the DLedger group."""
SYNC_STATE_DATA = 1006
SYNCED_LATER = {"flushCommitLogTimed": "false", "flushIntervalCommitLog": "600000"}
"""Settings of a broker of 5.3.3 that keep the moment before its next sync for as long as the test
needs it; it is half a second with the default settings.
"""


@define
class Feeding:
    """A DLedger group, a controller of 5.3.3, and between them the stand-in."""

    group: Brokers
    ha_ports: dict[str, int]
    controller: Controller
    feed: StandIn
    java: ServerProcess
    disk: PowerCut
    probe: Probe
    leader: str = ""
    java_id: int = 0
    sent: int = 0
    alive: threading.Event = field(factory=threading.Event, init=False)
    over: threading.Event = field(factory=threading.Event, init=False)
    seen: dict[str, Any] = field(factory=dict, init=False)

    def begin(self) -> int:
        """Start everything, and have the group's replica elected; return the epoch."""
        self.group.launch(*MEMBERS)
        first = self.group.leader()
        create_topic_when_ready(self.probe, "T", self.group.servers[first])
        # Members register with the name server as 0, 1, and 2: their ids must not be given again.
        ids = [self.controller.apply(self.group.servers[member].address) for member in MEMBERS]
        assert ids[0] == GROUP_ID
        self.controller.broker_id, self.java_id = GROUP_ID, ids[-1] + 1
        self.leader = first
        threading.Thread(target=self.beat, daemon=True).start()
        # While the log has one file: an empty slave is served from the last one.
        epoch = self.lead(first)
        self.send()
        self.java.start()
        self.send()
        self.wait_until_fed()
        return epoch

    def lead(self, member: str) -> int:
        """Follow a member that was elected leader; return the epoch of the controller's election
        of the group."""
        self.leader = member
        self.feed.follow(self.ha_ports[member])
        self.controller.register(self._address)
        self.alive.set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := self.controller.elect(GROUP_ID)).code != 0:
            assert time.monotonic() < deadline, answer.remark
            time.sleep(BEAT_SECONDS)  # The first heartbeat has not arrived.
        epoch = int(answer.ext_fields["masterEpoch"])
        self.feed.begin_epoch(epoch)
        return epoch

    def beat(self) -> None:
        """Send heartbeats while the group is alive, until it is over. Each life has a connection
        of its own: the controller closes that of a replica that is silent.
        """
        while not self.over.is_set():
            if not self.alive.wait(BEAT_SECONDS):
                continue
            with BlockingConnection(self.controller.address) as connection:
                while self.alive.is_set() and not self.over.wait(BEAT_SECONDS):
                    epoch = self.feed.epochs[-1].number if self.feed.epochs else 0
                    self.controller.beat(connection, self._address, epoch, len(self.feed.log))

    @property
    def _address(self) -> str:
        return self.group.servers[self.leader].address

    def state(self) -> dict[str, Any]:
        answer = self.controller.call(SYNC_STATE_DATA, json.dumps([GROUP]).encode())
        table: dict[str, dict[str, Any]] = json.loads(answer.body)["replicasInfoTable"]
        self.seen = table.get(GROUP, {})
        return self.seen

    def wait_for(self, is_true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_true():
            about = self.feed.reports, len(self.feed.log), self.feed.faults, self.seen
            assert time.monotonic() < deadline, about
            time.sleep(0.1)

    def send(self) -> None:
        events = events_of(
            self.probe.run(
                "send", timeout_s=150, topic="T", count=COUNT, first=self.sent, retryMs=90_000
            ),
            "sent",
        )
        assert len({event["index"] for event in events}) == COUNT
        self.sent += COUNT

    def wait_until_fed(self) -> None:
        """Wait until the replica of 5.3.3 has everything that the group serves."""
        time.sleep(1)  # A marker may follow, and make the last message visible.
        ends = self.feed.reports
        self.wait_for(lambda: ends.get(self.java_id, 0) == len(self.feed.log) > 0)

    def put(self, server: ServerProcess) -> int:
        """Send one message to queue 0 of a broker as soon as it accepts one; return its offset."""
        answers: list[RemotingCommand] = []

        def is_stored() -> bool:
            with BlockingConnection(server.address) as connection:
                answers.append(connection.call(send_request("T", 0, [b"put"])))
            return answers[-1].code == ResponseCode.SUCCESS

        self.wait_for(is_stored)
        return int(answers[-1].ext_fields["queueOffset"])

    def durable(self) -> list[FoundMessage]:
        """Return the messages that a power loss now could not take from the replica of 5.3.3."""
        return [each for each in self.disk.durable_messages() if each.topic == "T"]

    def java_log(self) -> bytes:
        assert self.java.store is not None
        folder = self.java.store / "commitlog"
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.fixture
def feeding(
    request: pytest.FixtureRequest, servers: InteropServers, tmp_path: Path
) -> Iterator[Feeding]:
    """The parameter "unclean" lets the controller elect replicas outside of the SyncStateSet."""
    site = JavaSite(tmp_path / "java", JavaHome("5.3.3"))
    port, controller_port = servers.block(1).first, servers.block(1).first
    names = servers.take(site.controller("controller", port, controller_port))
    if getattr(request, "param", "") == "unclean":
        replace_lines(names.argv[-1], enableElectUncleanMaster="true")
    names.ready_timeout_s = 180
    names.start()
    ports = list(servers.block(len(MEMBERS)))
    members, ha_ports = {}, {}
    for number, member in enumerate(MEMBERS):
        own = {**ELECTION, **group_settings(GROUP, ports, number), "haServeEntries": "true"}
        broker_port = servers.block(BROKER_PORT_COUNT).broker_port
        ha_ports[member] = broker_port + 1
        spec = BrokerSpec(port=broker_port, namesrv=names.address, settings=own)
        members[member] = servers.take(servers.rmqpy.broker(f"feed-{member}", spec))
    group = Brokers(servers.rmqpy.root, names, members, GROUP)
    feed = StandIn()
    served, seen_names = servers.block(1).first, servers.block(1).first
    feed.listen(served)
    # A replica of 5.x learns the address of its master's log from the name server.
    words = {
        f"{LOOPBACK}:{each}".encode(): f"{LOOPBACK}:{served}".encode() for each in ha_ports.values()
    }
    feed.replace_in_answers(seen_names, (LOOPBACK, port), words)
    address = f"{LOOPBACK}:{controller_port}"
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=f"{LOOPBACK}:{seen_names}",
        broker_name=GROUP,
        settings={
            "enableControllerMode": "true",
            "controllerAddr": address,
            "haSendHeartbeatInterval": "1000",
            **SYNCED_LATER,
        },
    )
    java = servers.take(site.broker("replica", spec))
    java.ready_timeout_s = 180
    replace_lines(java.argv[-1], brokerId=None)
    assert java.store is not None
    library = build_preloaded(SHADOW, tmp_path)
    disk = PowerCut(library, java.store, tmp_path / "shadow", syncs_names_and_tables=False)
    java.environment = {**java.environment, **disk.environment()}
    controller = Controller(address, GROUP)
    made = Feeding(group, ha_ports, controller, feed, java, disk, servers.probe.at(names.address))
    yield made
    made.over.set()
    feed.close()
    for server in (*members.values(), java, names):
        server.kill()


def replace_lines(conf: str, **values: str | None) -> None:
    """Set keys in a configuration file; None removes one."""
    lines = Path(conf).read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in values]
    kept += [f"{key}={value}" for key, value in values.items() if value is not None]
    Path(conf).write_text("\n".join(kept) + "\n")


def test_a_controller_group_takes_over_a_group_that_feeds_it(feeding: Feeding) -> None:
    """One leader is lost on the way, and the controller elects nobody else until it may."""
    group, feed, controller = feeding.group, feeding.feed, feeding.controller
    epochs = [feeding.begin()]
    first = feeding.leader

    # The leader is lost. The controller elects no replica that the group has not let in.
    group.servers[first].kill()
    second = group.leader()
    feeding.alive.clear()
    feeding.wait_for(lambda: feeding.state().get("masterBrokerId") is None)
    alive = {each["brokerId"]: each["alive"] for each in feeding.state()["notInSyncReplicas"]}
    assert alive[feeding.java_id], "the replica of 5.3.3 could have been elected"
    epochs.append(feeding.lead(second))
    feeding.send()

    # The group accepts nothing more, the replica has everything, and is let in and elected.
    rest = [each.address for member, each in group.servers.items() if member != first]
    words = ["-n", group.namesrv.address, "-b", ";".join(rest), "--seconds", "600"]
    assert main(["admin", "fence", *words]) == 0
    feeding.wait_until_fed()
    end = len(feed.log)
    # It has reported all of that, and a power loss now would take every message from it.
    assert not feeding.durable()
    known = feeding.state()
    in_sync = [GROUP_ID, feeding.java_id]
    answer = controller.alter(known["masterEpoch"], in_sync, known["syncStateSetEpoch"])
    assert answer.code == 0, answer.remark
    answer = controller.elect(feeding.java_id, designate=True)
    assert answer.code == 0, answer.remark
    epochs.append(int(answer.ext_fields["masterEpoch"]))
    assert not feeding.durable()
    answer = controller.alter(known["masterEpoch"], in_sync, known["syncStateSetEpoch"])
    assert answer.code != 0, "the members could learn from the controller that they no longer lead"
    feeding.over.set()
    for member in MEMBERS:
        group.servers[member].kill()
    feeding.send()
    assert feeding.state()["masterBrokerId"] == feeding.java_id

    found = events_of(feeding.probe.run("dump", topic="T", timeout_s=60), "message")
    assert len({event["msgId"] for event in found}) == feeding.sent
    assert feeding.java.stop() in (0, 143)
    assert len(feeding.durable()) == feeding.sent, "a clean stop syncs, and the copies show it"
    assert feeding.java_log()[:end] == bytes(feed.log)
    assert feeding.java.store is not None
    kept = decode_epochs((feeding.java.store / "epochFileCheckpoint").read_bytes())
    starts = [each.start_offset for each in feed.epochs]
    assert kept == tuple(map(Epoch, epochs, [*starts, end]))
    assert main(["store", "fsck", str(feeding.java.store)]) == 0

    # What makes it unsafe: the fence was in memory, so members that are started again elect a
    # leader, and it accepts messages that the new master has not.
    for member in MEMBERS:
        if member != first:
            group.servers[member].start()
    feeding.send()
    assert group.leader() != first
    found = events_of(feeding.probe.run("dump", topic="T", timeout_s=60), "message")
    assert len({event["msgId"] for event in found}) == feeding.sent - COUNT, "without 5.3.3's own"


@pytest.mark.parametrize("feeding", ["unclean"], indirect=True)
def test_missed_heartbeats_make_two_masters_if_unclean_elections_are_allowed(
    feeding: Feeding,
) -> None:
    """The group works, and nobody has let the replica of 5.3.3 in: both accept messages."""
    feeding.begin()
    in_sync = [each["brokerId"] for each in feeding.state()["inSyncReplicas"]]
    assert in_sync == [GROUP_ID]
    feeding.alive.clear()
    feeding.wait_for(lambda: feeding.state().get("masterBrokerId") == feeding.java_id)
    masters = feeding.java, feeding.group.servers[feeding.leader]
    first, second = map(feeding.put, masters)
    assert first == second > 0, "one queue offset, two messages"
