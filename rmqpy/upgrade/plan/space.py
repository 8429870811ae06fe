"""The disk space that a plan needs at most, by file system, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from rmqpy.codec.layout import INDEX_ENTRY_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.units import index_entry_position
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.model.text import format_bytes
from rmqpy.upgrade.plan.node_context import NodeContext, data_bytes, tree_files
from rmqpy.upgrade.plan.operations import Copy, Create, Derive, Op
from rmqpy.upgrade.plan.plan import NodePlan

BLOCK = 4096
"""What a small file or a folder takes, and the unit in which files grow."""

DERIVED_SHARE = 4
"""Consume queues and key index take at most about a fourth of the log that they are built from, for
plans that do not say how much.
"""


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
        if isinstance(op, Derive) and op.bytes_max < 0:
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


def queue_space(ends: Iterable[tuple[str, int, int]], settings: StoreSettings) -> int:
    """Return the space of consume queues with their folders; ``ends`` are the topic of each, its
    first queue offset, and the one after its last.
    """
    size = settings.mapped_file_size_consume_queue
    topics, total = set(), 0
    for topic, first, end in ends:
        topics.add(topic)
        # A file exists from its start on, so that units before the first are holes at most.
        begin = first * QUEUE_UNIT_SIZE // size * size
        whole, rest = divmod(max(end * QUEUE_UNIT_SIZE - begin, 0), size)
        total += BLOCK + whole * _blocks(size) + _blocks(rest)
    return total + len(topics) * BLOCK


def index_space(entries: Iterable[int], settings: StoreSettings) -> int:
    """Return the space of key index files with these numbers of entries, and of one file more, into
    which some of them may go, with their folder. An entry changes one block of the slots at most.
    """
    counts = [*entries]
    written = sum(_blocks(count * INDEX_ENTRY_SIZE) for count in counts)
    slots = sum(_slot_space(count, settings) for count in (*counts, max(counts, default=0)))
    return BLOCK + written + slots


def present_space(files: FileSystem, queues: str, index: str, settings: StoreSettings) -> int:
    """Return the space of the queues and index files that are there, and of one index file more."""
    total = _slot_space(settings.max_index_num, settings)
    for folder in (queues, index):
        paths = tree_files(files, folder)
        total += sum(_blocks(data_bytes(files, path)) for path in paths)
        below = {path.rpartition("/")[0] for path in paths}
        total += BLOCK * len({folder, *below, *(each.rpartition("/")[0] for each in below)})
    return total


def _slot_space(count: int, settings: StoreSettings) -> int:
    """Return the space of header and slots of an index file with so many entries."""
    slots = index_entry_position(0, settings.max_hash_slot_num)
    return BLOCK + min(_blocks(slots), (count + 1) * BLOCK)


def _blocks(count: int) -> int:
    """Return a number of bytes in whole blocks."""
    return -(-count // BLOCK) * BLOCK
