"""A round trip with the commands of docs/how-to/upgrade-a-group.md: Java serves the stores that
``rmqpy upgrade`` has switched, appends, and its members stay equal; Java 4.9.7 and 5.3.3 open the
classic logs after the way back, read everything, and append; then the stores are switched again.
Each direction is certified.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from harness.interop import MEMBERS, Hosts, InteropServers, MakeHosts, create_topic_when_ready

from rmqpy.testing.java import Event, Probe
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

CHANGED = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "__RMQPY_ENTRY")
SYSTEM = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
NEW_COUNT = 60
FILE_SIZE = 65536

Place = tuple[str, int, int]


@define
class Trip:
    """One store through all its stages. ``queues`` are the queues that are read, by topic."""

    hosts: Hosts
    probe: Probe
    queues: dict[str, tuple[int, ...]]
    ports: list[int]
    turn: int = 0

    def send(self, count: int = NEW_COUNT, sizes: str = "700,20,4000,1", tags: str = "c") -> None:
        """Send messages with keys and bodies that no stage had before."""
        self.turn += 1
        events = self.probe.run(
            "send",
            topic="Normal",
            retryMs=60_000,
            timeout_s=120.0,
            count=count,
            sizes=sizes,
            tags=tags,
            first=1000 * self.turn,
            keys=f"turn{self.turn}-",
        )
        assert sum(event["event"] == "sent" for event in events) == count

    def read(self) -> dict[Place, Event]:
        """Return every message by its place in its queue, without the fields that depend on its
        place in the log.
        """
        found: dict[Place, Event] = {}
        for topic, queues in self.queues.items():
            for event in self._dump(topic, queues):
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

    def _dump(self, topic: str, queues: tuple[int, ...]) -> list[Event]:
        if topic not in SYSTEM:
            return self.probe.run("dump", topic=topic)
        listed = ",".join(map(str, queues))
        return self.probe.run("dump", topic=topic, via="Normal", queues=listed)

    def switch(self, kind: str, before: dict[Place, Event], certificate: str) -> dict[Place, Event]:
        """Switch to a group by the page, send more messages, and return all messages that are read
        then.
        """
        page = self.hosts.page("Switch without a group file", self.ports)
        page("rmqpy upgrade verify")
        group = self.hosts.brokers(kind)
        group.launch(*MEMBERS)
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        assert len(grown) >= len(before) + NEW_COUNT
        group.stop_group()
        assert_equal_stores(self.hosts.folder)
        page("")
        shutil.copy("certificate.json", certificate)
        assert json.loads(Path(certificate).read_text())["holds"] is True
        shutil.copy("before.json", f"before-{certificate}")
        return grown

    def leave(self) -> None:
        """Go back to classic logs by the page."""
        self.hosts.page("Go back without a group file", self.ports)("")
        assert_no_problems(self.hosts.folder, *MEMBERS)

    def serve_classic(self, kind: str, before: dict[Place, Event]) -> dict[Place, Event]:
        """Let a master and a slave of that kind serve all messages and accept more, and return all
        messages that are read then.
        """
        pair = self.hosts.brokers(kind)
        pair.launch("n0", "n1")
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        for key in ("turn1-1007", f"turn{self.turn}-{1000 * self.turn + 3}"):
            assert self.probe.run("query", topic="Normal", key=key), key
        pair.wait_until_level("n0", "n1")
        pair.stop("n0", "n1")
        assert_no_problems(self.hosts.folder, "n0", "n1")
        return grown


def assert_equal_stores(folder: Path) -> None:
    """Assert that old log, entries, and index have the same bytes on all members; the index is
    mostly a hole.
    """
    assert_no_problems(folder, *MEMBERS)
    parts = []
    for member in MEMBERS:
        store = folder / member
        part = {}
        for segments in ("commitlog", f"dledger-{member}/data", f"dledger-{member}/index"):
            for path in sorted((store / segments).iterdir()):
                content = path.read_bytes()[: 1 << 20].rstrip(b"\0")
                if content or segments == "commitlog":
                    part[segments.replace(member, "n"), path.name] = content
        parts.append(part)
    assert parts[0].keys() == parts[1].keys() == parts[2].keys()
    for name, content in parts[0].items():
        assert content == parts[1][name] == parts[2][name], name


def assert_no_problems(folder: Path, *members: str) -> None:
    for member in members:
        assert read_store(folder / member).problems == []


def from_golden(
    golden_copy: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> tuple[Path, dict[str, tuple[int, ...]], dict[Place, dict[str, Any]]]:
    """Return the folder of stores that Java 4.9.7 wrote, their queues by topic, and every message
    of the manifest by its place.
    """
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
"""The names in the manifest of the fields of the probe."""


@pytest.mark.parametrize("kind", ["java", "java-5.3.3", "rmqpy"])
def test_a_round_trip(
    servers: InteropServers,
    hosts: MakeHosts,
    kind: str,
    tmp_path: Path,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namesrv_kind = "rmqpy" if kind == "rmqpy" else "java"
    expected: dict[Place, dict[str, Any]] = {}
    folder: Path = tmp_path
    queues: dict[str, tuple[int, ...]] = {"Normal": (0, 1, 2, 3)}
    if kind != "java-5.3.3":
        folder, queues, expected = from_golden(golden_copy, manifest)
    monkeypatch.chdir(folder)
    group = hosts(folder, namesrv_kind, f"round-trip-{kind}", "golden")
    probe = servers.probe.at(group.namesrv.address)
    trip = Trip(group, probe, queues, list(servers.block(3)))
    first = group.brokers(kind)
    first.launch("n0", "n1")
    if not expected:
        create_topic_when_ready(probe, "Normal", first.servers["n0"])
        trip.send(count=200, sizes="40,900,1500,9000,3", tags="a,b")
    trip.send()
    before = trip.read()
    for place, message in expected.items():
        found = {name: before[place][name] for name in FIELDS}
        assert found == {name: message[other] for name, other in FIELDS.items()}, place
    first.wait_until_level("n0", "n1")
    first.stop("n0", "n1")

    joined = trip.switch(kind, before, "certificate-1.json")
    trip.leave()
    left = joined
    for opener in ("rmqpy", "java", "java-5.3.3"):
        left = trip.serve_classic(opener, left)
    again = trip.switch(kind, left, "certificate-2.json")
    for number in (1, 2):
        group.run(f"rmqpy upgrade verify --before before-certificate-{number}.json n0 n1 n2")
    divides = [
        json.loads(Path(f"certificate-{number}.json").read_text())["subjects"][1]["divided_offset"]
        for number in (1, 2)
    ]
    assert 0 < divides[0] < divides[1]
    print(f"{kind}: {len(before)}, {len(joined)}, {len(left)}, {len(again)} messages; {divides}")
