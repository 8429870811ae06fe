"""The decisions of a slave that takes over. The whole protocol, with kills and lost messages, runs
in ``tests/sim/test_changes_of_log.py``.
"""

from __future__ import annotations

import pytest

from rmqpy.broker.replication.leave_protocol import (
    SLAVE,
    CatchUp,
    CopyTables,
    FrozenLog,
    LeaveCoordinator,
    TakeOver,
    has_majority,
)
from rmqpy.broker.replication.switch_protocol import (
    Outcome,
    Phase,
    Record,
    Reopen,
    SendStep,
    SwitchPlan,
    SwitchStage,
    SwitchStep,
)

MEMBERS = ("n0", "n1", "n2")
LOG = FrozenLog(7, 2, 700)


def coordinator() -> LeaveCoordinator:
    brokers = {each: f"{each}:1" for each in (*MEMBERS, SLAVE)}
    plan = SwitchPlan(
        switch="l1", group="g", coordinator=SLAVE, peers="n0-h:1;n1-h:2;n2-h:3", brokers=brokers
    )
    return LeaveCoordinator(plan)


def to_all(step: SwitchStep) -> list[SendStep]:
    return [SendStep(each, step) for each in MEMBERS]


def outcome_of(found: LeaveCoordinator) -> Outcome:
    return found.outcome


def frozen() -> LeaveCoordinator:
    """Return a coordinator that waits for the answers to its FREEZE."""
    found = coordinator()
    assert found.begin() == [CopyTables(), *to_all(SwitchStep.PREPARE)]
    for each in (SLAVE, "n0", "n1"):
        assert found.prepared(each) == []
    assert found.prepared("n2") == to_all(SwitchStep.FREEZE)
    return found


def test_the_slave_takes_over_after_all_votes() -> None:
    found = frozen()
    assert found.frozen("n1", LOG) == [] and found.frozen("n0", None) == []
    assert found.level() == [], "not all members are frozen"
    assert found.frozen("n2", None) == [CatchUp(LOG)]
    assert found.level() == [SendStep(each, SwitchStep.VOTE) for each in ("n0", "n2")]
    assert found.voted("n0") == found.voted("n0") == found.voted("n1") == []
    assert found.voted("n2") == [SendStep("n1", SwitchStep.VOTE)], "the leader votes last"
    assert outcome_of(found) is Outcome.UNDECIDED
    assert found.voted("n1") == [Record(SwitchStage.COMMITTED), TakeOver()]
    assert outcome_of(found) is Outcome.COMMITTED and found.abort("late") == []
    assert found.taken() == to_all(SwitchStep.COMMIT)
    assert found.not_committed("n1") == [SendStep("n1", SwitchStep.COMMIT)]
    for each in MEMBERS:
        assert found.committed(each) == []
    assert found.phase is Phase.COMPLETE and found.not_committed("n1") == []


def test_a_leave_needs_exactly_one_leader() -> None:
    found = frozen()
    for each in MEMBERS[:2]:
        assert found.frozen(each, None) == []
    aborted = [Reopen(), *to_all(SwitchStep.ABORT)]
    assert found.frozen("n2", None) == aborted and found.reason == "no member leads the group"
    found = frozen()
    found.frozen("n0", LOG)
    assert found.frozen("n1", LOG) == aborted and "two members" in found.reason
    assert found.outcome is Outcome.ABORTED and found.voted("n1") == []


def test_a_decision_that_a_start_has_found_is_sent_again() -> None:
    found = LeaveCoordinator.of_decided(coordinator().plan)
    assert found.outcome is Outcome.COMMITTED
    assert found.taken() == to_all(SwitchStep.COMMIT)


@pytest.mark.parametrize(
    ("some", "members", "expected"),
    [
        (("n0", "n1", "n2"), MEMBERS, True),
        (("n0", "n2"), MEMBERS, True),
        (("n0",), MEMBERS, False),
        (("n0", "n0"), MEMBERS, False),
        (("n0", "n7"), MEMBERS, False),
        (("n0", "n1"), ("n0", "n1", "n2", "n3"), False),
        (("n0",), ("n0",), True),
    ],
)
def test_a_majority_can_leave(
    some: tuple[str, ...], members: tuple[str, ...], expected: bool
) -> None:
    assert has_majority(some, members) is expected
