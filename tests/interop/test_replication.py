"""A master and a slave, one of them Java or both ours: both have the same bytes, the status codes
are Java's, and nothing acknowledged is lost when either is killed under load.

The name server is always ours; test_clients.py tests it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from harness.interop import InteropServers, version_of
from harness.java_load import JavaLoad
from harness.takeover import WAIT_S, take_over_from_java

from rmqpy.cli import main
from rmqpy.testing.java import Event
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

PAIRS = [("java", "rmqpy"), ("rmqpy", "java"), ("rmqpy", "rmqpy")]
ROLES = ["SYNC_MASTER", "ASYNC_MASTER"]
FOLLOW_SECONDS = 60
FAST_HEARTBEATS = {"haSendHeartbeatInterval": "1000"}
"""A Java slave sends its first report when it has been silent for this time."""

Kinds = tuple[str, str]
"""The implementations of the master and the slave."""


class MasterAndSlave:
    """One master, one slave, and their name server."""

    def __init__(
        self,
        servers: InteropServers,
        name: str,
        kinds: Kinds,
        role: str = "SYNC_MASTER",
        stores: tuple[Path | None, Path | None] = (None, None),
        **settings: str,
    ) -> None:
        self.namesrv = servers.namesrv("rmqpy", f"{name}-namesrv")
        self.probe = servers.probe.at(self.namesrv.address)
        self.admin = servers.admin.at(self.namesrv.address)
        roles = ({"brokerRole": role}, {"brokerRole": "SLAVE", "brokerId": "1"})
        self.master, self.slave = (
            servers.take(
                version_of(servers, kind).broker(
                    f"{name}-{what}",
                    BrokerSpec(
                        port=servers.block(BROKER_PORT_COUNT).broker_port,
                        namesrv=self.namesrv.address,
                        store=store,
                        settings={**FAST_HEARTBEATS, **own, **settings},
                    ),
                )
            )
            for kind, what, own, store in zip(
                kinds, ("master", "slave"), roles, stores, strict=True
            )
        )

    def start(self) -> Self:
        self.master.start()
        self.slave.start()
        return self

    def stop(self) -> None:
        self.slave.stop()
        self.master.stop()
        self.namesrv.stop()

    def status(self, broker: ServerProcess) -> dict[str, str]:
        output = self.admin.run("brokerStatus", "-b", broker.address)
        pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
        return {name.strip(): value.strip() for name, value in pairs}

    def end(self, broker: ServerProcess) -> int:
        return int(self.status(broker).get("commitLogMaxOffset", -1))

    def wait_equal(self, least: int = 0) -> int:
        """Wait until both logs end at the same offset, at least at ``least``, and return it."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            ends = [self.end(broker) for broker in (self.master, self.slave)]
            if ends[0] == ends[1] >= least:
                return ends[0]
            assert time.monotonic() < deadline, (ends, self.status(self.slave))
            time.sleep(0.5)

    def topic(self, name: str) -> str:
        self.probe.run(
            "createTopic", topic=name, broker=self.master.address, readQueues=4, writeQueues=4
        )
        return name

    def send(self, topic: str, **options: object) -> list[Event]:
        """Send messages and return their acknowledgements."""
        events = self.probe.run(
            "send", topic=topic, retryMs=30_000, timeout_s=200, events=None, **options
        )
        return [event for event in events if event["event"] == "sent"]

    def send_until(self, topic: str, status: str, first: int) -> int:
        """Send single messages until one has this status, and return the number of the next one."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            (event,) = self.send(topic, count=1, first=first)
            first += 1
            if event["status"] == status:
                return first
            assert time.monotonic() < deadline, event
            time.sleep(0.5)


def store_of(broker: ServerProcess) -> Path:
    assert broker.store is not None
    return broker.store


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def log_bytes(store: Path, end: int) -> tuple[int, bytes]:
    """Return the first offset of a log and its bytes up to ``end``."""
    files = log_files(store)
    begin = int(files[0].name)
    return begin, b"".join(file.read_bytes() for file in files)[: end - begin]


def assert_same_logs(group: MasterAndSlave, end: int) -> None:
    begin, master = log_bytes(store_of(group.master), end)
    slave_begin, slave = log_bytes(store_of(group.slave), end)
    assert (begin, len(master)) == (slave_begin, len(slave))
    assert master == slave


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_slave_has_the_log_and_tables_of_its_master(
    servers: InteropServers, kinds: Kinds, role: str
) -> None:
    name = f"pair-{'-'.join(kinds)}-{role[:4]}"
    group = MasterAndSlave(servers, name, kinds, role).start()
    topic = group.topic("T")
    group.send(topic, count=1)
    group.wait_equal(1)  # A slave that connects later starts with the last file.
    first = 1
    if role == "SYNC_MASTER":
        first = group.send_until(topic, "SEND_OK", first)
    sent = group.send(topic, count=400, first=first, sizes="40,900,9000,3", keys="k-")
    assert Counter(event["status"] for event in sent) == {"SEND_OK": 400}
    group.probe.run("consume", topic=topic, group="readers", max=100)
    end = group.wait_equal(1)

    rows = [line.split() for line in group.admin.run("clusterList").splitlines()[1:] if line]
    assert sorted(row[2:4] for row in rows) == [
        ["0", group.master.address],
        ["1", group.slave.address],
    ]
    # The slave copies the tables periodically.
    deadline = time.monotonic() + FOLLOW_SECONDS
    for name in ("topics.json", "consumerOffset.json"):
        while not has_same_table(group, name, "T"):
            assert time.monotonic() < deadline, name
            time.sleep(0.5)

    if role == "SYNC_MASTER":
        group.slave.stop()
        group.send_until(topic, "SLAVE_NOT_AVAILABLE", 1000)
        group.slave.start()
        group.send_until(topic, "SEND_OK", 2000)
        end = group.wait_equal(end)
    group.stop()
    assert_same_logs(group, end)
    for broker in (group.master, group.slave):
        assert read_store(store_of(broker)).problems == []


def has_same_table(group: MasterAndSlave, name: str, topic: str) -> bool:
    """Return whether the table files of master and slave agree on ``topic``."""
    texts = []
    for broker in (group.master, group.slave):
        path = store_of(broker) / "config" / name
        text = path.read_text() if path.exists() else ""
        texts.append(re.sub(r'\s|"dataVersion":\{[^}]*\}', "", text))
    if name == "consumerOffset.json":
        lines = [re.search(r'"T@readers":\{([^}]*)\}', text) for text in texts]
        found = [{*line[1].split(",")} if line is not None else None for line in lines]
        return found[0] is not None and found[0] == found[1]
    return all(f'"topicName":"{topic}"' in text for text in texts)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_no_acknowledged_message_is_lost_when_either_is_killed_under_load(
    servers: InteropServers, kinds: Kinds, role: str
) -> None:
    name = f"kill-{'-'.join(kinds)}-{role[:4]}"
    group = MasterAndSlave(servers, name, kinds, role).start()
    topic = group.topic("T")
    group.send(topic, count=1)
    group.wait_equal(1)  # A slave that connects later starts with the last file.
    sent: list[Event] = []
    load = threading.Thread(
        target=lambda: sent.extend(
            group.send(topic, count=6000, first=1, sizes="100,900,4000", timeoutMs=1000)
        )
    )
    load.start()
    for victim in (group.slave, group.master, group.slave):
        time.sleep(2)
        victim.kill()
        victim.start()
    load.join(200)
    assert not load.is_alive()
    end = group.wait_equal(1)
    group.stop()
    assert len({event["index"] for event in sent}) == 6000
    assert_same_logs(group, end)
    acknowledged = {int(event["offsetMsgId"][-16:], 16) for event in sent}
    for broker in (group.master, group.slave):
        reading = read_store(store_of(broker))
        assert reading.problems == []
        # A process was killed, not the machine, so both have every acknowledged message.
        assert acknowledged <= {message.physical_offset for message in reading.messages}


@pytest.mark.parametrize(
    ("java", "role", "words"),
    [
        ("java", "ASYNC_MASTER", []),  # waits for 35 s without a message
        ("java", "SYNC_MASTER", ["--quiet", "5"]),
        ("java-5.3.3", "ASYNC_MASTER", ["--quiet", "5"]),
    ],
    ids=["4.9.7-async", "4.9.7-sync", "5.3.3-async"],
)
def test_a_slave_takes_over_from_a_running_java_master(
    servers: InteropServers, tmp_path: Path, java: str, role: str, words: list[str]
) -> None:
    name = f"promote-{java}-{role[:4]}"
    group = MasterAndSlave(servers, name, (java, "rmqpy"), role, haFetchFromBeginning="true")
    group.start()
    group.topic("T")
    with JavaLoad(group.probe, "T", tmp_path / "over") as load:
        load.wait_for_more()
        words = [*words, "--seconds", str(WAIT_S)]
        printed = take_over_from_java(group.namesrv.address, group.master, group.slave, *words)
        assert f"is the master of broker-a ({role})" in printed
        load.wait_for_more()
        sent = load.stop()
    group.stop()
    reading = read_store(store_of(group.slave))
    assert reading.problems == []
    acknowledged = {int(event["offsetMsgId"][-16:], 16) for event in sent}
    assert acknowledged <= {message.physical_offset for message in reading.messages}
    times = sorted(event["at"] for event in sent)
    gap_ms = max(later - earlier for earlier, later in itertools.pairwise(times))
    print(f"{len(sent)} messages acknowledged, 0 lost; the longest gap was {gap_ms} ms")


@pytest.mark.parametrize("kinds", PAIRS[:1] + PAIRS[2:], ids="-".join)
def test_a_late_slave_can_fetch_the_whole_log(servers: InteropServers, kinds: Kinds) -> None:
    name = f"late-{'-'.join(kinds)}"
    group = MasterAndSlave(servers, name, kinds, haFetchFromBeginning="true")
    group.master.start()
    topic = group.topic("T")
    group.send(topic, count=300, sizes="900")
    group.slave.start()
    end = group.wait_equal(200_000)
    group.stop()
    assert log_bytes(store_of(group.slave), end)[0] == 0
    assert_same_logs(group, end)
    assert read_store(store_of(group.slave)).problems == []


@pytest.mark.parametrize("kinds", PAIRS[:1] + PAIRS[2:], ids="-".join)
def test_a_slave_that_was_stopped_early_catches_up(
    servers: InteropServers, kinds: Kinds, golden_copy: Callable[[str], Path]
) -> None:
    stores = golden_copy("B-lagging-slave-v497")
    before = {path.name: path.read_bytes() for path in log_files(stores / "slave")}
    group = MasterAndSlave(
        servers,
        f"lagging-{'-'.join(kinds)}",
        kinds,
        stores=(stores / "master", stores / "slave"),
        brokerName="golden",
        brokerClusterName="JavaMQ",
    ).start()
    end = group.wait_equal(341_158)
    compared = group.status(group.slave)["haLogsCompared"]
    assert ("the same up to" in compared) == (kinds[0] == "rmqpy"), compared
    group.stop()
    assert_same_logs(group, end)
    assert read_store(store_of(group.slave)).problems == []
    # The files that were full before are unchanged.
    *full, _ = sorted(before)
    for name in full:
        assert (store_of(group.slave) / "commitlog" / name).read_bytes() == before[name]


def prepared_answers(group: MasterAndSlave, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Return what ``check`` says with what was learned, and what it says when it reads all."""
    found = []
    for more in ([], ["--full"]):
        stores = [f"{name}={store_of(each)}" for name, each in members(group).items()]
        main(["upgrade", "check", *stores, "--format", "json", *more])
        found.append(without_times(json.loads(capsys.readouterr().out)))
        assert "findings" in found[-1], found
    return found


