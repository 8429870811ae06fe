"""Rebuild consume queues and key index from an offset on, in a separate folder.

The queues are copied as they are, cut at the offset, and dispatched from there on. So their units
for older messages remain, including those of topics that have been deleted since. From offset 0 on
they are built from the log alone, because the queues of a slave that received only the last files
begin with blank units. Index files that end below the offset are copied; the rest is rebuilt. The
broker's own dispatch does the work.

What waits on the stage (:mod:`rmqpy.upgrade.plan.stage`) was built for the plan. Files there to
which nothing is added any more are moved and not copied: those of the queues except the last of
each folder, and all files of the index, because what follows goes to a new one. So what is left to
do does not depend on the size of the store. :func:`give_back` returns them.
"""

from __future__ import annotations

import json

from attrs import define

from rmqpy.audit.facts.small_files import existing_topics
from rmqpy.audit.scan.directory import PATH_SEPARATOR
from rmqpy.codec.units import INDEX_HEADER, IndexHeader
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.opening import COMMIT_LOG_SIZE_KEY
from rmqpy.store.dispatcher import Dispatcher
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import LogRecovery, last_safe_file
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.queues.table import ConsumeQueueTable
from rmqpy.upgrade.plan.copying import copy_file, copy_tree
from rmqpy.upgrade.plan.node_context import NodeContext, tree_files
from rmqpy.upgrade.plan.stage import learned_of

FINISHED = "finished"
QUEUES = "consumequeue"
INDEX = "index"
TAKEN = ".taken"
"""The suffix of the file with the names of the index files that were moved from the stage."""
EVER_MS = 1 << 62
"""A store time after all others."""
STEP_BYTES = 4 << 20
"""The bytes of the log that are dispatched between two reports of progress."""


@define(slots=True, frozen=True)
class DerivedPaths:
    """The folders of a build: ``target`` receives both results, the others belong to the store.

    ``commit_log`` may be several folders, with a comma between them. With ``staged``, ``queues``
    and ``index`` are on the stage.
    """

    target: str
    commit_log: str
    queues: str
    index: str
    config: str
    staged: bool = False

    @property
    def bases(self) -> tuple[tuple[str, str], ...]:
        """The folders that the build starts with, each with its place in the result."""
        return (self.queues, f"{self.target}/{QUEUES}"), (self.index, f"{self.target}/{INDEX}")


def is_finished(files: FileSystem, target: str) -> bool:
    return files.exists(f"{target}/{FINISHED}")


def build(context: NodeContext, folders: DerivedPaths, from_offset: int) -> None:
    """Build both folders. On return they are durable and the file ``finished`` exists."""
    files, settings = context.files, context.settings
    target = folders.target
    files.make_dirs(f"{target}/{QUEUES}")
    files.make_dirs(f"{target}/{INDEX}")
    if folders.staged:
        _take(context, folders.queues, f"{target}/{QUEUES}")
        _take_index(context, folders.index, f"{target}/{INDEX}")
    if from_offset > 0:
        copy_tree(files, folders.queues, f"{target}/{QUEUES}")
    _copy_index(files, folders.index, f"{target}/{INDEX}", from_offset)
    logs = tuple(folders.commit_log.split(PATH_SEPARATOR))
    log_files = MappedFiles(files, logs, settings.mapped_file_size_commit_log)
    log_files.load(COMMIT_LOG_SIZE_KEY)
    queues = ConsumeQueueTable(files, f"{target}/{QUEUES}", settings.mapped_file_size_consume_queue)
    index = KeyIndex(
        files,
        f"{target}/{INDEX}",
        settings.max_hash_slot_num,
        settings.max_index_num,
        context.now_ms,
    )
    try:
        if log_files:
            recovery = LogRecovery(files, log_files, Framing.CLASSIC, f"{context.work}/quarantine")
            recovery.recover(_last_written(log_files, from_offset))
        _dispatch(context, log_files, (queues, index), from_offset, new_index_file=folders.staged)
        _drop_deleted(files, queues, folders)
        stored_ms = _make_durable(files, queues, index, target)
    finally:
        queues.close()
        index.close()
        log_files.close()
    _keep_times(files, folders.queues, f"{target}/{QUEUES}")
    files.replace_bytes(f"{target}/{FINISHED}", json.dumps({"at_ms": stored_ms}).encode())


def give_back(context: NodeContext, folders: DerivedPaths) -> None:
    """Return to the stage what :func:`build` has taken from it, also after a kill."""
    for source, place in folders.bases:
        _give_back(context, source, place)
    taken = _taken_index(context.files, folders.index)
    place = f"{folders.target}/{INDEX}"
    _move_all(context, place, folders.index, _present(context.files, place, taken))
    context.files.unlink(f"{folders.index}{TAKEN}")


def copied(files: FileSystem, folders: DerivedPaths) -> list[str]:
    """Return the paths of the files that a build copies."""
    if not folders.staged:
        return [path for source, _ in folders.bases for path in tree_files(files, source)]
    paths = tree_files(files, folders.queues)
    return list({path.rpartition("/")[0]: path for path in paths}.values())


def moved(files: FileSystem, folders: DerivedPaths) -> list[str]:
    """Return the paths of the files that a build takes from the stage."""
    if not folders.staged:
        return []
    kept = {*copied(files, folders)}
    return [
        path
        for source, _ in folders.bases
        for path in tree_files(files, source)
        if path not in kept
    ]


def _take(context: NodeContext, source: str, place: str) -> None:
    """Move all files of each folder except the last, which stays as the mark of those before."""
    files = context.files
    names = files.list_dir(source)
    for name in names:
        if files.is_dir(f"{source}/{name}"):
            _take(context, f"{source}/{name}", f"{place}/{name}")
    _move_all(context, source, place, [n for n in names[:-1] if not files.is_dir(f"{source}/{n}")])


