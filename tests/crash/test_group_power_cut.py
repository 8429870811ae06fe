"""All three members of a DLedger group lose their power under load at the same time; each page that
was not synced is kept or lost at random. The group always starts without an operator.

RMQPY_CRASH_ROUNDS is the number of cuts per mode (default 6). RMQPY_CRASH_SEED repeats the random
choices of a run. Java's DLedger acknowledges before it syncs, whatever flushDiskType says.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from harness.crash_target import (
    places_of,
    read_served,
    repeatable_random,
    site_of,
    wait_for_leader,
)
from harness.kill_load import Load, Place, kill_under_load, read_acknowledged, read_times
from harness.ledgers import wait_until_equal
from harness.power_cut import SMALL_FILES, FlushedAndMore, PowerCut
from harness.preload import SHADOW, build_preloaded

from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    group_settings,
)
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES, MEMBERS, QUORUM = "load", 3, 3, 2
ACKNOWLEDGEMENTS_AFTER_A_FLUSH = (1, 2000)

PATIENT_ELECTION = {**FAST_ELECTION, "heartBeatTimeIntervalMs": "500", "maxHeartBeatLeak": "6"}
"""The leader stays while a busy machine delays its heartbeats."""


@define
class Group:
    """The members of a group, not started, and the disk of each."""

    brokers: list[ServerProcess]
    disks: list[PowerCut]

    def start(self) -> ServerProcess:
        """Start all members and return the leader."""
        for broker in self.brokers:
            broker.launch()
        return wait_for_leader(self.brokers, TOPIC, QUEUES)

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def durable(self) -> dict[Place, str]:
        """Return the ids of the messages that a quorum has synced, by place."""
        found = [places_of(disk.durable_messages(), TOPIC) for disk in self.disks]
        copies = Counter(message for places in found for message in places.items())
        return dict(message for message, count in copies.items() if count >= QUORUM)


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def group(target: str, flush: str, tmp_path: Path) -> Iterator[Group]:
    blocks: list[PortBlock] = [free_port_block(BROKER_PORT_COUNT) for _ in range(MEMBERS)]
    peers, names = free_port_block(MEMBERS), free_port_block(1)
    library = build_preloaded(SHADOW, tmp_path)
    disks = [PowerCut.of(target, library, tmp_path / f"disk-{n}") for n in range(MEMBERS)]
    brokers: list[ServerProcess] = []
    with RmqpySite(tmp_path).namesrv("namesrv", names.first) as namesrv:
        for number, (block, disk) in enumerate(zip(blocks, disks, strict=True)):
            member = group_settings("broker-a", [peers[n] for n in range(MEMBERS)], number)
            spec = BrokerSpec(
                port=block.broker_port,
                namesrv=namesrv.address,
                settings={**member, **PATIENT_ELECTION, **SMALL_FILES, "flushDiskType": flush},
                store=disk.root,
            )
            site = site_of(target, tmp_path, disk.environment())
            brokers.append(site.broker(f"broker-{number}", spec))
        group = Group(brokers, disks)
        yield group
        group.kill()


def test_a_group_that_loses_power_loses_only_what_was_not_promised(
    group: Group, target: str, flush: str, tmp_path: Path
) -> None:
    """SYNC_FLUSH: nothing that was acknowledged. ASYNC_FLUSH: nothing that a quorum had
    flushed. The rest loses the end of the log at most, and all members become equal.
    """
    rng = repeatable_random()
    first_seed = rng.getrandbits(24)
    acknowledged: dict[Place, str] = {}
    sent = lost_count = durable_lost = unreachable = damaged = lost_pages = 0
    oldest_s = 0.0
    leader = group.start()
    for turn in range(ROUNDS):
        others = [broker for broker in group.brokers if broker is not leader]
        file = tmp_path / f"acknowledged-{turn}"
        more = rng.randint(*ACKNOWLEDGEMENTS_AFTER_A_FLUSH)
        enough = FlushedAndMore(group.disks, group.durable, file, more)
        load = Load(TOPIC, QUEUES, first_seed + turn)
        killed_at = kill_under_load([leader, *others], load, file, enough)
        newly = read_acknowledged(file)
        sent += len(newly)
        acknowledged |= newly
        durable = group.durable()
        lost_pages += sum(disk.cut(rng) for disk in group.disks)

        leader = group.start()  # without an operator
        served = read_served(leader, TOPIC, QUEUES)
        lost = served.missing(acknowledged)
        if target == "rmqpy":
            assert not served.problems
            assert not served.missing(durable), "messages lost that a quorum had on its disks"
            assert not lost & served.ids.keys(), "other messages at acknowledged places"
            assert flush != "SYNC_FLUSH" or not lost
        durable_lost += len(lost & durable.keys())
        damaged += len(served.problems)
        assert leader.store is not None
        logged = places_of(read_store(leader.store).messages, TOPIC)
        unreachable += sum(logged.get(place) == acknowledged[place] for place in lost)
        lost_count += len(lost)
        times = read_times(file)
        oldest_s = max([oldest_s, *(killed_at - times[place] for place in lost & times.keys())])
        for place in lost:
            del acknowledged[place]
    if target == "rmqpy":
        wait_until_equal([disk.root for disk in group.disks])
        for broker, disk in zip(group.brokers, group.disks, strict=True):
            assert broker.stop() == 0
            reading = read_store(disk.root)
            assert reading.problems == []
            assert acknowledged.items() <= places_of(reading.messages, TOPIC).items()
    print(
        f"{target} group, {flush}: {ROUNDS} cuts, {lost_pages} pages lost, {sent} acknowledged, "
        f"{lost_count} lost, the oldest {oldest_s:.2f} s before the cut, {durable_lost} of them "
        f"synced by a quorum, {unreachable} in the leader's log but not delivered; "
        f"{damaged} damaged places in queues"
    )
