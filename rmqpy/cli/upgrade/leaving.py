"""``rmqpy upgrade leave``: go back from DLedger, or from a controller, to master and slaves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import CAN_BE_RESUMED, EXIT_DONE
from rmqpy.cli.upgrade.base.carry_out import announced_in_all, carry_out
from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.options import (
    add_verb,
    details_option,
    full_option,
    give_up_option,
    key_option,
    out_option,
    replica_options,
    runbook_option,
)
from rmqpy.cli.upgrade.base.output import show_plan
from rmqpy.cli.upgrade.base.replicas import absolute, name_of, named
from rmqpy.cli.upgrade.group.outcome import print_outcome, show_state
from rmqpy.cli.upgrade.group.switching import plan_leaving_of_hosts
from rmqpy.cli.upgrade.runbooks import print_runbook
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.plan.plan import Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions


_OWN = frozenset(("rmqpy", "lock"))
"""What is not copied: rmqpy's own files, and the lock."""


def add_verbs(verbs: Commands) -> None:
    leave = add_verb(
        verbs, "leave", "go back from DLedger or a controller to master and slaves", _leave
    )
    replica_options(leave, of_group=True)
    full_option(leave)
    leave.add_argument("--cut-index", type=int, metavar="N", help="last entry to keep")
    leave.add_argument(
        "--reference", metavar="NAME", help="the side to keep if replicas of a controller differ"
    )
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
    details_option(leave)
    out_option(leave)
    key_option(leave)
    runbook_option(leave)
    leave.set_defaults(interrupted=CAN_BE_RESUMED)


def _leave(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.runbook import leave_controller_runbook, leave_runbook
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_leaving

    if options.runbook:
        way = leave_controller_runbook if _has_controller(options) else leave_runbook
        return print_runbook(options, way)
    names = [name_of(text) for text in options.replica]
    switch = SwitchOptions(
        reference=options.reference,
        cut_index=options.cut_index,
        reads_version=1 if options.reader == "4" else 2,
        roles=named(options.role, names, "--role"),
        peers=options.peers,
        write_config=not options.into,
    )
    if options.given_group is not None and not options.given_group.file.is_local:
        _check_not_applied(options, options.given_group)
    if options.into:
        options.replica = [_copied(options, switch)]
    context = plan_context_of(options, switch)
    if not (options.apply or options.into):
        if options.given_group is not None and not options.given_group.file.is_local:
            plan = plan_leaving_of_hosts(options, options.given_group, context)
        else:
            plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        if options.given_group is not None:
            _keep_manifest(options.given_group, context, plan)
            options.out = options.out or str(options.given_group.plan)
        code = show_plan(options, plan, context)
        if options.given_group is not None:
            show_state(options)
        return code
    with announced_in_all(context, "leave --apply"):
        plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        carry_out(context, plan, "left")
    notes = [f"{part.replica}: {note}" for part in plan.nodes for note in part.notes]
    end = f"back to master and slaves: plan {plan.id}"
    print_outcome(options, {"plan": plan.id, "notes": notes}, [*notes, end])
    return EXIT_DONE


def _check_not_applied(options: argparse.Namespace, group: GivenGroup) -> None:
    """Raise RmqError if members on other hosts are to leave at once."""
    if options.apply:
        names = ", ".join(each.name for each in group.file.linked)
        raise RmqError(
            f"leave --apply: found members on other hosts ({names}), expected all on this one;"
            " nothing was changed. rmqpy upgrade leave plans for all hosts, and rmqpy upgrade"
            " apply carries the plan out on each"
        )


def _has_controller(options: argparse.Namespace) -> bool:
    """Return whether a broker.conf of this host leaves the roles to a controller."""
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.plan.survey import read_config

    files = OsFileSystem()
    paths = (absolute(each.rpartition("=")[2], folder=False) for each in options.config)
    found = (read_config(files, each) or {} for each in paths if files.exists(each))
    return any(each.get("enableControllerMode") == "true" for each in found)


def _keep_manifest(group: GivenGroup, context: PlanContext, plan: Plan) -> None:
    """Keep the manifest of the member that has most, or to which the plan makes the others equal,
    for the proof after the way back.
    """
    survey = max(context.group.surveys, key=lambda each: each.manifest.end)
    if "reference" in plan.facts:
        survey = context.group.survey(plan.facts["reference"])
    group.keep(group.before, survey.manifest.encode(blocks=False))


def _copied(options: argparse.Namespace, switch: SwitchOptions) -> str:
    """Copy the only replica to the directory of ``--into``; return it as a replica's text.

    The plan is made for the replica itself before: raise UpgradeRefusedError if it cannot leave, if
    the directory is not new or empty, or if there is no space for the copy and its plan.
    """
    from pathlib import Path

    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.model.local_paths import local_path
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.plan.copying import copy_tree
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, tree_files
    from rmqpy.upgrade.plan.space import missing_for_copy, space_needed
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.planning import plan_leaving

    if len(options.replica) != 1:
        raise RmqError(
            f"--into {options.into}: found {len(options.replica)} replicas, expected one; give each"
            " its own directory"
        )
    name, root = name_of(options.replica[0]), options.replica[0].rpartition("=")[2]
    files = OsFileSystem()
    check_store_root(files, local_path(root))
    source, target = local_path(root), local_path(options.into)
    if Path(target).is_relative_to(source):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a directory inside of the store {source}, expected one"
            " outside of it; nothing was changed. Give another directory"
        )
    if files.exists(target) and (not files.is_dir(target) or files.list_dir(target)):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a file or a directory with content, expected a new or an"
            " empty directory; nothing was changed. Give another one, or remove an unfinished copy"
        )
    context = plan_context_of(options, switch)
    plan = plan_leaving(context)
    check_given_up(plan, options.give_up)
    node = context.node_context(context.group.replica(name))
    more = sum(each.needed for each in space_needed(node, plan.node(name)))
    entries = (path for path in tree_files(files, source) if not _is_own(path, source))
    missing = missing_for_copy(files, entries, target, more)
    if missing is not None:
        raise UpgradeRefusedError(f"--into {options.into}: {missing}. Nothing was changed")
    copy_tree(files, source, target, _OWN)
    return f"{name}={target}"


def _is_own(path: str, root: str) -> bool:
    return path.removeprefix(f"{root}/").partition("/")[0] in _OWN
