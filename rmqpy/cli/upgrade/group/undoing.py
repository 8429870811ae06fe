"""``rmqpy upgrade rollback | finalize`` for a group: on all members, each on its own host."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.carry_out import recorded_context
from rmqpy.cli.upgrade.base.contexts import locked
from rmqpy.cli.upgrade.base.hosts import reach_hosts, run_there
from rmqpy.cli.upgrade.base.output import journal_json, print_result
from rmqpy.cli.upgrade.base.replicas import all_replicas, local_replicas
from rmqpy.cli.upgrade.group.facts import view_group
from rmqpy.cli.upgrade.group.outcome import member_rows, print_outcome

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.checks.member_facts import MemberFacts
    from rmqpy.upgrade.group.group_file import MemberSpec
    from rmqpy.upgrade.plan.node_context import NodeContext


def roll_back_group(options: argparse.Namespace, group: GivenGroup) -> int:
    """Take the newest step back on all members that have taken it."""
    from rmqpy.upgrade.group.steps_taken import newest_step, step_of
    from rmqpy.upgrade.plan.engine import roll_back
    from rmqpy.upgrade.plan.journal import FINALIZED
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    reach_hosts(options, group.file)
    facts = {each.name: each.facts() for each in all_replicas(options)}
    taken = {name: each for name, each in facts.items() if _can_be_undone(each)}
    newest = newest_step((step_of(each.steps), each.since_ms) for each in taken.values())
    if newest is None:
        raise UpgradeRefusedError(
            "found no plan that is applied or half done on any member, expected one; there is"
            " nothing to roll back"
        )
    names = {name for name, each in taken.items() if step_of(each.steps) is newest}
    final = [
        name
        for name, each in facts.items()
        if each.journal == FINALIZED and step_of(each.steps) is newest
    ]
    if final:
        raise UpgradeRefusedError(
            f"found {newest.value} final on {', '.join(final)}, expected it to be applied on every"
            f" member, because {', '.join(sorted(names))} cannot go back alone; finish with rmqpy"
            " upgrade finalize"
        )
    contexts = {
        each.name: recorded_context(options, each.root)
        for each in local_replicas(options)
        if each.name in names
    }
    linked = [member for member in group.file.linked if member.name in names]
    done: dict[str, Any] = {}
    with ExitStack() as stack:
        for context in contexts.values():
            stack.enter_context(locked(context.files, context.root))
        undoes = _state_what_is_undone(options, contexts, linked)
        if options.dry_run:
            if options.format == "json":
                print_result(options, {"members": member_rows(undoes)}, ())
            return EXIT_DONE
        for name, context in contexts.items():
            done[name] = journal_json(roll_back(context, options.plan))
    for member in linked:
        done[member.name] = run_there(options, member, _words(options, member))
    texts = [f"{name}: {newest.value} is taken back" for name in done]
    print_outcome(options, {"members": member_rows(done)}, texts)
    return EXIT_DONE


def _state_what_is_undone(
    options: argparse.Namespace, contexts: dict[str, NodeContext], linked: Sequence[MemberSpec]
) -> dict[str, dict[str, Any]]:
    """Print what will be undone on each member, before anything is; return it as JSON by name.

    Raise UpgradeRefusedError if the plan of a member cannot be taken back.
    """
    from rmqpy.upgrade.plan.engine import to_roll_back
    from rmqpy.upgrade.plan.rollback_text import rollback_lines

    undoes: dict[str, dict[str, Any]] = {}
    for name, context in contexts.items():
        rollback = to_roll_back(context, options.plan)
        undoes[name] = {**journal_json(rollback.journal), "undoes": rollback_lines(rollback)}
    for member in linked:
        words = [*_words(options, member), "--dry-run"]
        undoes[member.name] = run_there(options, member, words)
    if options.format != "json":
        lines = [f"{name}: {line}" for name, each in undoes.items() for line in each["undoes"]]
        print_result(options, None, lines)
    return undoes


def _words(options: argparse.Namespace, member: MemberSpec) -> list[str]:
    """Return the command line of the rollback on the member's host."""
    return ["rollback", member.directory, *(["--plan", options.plan] if options.plan else [])]


def _can_be_undone(facts: MemberFacts) -> bool:
    from rmqpy.upgrade.plan.journal import APPLIED, APPLYING, ROLLING_BACK

    return facts.journal in (APPLIED, APPLYING, ROLLING_BACK)


def finalize_group(options: argparse.Namespace, group: GivenGroup) -> int:
    """Give up the way back of the last plans, on all members that have carried one out.

    Raise UpgradeRefusedError if the group would be left without any way back.
    """
    from rmqpy.upgrade.group.states import ONLY_ROLLBACK_LEADS_BACK
    from rmqpy.upgrade.plan.engine import finalize
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    reach_hosts(options, group.file)
    view = view_group(options, group)
    refuse_the_only_way_back(view.facts.members)
    if view.state in ONLY_ROLLBACK_LEADS_BACK:
        raise UpgradeRefusedError(
            f"found the group {view.state.name}, expected it to run, because finalize removes"
            " rollback, which is the only way back until then; follow rmqpy upgrade status"
        )
    planned = {each.name for each in view.facts.members if each.journal}
    done: dict[str, Any] = {
        each.name: journal_json(finalize(recorded_context(options, each.root)))
        for each in local_replicas(options)
        if each.name in planned
    }
    for member in (each for each in group.file.linked if each.name in planned):
        done[member.name] = run_there(options, member, ["finalize", member.directory])
    lines = [f"{name}: the upgrade is final, undo records removed" for name in done]
    if not done:
        lines = ["no member has carried out a plan: there is nothing to give up"]
    # For scripts, a member whose way back was not given up has an entry as well.
    untouched = {each.name: {"state": "untouched"} for each in group.file.members}
    print_outcome(options, {"members": member_rows({**untouched, **done})}, lines)
    return EXIT_DONE


def refuse_the_only_way_back(members: Iterable[MemberFacts]) -> None:
    """Raise UpgradeRefusedError if a member has switched and has no entry yet."""
    from rmqpy.upgrade.group.member_stage import needs_rollback
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    names = [each.name for each in members if needs_rollback(each)]
    if names:
        raise UpgradeRefusedError(
            f"found no entry in the DLedger log of {', '.join(names)}, expected at least one,"
            " because finalize removes rollback, which is the only way back until then; start the"
            " group and send a message first, or go back with rmqpy upgrade rollback"
        )
