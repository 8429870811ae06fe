"""The disk space that a plan needs at most, by file system, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from rmqpy.model.files import FileSystem
from rmqpy.model.text import format_bytes
from rmqpy.upgrade.plan.node_context import NodeContext, data_bytes
from rmqpy.upgrade.plan.operations import Copy, Create, Derive, Op
from rmqpy.upgrade.plan.plan import NodePlan

BLOCK = 4096
"""What a small file takes."""

DERIVED_SHARE = 4
"""Consume queues and key index take at most about a fourth of the log that they are built from."""


@define(slots=True)
class SpaceNeed:
    """The bytes that are needed and free on one file system; ``folder`` is on it."""

    folder: str
    needed: int
    free: int
    purpose: str = "the plan"

    @property
    def is_missing(self) -> bool:
        return self.needed > self.free

    def __str__(self) -> str:
        return (
            f"{self.folder}: found {format_bytes(self.free)} free on its file system, expected"
            f" {format_bytes(self.needed)} for {self.purpose}; free {self.needed - self.free} bytes"
            " there"
        )


def space_needed(context: NodeContext, node: NodePlan) -> list[SpaceNeed]:
    """Return what this node's part needs, one item per file system. Reads sizes only."""
    files = context.files
    found: dict[int, SpaceNeed] = {}

    def need(path: str, count: int) -> None:
        device = files.device_of(path)
        if device not in found:
            folder = path.rpartition("/")[0]
            found[device] = SpaceNeed(folder, 0, files.disk_usage(folder)[1])
        found[device].needed += count

    received = 0
    for op in node.ops:
        # Its line in the plan, twice, and its undo record.
        need(context.work, 2 * BLOCK)
        for path, count in op.space(context):
            need(path, count)
        if isinstance(op, Copy | Create):
            received += op.changed_bytes
        if isinstance(op, Derive):
            need(op.path, received // DERIVED_SHARE)
    return list(found.values())


def missing_space(context: NodeContext, node: NodePlan) -> list[str]:
    """Return one sentence for each file system that is too full for this node's part."""
    return [str(each) for each in space_needed(context, node) if each.is_missing]


def missing_to_revert(context: NodeContext, plan_id: str, ops: Sequence[Op]) -> list[str]:
    """Return one sentence for each file system that is too full for taking back ``ops``, which are
    in the order of the plan. What was moved to another file system is written there again; a file
    that goes releases its space to those that are taken back after it.
    """
    files = context.files
    taken: dict[int, int] = {}
    found: dict[int, SpaceNeed] = {}
    for number in range(len(ops) - 1, -1, -1):
        undo_path = context.undo_path(plan_id, number)
        for path, count in ops[number].space_to_revert(context, undo_path):
            device = files.device_of(path)
            if device not in found:
                folder = path.rpartition("/")[0]
                free = files.disk_usage(folder)[1]
                found[device] = SpaceNeed(folder, 0, free, "the rollback")
            taken[device] = taken.get(device, 0) + count
            found[device].needed = max(found[device].needed, taken[device])
    return [str(each) for each in found.values() if each.is_missing]


def missing_for_copy(files: FileSystem, paths: Iterable[str], target: str, more: int) -> str | None:
    """Return a sentence if the file system of ``target``, a folder that may not exist yet, is too
    full for copies of these files and ``more`` bytes; else None. Holes take no space.
    """
    count = more + sum(data_bytes(files, path) + BLOCK for path in paths)
    folder = target
    while not files.is_dir(folder):
        folder = folder.rpartition("/")[0] or "/"
    need = SpaceNeed(folder, count, files.disk_usage(folder)[1], "the copy and the plan")
    return str(need) if need.is_missing else None
