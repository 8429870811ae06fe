"""The plan that installs consume queues and key index after a rebuild in a separate folder.

That folder is below the plan's ``keep``, which ``finalize`` and a rollback remove.
"""

from __future__ import annotations

from typing import Any

from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.keep import keep_folder
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    content_digest,
    fingerprint_log,
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
    ops: list[Op] = []
    for name, digest in ((QUEUES, tree_digest), (INDEX, _index_digest)):
        old, made = f"{root}/{name}", f"{built}/{name}"
        found = digest(context.files, made)
        if digest(context.files, old) == found:
            continue
        after = found if digest is tree_digest else tree_digest(context.files, made)
        ops.append(
            Install(
                path=old,
                made=made,
                aside=f"{keep}/{name}",
                after=after,
                log=log,
                why="built from the log",
            )
        )
    node = NodePlan(replica=replica, root=root, keep=keep, ops=tuple(ops))
    return Plan(steps=(STEP,), nodes=(node,), facts=facts)


def _index_digest(files: FileSystem, folder: str) -> str:
    """Return a digest of the files in order, without their names: these are times of creation. A
    folder without files is one that is missing.
    """
    return "\n".join(content_digest(files, path) for path in tree_files(files, folder))
