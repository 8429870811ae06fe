"""MessageStore: one log, the files derived from it, and the order in which they change.

Its parts are attributes: ``appender`` (puts), ``reader``, ``flush_tracker``, ``retention``,
``dispatcher``, ``health``. MessageStore itself contains the code that coordinates several of them:
dispatch with its errors, roles, the deletion of queues, changes of the start of the log, and
shutdown.

A turn: ``appender.put`` any number of times (staged), ``appender.commit`` once (one write per
file), ``dispatch`` (derived files, arrivals). The caller performs the flushes: it takes
``flush_tracker.flush_task``, runs it where it may block, and calls ``flush_tracker.flushed``.

Invariants: queue offsets are dense; a status other than PUT_OK means that nothing was stored; after
a failed write nothing more is accepted (``health.writeable`` is false until a restart).
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.names import is_system_topic
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.commitlog.opening import Stop
from rmqpy.store.files import lost_pages
from rmqpy.store.files.lost_pages import LostPagesError, LostRange
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.flush_tracker import FlushTracker
from rmqpy.store.health import StoreHealth, Writer
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds
from rmqpy.store.reader import QueueMessageReader
from rmqpy.store.retention import RetentionCleaner
from rmqpy.store.runtime_info import RuntimeInfo
from rmqpy.store.startup import StoreContext, StoreParts, open_directory

if TYPE_CHECKING:  # loaded only by a broker with a DLedger log
    from rmqpy.store.ledger.classic_prefix import GrowingPrefix

__all__ = ["MessageStore", "StoreContext", "open_store"]


DISPATCHED_AT_ONCE = 8 << 20
"""The maximum number of bytes of the log that one turn dispatches."""
DISPATCH_MS = 5
"""The time after which a turn dispatches no more."""
INDEX_AT_STOP = 64 << 20
"""The lag of the key index, in bytes of the log, up to which a stop completes it: half a second."""
INDEX_RETRY_MS = 1000
"""The time after which building the key index tries a damaged entry again."""


class MessageStore:
    """A message store, opened with :func:`open_store`."""

    def __init__(self, context: StoreContext, parts: StoreParts) -> None:
        self._settings = context.settings
        self._files = context.files
        self._clock = context.clock
        self._lock = parts.lock
        self._paths = StorePaths.from_settings(context.settings)
        self.opened: Final = parts.opened
        """The result of opening the directory, with the logs of a DLedger group."""
        self.log: CommitLog = parts.opened.log
        """The commit log: classic, DLedger, or both joined."""
        self.queues: Final = parts.queues
        """The consume queues."""
        self.index: Final = parts.index
        """The key index; None if ``messageIndexEnable`` is false."""
        self.dispatcher: Final = parts.dispatcher
        """The dispatcher; call :meth:`dispatch` instead of it, which handles its errors."""
        self.health: Final = StoreHealth()
        """The states in which the store refuses messages."""
        self.queue_ends: Final = ExpiredQueueEnds(context.files, self._paths.queue_ends)
        """The next offsets of queues that have no message in the log."""
        self.reader: Final = QueueMessageReader(context, parts, self.health)
        """The read side."""
        self.appender: Final = MessageAppender(context, parts, self.health, self.queue_ends)
        """The write side."""
        self.flush_tracker: Final = FlushTracker(parts, context.files, self._paths, self.health)
        """The flush tasks."""
        self.retention: Final = RetentionCleaner(
            context.files,
            self._paths,
            self.log,
            self.queues,
            self.index,
            self.health,
            self.flush_tracker,
        )
        """The removal of expired files."""
        self._dispatch_failed = False
        self._index_waits_until_ms = 0
        self._info = RuntimeInfo(
            self._paths,
            self.opened,
            self.dispatcher,
            self.retention,
            self.health,
            parts.rebuilds,
            self.queues,
            self.appender,
        )

    @property
    def settings(self) -> StoreSettings:
        """The settings in effect."""
        return self._settings

    def change_settings(self, settings: StoreSettings) -> None:
        """Apply the limits and ratios that may change while the store is open; ignore the rest."""
        self._settings = settings
        self.appender.change_settings(settings)
        self.reader.change_settings(settings)

    # One turn

    @property
    def is_idle(self) -> bool:
        """True if neither ``appender.commit`` nor :meth:`dispatch` has anything to do."""
        return self.appender.is_idle and not self.dispatcher.is_behind

    def dispatch(self) -> None:
        """Dispatch the records that readers may see to the derived files, and report arrivals.

        Raises StoreError or OSError if that fails for good; later calls then do nothing.
        """
        if self._dispatch_failed:
            return
        try:
            self.dispatcher.run_for(DISPATCH_MS, DISPATCHED_AT_ONCE, self._clock)
            if not self.health.is_healthy:
                self.health.wrote(Writer.DERIVED)
        except OSError as error:
            self.health.write_failed(Writer.DERIVED, error)
            if self.health.failure is not None:
                self._dispatch_failed = True
                raise
        except StoreError as error:
            self._dispatch_failed = True
            self.health.fail(f"dispatching to the consume queues failed: {error}")
            raise

    def catch_up_index(self) -> bool:
        """Run one bounded step of building a key index that lags. Return True if it still lags.
        Raises StoreError for a record that cannot be read and will not be repaired.
        """
        if self._clock.monotonic_ms() < self._index_waits_until_ms:
            return True
        try:
            return self.dispatcher.index_step()
        except StoreError:
            entries = self.opened.entries
            if entries is None or self.dispatcher.index_cursor < entries.base_offset:
                raise
            # The scrub finds the same damage and fetches the entry from the leader.
            self._index_waits_until_ms = self._clock.monotonic_ms() + INDEX_RETRY_MS
            return True

    # Replication and roles

    def join_dledger(self, settings: StoreSettings, prefix: GrowingPrefix) -> None:
        """Seal the classic log and continue it with a DLedger log, as the first start with
        ``settings`` would, while requests are served. ``prefix`` has read the classic log.

        Queues, index and all offsets remain. Nothing may be staged, no flush may be running, and
        the store must not accept messages. Raises OSError or StoreError; call it again, then.
        """
        from rmqpy.store.commitlog.dledger_opening import DLedgerOpening

        opened = self.opened
        assert not self.health.writeable and not self.log.has_staged
        if opened.dledger is None:
            stop = Stop(clean=True, safe_timestamp_ms=0)
            DLedgerOpening(self._files, settings, stop).join(opened, prefix.sealed)
        self.log = opened.log
        self.dispatcher.use_log(opened.log)
        self.reader.use_log(opened)
        self.flush_tracker.use_log(opened)
        self.retention.use_log(opened.log)
        self.appender.use_log(opened)
        self.change_settings(settings)
        self.dispatch()

    def set_role(self, *, slave: bool) -> None:
        """Change the role. A new master continues the queue offsets of its consume queues."""
        self.health.set_role(slave=slave)
        self.dispatcher.set_open_tail(slave and self.opened.entries is None)
        self.appender.forget_tails()

    def append_raw(self, offset: PhysicalOffset, data: bytes) -> None:
        """Append bytes of a master's log, which are at ``offset`` there and within one file.

        They continue this log, or start it if it is empty. Raises StoreError if they cannot be
        appended; the store then accepts nothing more, unless only the disk is full.
        """
        log = self.opened.classic
        assert log is not None and self.health.is_slave, "raw bytes are for a slave's classic log"
        failure = self.health.failure
        if failure is not None:
            raise StoreError(self._paths.commit_log, failure, "a store without errors", "restart")
        try:
            if log.max_offset == 0 < offset:
                log.begin_at(offset)
                self.dispatcher.start(offset, offset)
            assert offset == log.max_offset, (offset, log.max_offset)
            log.append_raw(data)
            self.health.wrote(Writer.LOG)
        except OSError as error:
            self.health.write_failed(Writer.LOG, error)
            raise StoreError(
                self._paths.commit_log,
                f"writing the bytes of the master failed: {error}",
                "a disk that can be written",
                "check the disk, then restart",
            ) from error

    def encode_queue_ends(self) -> bytes:
        """Return the next offsets of the queues that have no message in the log, for a member that
        requests them (:mod:`rmqpy.store.queues.expired_ends`).
        """
        return self.queue_ends.encode(self.queues.items(), self.log.min_offset)

    def delete_classic_prefix(self) -> None:
        """Remove the log before the divide, all of which has expired in the group. Blocks; raises
        OSError.
        """
        if self.opened.dledger is not None and self.opened.classic is not None:
            self.retention.drop_old(self.opened.classic)

    def discard_through(self, index: int) -> None:
        """Make retention remove the files of all entries up to ``index``, whatever their age,
        because one of them is damaged and the leader no longer has them. Blocks; raises OSError.
        """
        entries = self.opened.entries
        if entries is not None and index > entries.released_index:
            # The entries after the damage are not dispatched here, so the queue ends are needed.
            self.queue_ends.request()
            entries.release_through(index)
        self.retention.delete_manually()

    def on_log_reset(self) -> None:
        """Adapt queues, dispatch and flushes to a log whose start has changed.

        If it starts later, readers continue there. If the log was emptied, it may start earlier,
        with entries that were not dispatched yet.
        """
        low = self.log.min_offset
        self.queues.begin_again(low)
        self.dispatcher.reset_to(low)
        self.flush_tracker.on_log_reset(low)

    # Administration

    def delete_topic_queues(self, topic: str) -> None:
        """Dispatch all messages that were put so far, then delete the consume queues of a topic."""
        self._dispatch_all()
        self._files.unlink(self._paths.recovery_point)
        self.queues.drop_topic(topic)
        self.queue_ends.forget(topic)
        self.appender.tails.forget_topic(topic.encode())

    def delete_expired_queues(self) -> int:
        """Delete the queues without a message in the log (request 306), and return their number.
        Those of system topics stay: their readers keep offsets in them.
        """
        self._files.unlink(self._paths.recovery_point)
        removed = self.queues.drop_below(self.log.min_offset, is_system_topic)
        self.appender.tails.forget({(topic.encode(), queue_id) for topic, queue_id in removed})
        return len(removed)

    def runtime_info(self) -> dict[str, str]:
        """Return the store's part of GET_BROKER_RUNTIME_INFO."""
        return self._info.read(self.reader.earliest_store_timestamp())

    def note_lost_pages(self) -> list[LostRange]:
        """Return the ranges of files that the disk has not delivered, those that are new. If such a
        file is being written, the store accepts no more messages.
        """
        found = lost_pages.take_unreported()
        for lost in found:
            opened = self.opened
            segments = opened.classic.segments if opened.classic is not None else None
            if opened.dledger is not None:
                segments = opened.dledger.entries.data
            if lost.is_written or (segments and segments.last.path == lost.path):
                self.health.fail(str(LostPagesError(lost)))
        return found

    # The end

    def shutdown(self) -> None:
        """Commit, dispatch, make everything durable, and release the directory. Idempotent.

        ``abort`` remains if something failed or could not be dispatched: the next start then
        repairs the store. ``health.failure`` gives the reason.
        """
        if not self.health.is_open:
            return
        self.health.close()
        try:
            self._settle()
            if self.health.is_healthy and self.dispatcher.is_caught_up:
                self._files.unlink(self._paths.abort)
        except (OSError, StoreError) as error:
            self.health.fail(f"the store could not be closed cleanly: {error}")
        finally:
            self._release()

    def close_without_flush(self) -> None:
        """Release the directory without writing anything, as a crash would leave it."""
        if self.health.is_open:
            self.health.close()
            self._release()

    def _settle(self) -> None:
        """Write and sync everything, but nothing after a failure."""
        self.appender.commit()
        if not self.health.is_healthy:
            return
        self.dispatcher.run()
        self._complete_index()
        task = self.flush_tracker.flush_task()
        if task is not None:
            task.run()
            self.flush_tracker.flushed(task.offset)
        self.flush_tracker.flush_queues()
        self.flush_tracker.save_point()
        if self.index is not None:
            self.index.sync()
        if self.opened.entries is not None:
            for file in self.opened.entries.take_dirty_index():
                file.sync()
            self.opened.entries.mark_index_flushed()
            self.opened.entries.checkpoint_task()()
        elif self.opened.classic is not None:
            self.opened.classic.drop_unused()

    def _complete_index(self) -> None:
        """Complete an index that lags a little, so that a stopped store has all keys. After more
        than that, or after an error, the next start continues.
        """
        if self.dispatcher.index_behind_bytes <= INDEX_AT_STOP:
            done = -1
            with suppress(OSError, StoreError):
                # A record whose end has not arrived (a slave) stays.
                while self.dispatcher.index_cursor > done:
                    done = self.dispatcher.index_cursor
                    self.dispatcher.index_step()

    def _dispatch_all(self) -> None:
        """Dispatch all messages that were put so far to the derived files."""
        self.appender.commit()
        behind = 0
        while self.dispatcher.behind_bytes != behind:
            behind = self.dispatcher.behind_bytes
            self.dispatch()

    def _release(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._lock.release)
            closing.callback(self.flush_tracker.close)
            closing.callback(self.queues.close)
            if self.index is not None:
                closing.callback(self.index.close)
            closing.callback(self.log.close)


def open_store(context: StoreContext) -> MessageStore:
    """Lock, recover, and open a store directory, and dispatch what is readable.

    Raises StoreError if the directory is not a valid store, after unlocking it.
    """
    return MessageStore(context, open_directory(context))
