"""MessageStore: the face of the store. One log, its derived files, and the order in which they change.

A turn: ``put`` any number of times (staged), ``commit`` once (one write a file), ``dispatch`` (derived files, arrivals).
Flushing is the caller's: it takes ``flush_task``, runs it where it may block, and reports ``flushed``.

Invariants: queue offsets are dense; a status other than PUT_OK means that nothing was stored; after a failed write
nothing more is accepted (``writeable`` is false until a restart).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from rmqpy.codec.chosen import encode_messages
from rmqpy.codec.layout import (
    ENTRY_HEADER_SIZE,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    PROPERTIES_BYTES_MAX,
    QUEUE_OFFSET_POSITION,
    TOPIC_BYTES_MAX,
    record_size,
)
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.config import StoreSettings
from rmqpy.model.errors import StoreFault
from rmqpy.model.flags import has_queue_unit
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.message import MessageDraft
from rmqpy.model.runtime import Clock
from rmqpy.store.checkpoint import StoreCheckpoint
from rmqpy.store.commitlog.interface import CommitLog, FlushTask
from rmqpy.store.commitlog.opening import OpenedLog, Opening, Stop
from rmqpy.store.dispatch import ArrivalListener, Dispatch
from rmqpy.store.entry_store import EntryStore
from rmqpy.store.files import FileLayer, FileLock
from rmqpy.store.index_file import KeyIndex
from rmqpy.store.paths import OWN_FORMAT, StorePaths
from rmqpy.store.queue_reader import Matcher, QueueReader, record_store_timestamp
from rmqpy.store.queue_table import ConsumeQueueTable, QueueName
from rmqpy.store.results import GetMessageResult, PutResult, QueryMessageResult
from rmqpy.store.watermark import Watermark

DISK_FULL_RATIO = 0.90
"""Use of the log's disk from which puts are refused (diskSpaceWarningLevelRatio)."""


@define(slots=True, frozen=True)
class StoreContext:
    """What a store needs from outside. ``force`` gives up everything behind damage in the middle of the log."""

    settings: StoreSettings
    files: FileLayer
    clock: Clock
    memory_bytes: int
    force: bool = False


@define(slots=True)
class _Parts:
    opened: OpenedLog
    queues: ConsumeQueueTable
    index: KeyIndex | None
    dispatch: Dispatch
    checkpoint: StoreCheckpoint
    lock: FileLock