def members(group: MasterAndSlave) -> dict[str, ServerProcess]:
    return {"n0": group.master, "n1": group.slave}


def without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = ("age", "ages", "made_ms", "taken_ms", "created_ms")
    return {name: without_times(each) for name, each in value.items() if name not in left_out}


@pytest.mark.parametrize("kinds", [("java", "java"), ("java", "rmqpy")], ids="-".join)
def test_prepare_reads_beside_running_brokers(
    servers: InteropServers, kinds: Kinds, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a master receives messages, both stores are prepared; nothing is noticed of it."""
    group = MasterAndSlave(servers, f"prepare-{'-'.join(kinds)}", kinds, "ASYNC_MASTER").start()
    topic = group.topic("T")
    group.send(topic, count=1)
    group.wait_equal(1)
    sent = group.send(topic, count=400, first=1, sizes="40,900,9000,3", keys="k-")
    later: list[Event] = []

    def send() -> None:
        later.extend(group.send(topic, count=400, first=401, sizes="40,900,9000", keys="k-"))

    sender = threading.Thread(target=send)
    sender.start()
    stores = [f"{name}={store_of(each)}" for name, each in members(group).items()]
    code = main(["upgrade", "prepare", *stores, "--rate", "0", "--format", "json"])
    prepared = json.loads(capsys.readouterr().out)
    sender.join()
    end = group.wait_equal(1)
    group.stop()
    assert code == 0
    assert all(prepared[name]["learned_bytes"] >= 2 * 65536 for name in members(group)), prepared
    assert Counter(event["status"] for event in (*sent, *later)) == {"SEND_OK": 800}
    assert_same_logs(group, end)
    known, read = prepared_answers(group, capsys)
    assert known == read
    for broker in members(group).values():
        assert read_store(store_of(broker)).problems == []


def test_a_master_of_ours_waits_for_a_java_slave_and_one_of_ours(servers: InteropServers) -> None:
    """Three replicas must have a message: neither slave alone is enough, whichever it is."""
    group = MasterAndSlave(servers, "three", ("rmqpy", "rmqpy"), inSyncReplicas="3").start()
    settings = {**FAST_HEARTBEATS, "brokerRole": "SLAVE", "brokerId": "2"}
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=group.namesrv.address,
        settings=settings,
    )
    java = servers.take(servers.java.broker("three-java", spec))
    topic = group.topic("Three")
    (event,) = group.send(topic, count=1, first=0)
    assert event["status"] == "SLAVE_NOT_AVAILABLE", "one slave is not enough"
    java.start()
    first = group.send_until(topic, "SEND_OK", 1)
    for slave in (java, group.slave):
        os.kill(slave.pid, signal.SIGSTOP)
        try:
            (event,) = group.send(topic, count=1, first=first)
            assert event["status"] == "FLUSH_SLAVE_TIMEOUT", "the other slave alone is not enough"
        finally:
            os.kill(slave.pid, signal.SIGCONT)
        first = group.send_until(topic, "SEND_OK", first + 1)
    end = group.wait_equal()
    assert group.end(java) == end
    java.stop()
    (event,) = group.send(topic, count=1, first=first)
    assert event["status"] == "SLAVE_NOT_AVAILABLE"
    group.stop()
    assert log_bytes(store_of(java), end) == log_bytes(store_of(group.master), end)
