"""Record the manifest of every replica before anything is changed.

This step writes nothing into stores.
"""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset(GroupState)
TO: GroupState | None = None
REASON = "a plan rests on the state that was found, and records it"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return no operation: the facts of the plan are the baseline."""
    return []


def verify(context: PlanContext) -> list[str]:
    """Return the replicas whose log files no longer have the sizes and times of their manifest."""
    return [
        f"{replica.name}: log files have changed since they were surveyed"
        for replica in context.on_this_host
        if not replica.survey().manifest.fits(replica.files, replica.root)
    ]


def undo() -> str:
    return "nothing was written"
