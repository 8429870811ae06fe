"""Stores of older versions of RocketMQ, on the ways of docs/explanation/from-4.9-to-5.x.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    WAIT_SECONDS_MAX,
    check_equal,
    controller_group,
    hand_over,
    manifest,
    take_over,
    upgrade,
)
from harness.interop import (
    MEMBERS,
    Brokers,
    InteropServers,
    create_topic_when_ready,
    events_of,
)

from rmqpy.cli import main
from rmqpy.testing.java import JavaHome, JavaSite, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import SMALL_STORE, BrokerSpec, ServerProcess, group_settings

pytestmark = pytest.mark.interop

COUNT = 150
SIZES_OF_4_4 = {
    "mapedFileSizeCommitLog": SMALL_STORE["mappedFileSizeCommitLog"],
    "mapedFileSizeConsumeQueue": SMALL_STORE["mappedFileSizeConsumeQueue"],
}
"""4.4 reads these keys, and no later version does."""


def make_brokers(
    servers: InteropServers,
    version: str,
    folder: Path,
    name: str,
    settings: Mapping[str, Mapping[str, str]],
) -> Brokers:
    """Return brokers of a version, with their stores in folders of their names."""
    home = JavaHome(version)
    if home.missing() is not None:
        pytest.skip(str(home.missing()))
    site = JavaSite(folder / "java", home)
    namesrv = servers.take(site.namesrv("namesrv", servers.block(1).first).start())
    made: dict[str, ServerProcess] = {}
    for member, own in settings.items():
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            broker_name=name,
            store=folder / "stores" / member,
            settings=own,
        )
        made[member] = servers.take(site.broker(member, spec))
        made[member].ready_timeout_s = WAIT_SECONDS_MAX
    return Brokers(folder / "stores", namesrv, made, name)


def send_all_kinds(probe: Probe) -> None:
    """Send messages one by one, in batches, delayed, and in transactions."""
    words: dict[str, Any] = {"topic": "Normal", "retryMs": 60_000, "timeout_s": 120.0}
    events = probe.run("send", count=COUNT, sizes="40,900,9000,3", keys="k", tags="a,b", **words)
    assert len(events_of(events, "sent")) == COUNT
    others: tuple[dict[str, Any], ...] = (
        {"first": 1000, "mode": "batch", "count": 24},
        {"first": 2000, "delay": 3, "count": 10},
        {"first": 3000, "mode": "transaction", "outcomes": "cr", "group": "t", "count": 10},
    )
    for own in others:
        assert not events_of(probe.run("send", **words, **own), "failed")


def test_master_and_slave_of_4_4_become_a_controller_group(
    servers: InteropServers, tmp_path: Path
) -> None:
    """The version of #6994."""
    roles = {
        "master": {"brokerRole": "SYNC_MASTER", **SIZES_OF_4_4},
        "slave": {"brokerRole": "SLAVE", "brokerId": "1", **SIZES_OF_4_4},
    }
    old = make_brokers(servers, "4.4.0", tmp_path / "old", "golden", roles)
    for member in roles:
        old.servers[member].start()
    probe = servers.probe.at(old.namesrv.address)
    create_topic_when_ready(probe, "Normal", old.servers["master"])
    send_all_kinds(probe)
    old.wait_until_level(*roles)
    old.stop("master", "slave")
    old.namesrv.stop()
    for member in roles:
        assert main(["store", "fsck", str(old.folder / member)]) == 0

    with controller_group(servers, lambda _: old.folder, LAGGING, tmp_path / "new") as group:
        before = manifest(group.store("master"), tmp_path / "before.json")
        hand_over(group)
        take_over(group, "master")
        check_equal(group, before)


def test_a_dledger_group_of_4_8_becomes_master_and_slaves(
    servers: InteropServers, tmp_path: Path
) -> None:
    """The version and the way of #5469."""
    ports = list(servers.block(len(MEMBERS)))
    settings = {
        member: group_settings("broker-a", ports, number) for number, member in enumerate(MEMBERS)
    }
    group = make_brokers(servers, "4.8.0", tmp_path, "broker-a", settings)
    group.launch(*MEMBERS)
    probe = servers.probe.at(group.namesrv.address)
    create_topic_when_ready(probe, "Normal", group.servers[group.leader()])
    send_all_kinds(probe)
    group.stop_group()

    stores = [f"{member}={group.folder / member}" for member in MEMBERS]
    words = [*stores]
    for member, role in zip(MEMBERS, ("SYNC_MASTER", "SLAVE", "SLAVE"), strict=True):
        words += ["-c", f"{member}={group.servers[member].argv[-1]}", "--role", f"{member}={role}"]
    before = manifest(group.folder / "n0", tmp_path / "before.json")
    upgrade("leave", *words, "--apply")
    upgrade("verify", *stores, "--before", before)
    for member in MEMBERS:
        group.servers[member].start()
    events = probe.run("send", topic="Normal", count=SENT, first=9000, retryMs=60_000)
    assert len(events_of(events, "sent")) == SENT
    group.wait_until_level()
    found = events_of(probe.run("dump", topic="Normal"), "message")
    assert len({event["msgId"] for event in found}) > COUNT + SENT
    group.stop("n1", "n2", "n0")
    upgrade("verify", *stores, "--before", before)
