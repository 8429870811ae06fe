"""The plan that installs consume queues and key index which were rebuilt in a separate folder.

That folder is below the plan's ``keep``, which ``finalize`` and a rollback remove.
"""

from __future__ import annotations

from typing import Any

from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    digest_of,
    fingerprint_log,
    range_digest,
    tree_digest,
    tree_files,
)
from rmqpy.upgrade.plan.operations import Install, Op
from rmqpy.upgrade.plan.plan import NodePlan, Plan

STEP = "rebuild"
QUEUES, INDEX = "consumequeue", "index"


def keep_folder(context: NodeContext) -> str:
    """Return the folder of the plan, the same for the same log."""
    tag = digest_of(f"{fingerprint_log(context)}|{STEP}".encode())[:8]
    return f"{context.work}/keep-{tag}"


def build_folder(context: NodeContext) -> str:
    """Return the folder in which both are built."""
    return f"{keep_folder(context)}/{STEP}"


def drop_unused(context: NodeContext) -> None:
    """Remove what was built and never installed: nothing else was moved to its folder."""
    for name in context.files.list_dir(context.work):
        keep = f"{context.work}/{name}"
        if name.startswith("keep-") and context.files.list_dir(keep) == [STEP]:
            context.files.remove_tree(keep)


def plan_rebuilt(context: NodeContext, replica: str, facts: dict[str, Any]) -> Plan:
    """Return a plan that replaces what differs; it is empty if both are the same already."""
    root, keep, made = (
        context.settings.store_path_root_dir,
        keep_folder(context),
        build_folder(context),
    )
    log = fingerprint_log(context)
    ops: list[Op] = [
        Install(
            path=f"{root}/{name}",
            made=f"{made}/{name}",
            aside=f"{keep}/{name}",
            after=tree_digest(context.files, f"{made}/{name}"),
            log=log,
            why="built from the log",
        )
        for name, same in ((QUEUES, _same_queues), (INDEX, _same_index))
        if not same(context.files, f"{root}/{name}", f"{made}/{name}")
    ]
    node = NodePlan(replica=replica, root=root, keep=keep, ops=tuple(ops))
    return Plan(steps=(STEP,), nodes=(node,), facts=facts)


def _same_queues(files: FileSystem, old: str, made: str) -> bool:
    return tree_digest(files, old) == tree_digest(files, made)


def _same_index(files: FileSystem, old: str, made: str) -> bool:
    """Compare in order: index files are named by the time at which they were created."""
    if not files.is_dir(old):
        return not tree_files(files, made)
    sides = ([range_digest(files, path) for path in tree_files(files, at)] for at in (old, made))
    return next(sides) == next(sides)
