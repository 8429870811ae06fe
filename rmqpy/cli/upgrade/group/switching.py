"""``rmqpy upgrade switch | leave`` for a group on several hosts: each plans and writes its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.carry_out_switch import AFTER, carry_out_switch
from rmqpy.cli.upgrade.base.hosts import long_form, reach_hosts, run_there
from rmqpy.cli.upgrade.group.outcome import print_outcome

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.group.group_file import MemberSpec
    from rmqpy.upgrade.plan.plan import Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext


def switch_hosts(options: argparse.Namespace, group: GivenGroup, context: PlanContext) -> int:
    """Switch the members that have not switched, after all of them could.

    A host that fails then leaves the others switched: ``switch`` again continues.
    """
    from rmqpy.upgrade.steps.planning import plan_switch

    reach_hosts(options, group.file)
    facts = {each.name: each.facts() for each in context.group.replicas}
    left = [
        each
        for each in group.file.members
        if not (facts[each.name].controlled if options.controllers else facts[each.name].dledger)
    ]
    linked = [each for each in left if not each.is_local]
    has_local = any(each.is_local for each in left)
    if has_local:
        plan_switch(context)
    for member in linked:
        _switch_there(options, group, context, member, dry_run=True)
    lines: list[str] = []
    if not options.dry_run:
        if has_local:
            plan = carry_out_switch(context)
            lines += [f"{part.replica}: switched" for part in plan.nodes]
        for member in linked:
            _switch_there(options, group, context, member, dry_run=False)
            lines.append(f"{member.name}: switched")
    names = [each.name for each in left]
    after = f"switched: {AFTER[options.to]}"
    end = "every member could be switched" if options.dry_run else after
    print_outcome(options, {"nodes": names, "dry_run": options.dry_run}, [*lines, end])
    return EXIT_DONE


def _switch_there(
    options: argparse.Namespace,
    group: GivenGroup,
    context: PlanContext,
    member: MemberSpec,
    *,
    dry_run: bool,
) -> None:
    words = ["switch", *long_form(group.file, member), "--to", options.to]
    if options.controllers:
        words += ["--controllers", options.controllers]
    else:
        words += ["--peers", options.peers, "--self-id", f"{member.name}={member.id}"]
        words += ["--group", options.group]
    words += ["--dry-run"] if dry_run else []
    run_there(options, member, words, context.group.replicas)


def plan_leaving_of_hosts(
    options: argparse.Namespace, group: GivenGroup, context: PlanContext
) -> Plan:
    """Return one plan with the parts that the members' hosts have planned."""
    from rmqpy.upgrade.plan.plan import Plan
    from rmqpy.upgrade.steps.planning import plan_leaving

    reach_hosts(options, group.file)
    plans = []
    if any(each.is_local for each in group.file.members):
        plans.append(plan_leaving(context))
    for member in group.file.linked:
        words = ["leave", *long_form(group.file, member), "--reader", options.reader]
        words += [word for text in options.role for word in ("--role", text)]
        for name in ("cut_index", "give_up", "reference"):
            value = getattr(options, name)
            words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
        tree: dict[str, Any] = run_there(options, member, words, context.group.replicas)
        plans.append(Plan.from_json(tree))
    parts = {part.replica: part for plan in plans for part in plan.nodes}
    return Plan(
        steps=plans[0].steps,
        nodes=tuple(parts[each.name] for each in group.file.members),
        facts=plans[0].facts,
        conflicts=tuple(dict.fromkeys(text for plan in plans for text in plan.conflicts)),
    )
