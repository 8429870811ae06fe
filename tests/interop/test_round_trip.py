"""A round trip by the commands of docs/how-to/upgrade-a-group.md: Java serves what our switch made,
appends, its members stay equal; Java 4.9.7 and 5.3.3 open what was left, read all, append; then
there again. Certified each time.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from harness.interop import Hosts, InteropServers

from rmqpy.testing.java import ClientError, Event, Probe
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

MEMBERS = ("n0", "n1", "n2")
WAIT_SECONDS_MAX = 120
CHANGED = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "__RMQPY_ENTRY")
SYSTEM = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
OLD = {"count": 200, "sizes": "40,900,1500,9000,3", "tags": "a,b"}
NEW = {"count": 60, "sizes": "700,20,4000,1", "tags": "c"}
FILE_SIZE = 65536

Place = tuple[str, int, int]


@define
class Trip:
    """One store through all its stages. ``queues``: of each topic, which are read."""

    hosts: object
    probe: Probe
    queues: dict[str, tuple[int, ...]]
    ports: list[int]
    turn: int = 0

    def send(self, **options: object) -> None:
        """Messages that no stage had before."""
        self.turn += 1
        numbers = {"first": 1000 * self.turn, "keys": f"turn{self.turn}-"}
        events = self.probe.run(
            "send", topic="Normal", retryMs=60_000, timeout_s=120.0, **{**NEW, **numbers, **options}
        )
        sent = [event for event in events if event["event"] == "sent"]
        assert len(sent) == options.get("count", NEW["count"])

    def read(self) -> dict[Place, Event]:
        """Every message by its place in its queue, without what tells of its place in the log."""
        found: dict[Place, Event] = {}
        for topic, queues in self.queues.items():
            options: dict[str, object] = {}
            if topic in SYSTEM:
                options = {"via": "Normal", "queues": ",".join(map(str, queues))}
            for event in self.probe.run("dump", topic=topic, **options):
                if event["event"] != "message":
                    continue
                for name in CHANGED:
                    event["properties"].pop(name, None)
                for name in ("storeSize", "msgId", "offsetMsgId"):
                    event.pop(name)
                offset = event["commitLogOffset"]
                moved = offset % FILE_SIZE == 48
                event["commitLogOffset"] = offset - 48 if moved else offset
                place = topic, event["queueId"], event["queueOffset"]
                assert place not in found
                found[place] = event
        return found

    def there(self, kind: str, before: dict[Place, Event], certificate: str) -> dict[Place, Event]:
        """The page's part, the group, more messages; returns all that is read then."""
        page = self.hosts.page("Switch to DLedger", self.ports)
        page("rmqpy upgrade verify")
        group = self.hosts.brokers(kind)
        group.launch(*MEMBERS)
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        assert len(grown) >= len(before) + NEW["count"]
        group.stop_group()
        equal_in_bytes(self.hosts.folder)
        page("")
        shutil.copy("certificate.json", certificate)
        assert json.loads(Path(certificate).read_text())["equal"] is True
        shutil.copy("before.json", f"before-{certificate}")
        return grown

    def back(self) -> None:
        self.hosts.page("Go back to a master and slaves", self.ports)("")
        problems(self.hosts.folder, *MEMBERS)

    def classic(self, kind: str, before: dict[Place, Event]) -> dict[Place, Event]:
        """A master and a slave of that kind serve all, and take more."""
        pair = self.hosts.brokers(kind)
        pair.launch("n0", "n1")
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        for key in ("turn1-1007", f"turn{self.turn}-{1000 * self.turn + 3}"):
            assert self.probe.run("query", topic="Normal", key=key), key
        pair.wait_until_level("n0", "n1")
        pair.stop("n0", "n1")
        problems(self.hosts.folder, "n0", "n1")
        return grown


def equal_in_bytes(folder: Path) -> None:
    """Old log, entries and their index of all members; the index is mostly a hole."""
    problems(folder, *MEMBERS)
    parts = []
    for member in MEMBERS:
        store = folder / member
        part = {}
        for row in ("commitlog", f"dledger-{member}/data", f"dledger-{member}/index"):
            for path in sorted((store / row).iterdir()):
                content = path.read_bytes()[: 1 << 20].rstrip(b"\0")
                if content or row == "commitlog":
                    part[row.replace(member, "n"), path.name] = content
        parts.append(part)
    assert parts[0].keys() == parts[1].keys() == parts[2].keys()
    for name, content in parts[0].items():
        assert content == parts[1][name] == parts[2][name], name


def problems(folder: Path, *members: str) -> None:
    for member in members:
        assert read_store(folder / member).problems == []


def from_golden(golden_copy, manifest):
    """What Java 4.9.7 wrote: where, which queues, and every message as Java said it."""
    name = "B-master-slave-v497"
    folder = golden_copy(name)
    for old, new in (("master", "n0"), ("slave", "n1")):
        (folder / old).rename(folder / new)
    messages = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in manifest(name)["messages"]}
    queues = {
        topic: tuple(sorted({queue for each, queue, _ in messages if each == topic}))
        for topic in {topic for topic, _, _ in messages}
    }
    return folder, queues, messages


FIELDS = {
    "commitLogOffset": "commitLogOffset",
    "storeTimestamp": "storeTimestamp",
    "bornTimestamp": "bornTimestamp",
    "reconsumeTimes": "reconsumeTimes",
    "bodyCrc": "bodyCRC",
    "storeHost": "storeHost",
    "bornHost": "bornHost",
}
"""Of the probe: of the manifest."""


@pytest.mark.parametrize("kind", ["java", "java-5.3.3", "rmqpy"])
def test_a_round_trip(
    ground: InteropServers,
    hosts: Callable[..., Hosts],
    kind,
    tmp_path: Path,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namesrv_kind = "rmqpy" if kind == "rmqpy" else "java"
    told: dict[Place, dict] = {}
    folder, queues = tmp_path, {"Normal": (0, 1, 2, 3)}
    if kind != "java-5.3.3":
        folder, queues, told = from_golden(golden_copy, manifest)
    monkeypatch.chdir(folder)
    place = hosts(folder, namesrv_kind, f"round-trip-{kind}", "golden")
    probe = ground.probe.at(place.namesrv.address)
    trip = Trip(place, probe, queues, list(ground.block(3)))
    first = place.brokers(kind)
    first.launch("n0", "n1")
    if not told:
        wait_for_topic(probe, first.servers["n0"])
        trip.send(**OLD)
    trip.send()
    before = trip.read()
    for slot, message in told.items():
        found = {name: before[slot][name] for name in FIELDS}
        assert found == {name: message[said] for name, said in FIELDS.items()}, slot
    first.wait_until_level("n0", "n1")
    first.stop("n0", "n1")

    joined = trip.there(kind, before, "certificate-1.json")
    trip.back()
    left = joined
    for opener in ("rmqpy", "java", "java-5.3.3"):
        left = trip.classic(opener, left)
    again = trip.there(kind, left, "certificate-2.json")
    for number in (1, 2):
        place.run(f"rmqpy upgrade verify --before before-certificate-{number}.json n0 n1 n2")
    divides = [
        json.loads(Path(f"certificate-{number}.json").read_text())["subjects"][1]["divided_offset"]
        for number in (1, 2)
    ]
    assert 0 < divides[0] < divides[1]
    print(f"{kind}: {len(before)}, {len(joined)}, {len(left)}, {len(again)} messages; {divides}")


def wait_for_topic(probe: Probe, broker: ServerProcess) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            probe.run("createTopic", topic="Normal", broker=broker.address)
            return
        except ClientError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