class MessageStore:
    """See the module's text. Open with :func:`open_store`."""

    def __init__(self, context: StoreContext, parts: _Parts) -> None:
        self._settings = context.settings
        self._files = context.files
        self._clock = context.clock
        self._paths = StorePaths.of(context.settings)
        self._parts = parts
        self._log: CommitLog = parts.opened.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = parts.dispatch
        self._reader = QueueReader(self._log, self._queues, self._settings, context.memory_bytes)
        self._tails: dict[tuple[bytes, int], int] = {}
        self._is_slave = False
        self._disk_full = False
        self._failure: str | None = None
        self._open = True
        self.rebuild_tails()

    # What is there

    @property
    def opened(self) -> OpenedLog:
        """How the directory was found and opened; ``notes`` are for the log."""
        return self._parts.opened

    @property
    def entries(self) -> EntryStore | None:
        """The DLedger part, where there is one."""
        return self._parts.opened.entries

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def divided_offset(self) -> PhysicalOffset | None:
        return self._parts.opened.divided_offset

    @property
    def min_physical_offset(self) -> PhysicalOffset:
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> PhysicalOffset:
        return self._log.max_offset

    @property
    def confirm_offset(self) -> PhysicalOffset:
        return self._log.confirm_offset

    @property
    def flushed_offset(self) -> PhysicalOffset:
        return self._log.flushed_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        return self._dispatch.behind_bytes

    @property
    def writeable(self) -> bool:
        return self._open and not self._is_slave and not self._disk_full and self._failure is None

    @property
    def failure(self) -> str | None:
        """Why nothing is accepted any more, after a failed write or sync."""
        return self._failure

    @property
    def on_arrival(self) -> ArrivalListener | None:
        return self._dispatch.on_arrival

    @on_arrival.setter
    def on_arrival(self, listener: ArrivalListener | None) -> None:
        self._dispatch.on_arrival = listener

    # Writing

    def put(self, drafts: Sequence[MessageDraft], batch: bool = False) -> list[PutResult]:
        """Stage messages; one result a draft, or one for all of a ``batch`` (same topic and queue, all or none).

        The replies may leave when :meth:`acknowledged` watermarks have passed the results' ``end``.
        """
        refused = self._refusal()
        if refused is not None:
            return [refused] * (1 if batch else len(drafts))
        results = [self._check(draft) for draft in drafts]
        if batch:
            return [self._put_batch(drafts, results)]
        good = [draft for draft, result in zip(drafts, results, strict=True) if result is None]
        records = iter(encode_messages(good))
        now_ms = self._clock.now_ms()
        return [
            result if result is not None else self._append((draft,), [next(records)], now_ms)
            for draft, result in zip(drafts, results, strict=True)
        ]

    def _put_batch(
        self, drafts: Sequence[MessageDraft], results: Sequence[PutResult | None]
    ) -> PutResult:
        for result in results:
            if result is not None:
                return result
        if sum(len(draft.body) for draft in drafts) > self._settings.max_message_size:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, remark="batch body above maxMessageSize")
        return self._append(drafts, encode_messages(drafts), self._clock.now_ms())

    def _append(
        self, drafts: Sequence[MessageDraft], records: list[bytearray], now_ms: int
    ) -> PutResult:
        first = drafts[0]
        name = (first.topic, first.queue_id)
        queue_offset = 0
        counted = has_queue_unit(first.sys_flag)
        if counted:
            queue_offset = self._tails.get(name, 0)
            for number, record in enumerate(records):
                place = QUEUE_OFFSET_POSITION
                record[place : place + 8] = (queue_offset + number).to_bytes(8)
        appended = self._log.append(records, now_ms)
        if appended.status is not PutMessageStatus.PUT_OK:
            return PutResult(appended.status, remark=appended.remark)
        if counted:
            self._tails[name] = queue_offset + len(records)
        return PutResult(
            appended.status, QueueOffset(queue_offset), appended.physical_offsets, appended.end
        )

    def _refusal(self) -> PutResult | None:
        if self.writeable:
            return None
        if not self._open:
            remark = "the store has been shut down"
        elif self._is_slave:
            remark = "messages are put to the slave"
        elif self._failure is not None:
            remark = self._failure
        else:
            remark = "the disk is full"
        return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=remark)

    def _check(self, draft: MessageDraft) -> PutResult | None:
        """The put checks on one message."""
        limit = self._settings.max_message_size
        if len(draft.topic) > TOPIC_BYTES_MAX:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, remark="topic length above 127")
        if len(draft.properties) > PROPERTIES_BYTES_MAX:
            return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, remark="properties above 32767 bytes")
        sizes = (len(draft.body), len(draft.topic), len(draft.properties))
        if sizes[0] > limit or record_size(draft.sys_flag, *sizes) > limit:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, remark=f"message above {limit} bytes")
        return None

    def commit(self) -> None:
        """Write what was staged since the last call. After a failed write nothing more is accepted."""
        try:
            self._log.commit()
        except OSError as error:
            self.fail(f"writing the commit log failed: {error}")

    def fail(self, reason: str) -> None:
        """Stop accepting messages: what could not be written or synced must not be acknowledged."""
        if self._failure is None:
            self._failure = reason

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """The watermarks that a reply has to wait for."""
        return self._log.acknowledged(wait_store_ok)

    def dispatch(self) -> None:
        """Bring derived files up to what readers may see, and tell of arrivals."""
        try:
            self._dispatch.run()
        except StoreFault as fault:
            self.fail(str(fault))
            raise

    def catch_up_index(self) -> bool:
        """One bounded step of building a key index that lags; True when more is to do."""
        return self._dispatch.index_step()

    # Flushing

    def flush_task(self) -> FlushTask | None:
        return self._log.flush_task()

    def flushed(self, offset: PhysicalOffset) -> None:
        self._log.flushed(offset)
        self._parts.checkpoint.physic_timestamp_ms = self._dispatch.store_timestamp_ms

    def flush_queues(self) -> None:
        """Make consume queues, full index files and the checkpoint durable. Blocks; short when little has changed."""
        stored_ms = self._dispatch.store_timestamp_ms
        for queue in self._queues:
            if queue.dirty_bytes:
                queue.sync()
        checkpoint = self._parts.checkpoint
        checkpoint.logics_timestamp_ms = max(checkpoint.logics_timestamp_ms, stored_ms)
        if self._index is not None:
            for file in self._index.take_full():
                file.sync()
                checkpoint.index_timestamp_ms = file.header.end_timestamp_ms
        checkpoint.write()
        if self.entries is not None:
            self.entries.save_checkpoint()

    # Reading

    def get_message(
        self, group: str, topic: str, queue_id: int, offset: int, max_count: int, matcher: Matcher | None
    ) -> GetMessageResult:
        return self._reader.get_message(topic, queue_id, offset, max_count, matcher)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The whole record that begins at ``physical_offset``; None when none does."""
        head = self._log.read(PhysicalOffset(physical_offset), 8)
        if head is None or physical_offset < 0:
            return None
        size = int.from_bytes(head[:4], signed=True)
        magic = int.from_bytes(head[4:8])
        if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) or not 0 < size <= self._settings.mapped_file_size_commit_log:
            return None
        record = self._log.read(PhysicalOffset(physical_offset), size)
        place = PHYSICAL_OFFSET_POSITION
        if record is None or int.from_bytes(record[place : place + 8]) != physical_offset:
            return None
        return record

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryMessageResult:
        """Messages of a topic by key, newest file first, at most ``maxMsgsNumBatch``."""
        result = QueryMessageResult()
        if self._index is None:
            return result
        count = min(max_count, self._settings.max_msgs_num_batch)
        for offset in self._index.find(topic, key, count, begin_ms, end_ms):
            record = self.message_at(offset)
            if record is not None:
                result.messages.append(record)
        timestamp_ms, offset = self._index.last_update
        result.index_last_update_timestamp_ms = timestamp_ms
        result.index_last_update_physical_offset = offset
        return result

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.max_offset(topic, queue_id)

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.min_offset(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms)

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return self._reader.store_timestamp_at(topic, queue_id, queue_offset)

    def in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return self._reader.in_memory(topic, queue_id, queue_offset)

    def earliest_store_timestamp(self) -> int:
        """Store time (ms) of the first message in the log; -1 when there is none."""
        for piece in self._log.ranges(self._log.min_offset):
            position = ENTRY_HEADER_SIZE if piece.dledger else 0
            record = self.message_at(piece.offset + position)
            return record_store_timestamp(record) if record is not None else -1
        return -1

    def queues(self) -> Iterable[QueueName]:
        return [name for name, _ in self._queues.items()]

    def delete_topic_queues(self, topic: str) -> None:
        self._queues.drop_topic(topic)
        for name in [name for name in self._tails if name[0] == topic.encode()]:
            del self._tails[name]

    # Roles and housekeeping

    def become(self, *, slave: bool) -> None:
        """Change the role. A new master's queue offsets go on from what its consume queues say."""
        self._is_slave = self._reader.is_slave = slave
        if not slave:
            self.rebuild_tails()

    def rebuild_tails(self) -> None:
        """Topic-queue table := consume queue ends. Everything readable has been dispatched when this is called."""
        self._tails = {
            (topic.encode(), queue_id): queue.max_offset
            for (topic, queue_id), queue in self._queues.items()
        }

    def check_disk(self) -> None:
        """Refuse puts while the disk is nearly full; accept again when there is room."""
        self._disk_full = self.disk_use_ratio(self._paths.commit_log) > DISK_FULL_RATIO

    def disk_use_ratio(self, path: str) -> float:
        total, free = self._files.disk_usage(path)
        return 1 - free / total if total else 0.0

    def runtime_info(self) -> dict[str, str]:
        """The store's part of GET_BROKER_RUNTIME_INFO."""
        log_ratio = self.disk_use_ratio(self._paths.commit_log)
        info = {
            "commitLogDiskRatio": f"{log_ratio:.2f}",
            f"commitLogDiskRatio_{self._paths.commit_log}": f"{log_ratio:.2f}",
            "consumeQueueDiskRatio": f"{self.disk_use_ratio(self._paths.root):.2f}",
            "commitLogMinOffset": str(self.min_physical_offset),
            "commitLogMaxOffset": str(self.confirm_offset),
            "dispatchBehindBytes": str(self.dispatch_behind_bytes),
            "remainHowManyDataToFlush": _bytes_text(self.confirm_offset - self.flushed_offset),
            "earliestMessageTimeStamp": str(self.earliest_store_timestamp()),
        }
        if self.divided_offset is not None:
            info["dividedCommitlogOffset"] = str(self.divided_offset)
        if self._failure is not None:
            info["storeFailure"] = self._failure
        return info

    def shutdown(self) -> None:
        """Commit, dispatch, make everything durable, release the directory. Harmless twice.

        ``abort`` stays behind when something failed or could not be dispatched: the next start then repairs.
        """
        if not self._open:
            return
        clean = self._failure is None
        if clean:
            self.commit()
            self._dispatch.run()
            clean = self._failure is None and not self._dispatch.behind_bytes
        self._open = False
        task = self.flush_task()
        if task is not None:
            task.run()
            self.flushed(task.offset)
        self.flush_queues()
        if self._index is not None:
            self._index.sync()
        if self._parts.opened.classic is not None and self.entries is None:
            self._parts.opened.classic.drop_unused()
        if clean:
            self._files.unlink(self._paths.abort)
        self._release()

    def abandon(self) -> None:
        """Release the directory without writing anything, as a crash would leave it."""
        self._open = False
        self._release()

    def _release(self) -> None:
        self._log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._parts.checkpoint.close()
        self._parts.lock.release()


