"""The start of a store: the order in which a directory is read, checked, and changed.

1. Lock the directory and read checkpoint, consume queues and index. Nothing is changed.
2. Open the log, which recovers it or fails without changing anything.
3. Create ``abort``: from now on a stop is unclean, until a shutdown removes the file.
4. Align the derived files with the log, note the boot of the machine, and dispatch the records that
   the derived files lack.
"""

from __future__ import annotations

from contextlib import ExitStack

from attrs import define

from rmqpy.codec.layout import ENTRY_HEADER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.config.loading import StoreSettings
from rmqpy.model.clock import Clock
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileLock, FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.opening import OpenedLog, Opening, Stop
from rmqpy.store.dispatcher import Dispatcher
from rmqpy.store.files import lost_pages
from rmqpy.store.files.boot_note import BootNote
from rmqpy.store.files.checkpoint import StoreCheckpoint
from rmqpy.store.files.paths import OWN_FORMAT, StorePaths
from rmqpy.store.files.quarantine import bound_quarantine
from rmqpy.store.files.recovery_point import RecoveryPoint
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.queues.consume_queue import END_STATE
from rmqpy.store.queues.lost_heads import queues_without_head
from rmqpy.store.queues.rebuilds import QueueRebuilds
from rmqpy.store.queues.table import ConsumeQueueTable
from rmqpy.store.queues.unit_proof import are_units_proven
from rmqpy.store.unread.data import check_no_unread
from rmqpy.store.upgrade_guard import check_no_unfinished_upgrade

DISPATCHED_AT_START = 32 << 20
DISPATCHED_AT_START_MS = 1000
"""The number of bytes of the log that are dispatched before a start returns, and the time for that;
the rest follows while the store serves requests.
"""
_OFFSET_MAX = (1 << 63) - 1


@define(slots=True, frozen=True, eq=False, repr=False)
class StoreContext:
    """The dependencies of a store. With ``force``, everything after damage in the middle of the log
    is given up. ``memory_bytes`` is the memory of this machine, and ``boot_id`` changes when it is
    restarted (empty if that is unknown).
    """

    settings: StoreSettings
    files: FileSystem
    clock: Clock
    memory_bytes: int
    force: bool = False
    boot_id: str = ""


@define(slots=True, eq=False, repr=False)
class StoreParts:
    """The parts of a store that has been started."""

    opened: OpenedLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint: StoreCheckpoint
    lock: FileLock
    rebuilds: QueueRebuilds
    queues_durable_to: int
    """The offset up to which the consume queues on disk cover the log; the rest is dispatched
    again.
    """


def open_directory(context: StoreContext) -> StoreParts:
    """Lock and recover a store directory, and return its parts.

    Raises StoreError if the directory is not a valid store, after unlocking it.
    """
    paths = StorePaths.from_settings(context.settings)
    with ExitStack() as undo:
        lock = context.files.lock(paths.lock)
        undo.callback(lock.release)
        parts = _start_locked(context, paths, lock, undo)
        undo.pop_all()
        return parts


