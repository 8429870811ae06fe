"""MessageStore: the face of the store. One log, its derived files, and the order in which they
change.

A turn: ``put`` any number of times (staged), ``commit`` once (one write a file), ``dispatch``
(derived files, arrivals). Flushing is the caller's: it takes ``flush_task``, runs it where it may
block, and reports ``flushed``.

Invariants: queue offsets are dense; a status other than PUT_OK means that nothing was stored; after
a failed write nothing more is accepted (``writeable`` is false until a restart).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.interface import CommitLog, FlushTask
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.flush_tracker import FlushTracker, QueueFlush
from rmqpy.store.health import NO_ROOM, StoreHealth, Writer
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds
from rmqpy.store.queues.table import QueueName
from rmqpy.store.reader import (
    Matcher,
    QueueMessageReader,
    RecordFilter,
    record_at,
    record_store_timestamp,
)
from rmqpy.store.results import GetMessageResult, PutResult, QueryMessageResult
from rmqpy.store.retention import RetentionCleaner
from rmqpy.store.runtime_info import RuntimeInfo
from rmqpy.store.startup import StoreContext, StoreParts, open_directory

if TYPE_CHECKING:
    from rmqpy.store.commitlog.dledger import DLedgerCommitLog
    from rmqpy.store.ledger.classic_prefix import ClassicPrefix
    from rmqpy.store.ledger.entry_store import EntryStore

__all__ = ["MessageStore", "QueueFlush", "StoreContext", "open_store"]


DISPATCHED_AT_ONCE = 8 << 20
"""Bytes of the log that one turn dispatches."""
INDEX_RETRY_MS = 1000
"""A key index waits so long for a damaged entry to be mended."""
GROWN_MAX = 128 << 20


class MessageStore:
    """See the module's text. Open with :func:`open_store`."""

    def __init__(self, context: StoreContext, parts: StoreParts) -> None:
        self._settings = context.settings
        self._files = context.files
        self._clock = context.clock
        self._paths = StorePaths.from_settings(context.settings)
        self._parts = parts
        self._log: CommitLog = parts.opened.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = parts.dispatch
        self._reader = QueueMessageReader(
            self._log, self._queues, self._settings, context.memory_bytes
        )
        self._settled_offset = self._log.confirm_offset
        self._reader.is_settling = lambda: self.is_rebuilding_queues
        self._reader.on_dangling_unit = self._stray_unit
        if parts.opened.entries is not None:
            self._reader.is_awaiting_repair = parts.opened.entries.is_awaiting_repair
        self.health = StoreHealth()
        self.queue_ends = ExpiredQueueEnds(context.files, self._paths.queue_ends)
        self._puts = MessageAppender(context, parts, self.health, self.queue_ends)
        self.tails = self._puts.tails
        self._flushes = FlushTracker(parts, context.files, self._paths)
        self.cleaning = RetentionCleaner(
            context.files,
            self._paths,
            self._log,
            self._queues,
            self._index,
            self.health,
            self._flushes,
        )
        self._dispatch_failed = False
        self._index_waits_until_ms = 0
        self._info = RuntimeInfo(
            self._paths, parts.opened, self._dispatch, self.cleaning, self.health, parts.rebuilds
        )

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
    def dledger(self) -> DLedgerCommitLog | None:
        """The DLedger log, where there is one: it wants a proposer before anything can be put."""
        return self._parts.opened.dledger

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def parts(self) -> StoreParts:
        """For the C core, which reads and writes what the parts share with it."""
        return self._parts

    @property
    def memory_distance(self) -> int:
        return self._reader.memory_distance

    @property
    def settings(self) -> StoreSettings:
        return self._settings

    @property
    def old_log(self) -> ClassicPrefix | None:
        """What a member says of the log in front of the divide."""
        return self._parts.opened.old_log

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
    def dispatch_due(self) -> bool:
        """Whether :meth:`dispatch` has something to do."""
        return self._dispatch.is_behind or not self.health.is_healthy

    @property
    def is_idle(self) -> bool:
        """Whether :meth:`commit` and :meth:`dispatch` have nothing to do."""
        return self._puts.is_idle and not self._dispatch.is_behind

    @property
    def is_rebuilding_queues(self) -> bool:
        """Whether the consume queues do not have yet what the log had at the start."""
        return self._dispatch.queue_cursor < self._settled_offset

    @property
    def writeable(self) -> bool:
        return self.health.writeable

    @property
    def disk_full(self) -> bool:
        """Whether puts are refused for lack of room."""
        return self.health.is_disk_full or self.health.is_short

    @property
    def is_healthy(self) -> bool:
        """Whether there is neither a :attr:`failure` nor a :attr:`disk_full_reason`."""
        return self.health.is_healthy

    @property
    def failure(self) -> str | None:
        """Why nothing is accepted any more, after a failed write or sync."""
        return self.health.failure

    @property
    def disk_full_reason(self) -> str | None:
        """What waits for room on the disk: :meth:`commit` and :meth:`dispatch` try it again."""
        return self.health.disk_full_reason

    def subscribe_arrivals(self, listener: ArrivalListener) -> None:
        """Call ``listener`` with each message that becomes readable."""
        self._dispatch.subscribe(listener)

    # Writing

    @property
    def appends_crc(self) -> bool:
        """Whether records get the checksum of 5.x."""
        return self._puts.appends_crc

    def ready_to_put(self) -> bool:
        """Whether a put would not be refused for the state of the store."""
        return self._puts.is_ready()

    @property
    def page_cache_busy(self) -> bool:
        """Whether puts are refused because the last write of the log took too long."""
        return self._puts.page_cache_busy

    def put(self, drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]:
        """Stage messages; one result a draft, or one for all of a ``batch`` (same topic and queue,
        all or none).

        The replies may leave when :meth:`acknowledged` watermarks have passed the results' ``end``.
        """
        return self._puts.put(drafts, batch)

    def put_record(self, record: bytes) -> PutResult:
        """Append a whole record that somebody else has encoded; queue offset, physical offset and
        store timestamp become this store's.
        """
        return self._puts.put_record(record)

    def commit(self) -> None:
        """Write what was staged since the last call. After a failed write nothing more is accepted;
        what found the disk full stays staged, and is written by the first call that finds room.
        """
        self._puts.commit()

    def encode_queue_ends(self) -> bytes:
        """Where the queues go on that have no message in the log (:mod:`.queue_ends`)."""
        return self.queue_ends.tell(self._queues.items(), self._log.min_offset)

    def delete_classic_prefix(self) -> None:
        """All in front of the divide has expired in the group. Blocks; raises OSError."""
        opened = self._parts.opened
        if opened.dledger is not None and opened.classic is not None:
            self.cleaning.drop_old(opened.classic)

    def discard_through(self, index: int) -> None:
        """The leader has no entry up to ``index`` any more, of which one is damaged here: their
        files go, whatever their age. Blocks; raises OSError.
        """
        entries = self.entries
        if entries is not None and index > entries.let_go_index:
            # What stands behind the damage was dispatched by nobody here.
            self.queue_ends.request()
            entries.let_go_index = index
        self.cleaning.delete_manually()

    def on_log_reset(self) -> None:
        """The log begins elsewhere now: further on, and readers are sent there; or, where nothing
        was left of it, further back, with entries that are new here.
        """
        low = self._log.min_offset
        self._queues.begin_again(low)
        self._dispatch.reset_to(low)
        self._flushes.begin_again(low)

    def log_write_failed(self, error: OSError) -> None:
        """Somebody else met this when he wrote to the log."""
        self.health.write_failed(Writer.LOG, error)

    def append_raw(self, offset: PhysicalOffset, data: bytes) -> None:
        """Bytes of a master's log, which lie at ``offset`` there: they continue this one, or begin
        it when it holds nothing; within one file. Raises StoreError when they cannot be taken;
        unless the disk is full only, nothing more is accepted then.
        """
        log = self._parts.opened.classic
        assert log is not None and self.health.is_slave, "raw bytes are for a slave's classic log"
        failure = self.health.failure
        if failure is not None:
            raise StoreError(self._paths.commit_log, failure, "a store that works", "restart")
        try:
            if log.max_offset == 0 < offset:
                log.begin_at(offset)
                self._dispatch.start(offset, offset)
            assert offset == log.max_offset, (offset, log.max_offset)
            log.append_raw(data)
            self.health.wrote(Writer.LOG)
        except OSError as error:
            self.health.write_failed(Writer.LOG, error)
            raise StoreError(
                self._paths.commit_log,
                f"writing the bytes of the master failed: {error}",
                "a disk that takes them",
                "see to the disk, then restart",
            ) from error

    def change_settings(self, settings: StoreSettings) -> None:
        """Limits and shares that may change while the store is open; the rest stays."""
        self._settings = settings
        self._puts.change_settings(settings)
        self._reader.change_settings(settings)

    def fail(self, reason: str) -> None:
        """Stop accepting messages: what could not be written or synced must not be acknowledged."""
        self.health.fail(reason)

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """The watermarks that a reply has to wait for."""
        return self._log.acknowledged(wait_store_ok)

    def dispatch(self) -> None:
        """Bring derived files up to what readers may see, and tell of arrivals.

        Raises StoreError when that cannot be done; from then on it is not tried again.
        """
        if self._dispatch_failed:
            return
        try:
            self._dispatch.run(DISPATCHED_AT_ONCE)
            self.health.wrote(Writer.DERIVED)
        except OSError as error:
            self.health.write_failed(Writer.DERIVED, error)
            if self.health.failure is not None:
                self._dispatch_failed = True
                raise
        except StoreError as error:
            self._dispatch_failed = True
            self.fail(f"dispatching to the consume queues failed: {error}")
            raise

    def catch_up_index(self) -> bool:
        """One bounded step of building a key index that lags; True when more is to do. Raises
        StoreError for a record that cannot be read, and will not be mended.
        """
        if self._clock.monotonic_ms() < self._index_waits_until_ms:
            return True
        try:
            return self._dispatch.index_step()
        except StoreError:
            entries = self.entries
            if entries is None or self._dispatch.index_cursor < entries.base_offset:
                raise
            # The scrub finds it too, and fetches it from the leader.
            self._index_waits_until_ms = self._clock.monotonic_ms() + INDEX_RETRY_MS
            return True

    # Flushing

    def flush_task(self) -> FlushTask | None:
        """The work that makes the log durable; None when it is, or when that cannot be had any
        more: after a failed sync the system may forget what it has not written.
        """
        return self._flushes.take() if self.health.failure is None else None

    def flushed(self, offset: PhysicalOffset) -> None:
        """A flush task has been run without an error."""
        self._flushes.done(offset)

    def queue_flush_task(self) -> QueueFlush | None:
        """The work that makes the derived files durable; None when they are, or as above. One at a
        time.
        """
        return self._flushes.take_queues() if self.health.failure is None else None

    def queues_flushed(self, task: QueueFlush) -> None:
        """A queue flush has been run without an error."""
        self._flushes.queues_done(task)
        if not self.is_rebuilding_queues:
            self._note_rebuilds(self._parts.rebuilds.done)

    def on_queue_flush_failed(self, error: BaseException) -> None:
        """A queue flush has failed: for good, unless the checkpoint found no room."""
        if not (isinstance(error, OSError) and error.errno in NO_ROOM):
            self.fail(f"making the consume queues durable failed: {error}")

    def flush_queues(self) -> None:
        """A whole queue flush at once. Blocks; short when little has changed."""
        task = self.queue_flush_task()
        if task is None:
            return
        try:
            task.run()
        except OSError as error:
            self.on_queue_flush_failed(error)
            return
        self.queues_flushed(task)

    # Reading

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        wanted: RecordFilter | None = None,
    ) -> GetMessageResult:
        return self._reader.get_message(topic, queue_id, offset, max_count, matcher, wanted)

    def queue_units(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]:
        """Physical offset, size and tags code of up to ``max_count`` messages from queue offset
        ``offset`` on: those that readers may see; fewer at the end of a file.
        """
        return self._reader.units(topic, queue_id, offset, max_count)

    def read_log(self, offset: int, size: int) -> bytes:
        """Bytes of the log as they are, across files. Raises KeyError where it has not all."""
        pieces = []
        end = offset + size
        file_size = self._settings.mapped_file_size_commit_log
        while offset < end:
            piece = min(end - offset, file_size - offset % file_size)
            view = self._log.read(PhysicalOffset(offset), piece)
            if view is None:
                raise KeyError(f"the log has not all of {offset}..{offset + piece}")
            pieces.append(bytes(view))
            offset += piece
        return b"".join(pieces)

    def queue_bytes(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> tuple[int, int]:
        """How many messages (at most ``max_count``) a piece of a queue has, and their bytes."""
        return self._reader.unit_bytes(topic, queue_id, offset, max_count)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The whole record that begins at ``physical_offset``; None when none does."""
        return record_at(self._log, physical_offset)

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

    def checkpoint_due(self) -> bool:
        """Whether so much has been written that a recovery would take long: flush the queues."""
        return self._flushes.grown_bytes >= GROWN_MAX

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.min_offset(topic, queue_id)

    def _stray_unit(self, name: QueueName, queue_offset: int) -> None:
        """A unit does not lead to its message: its queue is built again at the next start."""
        self._note_rebuilds(partial(self._parts.rebuilds.note, name, queue_offset))

    def _note_rebuilds(self, note: Callable[[], None]) -> None:
        try:
            note()
        except OSError as error:
            self.health.write_failed(Writer.DERIVED, error)

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
        self._bring_up()
        self._files.unlink(self._paths.recovery_point)
        self._queues.drop_topic(topic)
        self.queue_ends.forget(topic)
        self.tails.forget_topic(topic.encode())

    # Roles and housekeeping

    def set_role(self, *, slave: bool) -> None:
        """Change the role. A new master's queue offsets go on from what its consume queues say."""
        self.health.is_slave = self._reader.is_slave = slave
        self._dispatch.open_tail = slave and self.entries is None
        self._puts.forget_tails()

    def _bring_up(self) -> None:
        """Let the derived files have everything that was put so far."""
        self.commit()
        behind = 0
        while self.dispatch_behind_bytes != behind:
            behind = self.dispatch_behind_bytes
            self.dispatch()

    def delete_expired_queues(self) -> int:
        """Delete queues whose messages are all gone from the log (request 306); how many."""
        self._files.unlink(self._paths.recovery_point)
        gone = self._queues.drop_below(self._log.min_offset, SCHEDULE_TOPIC)
        self.tails.forget({(topic.encode(), queue_id) for topic, queue_id in gone})
        return len(gone)

    def runtime_info(self) -> dict[str, str]:
        """The store's part of GET_BROKER_RUNTIME_INFO."""
        return self._info.read(self.earliest_store_timestamp())

    def shutdown(self) -> None:
        """Commit, dispatch, make everything durable, release the directory. Harmless twice.

        ``abort`` stays behind when something failed or could not be dispatched: the next start then
        repairs. :attr:`failure` tells why.
        """
        if not self.health.is_open:
            return
        self.health.is_open = False
        try:
            self._settle()
            if self._settled and self._dispatch.is_caught_up:
                self._files.unlink(self._paths.abort)
        except (OSError, StoreError) as error:
            self.fail(f"the store could not be closed cleanly: {error}")
        finally:
            self._release()

    @property
    def _settled(self) -> bool:
        return self.failure is None and self.disk_full_reason is None

    def _settle(self) -> None:
        """Write and sync everything; after a failure nothing."""
        self.commit()
        if not self._settled:
            return
        self._dispatch.run()
        task = self.flush_task()
        if task is not None:
            task.run()
            self.flushed(task.offset)
        self.flush_queues()
        self._flushes.save_point()
        if self._index is not None:
            self._index.sync()
        if self.entries is not None:
            self.entries.checkpoint_task()()
        elif self._parts.opened.classic is not None:
            self._parts.opened.classic.drop_unused()

    def close_without_flush(self) -> None:
        """Release the directory without writing anything, as a crash would leave it."""
        if self.health.is_open:
            self.health.is_open = False
            self._release()

    def _release(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._parts.lock.release)
            closing.callback(self._queues.close)
            if self._index is not None:
                closing.callback(self._index.close)
            closing.callback(self._log.close)


def open_store(context: StoreContext) -> MessageStore:
    """Lock, recover and open a store directory; everything readable is dispatched when it returns.

    Raises StoreError when the directory is not what it must be; it is unlocked again then.
    """
    return MessageStore(context, open_directory(context))
