"""A slave takes over from a simulated group under faults; planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulator.invariants import InvariantViolationError
from simulator.leave_cluster import LeaveCluster

from rmqpy.broker.assembly.leave.slave import LeavingSlave
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.replication.leave_protocol import FrozenLog, LeaveActions, LeaveCoordinator
from rmqpy.broker.replication.switch_protocol import SendStep, SwitchRecord, SwitchStage
from rmqpy.net.dledger.driver import DLedgerDriver

pytestmark = pytest.mark.slow

SEARCHED = 20
"""The number of seeds that are searched for a planted bug, from the one that has found it."""


def test_without_faults_the_slave_takes_over_at_once() -> None:
    cluster = LeaveCluster(1, faults=False)
    assert cluster.run() and cluster.leaves == 1
    assert len(cluster.acknowledged) > 20


def test_faults_break_no_invariant() -> None:
    """Some of these leaves are decided, others are aborted."""
    assert {LeaveCluster(seed).run() for seed in (0, 18)} == {True, False}


def mark_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """A vote is not on the disk before the slave opens."""
    write = SwitchJournal.write

    def writes(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        if record is None or record.stage is not SwitchStage.PREPARED:
            write(journal, record)

    patch.setattr(SwitchJournal, "write", writes)


def vote_without_pause(patch: pytest.MonkeyPatch) -> None:
    """A member that has voted still takes part in its group."""
    patch.setattr(DLedgerDriver, "pause", lambda _driver: None)


def slave_not_level(patch: pytest.MonkeyPatch) -> None:
    """The slave does not wait for the end of the members' log."""

    def at_once(
        _slave: LeavingSlave, coordinator: LeaveCoordinator, _log: FrozenLog
    ) -> LeaveActions:
        return coordinator.level()

    patch.setattr(LeavingSlave, "_catch_up", at_once)


def leader_not_asked(patch: pytest.MonkeyPatch) -> None:
    """The slave decides without the vote of the leader."""
    voted = LeaveCoordinator.voted

    def without_leader(coordinator: LeaveCoordinator, member: str) -> LeaveActions:
        actions = voted(coordinator, member)
        asks = any(isinstance(each, SendStep) for each in actions)
        return voted(coordinator, coordinator.leader) if asks else actions

    patch.setattr(LeaveCoordinator, "voted", without_leader)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (mark_not_persisted, 2),
        (vote_without_pause, 2),
        (slave_not_level, 5),
        (leader_not_asked, 2),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(first, first + SEARCHED):
        try:
            LeaveCluster(seed).run()
        except InvariantViolationError as found:
            print(f"seed {seed}: {found}")
            return
    raise AssertionError(f"not found in {SEARCHED} seeds")
