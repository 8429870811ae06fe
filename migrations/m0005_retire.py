"""Retire the old files: once they have expired, DLedger's own cleaning resumes.

This step needs no operation.
"""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.JOINED,))
TO: GroupState | None = GroupState.DLEDGER_ONLY
REASON = "fileReservedTime expires old files; the divided offset is fixed while one is left"
IRREVERSIBLE = "expired messages are gone, as in any store"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return no operation: brokers expire the files."""
    return []


def verify(context: PlanContext) -> list[str]:
    """Return the replicas that still have old files."""
    return [
        f"{survey.name}: old files are left"
        for survey in context.group.surveys
        if survey.manifest.log("classic") is not None
    ]
