"""Master and slave, one of them Java or both ours: the same bytes on both, Java's status codes, and
what becomes of it when either is killed under load.

The name server is ours throughout: test_clients.py judges it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.interop import InteropServers

from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

PAIRS = [("java", "rmqpy"), ("rmqpy", "java"), ("rmqpy", "rmqpy")]
ROLES = ["SYNC_MASTER", "ASYNC_MASTER"]
FOLLOW_SECONDS = 60
FAST_HEARTBEATS = {"haSendHeartbeatInterval": "1000"}
"""A Java slave reports first when it has been silent for this time."""


class Group:
    """One master and one slave."""

    def __init__(self, ground, name, kinds, role="SYNC_MASTER", stores=(None, None), **settings):
        self.ground = ground
        self.namesrv = ground.namesrv("rmqpy", f"{name}-namesrv")
        self.probe = ground.probe.at(self.namesrv.address)
        self.admin = ground.admin.at(self.namesrv.address)
        roles = ({"brokerRole": role}, {"brokerRole": "SLAVE", "brokerId": "1"})
        self.master, self.slave = (
            ground.take(
                ground.site(kind).broker(
                    f"{name}-{what}",
                    BrokerSpec(
                        port=ground.block(BROKER_PORT_COUNT).broker_port,
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

    def start(self):
        self.master.start()
        self.slave.start()
        return self

    def stop(self):
        self.slave.stop()
        self.master.stop()
        self.namesrv.stop()

    def status(self, broker):
        output = self.admin.run("brokerStatus", "-b", broker.address)
        pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
        return {name.strip(): value.strip() for name, value in pairs}

    def end(self, broker):
        return int(self.status(broker).get("commitLogMaxOffset", -1))

    def wait_equal(self, least=0):
        """Until both logs end at the same offset."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            ends = [self.end(broker) for broker in (self.master, self.slave)]
            if ends[0] == ends[1] >= least:
                return ends[0]
            assert time.monotonic() < deadline, (ends, self.status(self.slave))
            time.sleep(0.5)

    def topic(self, name):
        self.probe.run(
            "createTopic", topic=name, broker=self.master.address, readQueues=4, writeQueues=4
        )
        return name

    def send(self, topic, **options):
        events = self.probe.run("send", topic=topic, retryMs=30_000, timeout_s=200, **options)
        return [event for event in events if event["event"] == "sent"]

    def send_until(self, topic, status, first):
        """Single messages until one is answered so; the number of the next."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        while True:
            (event,) = self.send(topic, count=1, first=first)
            first += 1
            if event["status"] == status:
                return first
            assert time.monotonic() < deadline, event
            time.sleep(0.5)


def files_of(store):
    return sorted((store / "commitlog").iterdir())


def log_bytes(store, end):
    """The bytes of a log up to ``end``, and where they begin."""
    files = files_of(store)
    begin = int(files[0].name)
    return begin, b"".join(file.read_bytes() for file in files)[: end - begin]


def assert_same_logs(group, end):
    begin, theirs = log_bytes(group.master.store, end)
    other_begin, ours = log_bytes(group.slave.store, end)
    assert (begin, len(theirs)) == (other_begin, len(ours))
    assert theirs == ours


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_slave_has_what_its_master_has(ground: InteropServers, kinds, role) -> None:
    name = f"pair-{'-'.join(kinds)}-{role[:4]}"
    group = Group(ground, name, kinds, role).start()
    topic = group.topic("T")
    group.send(topic, count=1)
    group.wait_equal(1)  # a slave that comes later begins with the last file
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
    # tables follow within a round
    deadline = time.monotonic() + FOLLOW_SECONDS
    for name in ("topics.json", "consumerOffset.json"):
        while not same_table(group, name, "T"):
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
        assert read_store(broker.store).problems == []


def same_table(group, name, key):
    texts = []
    for broker in (group.master, group.slave):
        path = broker.store / "config" / name
        text = path.read_text() if path.exists() else ""
        texts.append(re.sub(r'\s|"dataVersion":\{[^}]*\}', "", text))
    if name == "consumerOffset.json":
        lines = [re.search(r'"T@readers":\{([^}]*)\}', text) for text in texts]
        found = [{*line[1].split(",")} if line is not None else None for line in lines]
        return found[0] is not None and found[0] == found[1]
    return all(f'"topicName":"{key}"' in text for text in texts)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_either_is_killed_under_load(ground: InteropServers, kinds, role) -> None:
    name = f"kill-{'-'.join(kinds)}-{role[:4]}"
    group = Group(ground, name, kinds, role).start()
    topic = group.topic("T")
    group.send(topic, count=1)
    group.wait_equal(1)  # a slave that comes later begins with the last file
    sent = []
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
    readings = [read_store(broker.store) for broker in (group.master, group.slave)]
    for reading in readings:
        assert reading.problems == []
        places = {message.physical_offset for message in reading.messages}
        # A process was killed, not the machine: what was acknowledged is there, on both.
        acknowledged = {int(event["offsetMsgId"][-16:], 16) for event in sent}
        assert acknowledged <= places


@pytest.mark.parametrize("kinds", PAIRS[:1] + PAIRS[2:], ids="-".join)
def test_a_late_slave_can_have_everything(ground: InteropServers, kinds) -> None:
    group = Group(ground, f"late-{'-'.join(kinds)}", kinds, haFetchFromBeginning="true")
    group.master.start()
    topic = group.topic("T")
    group.send(topic, count=300, sizes="900")
    group.slave.start()
    end = group.wait_equal(200_000)
    group.stop()
    assert log_bytes(group.slave.store, end)[0] == 0
    assert_same_logs(group, end)
    assert read_store(group.slave.store).problems == []


@pytest.mark.parametrize("kinds", PAIRS[:1] + PAIRS[2:], ids="-".join)
def test_a_slave_that_was_stopped_early_catches_up(
    ground: InteropServers, kinds, golden_copy: Callable[[str], Path]
) -> None:
    stores = golden_copy("B-lagging-slave-v497")
    before = {path.name: path.read_bytes() for path in files_of(stores / "slave")}
    group = Group(
        ground,
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
    assert read_store(group.slave.store).problems == []
    # what it had it still has
    *whole, _ = sorted(before)
    for name in whole:
        assert (group.slave.store / "commitlog" / name).read_bytes() == before[name]
