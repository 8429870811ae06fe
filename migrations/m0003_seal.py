"""Close the last classic file with a BLANK, so that its end, the divided offset, is a boundary.

The filler is legal in a classic log, too: a classic start finds its end in front of it.
"""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import Situation
from rmqpy.upgrade.steps.states import State
from rmqpy.upgrade.steps.switch import seal_replica

FROM = frozenset((State.ALIGNED,))
TO: State | None = State.SEALED
REASON = "all members have to agree on the divided offset before the first of them starts"


def plan(situation: Situation) -> list[NodePlan]:
    return [seal_replica(situation, replica) for replica in situation.on_this_host]


def verify(situation: Situation) -> list[str]:
    """Replicas whose last file is not closed."""
    return [
        f"{survey.name}: the last file is not closed"
        for survey in situation.group.surveys
        if (log := survey.manifest.log("classic")) and log.files and not log.files[-1].sealed
    ]


def undo() -> str:
    return "rmqpy upgrade rollback puts the eight bytes back"
