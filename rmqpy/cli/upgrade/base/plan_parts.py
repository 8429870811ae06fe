"""Reading a written plan, and what stands in the way of a node's part of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import read_plan
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.plan import NodePlan, Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext


def obstacles(node_context: NodeContext, part: NodePlan) -> list[str]:
    """Return why a part cannot be carried out, as far as that shows without a change."""
    from rmqpy.upgrade.plan.keep import check_newest
    from rmqpy.upgrade.plan.own_paths import check_own_paths
    from rmqpy.upgrade.plan.preconditions import check_sources, verify_preconditions
    from rmqpy.upgrade.plan.space import missing_space

    check_own_paths(node_context, part)
    check_newest(node_context, part)
    wrong = verify_preconditions(node_context, part)
    check_sources(node_context, part)
    return [*_closed(part), *wrong, *missing_space(node_context, part)]


def _closed(part: NodePlan) -> Iterator[str]:
    """Yield why nothing may be written: a broker runs, or this user lacks the permission."""
    from rmqpy.audit.facts.lock_probe import find_lock_owner

    holder = find_lock_owner(f"{part.root}/lock")
    if holder is not None:
        yield (
            f"{part.root}: found its lock held by process {holder}, expected no broker at work;"
            " stop the broker"
        )
    places = {part.root, *(path.rpartition("/")[0] for op in part.ops for path in op.paths)}
    for place in sorted(places):
        if os.path.isdir(place) and not os.access(place, os.W_OK | os.X_OK):
            yield (
                f"{place}: found no permission to write, expected it; run the command as the user"
                " of the broker, or mount the file system for writing"
            )
            return


def print_obstacles(options: argparse.Namespace, wrong: list[str]) -> int:
    print_result(options, {"wrong": wrong}, wrong or ["every operation could be done"])
    return EXIT_NO if wrong else EXIT_DONE


def replica_of(context: PlanContext, part: NodePlan) -> Replica:
    """Return the replica of this host whose directory a part of a plan is for.

    The directory is never taken from the plan, which may come from another host.
    """
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    local = context.on_this_host
    for replica in local:
        if replica.root == part.root:
            return replica
    given = ", ".join(f"{each.name}={each.root}" for each in local) or "no directory"
    raise UpgradeRefusedError(
        f"the plan's part for {part.replica} is for {part.root!r}: found {given} among the replicas"
        f" given, expected that directory; if it is this node's, give {part.replica}=DIR"
    )


def signed_plan(path: str | None, key: bytes | None) -> Plan:
    """Return the plan. Raise UpgradeRefusedError if it is not the plan that was signed."""
    from rmqpy.upgrade.plan.plan import Plan, check_signed

    if path is None:
        raise RmqError("--plan FILE is missing: give the plan, or --resume DIR")
    value = read_plan(path)
    check_signed(value, key)
    try:
        return Plan.from_json(value)
    except (RmqError, ValueError, KeyError, TypeError) as error:
        raise RmqError(f"{path}: found a plan that cannot be used: {error}") from None
