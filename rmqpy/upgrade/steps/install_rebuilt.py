"""The plan that installs consume queues and key index after a rebuild in a separate folder.

That folder is below the plan's ``keep``, which ``finalize`` and a rollback remove.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.keep import keep_folder
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    content_digest,
    digest_of_contents,
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


def plan_rebuilt(
    context: NodeContext,
    replica: str,
    facts: dict[str, Any],
    queue_files: Iterable[tuple[str, int, str]],
) -> Plan:
    """Return a plan that replaces consume queues and key index where they differ.

    ``queue_files`` are those that were built: the path of each below its folder, its size, and the
    md5 of its bytes without the zeros at its end. The plan is empty if both are already the same.
    """
    root, keep, built = (
        context.settings.store_path_root_dir,
        keep_folder(context),
        build_folder(context),
    )
    log = fingerprint_log(context)
    ops: list[Op] = []
    index = _index_contents(context.files, f"{built}/{INDEX}")
    digests = {QUEUES: _digest_of_files(queue_files), INDEX: digest_of_contents(index)}
    for name, after in digests.items():
        old, made = f"{root}/{name}", f"{built}/{name}"
        if name == QUEUES:
            is_same = tree_digest(context.files, old) == after
        else:
            # Their names are times of creation. A folder without files is one that is missing.
            present = _index_contents(context.files, old)
            is_same = [content for _, content in present] == [content for _, content in index]
        if is_same:
            continue
        context.built[made] = after
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


def _digest_of_files(files: Iterable[tuple[str, int, str]]) -> str:
    by_name = sorted(files, key=lambda file: file[0].split("/"))
    return digest_of_contents((path, f"{size} {md5}") for path, size, md5 in by_name)


def _index_contents(files: FileSystem, folder: str) -> list[tuple[str, str]]:
    """Return (path below the folder, :func:`content_digest`) of its files."""
    return [
        (path.removeprefix(f"{folder}/"), content_digest(files, path))
        for path in tree_files(files, folder)
    ]