def _start_locked(
    context: StoreContext, paths: StorePaths, lock: FileLock, undo: ExitStack
) -> StoreParts:
    files, settings = context.files, context.settings
    _check_own_format(files, paths)
    check_no_unfinished_upgrade(files, paths.root)
    unread = check_no_unread(files, paths, accept=settings.rmqpy_accept_unread_data)
    checkpoint = StoreCheckpoint(
        files, paths.checkpoint, context.clock.now_ms(), paths.own_dispatched
    )
    queues = ConsumeQueueTable(files, paths.consume_queue, settings.mapped_file_size_consume_queue)
    undo.callback(queues.close)
    clean = not files.exists(paths.abort)
    note = BootNote(files, paths.boot, paths.abort, context.boot_id)
    no_power_loss = not context.force and note.holds()
    point = RecoveryPoint.load(files, paths.recovery_point)
    queues.load(_expected_durable_to(point, checkpoint) if no_power_loss else None)
    index = _load_index(context, paths, undo)
    if context.force:
        note.remove()  # What is cut now must not be missed by the next start.
    stop = Stop(
        clean,
        checkpoint.safe_timestamp_ms,
        checkpoint.physic_timestamp_ms,
        checkpoint.flushed_offset,
        point,
        no_power_loss=no_power_loss,
        has_unit=queues.has_unit_of,
    )
    opened = _opening(settings)(files, settings, stop, context.force).open()
    undo.callback(opened.log.close)
    lost_pages.raise_if_any()
    dispatched = checkpoint.dispatched_offset(opened.log.min_offset)
    if not clean and dispatched is not None:
        opened.dispatch_from = PhysicalOffset(min(opened.dispatch_from, dispatched))
    opened.notes += unread
    if checkpoint.note is not None:
        opened.notes.append(checkpoint.note)
    if not files.exists(paths.own_format):
        files.replace_bytes(paths.own_format, f"{OWN_FORMAT}\n".encode())
    if not no_power_loss:
        files.replace_bytes(paths.abort, b"")
    checkpoint.lower(opened.written_end)
    if point is not None and not (
        opened.classic is not None and point.holds(opened.classic.segments)
    ):
        files.unlink(paths.recovery_point)  # it belongs to an earlier log
        point = None
    for name in queues_without_head(queues, opened.log):
        queues.give_up(*name)
    torn = queues.set_torn_aside(paths.quarantine)
    opened.notes += [
        f"{directory} is incomplete: moved to {paths.quarantine}, rebuilt from the log"
        for directory in torn
    ]
    if not context.force:  # A forced start keeps what the operator has given up.
        opened.notes += bound_quarantine(files, paths.quarantine)
    rebuilds = QueueRebuilds(files, paths.queue_rebuilds)
    opened.notes += rebuilds.cut(queues, opened.log)
    short = 0 if torn else _short_queues(queues, point)
    kept_from = _align_queues(opened, queues, clean=clean, no_power_loss=no_power_loss)
    if not no_power_loss:
        note.write()  # From now on, units lead to whole records only.
    if index is not None:
        safe_ms = None if clean else checkpoint.index_timestamp_ms
        index.finish_recovery(opened.written_end, safe_ms)
    levels = {number + 1: delay for number, delay in enumerate(settings.delay_levels_ms)}
    dispatcher = Dispatcher(opened.log, queues, index, levels)
    queue_cursor, index_cursor = _cursors(opened, queues, index, clean)
    if short is not None:
        opened.notes.append(f"consume queues are rebuilt from offset {short} of the log")
        queue_cursor = min(queue_cursor, max(short, opened.log.min_offset))
    elif point is not None and clean:
        queue_cursor = max(queue_cursor, min(point.offset, opened.written_end))
    # What is dispatched again is on the disk after the next flush only.
    checkpoint.lower(queue_cursor)
    dispatcher.start(queue_cursor, index_cursor)
    if kept_from is not None and kept_from <= queue_cursor:
        dispatcher.skip_to(queues.max_physical_offset)
    dispatcher.run_for(DISPATCHED_AT_START_MS, DISPATCHED_AT_START, context.clock)
    queues.correct_min_offsets(opened.log.min_offset)
    return StoreParts(
        opened,
        queues,
        index,
        dispatcher,
        checkpoint,
        lock,
        rebuilds,
        queues_durable_to=queue_cursor,
    )


def _opening(settings: StoreSettings) -> type[Opening]:
    if not settings.enable_dledger_commit_log:
        return Opening
    # Imported here to keep the start of a classic broker fast.
    from rmqpy.store.commitlog.dledger_opening import DLedgerOpening

    return DLedgerOpening


