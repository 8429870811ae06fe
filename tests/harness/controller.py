"""A controller of 5.3.3, and brokers on the stores of a group of 4.9."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from attrs import define, field

from harness.interop import InteropServers, events_of
from rmqpy.audit.facts.controller_files import read_controller_facts
from rmqpy.audit.scan.directory import paths_below
from rmqpy.cli import main
from rmqpy.codec.epochs import Epoch
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import JavaHome, JavaSite, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings

WAIT_SECONDS_MAX = 180
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
    specs: dict[str, BrokerSpec]
    probe: Probe
    seen: str = field(default="", init=False)

    @property
    def stores(self) -> list[str]:
        return [f"{member}={self.store(member)}" for member in self.brokers]

    def conf(self, member: str) -> Path:
        return next(Path(w) for w in self.brokers[member].argv if w.endswith("broker.conf"))

    def store(self, member: str) -> Path:
        return self.root / member

    @property
    def replicas(self) -> list[str]:
        words = self.stores
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
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        command = RemotingCommand.request(code, body=json.dumps([self.name]).encode())
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

    def await_level(self) -> None:
        """Wait until all running brokers have the same end of the log."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            ends = {member: self._end(broker) for member, broker in self.brokers.items()}
            if len({*ends.values()}) == 1 and "" not in ends.values():
                return
            assert time.monotonic() < deadline, (ends, self.seen)
            time.sleep(0.5)

    def _end(self, broker: ServerProcess) -> str:
        """Return the end of the log of a broker, or "" if it does not answer yet."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        with BlockingConnection(broker.address) as connection:
            answer = connection.call(request)
        if answer.code != 0:
            self.seen = f"{answer.code} {answer.remark}"
            return ""
        table: dict[str, str] = json.loads(answer.body)["table"]
        return table["commitLogMaxOffset"]

    def offsets(self) -> list[int]:
        """Return the physical offsets of all messages of the topic, as a consumer gets them."""
        events = self.probe.run("dump", topic="Normal", timeout_s=60)
        return sorted(int(event["commitLogOffset"]) for event in events_of(events, "message"))

    def stop_all(self) -> None:
        """Stop all brokers, the master last: nobody is elected meanwhile."""
        master = self.master()
        for member in sorted(self.brokers, key=lambda each: each == master):
            self.brokers[member].stop()

    def logs(self, member: str) -> dict[str, bytes]:
        folder = self.store(member) / "commitlog"
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@contextmanager
def controller_group(
    servers: InteropServers, golden_copy: Callable[[str], Path], store: str, folder: Path
) -> Iterator[ControllerGroup]:
    """Start the controller, and make brokers of 5.3.3 on a golden store; kill all at the end."""
    site = JavaSite(folder / "java", JavaHome("5.3.3"))
    port, controller_port = servers.block(1).first, servers.block(1).first
    controller = servers.take(site.controller("controller", port, controller_port))
    controller.ready_timeout_s = WAIT_SECONDS_MAX
    controller.start()
    root = golden_copy(store)
    name = "fresh" if store.startswith("D") else "golden"
    specs = {
        member: BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=controller.address,
            broker_name=name,
            store=root / member,
            settings=own,
        )
        for member, own in GROUPS[store].items()
    }
    brokers = {member: servers.take(site.broker(member, spec)) for member, spec in specs.items()}
    for broker in brokers.values():
        broker.ready_timeout_s = WAIT_SECONDS_MAX
    addresses = f"127.0.0.1:{controller_port}"
    probe = servers.probe.at(controller.address)
    try:
        yield ControllerGroup(name, root, controller, addresses, brokers, specs, probe)
    finally:
        for server in (*brokers.values(), controller):
            server.kill()


def upgrade(*words: str) -> None:
    assert main(["upgrade", *words]) == 0


def manifest(member: Path, out: Path) -> str:
    """Write the manifest of a stopped replica; return its path."""
    code, printed = printed_by("upgrade", "manifest", str(member), "--format", "json")
    assert code == 0
    out.write_text(printed)
    return str(out)


def hand_over(group: ControllerGroup) -> None:
    """Make the replicas equal, and prepare them for the controller."""
    plan = str(group.root / "plan.json")
    upgrade("plan", *group.replicas, "--out", plan)
    for member in group.brokers:
        upgrade("apply", "--plan", plan, "--node", member, *group.replicas)
    words = "--to", "controller", "--controllers", group.addresses
    upgrade("switch", *words, *group.replicas, "--full")


def take_over(group: ControllerGroup, leader: str, *, kill: bool = False) -> None:
    """Start the brokers, send, lose the leader, send, let it return, and stop all."""
    group.start(leader)
    group.await_sync(1)
    others = [member for member in group.brokers if member != leader]
    for count, member in enumerate(others, 2):
        group.start(member)
        group.await_sync(count)
    assert group.send(1000) == SENT
    if kill:
        group.brokers[leader].kill()
    else:
        group.brokers[leader].stop()
    assert group.send(2000) == SENT
    group.start(leader)
    group.await_sync(len(group.brokers))
    group.stop_all()


def check_equal(group: ControllerGroup, before: str) -> None:
    """Check that all replicas have the same bytes and epochs, and every message of before."""
    first, *others = group.brokers
    for member in others:
        assert group.logs(member) == group.logs(first)
        assert epochs(group, member) == epochs(group, first)
    assert [each.number for each in epochs(group, first)] == [0, 1, 2]
    code, printed = verified(group, before)
    assert code == 0, printed


def verified(group: ControllerGroup, before: str) -> tuple[int, str]:
    """Return the exit code of ``verify`` and what it printed.

    After a kill, Java deletes its newest index file and indexes only what it dispatches again: the
    advice of ``verify`` is followed, which makes the keys equal.
    """
    words = "upgrade", "verify", *group.stores, "--before", before
    code, printed = printed_by(*words)
    if "rmqpy pipeline rebuild builds the index" in printed:
        assert code == 2
        for member in group.brokers:
            rebuilt, _ = printed_by("pipeline", "rebuild", str(group.store(member)), "--apply")
            assert rebuilt == 0
        code, printed = printed_by(*words)
    return code, printed


def printed_by(*words: str) -> tuple[int, str]:
    """Run a command of rmqpy; return its exit code and what it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        return main([*words]), printed.getvalue()


def epochs(group: ControllerGroup, member: str) -> tuple[Epoch, ...]:
    paths = paths_below(str(group.store(member)), None)
    facts = read_controller_facts(OsFileSystem(), paths)
    assert facts is not None and not facts.problems
    return facts.epochs
