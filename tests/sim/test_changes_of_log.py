"""Simulated groups switch to DLedger and leave it; planted bugs are found.

``tox -e sim -- --family switch`` and ``--family leave`` run many seeds.
"""

from __future__ import annotations

import pytest
from simulator.leave_cluster import LeaveCluster
from simulator.plan import live_plan
from simulator.runner import find_mutation, run_seed
from simulator.switch_cluster import SwitchCluster

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("family", "kind"), [("switch", SwitchCluster), ("leave", LeaveCluster)])
def test_without_faults_the_first_attempt_is_decided(
    family: str, kind: type[SwitchCluster | LeaveCluster]
) -> None:
    cluster = kind(live_plan(family, 1), faults=False)
    assert cluster.run().decided and cluster.attempts == 1
    assert len(cluster.acknowledged) > 10


@pytest.mark.parametrize(("family", "seeds"), [("switch", (0, 3)), ("leave", (0, 4))])
def test_faults_break_no_invariant(family: str, seeds: tuple[int, int]) -> None:
    """Some changes are decided, others are aborted; faults also meet the short phases."""
    results = [run_seed(family, seed) for seed in seeds]
    assert [each.failure for each in results] == ["", ""]
    outcomes = [each.outcome for each in results if each.outcome is not None]
    assert {each.decided for each in outcomes} == {True, False}
    phases = {situation.split(", ")[0] for each in outcomes for situation in each.covered}
    assert phases & {"freezing", "voting", "committed"}, phases


@pytest.mark.parametrize(
    ("family", "name"),
    [("switch", "vote_for_a_change_not_persisted"), ("leave", "member_takes_part_after_its_vote")],
)
def test_a_planted_bug_is_found(family: str, name: str) -> None:
    found = find_mutation(name, range(10), family)
    assert found.seed >= 0 and found.violation