def _expected_durable_to(point: RecoveryPoint | None, checkpoint: StoreCheckpoint) -> int:
    """Return the offset in the log up to which all units are durable, as far as it can be known
    before the log is opened.
    """
    dispatched = checkpoint.dispatched_offset(_OFFSET_MAX)
    offset = 0 if point is None else point.offset
    return offset if dispatched is None else min(offset, dispatched)


def _short_queues(queues: ConsumeQueueTable, point: RecoveryPoint | None) -> int | None:
    """Return the offset from which the log must be dispatched again for queues that end before
    their end in the recovery point, or None if there are none.
    """
    if point is None:
        return None
    starts = []
    for topic, ends in point.queues.items():
        for queue_id, end in ends.items():
            queue = queues.find(topic, queue_id)
            if queue is None or queue.state[END_STATE] < end * QUEUE_UNIT_SIZE:
                starts.append(0 if queue is None else int(queue.max_physical_offset))
    return min(starts, default=None)


def _load_index(context: StoreContext, paths: StorePaths, undo: ExitStack) -> KeyIndex | None:
    settings = context.settings
    if not settings.message_index_enable:
        return None
    index = KeyIndex(
        context.files,
        paths.index,
        settings.max_hash_slot_num,
        settings.max_index_num,
        context.clock.now_ms,
    )
    undo.callback(index.close)
    index.load()
    return index


def _align_queues(
    opened: OpenedLog, queues: ConsumeQueueTable, *, clean: bool, no_power_loss: bool
) -> int | None:
    """Cut units that lead beyond the end of the log. After an unclean stop, also cut units that may
    not be durable: dispatch writes them again. Return the offset in the log from which on the
    queues have all units nevertheless, up to their last message, or None.
    """
    queues.finish_recovery()
    cut = queues.truncate(opened.written_end)
    if cut:
        opened.notes.append(f"{cut} consume queues cut to the end of the log, {opened.written_end}")
    if clean:
        return None
    durable_to = int(max(opened.dispatch_from, opened.log.min_offset))
    if no_power_loss:
        durable_to = _frame_start(opened, durable_to)
        if are_units_proven(queues, opened.log, durable_to):
            return durable_to if queues.keep_unsynced(durable_to) else None
    queues.drop_unsynced(durable_to)
    return None


def _cursors(
    opened: OpenedLog, queues: ConsumeQueueTable, index: KeyIndex | None, clean: bool
) -> tuple[int, int]:
    """Return the offsets at which dispatch continues: for the consume queues and for the key index.

    A queue ignores units that it already has, so starting too early only costs time. A queue that
    ended at a gap needs everything after its own end.
    """
    low = opened.log.min_offset
    from_queues = max(queues.max_physical_offset, low)
    if not clean:
        from_queues = min(from_queues, max(opened.dispatch_from, low))
    for queue in queues:
        if queue.damaged:
            from_queues = min(from_queues, max(queue.max_physical_offset, low))
    from_queues = _frame_start(opened, from_queues)
    if index is None:
        return from_queues, from_queues
    indexed = index.end_offset
    return from_queues, low if indexed is None else _frame_start(opened, max(indexed, low))


def _frame_start(opened: OpenedLog, offset: int) -> int:
    """Return ``offset`` as a cursor: if it is the start of a message at or after the divide, the
    position of the message's entry.

    Ends of records are ends of entries; only the index stores starts of messages.
    """
    entries = opened.entries
    if entries is None or offset <= entries.base_offset:
        return offset
    return offset - ENTRY_HEADER_SIZE if entries.is_body_start(offset) else offset


def _check_own_format(files: FileSystem, paths: StorePaths) -> None:
    if not files.exists(paths.own_format):
        return
    text = files.read_bytes(paths.own_format).decode("ascii", "replace").strip()
    if not (text.isascii() and text.isdigit()) or int(text) > OWN_FORMAT:
        raise StoreError(
            paths.own_format,
            f"format version {text!r}",
            f"at most {OWN_FORMAT}",
            "use the rmqpy version that wrote this directory, or a newer one",
        )