def open_store(context: StoreContext) -> MessageStore:
    """Lock, recover and open a store directory; everything readable is dispatched when it returns.

    Raises StoreFault when the directory is not what it must be; it is unlocked again then.
    """
    paths = StorePaths.of(context.settings)
    lock = context.files.lock(paths.lock)
    try:
        _check_own_format(context.files, paths)
        return _open_locked(context, paths, lock)
    except BaseException:
        lock.release()
        raise


def _open_locked(context: StoreContext, paths: StorePaths, lock: FileLock) -> MessageStore:
    files, settings = context.files, context.settings
    clean = not files.exists(paths.abort)
    checkpoint = StoreCheckpoint(files, paths.checkpoint)
    queues = ConsumeQueueTable(files, paths.consume_queue, settings.mapped_file_size_consume_queue)
    queues.load()
    index = _load_index(context, paths, None if clean else checkpoint.index_timestamp_ms)
    opened = Opening(files, settings, Stop(clean, checkpoint.safe_timestamp_ms), context.force).open()
    cut = queues.truncate(opened.written_end)
    if cut:
        opened.notes.append(f"{cut} consume queues cut to the log's end {opened.written_end}")
    levels = {number + 1: delay for number, delay in enumerate(settings.delay_levels_ms)}
    dispatch = Dispatch(opened.log, queues, index, levels)
    dispatch.start(*_cursors(opened, queues, index, clean))
    files.replace_bytes(paths.abort, b"")
    dispatch.run()
    queues.correct_min_offsets(opened.log.min_offset)
    return MessageStore(context, _Parts(opened, queues, index, dispatch, checkpoint, lock))


