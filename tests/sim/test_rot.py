"""Flipped bits on simulated disks, as checkers and brokers see them."""

from __future__ import annotations

import random

import pytest
from attrs import evolve
from simulator.broker_cluster import BrokerCluster
from simulator.checkers import GroupChecker
from simulator.disks import SimulatedDisk
from simulator.plan import SimulationPlan

PATH = "/store/dledger-n0/data/00000000000000000000"


def disk_with_entry() -> SimulatedDisk:
    disk = SimulatedDisk()
    file = disk.open(PATH, size=1024)
    file.write(0, b"entry")
    file.sync()
    disk.sync_dir("/store/dledger-n0/data")
    return disk


def test_a_broker_sees_the_flipped_bit_and_a_checker_the_original() -> None:
    disk = disk_with_entry()
    disk.flip(PATH, 1, 1, 7)
    assert disk.read_bytes(PATH)[:5] == b"eotry" == disk.durable_content(PATH)
    assert bytes(disk.content_of(PATH)[:5]) == b"entry"
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH)[:5] == b"eotry" and disk.flips


def test_a_flip_is_corrected_by_a_durable_write() -> None:
    outcomes = set()
    for seed in range(20):
        disk = disk_with_entry()
        disk.flip(PATH, 1, 1, 7)
        disk.open(PATH).write(0, b"entry")
        assert not disk.flips and disk.flipped == {7}
        disk.lose_power(random.Random(seed))
        content = disk.read_bytes(PATH)[:5]
        assert bool(disk.flips) == (content == b"eotry")
        outcomes.add(content)
    assert outcomes == {b"entry", b"eotry"}
    disk = disk_with_entry()
    disk.flip(PATH, 1, 1, 7)
    file = disk.open(PATH)
    file.write(0, b"entry")
    file.sync()
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH)[:5] == b"entry" and not disk.flips


def test_an_operator_restores_a_file_from_a_copy() -> None:
    disk = disk_with_entry()
    assert not disk.restore(PATH)
    disk.flip(PATH, 1, 1, 7)
    assert disk.restore(PATH) and not disk.flips
    assert disk.read_bytes(PATH)[:5] == b"entry" == disk.durable_content(PATH)


def test_after_hours_everything_is_durable() -> None:
    disk = disk_with_entry()
    disk.open(PATH).write(5, b" more")
    disk.written_back()
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH).rstrip(b"\0") == b"entry more"


@pytest.mark.slow
def test_damage_is_repaired_while_messages_are_sent_and_read() -> None:
    """Bits flip often, without other faults; all of them are found and repaired in time."""
    plan = SimulationPlan(
        seed=5, duration_ms=30_000, heartbeat_ms=300, tick_ms=50, flip_interval_ms=500
    )
    cluster = BrokerCluster(evolve(plan, file_size=4096, sync_flush=True), trace=[])
    outcome = cluster.run()
    assert isinstance(cluster.checker, GroupChecker) and cluster.checker.is_undamaged
    flipped = sum("a bit flips" in line for line in cluster.trace or ())
    assert flipped >= 3 and outcome.stored > 60 and outcome.crashes == 0
