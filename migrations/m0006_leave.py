"""The way back: entries become classic records, all members cut at the same index."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.leaving import leave_group
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.JOINED, GroupState.DLEDGER_ONLY))
TO: GroupState | None = GroupState.ALIGNED
REASON = "back to master and slave, or on to another mode, with every message"


def plan(situation: PlanContext) -> list[NodePlan]:
    return leave_group(situation)


def verify(situation: PlanContext) -> list[str]:
    """Replicas that still have DLedger data."""
    return [
        f"{survey.name}: DLedger data is left"
        for survey in situation.group.surveys
        if survey.manifest.log("dledger") is not None
    ]


def undo() -> str:
    return "rmqpy upgrade rollback: every byte from the undo records, until finalize"
