"""Bits that flip on simulated disks, and what checkers and brokers see of them."""

from __future__ import annotations

import random

import pytest
from attrs import evolve
from simulator.checkers import GroupWatch
from simulator.disks import SimulatedDisk
from simulator.plan import SimulationPlan
from simulator.world import World

PATH = "/store/dledger-n0/data/00000000000000000000"


def written() -> SimulatedDisk:
    disk = SimulatedDisk()
    file = disk.open(PATH, size=1024)
    file.write(0, b"entry")
    file.sync()
    disk.sync_dir("/store/dledger-n0/data")
    return disk


def test_the_broker_sees_the_wrong_bit_and_a_checker_the_right_one() -> None:
    disk = written()
    disk.flip(PATH, 1, 1, 7)
    assert disk.read_bytes(PATH)[:5] == b"eotry" == disk.durable_content(PATH)
    assert bytes(disk.content_of(PATH)[:5]) == b"entry"
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH)[:5] == b"eotry" and disk.flips


def test_a_bit_that_is_written_again_is_right_once_that_is_durable() -> None:
    outcomes = set()
    for seed in range(20):
        disk = written()
        disk.flip(PATH, 1, 1, 7)
        disk.open(PATH).write(0, b"entry")
        assert not disk.flips and disk.flipped == {7}
        disk.lose_power(random.Random(seed))
        content = disk.read_bytes(PATH)[:5]
        assert bool(disk.flips) == (content == b"eotry")
        outcomes.add(content)
    assert outcomes == {b"entry", b"eotry"}
    disk = written()
    disk.flip(PATH, 1, 1, 7)
    file = disk.open(PATH)
    file.write(0, b"entry")
    file.sync()
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH)[:5] == b"entry" and not disk.flips


def test_an_operator_puts_a_file_right_from_a_copy() -> None:
    disk = written()
    assert not disk.restored(PATH)
    disk.flip(PATH, 1, 1, 7)
    assert disk.restored(PATH) and not disk.flips
    assert disk.read_bytes(PATH)[:5] == b"entry" == disk.durable_content(PATH)


def test_hours_that_pass_leave_everything_durable() -> None:
    disk = written()
    disk.open(PATH).write(5, b" more")
    disk.written_back()
    disk.lose_power(random.Random(1))
    assert disk.read_bytes(PATH).rstrip(b"\0") == b"entry more"


@pytest.mark.slow
def test_damage_is_mended_while_messages_come_and_go() -> None:
    """Bits flip often, and nothing else goes wrong: all of them are found and mended in time."""
    plan = SimulationPlan(
        seed=5, duration_ms=30_000, heartbeat_ms=300, tick_ms=50, flip_interval_ms=500
    )
    world = World(evolve(plan, file_size=4096, sync_flush=True), trace=[])
    outcome = world.run()
    assert isinstance(world.watch, GroupWatch) and world.watch.is_whole
    flipped = sum("a bit flips" in line for line in world.trace or ())
    assert flipped >= 3 and outcome.stored > 60 and outcome.crashes == 0
