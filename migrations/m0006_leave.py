"""The way back: entries become classic records, all members cut at the same index."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.leaving import leave_group
from rmqpy.upgrade.steps.plan_context import Situation
from rmqpy.upgrade.steps.states import State

FROM = frozenset((State.JOINED, State.DLEDGER_ONLY))
TO: State | None = State.ALIGNED
REASON = "back to master and slave, or on to another mode, with every message"


def plan(situation: Situation) -> list[NodePlan]:
    return leave_group(situation)


def verify(situation: Situation) -> list[str]:
    """Replicas that still have DLedger data."""
    return [
        f"{survey.name}: DLedger data is left"
        for survey in situation.group.surveys
        if survey.manifest.log("dledger") is not None
    ]


def undo() -> str:
    return "rmqpy upgrade rollback: every byte from the undo records, until finalize"
