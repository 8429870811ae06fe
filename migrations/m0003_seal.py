"""Close the last classic file with a BLANK, so that its end, the divided offset, is a boundary.

The filler is legal in a classic log, too: a classic start finds its end in front of it.
"""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.switch import plan_seal

FROM = frozenset((GroupState.ALIGNED,))
TO: GroupState | None = GroupState.SEALED
REASON = "all members have to agree on the divided offset before the first of them starts"


def plan(situation: PlanContext) -> list[NodePlan]:
    return [plan_seal(situation, replica) for replica in situation.on_this_host]


def verify(situation: PlanContext) -> list[str]:
    """Replicas whose last file is not closed."""
    return [
        f"{survey.name}: the last file is not closed"
        for survey in situation.group.surveys
        if (log := survey.manifest.log("classic")) and log.files and not log.files[-1].sealed
    ]


def undo() -> str:
    return "rmqpy upgrade rollback puts the eight bytes back"
