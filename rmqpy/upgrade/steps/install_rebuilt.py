"""The plan that installs consume queues and key index which were built from the log, aside.

Where they are built is below the plan's ``keep``: gone after ``finalize`` and after a roll back.
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


def kept_queues(ground: NodeContext) -> str:
    """The same for the same log."""
    tag = digest_of(f"{fingerprint_log(ground)}|{STEP}".encode())[:8]
    return f"{ground.work}/keep-{tag}"


def rebuilt_files(ground: NodeContext) -> str:
    """Where both folders are built."""
    return f"{kept_queues(ground)}/{STEP}"


def drop_unused(ground: NodeContext) -> None:
    """Remove what was built and never installed: nothing was moved beside it."""
    for name in ground.files.list_dir(ground.work):
        keep = f"{ground.work}/{name}"
        if name.startswith("keep-") and ground.files.list_dir(keep) == [STEP]:
            ground.files.remove_tree(keep)


def plan_rebuilt(ground: NodeContext, replica: str, facts: dict[str, Any]) -> Plan:
    """Operations for what differs from what is there; none where both are the same already."""
    root, keep, made = (
        ground.settings.store_path_root_dir,
        kept_queues(ground),
        rebuilt_files(ground),
    )
    log = fingerprint_log(ground)
    ops: list[Op] = [
        Install(
            path=f"{root}/{name}",
            made=f"{made}/{name}",
            aside=f"{keep}/{name}",
            after=tree_digest(ground.files, f"{made}/{name}"),
            log=log,
            why="built from the log",
        )
        for name, same in ((QUEUES, _same_queues), (INDEX, _same_index))
        if not same(ground.files, f"{root}/{name}", f"{made}/{name}")
    ]
    node = NodePlan(replica=replica, root=root, keep=keep, ops=tuple(ops))
    return Plan(steps=(STEP,), nodes=(node,), facts=facts)


def _same_queues(files: FileSystem, old: str, made: str) -> bool:
    return tree_digest(files, old) == tree_digest(files, made)


def _same_index(files: FileSystem, old: str, made: str) -> bool:
    """Index files are named by the time when they were made: their order counts."""
    if not files.is_dir(old):
        return not tree_files(files, made)
    sides = ([range_digest(files, path) for path in tree_files(files, at)] for at in (old, made))
    return next(sides) == next(sides)
