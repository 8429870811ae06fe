"""The checkers find planted bugs; ``tox -e sim -- --mutations`` searches for all of them."""

from __future__ import annotations

import pytest
from simulator import runner
from simulator.cluster import Outcome
from simulator.invariants import InvariantViolationError
from simulator.mutations import MUTATIONS, Mutation, planted
from simulator.plan import node_plan, plan_of
from simulator.runner import find_mutation

from rmqpy.codec import backend
from rmqpy.dledger import election

QUICK = (
    "vote_not_persisted",
    "acknowledged_before_quorum",
    "dispatched_before_commit",
    "batch_with_one_queue_offset",
)


def test_there_are_enough_planted_bugs() -> None:
    assert len(MUTATIONS) >= 20 and set(QUICK) < set(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_each_planted_bug_replaces_code_that_exists(mutation: Mutation) -> None:
    if "fast" in mutation.families and backend.implementation != "c":
        pytest.skip(f"no fast path: {backend.reason}")
    with planted(mutation):
        pass


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    found = find_mutation(name, range(10))
    assert found.seed >= 0 and found.violation


def test_a_violation_without_the_planted_bug_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans that aim at a bug are run without it, too."""

    def run(_cluster: object) -> Outcome:
        raise InvariantViolationError("found with and without the bug")

    monkeypatch.setattr(runner, "_run_bounded", run)
    with pytest.raises(InvariantViolationError):
        find_mutation("lost_handshake_not_repeated", [0])
    assert find_mutation("vote_not_persisted", [0]).seed == 0


def test_an_aim_replaces_the_faults_of_a_plan() -> None:
    plan = MUTATIONS["vote_against_a_live_leader"].plan(plan_of(3))
    assert plan.seed == 3 and plan.quiet and not plan.loss and not plan.partition_interval_ms
    bare = node_plan(3)
    assert MUTATIONS["checkpoint_believes_everything_committed"].plan(bare) is bare


def test_a_planted_bug_is_removed() -> None:
    before = vars(election)["is_quorum"]
    with planted(MUTATIONS["leader_by_half_of_the_votes"]):
        assert vars(election)["is_quorum"] is not before
    assert vars(election)["is_quorum"] is before
    assert find_mutation("off_by_one_at_the_divide", range(0)).seed == -1