def _take_index(context: NodeContext, source: str, place: str) -> None:
    """Move all index files; their names are noted beside the folder."""
    files = context.files
    if not files.exists(f"{source}{TAKEN}"):
        names = json.dumps(files.list_dir(source))
        files.replace_bytes(f"{source}{TAKEN}", names.encode())
    taken = _taken_index(files, source)
    _move_all(context, source, place, _present(files, source, taken))


def _taken_index(files: FileSystem, source: str) -> list[str]:
    path = f"{source}{TAKEN}"
    return [str(each) for each in json.loads(files.read_bytes(path))] if files.exists(path) else []


def _present(files: FileSystem, folder: str, names: list[str]) -> list[str]:
    found = set(files.list_dir(folder))
    return [name for name in names if name in found]


def _give_back(context: NodeContext, source: str, place: str) -> None:
    files = context.files
    left = files.list_dir(source)
    names = files.list_dir(place)
    for name in names:
        if files.is_dir(f"{place}/{name}"):
            _give_back(context, f"{source}/{name}", f"{place}/{name}")
    taken = [name for name in names if left and name < left[-1] and name not in left]
    _move_all(context, place, source, [n for n in taken if not files.is_dir(f"{place}/{n}")])


def _move_all(context: NodeContext, source: str, place: str, names: list[str]) -> None:
    """Move files, durably and with what was learned about them."""
    if not names:
        return
    files, learned = context.files, learned_of(context)
    files.make_dirs(place)
    for name in names:
        path, moved = f"{source}/{name}", f"{place}/{name}"
        entries = learned.parts_of(path) if learned is not None else []
        files.rename(path, moved)
        if learned is not None:
            learned.carry_over(entries, moved)
    files.sync_dir(place)
    files.sync_dir(source)


def _last_written(log_files: MappedFiles, offset: int) -> int:
    """Return the number of the last file with a record, or of the one with ``offset`` if that is
    later. Those before it are not read to find the end: they are proven, and dispatched anyway.
    """
    before = sum(file.end_offset <= offset for file in log_files)
    written = last_safe_file(log_files, Framing.CLASSIC, EVER_MS) or 0
    return max(written, min(before, len(log_files) - 1))


def _dispatch(
    context: NodeContext,
    log_files: MappedFiles,
    derived: tuple[ConsumeQueueTable, KeyIndex],
    from_offset: int,
    *,
    new_index_file: bool,
) -> None:
    queues, index = derived
    log = ClassicCommitLog(log_files)
    settings = context.settings
    queues.load()
    queues.finish_recovery()
    queues.truncate(from_offset)
    index.load()
    index.finish_recovery(log.max_offset, None)
    if new_index_file:
        index.begin_file()
    levels = {number + 1: delay for number, delay in enumerate(settings.delay_levels_ms)}
    dispatch = Dispatcher(log, queues, index if settings.message_index_enable else None, levels)
    indexed = index.end_offset
    # A log without a message after the divide ends where its last filler begins.
    begin = min(from_offset, log.max_offset)
    dispatch.start(begin, log.min_offset if indexed is None else min(indexed, begin))
    progress, done = context.progress("indexing"), dispatch.queue_cursor + dispatch.index_cursor
    progress.expect(2 * log.max_offset - done)

    def report() -> int:
        low = min(dispatch.queue_cursor, dispatch.index_cursor)
        for file in log_files:
            if file.is_open and file.first_offset < low:
                file.release(min(low, file.end_offset) - file.first_offset)
        now = dispatch.queue_cursor + dispatch.index_cursor
        progress.advance(now - done)
        return now

    cursor = -1
    while dispatch.queue_cursor > cursor:
        cursor = dispatch.queue_cursor
        dispatch.run(STEP_BYTES)
        done = report()
    while dispatch.index_step():
        done = report()
    report()
    queues.correct_min_offsets(PhysicalOffset(log.min_offset))


def _drop_deleted(files: FileSystem, queues: ConsumeQueueTable, folders: DerivedPaths) -> None:
    kept = existing_topics(files, folders.config, folders.queues)
    if kept is None:
        return
    for topic in {name[0] for name, _ in queues.items()} - kept:
        queues.drop_topic(topic)


def _make_durable(
    files: FileSystem, queues: ConsumeQueueTable, index: KeyIndex, target: str
) -> int:
    folders = []
    for (topic, queue_id), queue in queues.items():
        sync = queue.take_sync()
        if sync is not None:
            sync.run()
        folders.append(f"{target}/{QUEUES}/{topic}/{queue_id}")
    for folder in folders:
        if files.is_dir(folder):
            files.sync_dir(folder)
    pending = index.take_sync()
    if pending is not None:
        pending.run()
    index.sync()
    return index.last_update[0]


def _copy_index(files: FileSystem, source: str, target: str, end_offset: int) -> None:
    for name in files.list_dir(source):
        path = f"{source}/{name}"
        if files.size_of(path) < INDEX_HEADER.size:
            return
        file = files.open_readonly(path)
        try:
            header = IndexHeader.decode(bytes(file.view[: INDEX_HEADER.size]))
        finally:
            file.close()
        if header.end_offset >= end_offset or header.index_count <= 1:
            return
        copy_file(files, path, f"{target}/{name}")


def _keep_times(files: FileSystem, source: str, target: str) -> None:
    """Set each file's time to that of the file it replaces: Java searches queues by those times."""
    for name in files.list_dir(target):
        path, old = f"{target}/{name}", f"{source}/{name}"
        if files.is_dir(path):
            _keep_times(files, old, path)
        elif files.exists(old):
            files.set_mtime_ms(path, files.mtime_ms(old))
