"""Plans, rollbacks, and resumed plans are cut off before every file operation, and finished."""

from __future__ import annotations

import pytest
from harness.kills import kills_of
from harness.plans import Interrupted
from harness.store import CrashingFiles

from rmqpy.upgrade.plan.engine import resume, roll_back
from rmqpy.upgrade.plan.journal import APPLIED, ROLLED_BACK, load_journal


def finish_back(made: Interrupted, files: CrashingFiles) -> None:
    journal = load_journal(files, made.work)
    if journal is not None and journal.state != ROLLED_BACK:
        roll_back(made.bare_context(files))


def finish_forward(made: Interrupted, files: CrashingFiles) -> None:
    journal = load_journal(files, made.work)
    assert journal is not None
    if journal.state != APPLIED:
        resume(made.bare_context(files))


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True])
def test_a_rollback_killed_at_any_operation_is_finished(
    interrupted: Interrupted, half: bool
) -> None:
    """From a plan that was applied, and from one that was killed halfway."""
    made = interrupted
    before = made.tree(made.files)
    if half:
        start = made.killed_after(0.5)
    else:
        start = made.files.reopen(None)
        made.apply(start)

    def act(files: CrashingFiles) -> None:
        roll_back(made.bare_context(files))

    for dies_at, dying in kills_of(start, act, more_than=15):
        after = dying.reopen(None)
        finish_back(made, after)
        assert made.tree(after) == before, dies_at


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_resumed_plan_killed_at_any_operation_is_finished(
    interrupted: Interrupted, part: float
) -> None:
    made = interrupted
    before = made.tree(made.files)
    done = made.files.reopen(None)
    made.apply(done)
    after = made.tree(done)

    def act(files: CrashingFiles) -> None:
        resume(made.bare_context(files))

    for dies_at, dying in kills_of(made.killed_after(part), act, more_than=5):
        forward, back = dying.reopen(None), dying.reopen(None)
        finish_forward(made, forward)
        assert made.tree(forward) == after, dies_at
        finish_back(made, back)
        assert made.tree(back) == before, dies_at


def after_power_loss(files: CrashingFiles) -> CrashingFiles:
    """Return what is found after a power loss: synced bytes and synced names only."""
    left = files.crash()
    return CrashingFiles(
        nodes=left.nodes,
        folders=left.folders,
        now_ms=left.now_ms,
        durable_names=left._durable_names,
    )


@pytest.mark.slow
def test_a_plan_cut_off_by_a_power_loss_at_any_operation_is_finished(
    interrupted: Interrupted,
) -> None:
    made = interrupted
    for path in list(made.files.nodes):
        made.files.open(path).sync()
        made.files.sync_dir(path.rpartition("/")[0])
    before = made.tree(made.files)
    done = made.files.reopen(None)
    made.apply(done)
    after = made.tree(done)
    for dies_at, dying in kills_of(made.files, made.apply, more_than=50):
        back, forward = after_power_loss(dying), after_power_loss(dying)
        if load_journal(forward, made.work) is not None:
            finish_forward(made, forward)
            assert made.tree(forward) == after, dies_at
        finish_back(made, back)
        assert made.tree(back) == before, dies_at
