"""``rmqpy upgrade rollback | finalize``: take a plan back, or give up the way back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import CAN_BE_REPEATED, EXIT_DONE
from rmqpy.cli.upgrade.base.carry_out import recorded_context
from rmqpy.cli.upgrade.base.contexts import locked
from rmqpy.cli.upgrade.base.options import add_verb
from rmqpy.cli.upgrade.base.output import journal_json, print_journal, print_result
from rmqpy.cli.upgrade.base.replicas import absolute, now_ms

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    for name, text, run in (
        ("rollback", "undo what a plan did in a directory, to the byte", _rollback),
        ("finalize", "give up the rollback: remove undo records and kept files", _finalize),
    ):
        verb = add_verb(verbs, name, text, run)
        verb.add_argument(
            "directory",
            nargs="?",
            metavar="DIR",
            help="a broker's storePathRootDir; default: those of group.toml",
        )
        verb.set_defaults(
            of_group=True,
            may_be_empty=True,
            token_file=None,
            authority=None,
            interrupted=CAN_BE_REPEATED,
        )
        if run is _rollback:
            verb.add_argument(
                "--plan", metavar="ID", help="the plan that is meant, if status shows several"
            )
            verb.add_argument(
                "--dry-run", action="store_true", help="only state what would be undone"
            )


def _rollback(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import roll_back, to_roll_back
    from rmqpy.upgrade.plan.journal import APPLIED
    from rmqpy.upgrade.plan.rollback_text import rollback_lines

    if options.given_group is not None:
        from rmqpy.cli.upgrade.group.undoing import roll_back_group

        return roll_back_group(options, options.given_group)
    root = absolute(options.directory)
    node_context = recorded_context(options, root)
    with locked(node_context.files, root):
        rollback = to_roll_back(node_context, options.plan)
        lines = rollback_lines(rollback)
        if options.dry_run:
            value = {**journal_json(rollback.journal), "undoes": lines}
            print_result(options, value, lines)
            return EXIT_DONE
        if options.format != "json":
            print_result(options, None, lines)
        journal = roll_back(node_context, options.plan)
    text = f"{root} is as before"
    if journal.state == APPLIED:
        text += f" plan {rollback.journal.plan_id}; plan {journal.plan_id} is still applied"
    return print_journal(options, journal, text)


def _finalize(options: argparse.Namespace) -> int:
    from rmqpy.cli.upgrade.group.undoing import finalize_group, refuse_the_only_way_back
    from rmqpy.upgrade.checks.member_facts import read_member_facts
    from rmqpy.upgrade.plan.engine import finalize
    from rmqpy.upgrade.plan.survey import SurveyPlan

    if options.given_group is not None:
        return finalize_group(options, options.given_group)
    root = absolute(options.directory)
    context = recorded_context(options, root)
    member = SurveyPlan(name=root, root=root, settings=context.settings, now_ms=now_ms)
    refuse_the_only_way_back([read_member_facts(context.files, member)])
    journal = finalize(context)
    return print_journal(options, journal, f"{root}: the upgrade is final, undo records removed")
