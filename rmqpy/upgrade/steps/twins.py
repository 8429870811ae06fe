"""Twins: sealed files of a DLedger log in the form that they will have in a classic log.

Leaving DLedger rewrites some bytes of every message. For sealed files that can be done while the
group works: their twins wait on the stage, and the plan moves them into place; only the open file
is rewritten in the stop. Consume queues and key index of the twins are built in advance, too.
"""

from __future__ import annotations

import hashlib

from rmqpy.audit.checks.learned_runner import learn_log_file
from rmqpy.audit.facts.learned import MD5, TWIN
from rmqpy.audit.facts.small_files import read_table
from rmqpy.codec.reframe import DataFile, edits_of, pieces_of
from rmqpy.store.files.mapped_files import file_name
from rmqpy.store.files.paths import StorePaths
from rmqpy.upgrade.checks.ledger import EntryFile, Ledger, read_ledger
from rmqpy.upgrade.plan import derive
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.pace import Pace
from rmqpy.upgrade.plan.stage import TWINS, Stage, learned_of
from rmqpy.upgrade.steps.staging import build_staged, work_of

__all__ = ["derived_base", "known_ledger", "stage_twins", "twin_of"]

PIECE_BYTES = 4 << 20
"""The number of bytes that are converted at a time."""

ALL_MOVE = 0
"""The offset from which messages move. Earlier versions noted the start of the entries here, and
left references to older messages as they were.
"""


def known_ledger(node: NodeContext) -> Ledger:
    """Return the ledger of a stopped member; sealed files that are known are not read."""
    return read_ledger(node.files, node.settings, learned_of(node))


def stage_twins(node: NodeContext, ledger: Ledger, pace: Pace) -> int:
    """Make the twins of all closed files that have none, with queues and index. Return the number
    of bytes of twins on the stage.

    ``ledger`` are the member's files; its group may be working.
    """
    stage = Stage(node.files, node.root, TWINS)
    closed = [each for each in ledger.files if each.closed and each.first_index >= 0]
    wanted = {file_name(each.base_offset) for each in closed}
    for name in set(stage.names) - wanted:
        node.files.unlink(stage.path(name))
    twins: dict[int, str] = {}
    total = 0
    for each in closed:
        md5 = twin_of(node, each)
        if md5 is None:
            md5 = _make(node, stage, each, pace)
        if md5 is None:
            break
        twins[each.base_offset] = md5
        total += each.size
    if twins:
        _derive(node, stage, twins, pace)
    return total


def twin_of(node: NodeContext, entry_file: EntryFile) -> str | None:
    """Return the MD5 sum of the twin of a file, or None if it has no valid one."""
    learned = learned_of(node)
    if learned is None or not entry_file.closed:
        return None
    value = learned.known(entry_file.path, TWIN)
    if value is None or value["base_offset"] != ALL_MOVE:
        return None
    path = Stage(node.files, node.root, TWINS).path(file_name(entry_file.base_offset))
    if not node.files.exists(path) or learned.known_md5(path) != value["md5"]:
        return None
    md5: str = value["md5"]
    return md5


def _make(node: NodeContext, stage: Stage, entry_file: EntryFile, pace: Pace) -> str | None:
    """Write the twin of a file; return its MD5 sum, or None if the file is not what it was."""
    files, learned = node.files, learned_of(node)
    assert learned is not None, "prepare has created the folder"
    before = learned.identity(entry_file.path)
    path = stage.path(file_name(entry_file.base_offset))
    files.make_dirs(stage.folder)
    files.unlink(stage.incoming)
    source = files.open_readonly(entry_file.path)
    twin = files.open(stage.incoming, size=entry_file.size)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        data = DataFile(source.view, entry_file.base_offset, entry_file.size)
        for piece in pieces_of(data, PIECE_BYTES):
            content = bytearray(data.view[piece.start : piece.end])
            for edit in edits_of(data, piece):
                start = edit.position - piece.start
                content[start : start + len(edit.data)] = edit.data
            twin.write(piece.start, content)
            digest.update(content)
            source.release(0, piece.start)
            pace.spend(piece.end - piece.start)
        twin.sync()
    finally:
        twin.close()
        source.close()
    files.set_mtime_ms(stage.incoming, files.mtime_ms(entry_file.path))
    files.rename(stage.incoming, path)
    files.sync_dir(stage.folder)
    identity = learned.settled(path, pace.sleep)
    if (
        learn_log_file(files, learned, work_of(path, entry_file.base_offset, entry_file.size))
        is None
    ):
        files.unlink(path)
        return None
    md5 = digest.hexdigest()
    learned.keep(path, MD5, {"valid": None, "md5": md5, "valid_md5": md5}, identity)
    learned.keep(entry_file.path, TWIN, {"md5": md5, "base_offset": ALL_MOVE}, before)
    return md5


def _derive(node: NodeContext, stage: Stage, twins: dict[int, str], pace: Pace) -> None:
    """Build the queues and the index of all messages up to the end of the twins."""
    paths = StorePaths.from_settings(node.settings)
    end = max(twins) + node.settings.mapped_file_size_commit_log
    sums = {file_name(offset): md5 for offset, md5 in twins.items()}
    if stage.derived_end(sums, node.settings) == end:
        return
    logs = f"{paths.commit_log},{stage.folder}"
    places = derive.DerivedPaths(
        stage.derived, logs, paths.consume_queue, paths.index, paths.config
    )
    build_staged(node, stage, places, min(twins), pace)
    stage.note_derived(end, sums, node.settings)


def derived_base(node: NodeContext, twins: dict[int, str]) -> tuple[str, str, int] | None:
    """Return (queues, index, offset up to which they are built) on the stage, or None.

    They are not used if a topic was deleted or appeared since without a configuration: what is
    dropped from the queues depends on the topics that exist.
    """
    stage = Stage(node.files, node.root, TWINS)
    sums = {file_name(offset): md5 for offset, md5 in twins.items()}
    end = stage.derived_end(sums, node.settings)
    if end is None:
        return None
    paths = StorePaths.from_settings(node.settings)
    queues, index = f"{stage.derived}/{derive.QUEUES}", f"{stage.derived}/{derive.INDEX}"
    staged, present = (set(node.files.list_dir(path)) for path in (queues, paths.consume_queue))
    table = read_table(node.files, f"{paths.config}/topics.json")
    known = set(table.get("topicConfigTable", {})) if isinstance(table, dict) else set()
    if staged - present or present - staged - known:
        return None
    return queues, index, end
