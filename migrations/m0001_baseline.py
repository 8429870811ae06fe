"""What every replica is, before anything is changed: the manifests. Writes nothing into stores."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset(GroupState)
TO: GroupState | None = None
REASON = "a plan rests on what was found, and says so"


def plan(situation: PlanContext) -> list[NodePlan]:
    """No operation: the facts of the plan are the baseline."""
    return []


def verify(situation: PlanContext) -> list[str]:
    """Replicas whose log files no longer have the sizes and times of their manifest."""
    return situation.changed_since_survey()


def undo() -> str:
    return "nothing was written"
