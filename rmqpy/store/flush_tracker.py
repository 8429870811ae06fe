"""FlushTracker: the flush tasks of a store, and the checkpoint that records their progress.

The caller takes a flush of the log or of the derived files here, runs it where it may block, and
reports the result. The derived files are synced first, then the checkpoint that covers them.

Invariant: everything up to the times in the checkpoint is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from attrs import evolve

from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.steps import Steps, finish
from rmqpy.model.values import define
from rmqpy.store.commitlog.interface import CommitLog, FlushTask
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.dispatcher import Dispatcher
from rmqpy.store.files.checkpoint import StoreCheckpoint, Times
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.files.recovery_point import EncodedQueueEnds, NewRecoveryPoint
from rmqpy.store.health import NO_ROOM, StoreHealth, Writer
from rmqpy.store.index.index_file import IndexSync
from rmqpy.store.queues.consume_queue import QueueSync
from rmqpy.store.startup import StoreParts

UNSAVED_MAX = 128 << 20
"""The number of bytes of the log after the last recovery point at which a new one is due."""
UNSAVED_MAX_PER_QUEUE = 16 << 10
"""How many more for each queue that a flush has to examine. To examine and write one costs as much
as ten messages do: with 50,000 queues, flushes would otherwise take half of a broker's time.
"""
SYNC_EACH_MAX = 256
"""The number of queues up to which each is synced: more have the file system synced once, which
takes seconds instead of minutes with 200,000 (:meth:`FileSystem.sync_all`).
"""
FLUSHES_MAX = 16
"""The maximum number of flush tasks that run at the same time."""


@define(slots=True, frozen=True)
class _FlushedTime:
    """The last step of a flush of the log: the note up to where it is durable."""

    checkpoint: StoreCheckpoint
    timestamp_ms: int
    offset: PhysicalOffset

    def sync(self) -> None:
        self.checkpoint.note_flushed(self.timestamp_ms, self.offset)


@define(slots=True, frozen=True)
class QueueFlush:
    """A task that makes consume queues, full index files and the checkpoint durable.

    ``run`` blocks and touches no state of the store: it may run in a worker thread. Afterwards the
    caller reports it with :meth:`FlushTracker.queues_flushed`.
    """

    files: FileSystem
    directory: str
    queues: list[QueueSync]
    index: IndexSync | None
    checkpoint: StoreCheckpoint
    times: Times
    log_min_offset: int
    dispatched_offset: int
    save_point: Callable[[], None]

    def run(self) -> None:
        if len(self.queues) <= SYNC_EACH_MAX or not self.files.sync_all(self.directory):
            for queue in self.queues:
                queue.run()
        if self.index is not None:
            self.index.run()
        self.checkpoint.write(self.times, self.log_min_offset, self.dispatched_offset)
        self.save_point()


class FlushTracker:
    """The flush tasks of a store and the effects of their results."""

    def __init__(
        self, parts: StoreParts, files: FileSystem, paths: StorePaths, health: StoreHealth
    ) -> None:
        self._files = files
        self._paths = paths
        self._health = health
        self._rebuilds = parts.rebuilds
        self.use_log(parts.opened)
        self._taken_offset = parts.dispatcher.queue_cursor
        self.checkpoint_due_offset = self._taken_offset + UNSAVED_MAX
        """Once dispatch has reached this offset, a recovery would take long: flush the queues."""
        self.queues_durable_to = parts.queues_durable_to
        """The offset up to which the consume queues on disk cover the log: files before it may be
        removed.
        """
        self._is_reset = False
        """True if the log was reset after the running flush was taken."""
        self._queues = parts.queues
        self._queue_ends = EncodedQueueEnds()
        if self._segments is not None:
            for (topic, queue_id), queue in self._queues.items():
                self._queue_ends.set(topic, queue_id, queue.max_offset)
        self._index = parts.index
        self._dispatcher: Dispatcher = parts.dispatcher
        self._checkpoint = parts.checkpoint
        self._flush_times: deque[tuple[PhysicalOffset, int]] = deque(maxlen=FLUSHES_MAX)
        self._saved_times = parts.checkpoint.times

    def use_log(self, opened: OpenedLog) -> None:
        """Flush this log from now on. No flush of another log may be running."""
        self.log: CommitLog = opened.log
        """The log, whose watermarks show which replies wait for a flush."""
        classic = opened.classic
        self._segments = (
            classic.segments if classic is not None and opened.entries is None else None
        )

    def flush_task(self) -> FlushTask | None:
        """Return a task that makes the log durable, or None if it is durable.

        After a failure it returns None too, because after a failed sync the system may discard
        bytes that it has not written.
        """
        if self._health.failure is not None:
            return None
        task = self.log.flush_task()
        if task is None:
            return None
        stored_ms = self._dispatcher.store_timestamp_ms
        self._flush_times.append((task.offset, stored_ms))
        if not stored_ms:
            return task
        note = _FlushedTime(self._checkpoint, stored_ms, task.offset)
        return evolve(task, parts=(*task.parts, note))

    def flushed(self, offset: PhysicalOffset) -> None:
        """Record that a flush task was run without an error: the messages that had been dispatched
        when it was taken are durable.
        """
        self.log.flushed(offset)
        while self._flush_times and self._flush_times[0][0] <= offset:
            _, stored_ms = self._flush_times.popleft()
            if stored_ms:
                self._checkpoint.physic_timestamp_ms = stored_ms

    def flush_failed(self, error: BaseException) -> None:
        """Record that a flush task failed. That is final: the store accepts no more messages."""
        self._health.fail(f"flushing the commit log failed: {error}")

    def queue_flush_task(self) -> QueueFlush | None:
        """Return a task that makes the derived files durable and records that in the checkpoint, or
        None if nothing has changed since the last one, or after a failure. Take one at a time.
        """
        return finish(self.queue_flush_steps())

    def queue_flush_steps(self) -> Steps[QueueFlush | None]:
        """Do what :meth:`queue_flush_task` does, in one step for each queue and topic. Messages may
        be dispatched between the steps; the task may or may not include them.
        """
        if self._health.failure is not None:
            return None
        checkpoint = self._checkpoint
        stored_ms = self._dispatcher.store_timestamp_ms
        index = self._index.take_sync() if self._index is not None else None
        times = (
            checkpoint.physic_timestamp_ms,
            stored_ms or checkpoint.logics_timestamp_ms,
            index.timestamp_ms if index is not None else checkpoint.index_timestamp_ms,
        )
        self._is_reset = False
        cursor = self._dispatcher.queue_cursor
        flushed = self.log.flushed_offset
        changes = self._queues.changes.count
        queues = yield from self._take_queue_syncs()
        if not (queues or index or times != self._saved_times):
            if not self._is_reset:
                self.queues_durable_to = cursor
            return None
        self._taken_offset = min(cursor, flushed)
        save_point = _save_nothing
        # Otherwise the ends may be those of deleted queues.
        if changes == self._queues.changes.count:
            save_point = self._point_saver()
        files, folder = self._files, self._paths.consume_queue
        low = self.log.min_offset
        return QueueFlush(files, folder, queues, index, checkpoint, times, low, cursor, save_point)

    def _take_queue_syncs(self) -> Steps[list[QueueSync]]:
        """Return the syncs of the queues that are not durable, and note the ends of all queues that
        may have changed.
        """
        syncs = []
        for queue in self._queues.begin_flush():
            yield
            if queue is None:
                continue
            sync = queue.take_sync()
            if sync is None:
                self._queues.touched.discard(queue)
            else:
                syncs.append(sync)
            if self._segments is not None:
                found = self._queues.find(*queue.name)
                self._queue_ends.set(*queue.name, None if found is None else found.max_offset)
        yield from self._queue_ends.rows.encode_steps()
        return syncs

    def _point_saver(self) -> Callable[[], None]:
        """Return a function that saves the recovery point at the offset that was taken, to be
        called after the flush: log and consume queues are durable up to it then. A DLedger log has
        none, because it recovers from its checkpoint.
        """
        if self._segments is None:
            return _save_nothing
        point = NewRecoveryPoint.of(self._segments, self._taken_offset, self._queue_ends)
        if point is None:
            return _save_nothing
        return lambda: point.save(self._files, self._paths.recovery_point)

    def save_point(self) -> None:
        """Save the recovery point, because everything is durable. Blocks."""
        self._taken_offset = min(self._dispatcher.queue_cursor, self.log.flushed_offset)
        finish(self._take_queue_syncs())
        self._point_saver()()

    def close(self) -> None:
        """Release the checkpoint."""
        self._checkpoint.close()

    def on_log_reset(self, low: int) -> None:
        """Record that the log starts at ``low`` now, perhaps before the messages of the queues."""
        self.queues_durable_to = min(self.queues_durable_to, low)
        self._is_reset = True

    def flush_queues(self) -> None:
        """Run a complete queue flush. Blocks, briefly if little has changed."""
        task = self.queue_flush_task()
        if task is None:
            return
        try:
            task.run()
        except OSError as error:
            self.queue_flush_failed(error)
            return
        self.queues_flushed(task)

    def queue_flush_failed(self, error: BaseException) -> None:
        """Record that a queue flush failed. That is final, unless the disk was full.

        The system has given up writing some pages, as in a power failure: a next start that found
        their units in the page cache would take them for durable.
        """
        with suppress(OSError):
            self._files.unlink(self._paths.boot)
        if not (isinstance(error, OSError) and error.errno in NO_ROOM):
            self._health.fail(f"flushing the consume queues failed: {error}")

    def queues_flushed(self, task: QueueFlush) -> None:
        """Record that a queue flush was run without an error."""
        finish(self.queues_flushed_steps(task))

    def queues_flushed_steps(self, task: QueueFlush) -> Steps[None]:
        """Do what :meth:`queues_flushed` does, in one step for each queue."""
        examined = max(len(task.queues), len(self._queues.shared))
        while task.queues:  # Each is freed in its step: together they would take 15 ms.
            sync = task.queues.pop()
            sync.queue.synced(sync)
            if sync.queue.is_durable:
                self._queues.touched.discard(sync.queue)
            yield
        if task.index is not None and self._index is not None:
            self._index.synced(task.index)
        if not self._is_reset:
            self.queues_durable_to = task.dispatched_offset
        self._saved_times = task.times
        unsaved_max = UNSAVED_MAX + examined * UNSAVED_MAX_PER_QUEUE
        self.checkpoint_due_offset = self._taken_offset + unsaved_max
        _, self._checkpoint.logics_timestamp_ms, self._checkpoint.index_timestamp_ms = task.times
        if not self._dispatcher.is_rebuilding_queues:
            try:
                self._rebuilds.done()
            except OSError as error:
                self._health.write_failed(Writer.DERIVED, error)


def _save_nothing() -> None:
    """Save no recovery point."""
