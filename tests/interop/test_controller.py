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
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings

pytestmark = pytest.mark.interop

WAIT_SECONDS_MAX = 180
GET_SYNC_STATE_DATA = 1006
"""A request to a controller: RequestCode.CONTROLLER_GET_SYNC_STATE_DATA of 5.x."""
LAGGING = "B-lagging-slave-v497"
GROUPS: dict[str, dict[str, dict[str, str]]] = {
    LAGGING: {
        "master": {"brokerRole": "SYNC_MASTER"},
        "slave": {"brokerRole": "SLAVE", "brokerId": "1"},
    },
    **{
        store: {f"n{number}": group_settings(name, (1, 2, 3), number) for number in range(3)}
        for store, name in (("C-upgraded-v497", "golden"), ("D-dledger-v497", "fresh"))
    },
}
"""The members of golden stores, and their settings."""
SENT = 20


@define
class ControllerGroup:
    """A controller, and brokers of 5.3.3 on the stores of a group of 4.9."""

    name: str
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
        command = RemotingCommand(code=GET_SYNC_STATE_DATA, body=json.dumps([self.name]).encode())
        with BlockingConnection(self.addresses) as connection:
            answer = connection.call(command)
        self.seen = f"{answer.code} {answer.remark} {answer.body!r}"
        if answer.code != 0:
            return {}
        table: dict[str, dict[str, Any]] = json.loads(answer.body)["replicasInfoTable"]
        return table.get(self.name, {})

    def master(self) -> str:
        address = self.replicas_info()["masterAddress"]
        return next(name for name, broker in self.brokers.items() if broker.address == address)

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


@pytest.fixture(params=[LAGGING])
def group(
    request: pytest.FixtureRequest,
    servers: InteropServers,
    golden_copy: Callable[[str], Path],
    tmp_path: Path,
) -> Iterator[ControllerGroup]:
    site = JavaSite(tmp_path / "java", JavaHome("5.3.3"))
    port, controller_port = servers.block(1).first, servers.block(1).first
    controller = servers.take(site.controller("controller", port, controller_port))
    controller.ready_timeout_s = WAIT_SECONDS_MAX
    controller.start()
    root = golden_copy(request.param)
    name = "fresh" if request.param.startswith("D") else "golden"
    brokers = {
        member: servers.take(
            site.broker(
                member,
                BrokerSpec(
                    port=servers.block(BROKER_PORT_COUNT).broker_port,
                    namesrv=controller.address,
                    broker_name=name,
                    store=root / member,
                    settings=own,
                ),
            )
        )
        for member, own in GROUPS[request.param].items()
    }
    for broker in brokers.values():
        broker.ready_timeout_s = WAIT_SECONDS_MAX
    addresses = f"127.0.0.1:{controller_port}"
    probe = servers.probe.at(controller.address)
    yield ControllerGroup(name, root, controller, addresses, brokers, probe)
    for server in (*brokers.values(), controller):
        server.kill()


def upgrade(*words: str) -> None:
    assert main(["upgrade", *words]) == 0


def take_over(group: ControllerGroup, leader: str) -> None:
    """Start the brokers, send, lose the leader, send, and let it return."""
    group.start(leader)
    group.await_sync(1)
    others = [member for member in group.brokers if member != leader]
    for count, member in enumerate(others, 2):
        group.start(member)
        group.await_sync(count)
    assert group.send(1000) == SENT
    group.brokers[leader].stop()
    assert group.send(2000) == SENT
    group.start(leader)
    group.await_sync(len(group.brokers))
    master = group.master()
    for member in sorted(group.brokers, key=lambda each: each == master):
        group.brokers[member].stop()  # The master last: nobody is elected meanwhile.


def check_equal(group: ControllerGroup, before: str) -> None:
    """Check that all replicas have the same bytes and epochs, and every message of before."""
    first, *others = group.brokers
    for member in others:
        assert group.logs(member) == group.logs(first)
        assert epochs(group, member) == epochs(group, first)
    assert [each.number for each in epochs(group, first)] == [0, 1, 2]
    upgrade("verify", *(f"{m}={group.store(m)}" for m in group.brokers), "--before", before)


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
    take_over(group, leader)
    check_equal(group, before)


@pytest.mark.parametrize("group", ["C-upgraded-v497", "D-dledger-v497"], indirect=True)
def test_a_dledger_group_leaves_and_a_controller_takes_it_over(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    before = str(group.root / "before.json")
    upgrade("manifest", str(group.store("n0")), "--format", "json")
    Path(before).write_text(capsys.readouterr().out)
    roles = [word for n in (1, 2) for word in ("--role", f"n{n}=SLAVE")]
    upgrade("leave", *group.replicas, "--role", "n0=SYNC_MASTER", *roles, "--apply")
    upgrade("switch", "--to", "controller", "--controllers", group.addresses, *group.replicas)
    take_over(group, "n1")
    check_equal(group, before)


def test_without_epochs_the_first_start_of_a_lagging_slave_loses_messages(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way of the manual of 5.x: nothing says so, and acknowledged messages are gone."""
    before = group.root / "before.json"
    upgrade("manifest", str(group.store("master")), "--format", "json")
    before.write_text(capsys.readouterr().out)
    group.configure_by_hand()
    take_over(group, "slave")
    assert group.logs("master") != group.logs("slave")
    stores = [f"m={group.store('master')}", f"s={group.store('slave')}"]
    assert main(["upgrade", "verify", *stores, "--before", str(before)]) == 2
    assert "DIFFERENT" in capsys.readouterr().out
