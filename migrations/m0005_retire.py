"""The old files have expired: DLedger's own cleaning is on again. Nothing has to be done."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import Situation
from rmqpy.upgrade.steps.states import State

FROM = frozenset((State.JOINED,))
TO: State | None = State.DLEDGER_ONLY
REASON = "old files go by fileReservedTime; the divided offset does not move while one is left"
IRREVERSIBLE = "expired messages are gone, as in any store"


def plan(situation: Situation) -> list[NodePlan]:
    """No operation: brokers expire files."""
    return []


def verify(situation: Situation) -> list[str]:
    """Replicas that still have old files."""
    return [
        f"{survey.name}: old files are left"
        for survey in situation.group.surveys
        if survey.manifest.log("classic") is not None
    ]
