"""Bring every replica's classic log up to the reference: only differing ranges travel; what a
replica has alone behind the common end is moved aside, never deleted. Tables get the largest
values.
"""

from __future__ import annotations

from rmqpy.upgrade.checks.group_checks import same_divide, same_log
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.align import plan_align
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.DIVERGED, GroupState.LAGGING))
TO: GroupState | None = GroupState.ALIGNED
REASON = "members of a group must have the same old log, to the last message"


def plan(situation: PlanContext) -> list[NodePlan]:
    return [plan_align(situation, replica) for replica in situation.group.replicas]


def verify(situation: PlanContext) -> list[str]:
    """What still differs."""
    found = [*same_log(situation.group), *same_divide(situation.group)]
    return [str(each) for each in found if not each.is_note]


def undo() -> str:
    return (
        "rmqpy upgrade rollback: every byte from the undo records, kept files back to their place"
    )
