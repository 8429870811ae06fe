"""The step of the upgrade that a member has taken last: what a plan in its directory did."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from rmqpy.upgrade.plan.evidence import current_journal
from rmqpy.upgrade.plan.journal import FINALIZED, ROLLED_BACK
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.record import load_record
from rmqpy.upgrade.steps.planning import ALIGN, LEAVE, SWITCH


class TakenStep(Enum):
    """A kind of plan."""

    ALIGNMENT = "the alignment"
    SWITCH = "the switch"
    LEAVE = "the way back"
    OTHER = "another plan"


_BY_STEPS = {ALIGN: TakenStep.ALIGNMENT, SWITCH: TakenStep.SWITCH, LEAVE: TakenStep.LEAVE}


def step_of(steps: Iterable[str]) -> TakenStep:
    """Return the kind of a plan with these migrations."""
    return _BY_STEPS.get(tuple(steps), TakenStep.OTHER)


def taken_by(context: NodeContext) -> tuple[TakenStep, int] | None:
    """Return the newest step of a directory that can be rolled back, and when it began, in ms."""
    journal = current_journal(context)
    if journal is None or journal.state in (ROLLED_BACK, FINALIZED):
        return None
    steps = load_record(context.files, context.work, journal.plan_id).plan.steps
    return step_of(steps), journal.since_ms


def newest_step(taken: Iterable[tuple[TakenStep, int]]) -> TakenStep | None:
    """Return the step that the members took last, or None if none took any."""
    newest = max(taken, key=lambda each: each[1], default=None)
    return None if newest is None else newest[0]
