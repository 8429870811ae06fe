"""Groups of 4.9 that a controller of 5.3.3 takes over: with the epochs, and without them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.interop import InteropServers, events_of

from rmqpy.audit.facts.controller_files import read_controller_facts
from rmqpy.cli import main
from rmqpy.codec.epochs import Epoch
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import JavaHome, JavaSite, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess

pytestmark = pytest.mark.interop

WAIT_SECONDS_MAX = 180
GROUP = "golden"
GET_SYNC_STATE_DATA = 1006
"""A request to a controller: RequestCode.CONTROLLER_GET_SYNC_STATE_DATA of 5.x."""
ROLES = {
    "master": {"brokerRole": "SYNC_MASTER"},
    "slave": {"brokerRole": "SLAVE", "brokerId": "1"},
}
SENT = 20


@define
class ControllerGroup:
    """A controller, and brokers of 5.3.3 on the stores of a group of 4.9."""

    root: Path
    controller: ServerProcess
    addresses: str
    brokers: dict[str, ServerProcess]
    probe: Probe
    seen: str = field(default="", init=False)

    def conf(self, member: str) -> Path:
        return next(Path(w) for w in self.brokers[member].argv if w.endswith("broker.conf"))

    def store(self, member: str) -> Path:
        return self.root / member

    @property
    def replicas(self) -> list[str]:
        words = [f"{member}={self.store(member)}" for member in self.brokers]
        for member in self.brokers:
            words += ["-c", f"{member}={self.conf(member)}"]
        return words

    def configure_by_hand(self) -> None:
        """Write what the manual of 5.x says, and no epochs."""
        for member in self.brokers:
            kept = [
                line
                for line in self.conf(member).read_text().splitlines()
                if line.partition("=")[0] not in ("brokerId", "brokerRole")
            ]
            kept += ["enableControllerMode=true", f"controllerAddr={self.addresses}"]
            self.conf(member).write_text("\n".join(kept) + "\n")

    def start(self, member: str) -> None:
        self.brokers[member].start()

    def replicas_info(self) -> dict[str, Any]:
        """Return what the controller knows of the group; empty before a broker has registered."""
        command = RemotingCommand(code=GET_SYNC_STATE_DATA, body=json.dumps([GROUP]).encode())
        with BlockingConnection(self.addresses) as connection:
            answer = connection.call(command)
        self.seen = f"{answer.code} {answer.remark} {answer.body!r}"
        if answer.code != 0:
            return {}
        table: dict[str, dict[str, Any]] = json.loads(answer.body)["replicasInfoTable"]
        return table.get(GROUP, {})

    def await_sync(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(self.replicas_info().get("inSyncReplicas", ())) != count:
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.5)

    def send(self, first: int) -> int:
        """Send messages; return how many were acknowledged."""
        events = self.probe.run(
            "send", topic="Normal", count=SENT, first=first, retryMs=60_000, timeout_s=120
        )
        return len(events_of(events, "sent"))

    def logs(self, member: str) -> dict[str, bytes]:
        folder = self.store(member) / "commitlog"
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    site = JavaSite(tmp_path / "java", JavaHome("5.3.3"))
    port, controller_port = servers.block(1).first, servers.block(1).first
    controller = servers.take(site.controller("controller", port, controller_port))
    controller.ready_timeout_s = WAIT_SECONDS_MAX
    controller.start()
    root = golden_copy("B-lagging-slave-v497")
    brokers = {
        member: servers.take(
            site.broker(
                member,
                BrokerSpec(
                    port=servers.block(BROKER_PORT_COUNT).broker_port,
                    namesrv=controller.address,
                    broker_name=GROUP,
                    store=root / member,
                    settings=own,
                ),
            )
        )
        for member, own in ROLES.items()
    }
    for broker in brokers.values():
        broker.ready_timeout_s = WAIT_SECONDS_MAX
    addresses = f"127.0.0.1:{controller_port}"
    probe = servers.probe.at(controller.address)
    yield ControllerGroup(root, controller, addresses, brokers, probe)
    for server in (*brokers.values(), controller):
        server.kill()


def upgrade(*words: str) -> None:
    assert main(["upgrade", *words]) == 0


def take_over(group: ControllerGroup, leader: str, other: str) -> None:
    """Start the brokers, send, lose the leader, send, and let it return."""
    group.start(leader)
    group.await_sync(1)
    group.start(other)
    group.await_sync(2)
    assert group.send(1000) == SENT
    group.brokers[leader].stop()
    assert group.send(2000) == SENT
    group.start(leader)
    group.await_sync(2)
    for member in (leader, other):  # The master last: nobody is elected meanwhile.
        group.brokers[member].stop()


def epochs(group: ControllerGroup, member: str) -> tuple[Epoch, ...]:
    facts = read_controller_facts(OsFileSystem(), str(group.store(member)))
    assert facts is not None and not facts.problems
    return facts.epochs


@pytest.mark.parametrize("leader", ["master", "slave"])
def test_a_controller_takes_over_a_group_whose_slave_lagged(
    group: ControllerGroup, leader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, before = str(group.root / "plan.json"), str(group.root / "before.json")
    upgrade("manifest", str(group.store("master")), "--format", "json")
    Path(before).write_text(capsys.readouterr().out)
    upgrade("plan", *group.replicas, "--out", plan)
    for member in group.brokers:
        upgrade("apply", "--plan", plan, "--node", member, *group.replicas)
    upgrade(
        "switch", "--to", "controller", "--controllers", group.addresses, *group.replicas, "--full"
    )
    (other,) = {*group.brokers} - {leader}
    take_over(group, leader, other)
    assert group.logs("master") == group.logs("slave")
    assert epochs(group, "master") == epochs(group, "slave")
    assert [each.number for each in epochs(group, "master")] == [0, 1, 2]
    upgrade("verify", f"m={group.store('master')}", f"s={group.store('slave')}", "--before", before)


def test_without_epochs_the_first_start_of_a_lagging_slave_loses_messages(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way of the manual of 5.x: nothing says so, and acknowledged messages are gone."""
    before = group.root / "before.json"
    upgrade("manifest", str(group.store("master")), "--format", "json")
    before.write_text(capsys.readouterr().out)
    group.configure_by_hand()
    take_over(group, "slave", "master")
    assert group.logs("master") != group.logs("slave")
    stores = [f"m={group.store('master')}", f"s={group.store('slave')}"]
    assert main(["upgrade", "verify", *stores, "--before", str(before)]) == 2
    assert "DIFFERENT" in capsys.readouterr().out
