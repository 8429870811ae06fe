"""RuntimeInfo: the state of a store, under the names that Java's tools read.

Java does not have these keys: ``indexBehindBytes``, ``flushedOffset`` (everything before it is on
disk), ``dividedCommitlogOffset``, ``storeFailure``
(the error after which nothing is accepted), ``storeRefusesPuts``, ``cleaningFailure``,
``queuesToBuildAgain`` (the number of consume queues that the next start rebuilds in part),
``hiddenMessages`` (the number of messages, since the start, whose queue offset another message
has), and ``messagesBlockingLeave`` (the number of messages, since the start, whose properties leave
no room for the way back to a classic log).
"""

from __future__ import annotations

from rmqpy.model.text import format_bytes
from rmqpy.model.values import define
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.dispatcher import Dispatcher
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.health import StoreHealth
from rmqpy.store.queues.rebuilds import QueueRebuilds
from rmqpy.store.queues.table import ConsumeQueueTable
from rmqpy.store.retention import RetentionCleaner


@define(slots=True, frozen=True)
class RuntimeInfo:
    """The runtime information of one store."""

    paths: StorePaths
    opened: OpenedLog
    dispatcher: Dispatcher
    retention: RetentionCleaner
    health: StoreHealth
    rebuilds: QueueRebuilds
    queues: ConsumeQueueTable
    appender: MessageAppender

    def read(self, earliest_ms: int) -> dict[str, str]:
        """Return the current values. ``earliest_ms`` is the store time of the first message, or -1
        if there is none.
        """
        log = self.opened.log
        log_ratio = self.retention.disk_use(self.paths.commit_log)
        info = {
            "commitLogDiskRatio": f"{log_ratio:.2f}",
            f"commitLogDiskRatio_{self.paths.commit_log}": f"{log_ratio:.2f}",
            "consumeQueueDiskRatio": f"{self.retention.disk_use(self.paths.root):.2f}",
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.confirm_offset),
            "dispatchBehindBytes": str(self.dispatcher.behind_bytes),
            "indexBehindBytes": str(self.dispatcher.index_behind_bytes),
            "remainHowManyDataToFlush": format_bytes(
                max(0, log.confirm_offset - log.flushed_offset)
            ),
            "flushedOffset": str(min(log.flushed_offset, log.confirm_offset)),
            "earliestMessageTimeStamp": str(earliest_ms),
        }
        if self.opened.divided_offset is not None:
            info["dividedCommitlogOffset"] = str(self.opened.divided_offset)
        if self.health.failure is not None:
            info["storeFailure"] = self.health.failure
        elif not self.health.is_slave and self.health.refusal is not None:
            info["storeRefusesPuts"] = self.health.refusal
        if self.retention.failure is not None:
            info["cleaningFailure"] = self.retention.failure
        if self.rebuilds:
            info["queuesToBuildAgain"] = str(len(self.rebuilds))
        if self.queues.hidden_count:
            info["hiddenMessages"] = str(self.queues.hidden_count)
        if self.appender.blocking_leave:
            info["messagesBlockingLeave"] = str(self.appender.blocking_leave)
        return info
