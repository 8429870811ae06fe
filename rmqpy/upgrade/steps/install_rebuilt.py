"""The plan that installs consume queues and key index after a rebuild in a separate folder.

That folder is below the plan's ``keep``, which ``finalize`` and a rollback remove.
"""

from __future__ import annotations

from typing import Any

from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.keep import keep_folder
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    fingerprint_log,
    range_digest,
    tree_digest,
    tree_files,
)
from rmqpy.upgrade.plan.operations import Install, Op
from rmqpy.upgrade.plan.plan import NodePlan, Plan

STEP = "rebuild"
QUEUES, INDEX = "consumequeue", "index"


def build_folder(context: NodeContext) -> str:
    """Return the folder in which both are built."""
    return f"{keep_folder(context)}/{STEP}"


def drop_unused(context: NodeContext) -> None:
    """Remove builds that were never installed: keep folders that contain nothing else."""
    for name in context.files.list_dir(context.work):
        keep = f"{context.work}/{name}"
        if name.startswith("keep-") and context.files.list_dir(keep) == [STEP]:
            context.files.remove_tree(keep)


def plan_rebuilt(context: NodeContext, replica: str, facts: dict[str, Any]) -> Plan:
    """Return a plan that replaces consume queues and key index where they differ.

    The plan is empty if both are already the same.
    """
    root, keep, built = (
        context.settings.store_path_root_dir,
        keep_folder(context),
        build_folder(context),
    )
    log = fingerprint_log(context)
    ops: list[Op] = [
        Install(
            path=f"{root}/{name}",
            made=f"{built}/{name}",
            aside=f"{keep}/{name}",
            after=tree_digest(context.files, f"{built}/{name}"),
            log=log,
            why="built from the log",
        )
        for name, same in ((QUEUES, _same_queues), (INDEX, _same_index))
        if not same(context.files, f"{root}/{name}", f"{built}/{name}")
    ]
    node = NodePlan(replica=replica, root=root, keep=keep, ops=tuple(ops))
    return Plan(steps=(STEP,), nodes=(node,), facts=facts)


def _same_queues(files: FileSystem, old: str, built: str) -> bool:
    return tree_digest(files, old) == tree_digest(files, built)


def _same_index(files: FileSystem, old: str, built: str) -> bool:
    """Compare files in order, not by name: index files are named after their time of creation."""
    if not files.is_dir(old):
        return not tree_files(files, built)
    sides = ([range_digest(files, path) for path in tree_files(files, at)] for at in (old, built))
    return next(sides) == next(sides)
