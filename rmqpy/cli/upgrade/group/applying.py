"""``rmqpy upgrade apply`` for a group: all members' parts, on each member's own host."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmqpy.cli.given_files import read_secret
from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.carry_out import carry_out, recorded_context
from rmqpy.cli.upgrade.base.contexts import locked, plan_context_of
from rmqpy.cli.upgrade.base.hosts import DRIVER, long_form, reach_hosts, run_there
from rmqpy.cli.upgrade.base.output import journal_json
from rmqpy.cli.upgrade.base.plan_parts import obstacles, print_obstacles, replica_of, signed_plan
from rmqpy.cli.upgrade.base.replicas import all_replicas, local_replicas
from rmqpy.cli.upgrade.group.outcome import member_rows, print_outcome
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.plan.plan import NodePlan, Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext


def apply_group(options: argparse.Namespace, group: GivenGroup) -> int:
    """Continue what is half done, else carry out the parts of the plan that are left."""
    from rmqpy.upgrade.steps.given_up import check_given_up

    reach_hosts(options, group.file)
    resumed = {} if options.dry_run else _resume(options, group)
    if resumed and options.plan is None and not group.plan.exists():
        return _print_journals(options, resumed)
    if options.plan is None and not group.plan.exists():
        raise RmqError(
            "found no plan.json beside group.toml, expected the plan; write it with rmqpy upgrade"
            " plan, or for the way back with rmqpy upgrade leave"
        )
    plan = signed_plan(options.plan or str(group.plan), read_secret(options.key))
    if resumed and plan.id not in {journal["plan"] for journal in resumed.values()}:
        return _print_journals(options, resumed)
    context = plan_context_of(options)
    check_given_up(plan, options.give_up)
    members = {part.replica: group.file.member(part.replica) for part in plan.nodes}
    local = [part for part in plan.nodes if members[part.replica].is_local]
    linked = [part for part in plan.nodes if not members[part.replica].is_local]
    for part in local:
        replica_of(context, part)
    if options.dry_run:
        wrong = [
            f"{part.replica}: {text}"
            for part in local
            for text in obstacles(context.node_context(replica_of(context, part)), part)
        ]
        for part in linked:
            _apply_there(options, group, context, plan, part)
        return print_obstacles(options, wrong)
    journals = carry_out(context, plan, plan.steps[-1], parts=local)
    done = {
        part.replica: journal_json(journal) for part, journal in zip(local, journals, strict=True)
    }
    for part in linked:
        done[part.replica] = _apply_there(options, group, context, plan, part)
    return _print_journals(options, done)


def _apply_there(
    options: argparse.Namespace,
    group: GivenGroup,
    context: PlanContext,
    plan: Plan,
    part: NodePlan,
) -> dict[str, Any]:
    """Carry out a part on its host. The signature of the plan was checked here."""
    member = group.file.member(part.replica)
    words = ["apply", "--plan", "{plan}", "--node", member.name, *long_form(group.file, member)]
    given_up: Mapping[str, Any] = plan.facts.get("given_up", {})
    lost = given_up.get("replicas", {}).get(member.name)
    if lost:
        words += ["--give-up", str(lost)]
    if options.dry_run:
        words.append("--dry-run")
    raw = json.dumps(plan.to_json()).encode()
    value: dict[str, Any] = run_there(options, member, words, context.group.replicas, raw)
    return value


def _resume(options: argparse.Namespace, group: GivenGroup) -> dict[str, dict[str, Any]]:
    """Continue the plans that are half done; return the journals, by member."""
    from rmqpy.upgrade.plan.engine import resume
    from rmqpy.upgrade.plan.evidence import current_journal
    from rmqpy.upgrade.plan.journal import APPLYING

    journals = {}
    for replica in local_replicas(options):
        node_context = recorded_context(options, replica.root)
        journal = current_journal(node_context)
        if journal is not None and journal.state == APPLYING:
            with locked(node_context.files, replica.root):
                journals[replica.name] = journal_json(resume(node_context))
    if not group.file.linked:
        return journals
    replicas = {each.name: each for each in all_replicas(options)}
    for member in group.file.linked:
        if replicas[member.name].facts().journal == APPLYING:
            others = [f"{name}={DRIVER}" for name in replicas if name != member.name]
            words = ["apply", "--resume", member.directory, *others]
            journals[member.name] = run_there(options, member, words, list(replicas.values()))
    return journals


def _print_journals(options: argparse.Namespace, journals: dict[str, dict[str, Any]]) -> int:
    lines = [f"{name}: plan {journal['plan']} is applied" for name, journal in journals.items()]
    print_outcome(options, {"members": member_rows(journals)}, lines)
    return EXIT_DONE
