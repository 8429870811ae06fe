"""``rmqpy upgrade leave``: go back from DLedger to a classic log."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import CAN_BE_RESUMED, EXIT_DONE
from rmqpy.cli.upgrade.carry_out import announced_in_all, carry_out
from rmqpy.cli.upgrade.contexts import plan_context_of
from rmqpy.cli.upgrade.options import (
    add_verb,
    full_option,
    give_up_option,
    key_option,
    out_option,
    replica_options,
    runbook_option,
)
from rmqpy.cli.upgrade.output import print_result, show_plan
from rmqpy.cli.upgrade.replicas import absolute, name_of, named
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.upgrade.group.given import GivenGroup
    from rmqpy.upgrade.steps.plan_context import PlanContext


def add_verbs(verbs: Commands) -> None:
    leave = add_verb(verbs, "leave", "go back from DLedger to a classic log", _leave)
    replica_options(leave, of_group=True)
    full_option(leave)
    leave.add_argument("--cut-index", type=int, metavar="N", help="last entry to keep")
    give_up_option(leave)
    leave.add_argument("--peers", default="", metavar="ID-HOST:PORT;...", help="dLegerPeers")
    leave.add_argument(
        "--role", action="append", default=[], metavar="NAME=ROLE", help="SYNC_MASTER, SLAVE, ..."
    )
    leave.add_argument(
        "--reader",
        choices=["4", "5"],
        default="4",
        help="oldest Java version that must be able to read the result; default 4",
    )
    leave.add_argument("--into", metavar="DIR", help="work on a copy in DIR; keep broker.conf")
    leave.add_argument("--apply", action="store_true", help="carry out the plan now, on this host")
    out_option(leave)
    key_option(leave)
    runbook_option(leave)
    leave.set_defaults(interrupted=CAN_BE_RESUMED)


def _leave(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.runbook import leave_runbook
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_leaving

    names = [name_of(text) for text in options.replica]
    switch = SwitchOptions(
        cut_index=options.cut_index,
        reads_version=1 if options.reader == "4" else 2,
        roles=named(options.role, names, "--role"),
        peers=options.peers,
        write_config=not options.into,
    )
    if options.into:
        options.replica = [copied(options)]
    context = plan_context_of(options, switch)
    if options.runbook:
        print("\n".join(leave_runbook(context, options.runbook)))
        return EXIT_DONE
    if not (options.apply or options.into):
        if options.given_group is not None and not options.given_group.file.is_local:
            from rmqpy.cli.upgrade.group.switching import plan_leaving_of_hosts

            plan = plan_leaving_of_hosts(options, options.given_group, context)
        else:
            plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        if options.given_group is not None:
            _keep_manifest(options.given_group, context)
            options.out = options.out or str(options.given_group.plan)
        return show_plan(options, plan)
    with announced_in_all(context, "leave --apply"):
        plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        carry_out(context, plan, "left")
    notes = [f"{part.replica}: {note}" for part in plan.nodes for note in part.notes]
    print_result(
        options, {"plan": plan.id, "notes": notes}, [*notes, f"left DLedger: plan {plan.id}"]
    )
    return EXIT_DONE


def _keep_manifest(group: GivenGroup, context: PlanContext) -> None:
    """Keep the manifest of the member that has most, for the proof after the way back."""
    survey = max(context.group.surveys, key=lambda each: each.manifest.end)
    group.keep(group.before, survey.manifest.encode())


def copied(options: argparse.Namespace) -> str:
    """Copy the only replica to the directory of ``--into``; return it as a replica's text.

    Raise UpgradeRefusedError unless that directory is new or empty.
    """
    from pathlib import Path

    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.plan.copying import copy_tree
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    if len(options.replica) != 1:
        raise RmqError("--into works with one replica at a time")
    name, root = name_of(options.replica[0]), options.replica[0].rpartition("=")[2]
    check_store_root(OsFileSystem(), str(Path(root).resolve()))
    source, target = Path(absolute(root)), Path(options.into).resolve()
    if target.is_relative_to(source):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a directory inside of the store {source}, expected one"
            " outside of it; nothing was changed. Give another directory"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a file or a directory with content, expected a new or an"
            " empty directory; nothing was changed. Give another one, or remove an unfinished copy"
        )
    copy_tree(OsFileSystem(), str(source), str(target), frozenset(("rmqpy", "lock")))
    return f"{name}={target}"
