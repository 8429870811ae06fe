"""Whole brokers in virtual time: a few seeds every day; many by ``tox -e sim``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from simulator.plan import SimulationPlan, plan_of, single_broker_plan
from simulator.world import Outcome, World

from rmqpy.testing.processes import python_environment

QUIET = SimulationPlan(seed=1, duration_ms=15_000, heartbeat_ms=300)


def run(plan: SimulationPlan) -> Outcome:
    world = World(plan)
    try:
        return world.run()
    except Exception as error:
        error.add_note(str(plan))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_by_a_group(seed: int) -> None:
    outcome = run(plan_of(seed))
    assert outcome.operations >= 500 and outcome.simulated_ms >= 60_000
    assert outcome.stored and outcome.read


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_by_a_single_broker(seed: int) -> None:
    outcome = run(single_broker_plan(seed))
    assert outcome.operations >= 500 and outcome.stored and outcome.read


@pytest.mark.slow
def test_a_lone_leader_takes_messages_when_its_disk_has_room_again() -> None:
    """It has nothing to wait for and stopped its clock, with a full disk in mind."""
    run(single_broker_plan(27))


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    plan = evolve(plan_of(7), duration_ms=20_000)
    first, second = World(plan, trace=[]), World(plan, trace=[])
    assert first.run() == second.run()
    assert first.trace == second.trace and first.trace


@pytest.mark.slow
def test_a_seed_is_the_same_story_with_and_without_the_c_core() -> None:
    """One with everything in it: an old log, power failures, flips, hours, transfers, routes."""
    told = []
    tests = str(Path(__file__).parents[1])
    for pure in ("0", "1"):
        told.append(
            subprocess.run(
                [sys.executable, "-m", "simulator", "--replay", "97"],
                env=python_environment({"RMQPY_PURE": pure, "PYTHONPATH": tests}),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert told[0] == told[1] and "digest=" in told[0]


@pytest.mark.slow
def test_another_seed_is_another_story() -> None:
    assert run(evolve(QUIET, seed=2)).digest != run(evolve(QUIET, seed=3)).digest


@pytest.mark.parametrize("members", [1, 3, 5])
def test_without_misfortunes_everything_is_stored_under_one_leader(members: int) -> None:
    world = World(evolve(QUIET, members=members, old_messages=5))
    outcome = world.run()
    assert outcome.elections == 1 and outcome.crashes == 0
    assert world.producer.unanswered == 0 and world.producer.stored > 40


def test_what_the_plan_derived_is_printed() -> None:
    text = str(plan_of(3))
    for name in ("seed=3", "members=", "power=", "partition_interval_ms=", "disk_interval_ms="):
        assert name in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [16, 21])
def test_a_clock_that_was_set_back_and_a_power_failure_lose_no_message(seed: int) -> None:
    run(single_broker_plan(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [612, 5380])
def test_a_disk_that_fails_while_entries_are_dropped(seed: int) -> None:
    """The member is held up in the middle of it; nobody is told what its files say meanwhile."""
    run(plan_of(seed))
