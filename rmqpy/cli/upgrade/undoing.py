"""``rmqpy upgrade rollback | finalize``: take a plan back, or give up the way back."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.carry_out import described, recorded_context
from rmqpy.cli.upgrade.contexts import locked
from rmqpy.cli.upgrade.options import add_verb
from rmqpy.cli.upgrade.output import journal_json, print_journal, print_result
from rmqpy.cli.upgrade.replicas import absolute, local_replicas

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    for name, text, run in (
        ("rollback", "undo what a plan did in a directory, to the byte", _rollback),
        ("finalize", "give up the rollback: remove undo records and kept files", _finalize),
    ):
        verb = add_verb(verbs, name, text, run)
        verb.add_argument("directory", nargs="?", metavar="DIR")
        verb.set_defaults(of_group=True)
        if run is _rollback:
            verb.add_argument(
                "--plan", metavar="ID", help="the plan that is meant, if status shows several"
            )


def _rollback(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import roll_back, to_roll_back
    from rmqpy.upgrade.plan.journal import APPLIED

    if options.given_group is not None:
        return _roll_back_all(options)
    root = absolute(options.directory)
    node_context = recorded_context(options, root)
    lines = described(node_context, to_roll_back(node_context, options.plan))
    if options.format != "json":
        print_result(options, None, lines)
    with locked(node_context.files, root):
        journal = roll_back(node_context, options.plan)
    text = f"{root} is as before"
    if journal.state == APPLIED:
        text += f" plan {lines[0].split()[3]}; plan {journal.plan_id} is still applied"
    return print_journal(options, journal, text)


def _roll_back_all(options: argparse.Namespace) -> int:
    """Take the newest step back on all members of this host that have taken it."""
    from rmqpy.upgrade.group.steps_taken import newest_step, taken_by
    from rmqpy.upgrade.plan.engine import roll_back, to_roll_back
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    contexts = {each.name: recorded_context(options, each.root) for each in local_replicas(options)}
    steps = {name: taken for name, context in contexts.items() if (taken := taken_by(context))}
    newest = newest_step(steps.values())
    if newest is None:
        raise UpgradeRefusedError(
            "found no plan that is applied or half done on any member of this host, expected one;"
            " there is nothing to roll back"
        )
    chosen = {name: contexts[name] for name, (step, _) in steps.items() if step is newest}
    journals = {}
    lines = {
        name: described(context, to_roll_back(context, options.plan))
        for name, context in chosen.items()
    }
    if options.format != "json":
        print_result(
            options, None, [f"{name}: {line}" for name, each in lines.items() for line in each]
        )
    with ExitStack() as stack:
        for context in chosen.values():
            stack.enter_context(locked(context.files, context.root))
        for name, context in chosen.items():
            journals[name] = roll_back(context, options.plan)
    value = {name: journal_json(journal) for name, journal in journals.items()}
    print_result(options, value, [f"{name}: {newest.value} is taken back" for name in journals])
    return EXIT_DONE


def _finalize(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import finalize

    if options.given_group is not None:
        journals = {
            each.name: finalize(recorded_context(options, each.root))
            for each in local_replicas(options)
        }
        value = {name: journal_json(journal) for name, journal in journals.items()}
        lines = [f"{name}: the upgrade is final, undo records removed" for name in journals]
        print_result(options, value, lines)
        return EXIT_DONE
    root = absolute(options.directory)
    journal = finalize(recorded_context(options, root))
    return print_journal(options, journal, f"{root}: the upgrade is final, undo records removed")
