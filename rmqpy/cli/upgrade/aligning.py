"""``rmqpy upgrade plan | apply``: make the replicas of a group equal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import read_secret
from rmqpy.cli.parsing import CAN_BE_RESUMED
from rmqpy.cli.upgrade.base.carry_out import recorded_context
from rmqpy.cli.upgrade.base.contexts import locked, plan_context_of
from rmqpy.cli.upgrade.base.options import (
    add_verb,
    details_option,
    full_option,
    give_up_option,
    key_option,
    out_option,
    replica_options,
)
from rmqpy.cli.upgrade.base.output import guarded, print_journal, show_plan
from rmqpy.cli.upgrade.base.plan_parts import obstacles, print_obstacles, replica_of, signed_plan
from rmqpy.cli.upgrade.base.replicas import absolute
from rmqpy.cli.upgrade.group.applying import apply_group
from rmqpy.cli.upgrade.group.outcome import show_state

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.plan import NodePlan


def add_verbs(verbs: Commands) -> None:
    plan = add_verb(
        verbs, "plan", "plan how the replicas become equal, to read and sign off", _plan
    )
    replica_options(plan, may_be_empty=True, of_group=True)
    full_option(plan)
    plan.add_argument("--reference", metavar="NAME", help="the side to keep after a divergence")
    give_up_option(plan)
    details_option(plan)
    out_option(plan)
    key_option(plan)

    apply = add_verb(verbs, "apply", "carry out one node's part of a plan; resumable", _apply)
    replica_options(apply, may_be_empty=True, of_group=True)
    apply.add_argument(
        "--plan", metavar="FILE", help="the plan; not needed with --resume or with group.toml"
    )
    apply.add_argument(
        "--node", metavar="NAME", help="the node whose part is carried out; with group.toml all"
    )
    apply.add_argument("--resume", metavar="DIR", help="continue an interrupted apply in DIR")
    give_up_option(apply)
    apply.add_argument("--dry-run", action="store_true", help="only check that it could be done")
    apply.add_argument("--key", metavar="FILE", help="require a plan signed with this key")
    apply.set_defaults(interrupted=CAN_BE_RESUMED)


def _plan(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.planning import plan_alignment

    context = plan_context_of(options)
    plan = plan_alignment(context)
    check_given_up(plan, options.give_up)
    if options.given_group is not None:
        manifest = context.reference.replica.survey().manifest
        options.given_group.keep(options.given_group.before, manifest.encode(blocks=False))
        options.out = options.out or str(options.given_group.plan)
    code = show_plan(options, plan, context)
    if options.given_group is not None:
        show_state(options)
    return code


def plan_verb(options: argparse.Namespace) -> int:
    """Run ``plan`` with another engine: ``options.runner`` reads the logs."""
    return guarded(_plan)(options)


def _apply(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import apply_plan, remaining, resume
    from rmqpy.upgrade.steps.given_up import check_given_up

    if options.resume:
        root = absolute(options.resume)
        node_context = recorded_context(options, root)
        if options.dry_run:
            return _dry_run(options, node_context, remaining(node_context))
        with locked(node_context.files, root):
            journal = resume(node_context)
        return print_journal(options, journal, f"plan {journal.plan_id} is applied in {root}")
    if options.given_group is not None and options.node is None:
        return apply_group(options, options.given_group)
    context = plan_context_of(options)
    group = options.given_group
    path = options.plan or (str(group.plan) if group is not None else None)
    plan, node = signed_plan(path, read_secret(options.key)), options.node or ""
    node_context = context.node_context(replica_of(context, plan.node(node)))
    check_given_up(plan, options.give_up, plan.node(node).replica)
    if options.dry_run:
        return _dry_run(options, node_context, plan.node(node))
    with locked(node_context.files, plan.node(node).root):
        journal = apply_plan(node_context, plan, node, phase=plan.steps[-1])
    return print_journal(options, journal, f"plan {plan.id} is applied in {plan.node(node).root}")


def _dry_run(options: argparse.Namespace, node_context: NodeContext, part: NodePlan) -> int:
    return print_obstacles(options, obstacles(node_context, part))
