"""Write this node's configuration: the flag, the group, its peers, its own id."""

from __future__ import annotations

from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.switch import plan_configure

FROM = frozenset((GroupState.SEALED,))
TO: GroupState | None = GroupState.JOINED
REASON = "the next start makes the DLedger log behind the divided offset"


def plan(situation: PlanContext) -> list[NodePlan]:
    return [plan_configure(situation, replica) for replica in situation.on_this_host]


def verify(situation: PlanContext) -> list[str]:
    """Replicas without the flag in their configuration."""
    return [
        f"{survey.name}: enableDLegerCommitLog is not true"
        for survey in situation.group.surveys
        if survey.setting("enableDLegerCommitLog") != "true"
    ]


def undo() -> str:
    return (
        "rmqpy upgrade rollback, as long as no message was written to the DLedger log; afterwards"
        " rmqpy upgrade leave"
    )
