"""DLedger groups of Java members and ours elect leaders, replicate byte for byte, and lose no
message when the leader is killed under the load of a Java producer.

``preferredLeaderId`` names the member that should lead, so each group also transfers leadership
between the two implementations.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.interop import InteropServers, create_topic_when_ready, version_of

from rmqpy.cli import main
from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import MetadataRequest, MetadataResponse
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import Event, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import LOOPBACK, BrokerSpec, ServerProcess, group_settings
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

GROUPS = [
    pytest.param(("java", "rmqpy", "rmqpy"), id="java-leads"),
    pytest.param(("rmqpy", "java", "java"), id="rmqpy-leads"),
    pytest.param(("rmqpy", "rmqpy", "rmqpy"), id="rmqpy-alone"),
    pytest.param(("java-5.3.3", "rmqpy", "rmqpy"), id="java-5.3.3-leads"),
    pytest.param(("rmqpy", "java-5.3.3", "java-5.3.3"), id="rmqpy-leads-java-5.3.3"),
]
WAIT_SECONDS_MAX = 240
LOAD = 600


@define
class MixedGroup:
    """A group of three members, of which number 0 should lead."""

    namesrv: ServerProcess
    brokers: list[ServerProcess]
    peer_ports: list[int]
    kinds: tuple[str, ...]
    name: str = "broker-a"
    sent: list[Event] = field(factory=list)

    def leader(self) -> int | None:
        """Return the number of the member that all answering members follow, or None."""
        leader_ids: set[str | None] = set()
        for number in range(3):
            response = self._metadata(number)
            if response is not None:
                leader_ids.add(response.leader_id)
        if len(leader_ids) != 1:
            return None
        (leader_id,) = leader_ids
        return int(leader_id[1:]) if leader_id is not None else None

    def wait_for_leader(self, *allowed: int) -> int:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            leader = self.leader()
            if leader is not None and (not allowed or leader in allowed):
                return leader
            assert time.monotonic() < deadline, f"leader {leader}, expected {allowed}"
            time.sleep(0.2)

    def _metadata(self, number: int) -> MetadataResponse | None:
        request = MetadataRequest(group=self.name, remote_id=f"n{number}")
        command = RemotingCommand.request(request.CODE, body=encode(request))
        try:
            with BlockingConnection(f"{LOOPBACK}:{self.peer_ports[number]}", 2.0) as connection:
                answer = connection.call(command)
        except NetworkError:
            return None
        response = decode_response(MetadataRequest, answer.body)
        assert isinstance(response, MetadataResponse)
        return response

    def ledger(self, number: int) -> tuple[bytes, bytes]:
        """Return all entries and all index units."""
        folder = store_of(self.brokers[number]) / f"dledger-n{number}"
        data = b"".join(path.read_bytes() for path in sorted((folder / "data").iterdir()))
        index = b""
        for path in sorted((folder / "index").iterdir()):
            with path.open("rb") as file:
                index += file.read(1 << 20)
        return data.rstrip(b"\0"), index.rstrip(b"\0")


def store_of(broker: ServerProcess) -> Path:
    assert broker.store is not None
    return broker.store


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest, servers: InteropServers) -> Iterator[MixedGroup]:
    kinds: tuple[str, ...] = request.param
    name = "-".join(kinds)
    namesrv = servers.namesrv("java", f"{name}-namesrv")
    ports = servers.block(3)
    brokers = []
    for number, kind in enumerate(kinds):
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings=group_settings("broker-a", list(ports), number) | {"preferredLeaderId": "n0"},
        )
        site = version_of(servers, kind)
        brokers.append(servers.take(site.broker(f"{name}-{number}", spec).launch()))
    yield MixedGroup(namesrv, brokers, list(ports), kinds)
    for broker in brokers:
        broker.kill()


def test_a_leader_killed_under_load_loses_no_acknowledged_message(
    group: MixedGroup, servers: InteropServers
) -> None:
    probe = servers.probe.at(group.namesrv.address)
    leader = group.brokers[group.wait_for_leader(0)]
    create_topic_when_ready(probe, "T", leader, WAIT_SECONDS_MAX)
    first = send(probe, "T", 50, 0)
    failed: list[BaseException] = []

    def load() -> None:
        try:
            group.sent = send(probe, "T", LOAD, 1000)
        except BaseException as fault:  # noqa: BLE001 - reported by the test
            failed.append(fault)

    sender = threading.Thread(target=load)
    sender.start()
    time.sleep(1.0)
    group.brokers[0].kill()
    sender.join()
    assert not failed, failed
    second = group.wait_for_leader(1, 2)
    assert second in (1, 2)
    group.brokers[0].launch()
    group.wait_for_leader(0)
    last = send(probe, "T", 50, 5000)
    sent = [*first, *group.sent, *last]
    repeating = group.brokers[0] if group.kinds[0] == "java-5.3.3" else None
    check_dump(probe, "T", sent, repeating)
    wait_until_equal(group)
    time.sleep(3)  # The committed index is sent with the next push, at least once a second.
    check_dump(probe, "T", sent, repeating)
    for number in (1, 2, 0):
        assert group.brokers[number].stop() in (0, 143)
    for broker in group.brokers:
        assert read_store(store_of(broker)).problems == []


def send(probe: Probe, topic: str, count: int, first: int) -> list[Event]:
    """Send messages and return their acknowledgements; each must be acknowledged."""
    events = probe.run(
        "send",
        topic=topic,
        count=count,
        first=first,
        sizes="40,900,3",
        keys="k-",
        retryMs=60_000,
        timeout_s=200.0,
    )
    sent = [event for event in events if event["event"] == "sent"]
    assert len(sent) == count
    return sent


def check_dump(
    probe: Probe, topic: str, sent: Sequence[Event], repeating: ServerProcess | None = None
) -> None:
    """Assert that a Java consumer finds every acknowledged message once, at the place that was
    acknowledged.

    ``repeating`` is a member of Java 5.3.3, which may assign a queue offset a second time when it
    has just become the leader, also in a group of Java members only (docs/reference/dledger.md).
    """
    found: dict[tuple[int, int], list[str]] = {}
    for event in probe.run("dump", topic=topic):
        if event["event"] == "message":
            place = event["queueId"], event["queueOffset"]
            if place in found:
                port = int(event["offsetMsgId"][8:16], 16)
                assert repeating is not None and port == repeating.port, f"{place} twice: {event}"
            found.setdefault(place, []).append(event["msgId"])
    for event in sent:
        place = event["queueId"], event["queueOffset"]
        assert event["msgId"] in found.get(place, []), f"{event} was acknowledged and is missing"


def wait_until_equal(group: MixedGroup) -> None:
    """Wait until the three ledgers are equal in every byte."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        ledgers = [group.ledger(number) for number in range(3)]
        if ledgers[0] == ledgers[1] == ledgers[2]:
            return
        lengths = [(len(data), len(index)) for data, index in ledgers]
        assert time.monotonic() < deadline, f"data and index bytes: {lengths}"
        time.sleep(0.5)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("rmqpy", "rmqpy", "rmqpy"), id="rmqpy"),
        pytest.param(("rmqpy", "java", "rmqpy"), id="mixed"),
    ],
)
def test_an_upgraded_master_and_slave_work_as_a_group(
    kinds: tuple[str, ...],
    servers: InteropServers,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    """The stores of a Java master and slave and a copy become a group. Every old message is read at
    its place before and after the loss of the leader, and new messages follow them.
    """
    stores = [golden_copy("B-master-slave-v497") / name for name in ("master", "slave")]
    stores.append(tmp_path / "copy")
    shutil.copytree(stores[0], stores[2])
    facts = manifest("B-master-slave-v497")
    certify(stores, tmp_path / "certificate.json")
    namesrv = servers.namesrv("java", f"golden-{'-'.join(kinds)}-namesrv")
    ports = servers.block(3)
    brokers = []
    for number, kind in enumerate(kinds):
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            broker_name="golden",
            store=stores[number],
            settings=group_settings("golden", list(ports), number)
            | {"brokerClusterName": "JavaMQ", "preferredLeaderId": "n0"},
        )
        name = f"golden-{'-'.join(kinds)}-{number}"
        brokers.append(servers.take(servers.site(kind).broker(name, spec).launch()))
    group = MixedGroup(namesrv, brokers, list(ports), kinds, "golden")
    probe = servers.probe.at(namesrv.address)
    try:
        group.wait_for_leader(0)
        before = send(probe, "Normal", 20, 9000)
        check_old(probe, facts["messages"])
        brokers[0].kill()
        group.wait_for_leader(1, 2)
        after = send(probe, "Normal", 20, 9100)
        check_old(probe, facts["messages"])
        brokers[0].start()
        group.wait_for_leader(0)
        wait_until_equal(group)
        check_dump(probe, "Normal", [*before, *after])
        check_old(probe, facts["messages"])
    finally:
        for broker in brokers:
            broker.kill()


def certify(stores: Sequence[Path], path: Path) -> None:
    """Give every store a certificate, without which our members do not join Java members on top of
    an old log.
    """
    replicas = [f"n{number}={store}" for number, store in enumerate(stores)]
    assert main(["upgrade", "verify", *replicas, "--out", str(path)]) == 0
    for store in stores:
        (store / "rmqpy").mkdir(exist_ok=True)
        shutil.copy(path, store / "rmqpy")


def check_old(probe: Probe, messages: Sequence[dict[str, Any]]) -> None:
    """Assert that every message of the manifest is read at its place, unchanged."""
    for topic in ("Normal", "Keyed", "Batch", "Order"):
        found = {
            (event["queueId"], event["queueOffset"]): event
            for event in probe.run("dump", topic=topic)
            if event["event"] == "message"
        }
        for old in messages:
            if old["topic"] == topic:
                event = found[old["queueId"], old["queueOffset"]]
                same = ("msgId", "commitLogOffset", "storeTimestamp", "bornTimestamp")
                assert {name: event[name] for name in same} == {name: old[name] for name in same}