def _load_index(
    context: StoreContext, paths: StorePaths, safe_timestamp_ms: int | None
) -> KeyIndex | None:
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
    index.load(safe_timestamp_ms)
    return index


def _cursors(
    opened: OpenedLog, queues: ConsumeQueueTable, index: KeyIndex | None, clean: bool
) -> tuple[int, int]:
    """Where dispatch goes on: for the consume queues, for the key index.

    What a queue has already it drops again, so starting too early only costs time. After an unclean stop everything from
    the start of the recovery's walk is dispatched; a queue that ended at a hole needs everything behind its own end.
    """
    low = opened.log.min_offset
    from_queues = max(queues.max_physical_offset, low)
    if not clean:
        from_queues = min(from_queues, max(opened.walked_from, low))
    for name in queues.damaged:
        queue = queues.find(*name)
        assert queue is not None
        from_queues = min(from_queues, max(queue.max_physical_offset, low))
    from_queues = _frame_start(opened, from_queues)
    if index is None:
        return from_queues, from_queues
    indexed = index.end_offset
    if indexed is None:
        return from_queues, low
    return from_queues, from_queues if clean else _frame_start(opened, max(indexed, low))


def _frame_start(opened: OpenedLog, offset: int) -> int:
    """``offset`` as a cursor: the entry's position for a message offset at or behind the divide.

    Ends of records are ends of entries; only the index remembers where a message begins.
    """
    entries = opened.entries
    if entries is None or offset <= entries.base_offset:
        return offset
    file = entries.file_at(offset)
    if file is None:
        return offset
    return offset - ENTRY_HEADER_SIZE if entries.is_body_start(offset) else offset


def _check_own_format(files: FileLayer, paths: StorePaths) -> None:
    if not files.exists(paths.own_format):
        files.replace_bytes(paths.own_format, f"{OWN_FORMAT}\n".encode())
        return
    text = files.read_bytes(paths.own_format).decode("ascii", "replace").strip()
    if not text.isdigit() or int(text) > OWN_FORMAT:
        raise StoreFault(
            paths.own_format,
            f"format version {text!r}",
            f"at most {OWN_FORMAT}",
            "use the rmqpy version that wrote this directory, or a newer one",
        )


def _bytes_text(count: int) -> str:
    return f"{count} B"
