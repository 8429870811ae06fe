"""Close the last classic file with a BLANK, so that its end, the divided offset, is a boundary.

The filler is also legal in a classic log: a classic start finds the end of the log before it.
"""

from __future__ import annotations

from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import Fill, Op
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext, switch_part
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.ALIGNED,))
TO: GroupState | None = GroupState.SEALED
REASON = "all members must agree on the divided offset before the first of them starts"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica of this host."""
    return [_plan_replica(context, replica) for replica in context.on_this_host]


def verify(context: PlanContext) -> list[str]:
    """Return the replicas whose last file is not closed."""
    return [
        f"{survey.name}: the last file is not closed"
        for survey in context.group.surveys
        if (log := survey.manifest.log("classic")) and log.files and not log.files[-1].sealed
    ]


def undo() -> str:
    return "rmqpy upgrade rollback puts the eight bytes back"


def _plan_replica(context: PlanContext, replica: Replica) -> NodePlan:
    """Return one replica's part. Raise UpgradeRefusedError for a replica without an old log."""
    log = classic_log(replica)
    ops: list[Op] = []
    if not log.files:
        raise UpgradeRefusedError(
            f"{replica.name} has no old log: the group would start at offset 0 and hide every old"
            " message (rmqpy upgrade plan copies the log of the others)"
        )
    last = log.files[-1]
    position = last.end - last.first_offset
    if not last.sealed:
        stop = position + BLANK_SIZE
        ops.append(
            Fill(
                path=context.log_path(replica, last.path),
                start=position,
                end=stop,
                before=replica.digest(last.path, position, stop),
                after=digest_of(encode_blank(last.file_size - position)),
                file_size=last.file_size,
                why=f"the divided offset is {last.end_offset}",
            )
        )
    return switch_part(context, replica, ops, [f"divided offset {last.end_offset}"])
