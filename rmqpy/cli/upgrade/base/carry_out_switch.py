"""Carrying out a switch on the members of this host, and what the operator does next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqpy.cli.upgrade.base.carry_out import announced_in_all, carry_out

if TYPE_CHECKING:
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.plan import NodePlan, Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext

DLEDGER, CONTROLLER = "dledger", "controller"
"""Where ``switch`` leads."""

AFTER = {
    DLEDGER: "start the brokers, then run rmqpy upgrade verify",
    CONTROLLER: "start the controller, then the brokers with RocketMQ 5.x",
}
"""What the operator does next."""


def carry_out_switch(context: PlanContext) -> Plan:
    """Switch the members of this host, except those that a switch that ended early has switched:
    of two such plans, ``rollback`` would take only the second one back.
    """
    from rmqpy.upgrade.group.member_stage import has_applied
    from rmqpy.upgrade.plan.operations import OpState
    from rmqpy.upgrade.steps.old_log_mark import save_old_log_mark
    from rmqpy.upgrade.steps.planning import plan_switch

    def save_mark(node_context: NodeContext, part: NodePlan) -> None:
        save_old_log_mark(node_context.files, context.group.replica(part.replica))

    def is_left(part: NodePlan, plan: Plan) -> bool:
        replica = context.group.replica(part.replica)
        node_context = context.node_context(replica)
        return not has_applied(replica.facts(), plan.steps) or any(
            op.state(node_context) is not OpState.AFTER for op in part.ops
        )

    with announced_in_all(context, "switch"):
        plan = plan_switch(context)
        left = [part for part in plan.nodes if is_left(part, plan)]
        if context.options.controllers:
            carry_out(context, plan, "switched", parts=left)
        else:
            carry_out(context, plan, "switched", save_mark, left)
    return plan
