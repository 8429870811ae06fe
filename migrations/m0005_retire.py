"""The old files have expired: DLedger's own cleaning is on again. Nothing has to be done."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.JOINED,))
TO: GroupState | None = GroupState.DLEDGER_ONLY
REASON = "old files go by fileReservedTime; the divided offset does not move while one is left"
IRREVERSIBLE = "expired messages are gone, as in any store"


def plan(situation: PlanContext) -> list[NodePlan]:
    """No operation: brokers expire files."""
    return []


def verify(situation: PlanContext) -> list[str]:
    """Replicas that still have old files."""
    return [
        f"{survey.name}: old files are left"
        for survey in situation.group.surveys
        if survey.manifest.log("classic") is not None
    ]
