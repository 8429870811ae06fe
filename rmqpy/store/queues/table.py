"""ConsumeQueueTable: all consume queues of a store, ``consumequeue/<topic>/<queueId>/``, found on
disk or created when first needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from typing import Final

from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem, NumberAndSum
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.model.recent_changes import RecentChanges
from rmqpy.model.values import define
from rmqpy.store.files.mapped_files import BrokenFileSequenceError
from rmqpy.store.files.paths import unused_name
from rmqpy.store.queues.consume_queue import (
    LOAD_CHECK_FILES,
    ConsumeQueue,
)
from rmqpy.store.queues.touched import TouchedQueues, WalkedQueues

QueueName = tuple[str, int]
"""Topic and queue id."""

SHARED_PERCENT: Final = 80
OPEN_PERCENT: Final = 10
"""The shares of all mappings for the queues that the C core has, and for those that Python has
open. The rest is for the log.
"""

HIDDEN_LOGGED_MAX: Final = 100
"""The number of hidden messages that are logged; all are counted."""

_MASK64: Final = (1 << 64) - 1

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class YoungUnits:
    """The units of messages from ``low`` on: number and sum of all but those in ``unread`` topics,
    which may be in files that a start does not read.
    """

    low: int
    read: NumberAndSum
    unread: tuple[str, ...]


class ConsumeQueueTable:
    """The queues by name."""

    def __init__(self, files: FileSystem, directory: str, file_size: int) -> None:
        self._files = files
        self._directory = directory
        self._file_size = file_size
        self._queues: dict[QueueName, ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}
        """The queue ids of each topic."""
        self.shared = WalkedQueues()
        """The queues that the C core may write at any time: at most ``shared_max``."""
        self.shared_max = files.mappings_max * SHARED_PERCENT // 100
        self.touched = TouchedQueues(self.shared, files.mappings_max * OPEN_PERCENT // 100)
        self._released: list[WalkedQueues] = []
        """The queues that were shared until some time after the flush before began."""
        self._recent = WalkedQueues()
        """The queues that the flush before has examined."""
        self._torn: dict[str, BrokenFileSequenceError | None] = {}
        """The directories of incomplete queues, and why they could not be loaded."""
        self.young_units: YoungUnits | None = None
        """What :meth:`load` has found; None without ``low``, or if units were cut since then."""
        self.hidden_count = 0
        """The number of messages, since the start, that no reader of their queue sees because
        another message has their queue offset.
        """
        self.changes = RecentChanges()
        """The topics of which queues, units, or files were removed. Code that keeps references to
        their files, or numbers of their cells (:class:`TopicQueueTable`), must look them up again.
        """

    def load(self, low: int | None = None) -> None:
        """Find the queues and, with ``low``, their ``young_units``; change nothing on disk. Raises
        StoreError for entries that no broker creates, and if all files have a length other than the
        configured one.

        A queue with a gap, or with a file of a wrong length, is left out. If instead the setting
        may be wrong (the length is a multiple of the unit size, and no other file has the
        configured length), StoreError is raised.
        """
        topics = self._files.list_dir(self._directory)
        found = self._files.unit_folders(
            self._directory, topics, self._file_size, LOAD_CHECK_FILES, low
        )
        count = total = 0
        unread: list[str] = []
        for topic, (queues, is_complete, units) in zip(topics, found, strict=True):
            for queue in queues:
                self._add(topic, queue[0]).use(queue)
            if not is_complete:
                self._load_topic(topic, {queue[0] for queue in queues})
            if units is None or not is_complete:
                unread.append(topic)
            else:
                count, total = count + units[0], (total + units[1]) & _MASK64
        if low is not None:
            self.young_units = YoungUnits(low, (count, total), tuple(unread))
        by_setting = [fault for fault in self._torn.values() if fault and _may_be_setting(fault)]
        if by_setting and not any(queue.segments for queue in self):
            raise by_setting[0]

    def _load_topic(self, topic: str, known: Set[int]) -> None:
        """Find the queues of a topic that are not known yet."""
        folder = f"{self._directory}/{topic}"
        if not self._files.is_dir(folder):
            raise StoreError(folder, "a file", "one directory per topic", "move it elsewhere")
        for name in self._files.list_dir(folder):
            is_number = name.isascii() and name.isdigit()
            if is_number and int(name) in known:
                continue
            if not (is_number and self._files.is_dir(f"{folder}/{name}")):
                raise StoreError(
                    f"{folder}/{name}",
                    "a foreign entry",
                    "one directory per queue, named by its number",
                    "move it elsewhere; the Java broker would not start on it either",
                )
            self._load_queue(topic, int(name))

    def _load_queue(self, topic: str, queue_id: int) -> None:
        queue = self._add(topic, queue_id)
        try:
            queue.load()
            queue.close()
        except BrokenFileSequenceError as fault:
            self._pop(topic, queue_id)
            self._torn[f"{self._directory}/{topic}/{queue_id}"] = fault

    def give_up(self, topic: str, queue_id: int) -> None:
        """Treat a queue as incomplete, at the start."""
        queue = self._pop(topic, queue_id)
        queue.close()
        self.touched.discard(queue)
        self.young_units = None
        self._torn[f"{self._directory}/{topic}/{queue_id}"] = None

    def set_torn_aside(self, quarantine: str) -> list[str]:
        """Move the queues that are incomplete to the quarantine, after the log has been
        accepted, so that they are rebuilt. Return their directories.
        """
        moved = list(self._torn)
        self._torn.clear()
        for directory in moved:
            topic, _, queue_id = directory.rpartition("/")
            name = f"{quarantine}/consumequeue-{topic.rpartition('/')[2]}-{queue_id}"
            self._files.make_dirs(quarantine)
            self._files.rename(directory, unused_name(self._files, name))
        return moved

    def finish_recovery(self) -> None:
        """Clear the bytes after the ends of the queues, after the log has been accepted."""
        for queue in self:
            if queue.damaged:
                queue.finish_recovery()
                queue.close()

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not is_queue_name(topic.encode("utf-8", "replace"), queue_id):
            raise StoreError(
                f"{self._directory}/{topic}/{queue_id}",
                f"a message of topic {topic!r} and queue {queue_id}",
                "a topic that can name a directory and a queue number from 0 on",
                "stop the broker and check the commit log: the message is damaged",
            )
        return self._add(topic, queue_id)

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self._directory}/{topic}/{queue_id}"
        number = len(self._queues)
        queue = ConsumeQueue(self._files, directory, self._file_size, self.touched, number)
        self._queues[topic, queue_id] = queue
        self._ids.setdefault(topic, set()).add(queue_id)
        return queue

    def _pop(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._ids[topic].discard(queue_id)
        if not self._ids[topic]:
            del self._ids[topic]
        return self._queues.pop((topic, queue_id))

    def release_shared(self) -> None:
        """Record that the C core writes to no queue until it is shared again. The next flush
        examines those that it had, of which there may be too many to note them here.
        """
        self._released.append(self.shared)
        self.shared = self.touched.shared = WalkedQueues()

    def begin_flush(self) -> Iterator[ConsumeQueue | None]:
        """Yield the queues that a flush must examine. Close the files of those that were not used
        since the flush before, and yield None for each: a queue without traffic needs neither a
        mapping nor descriptors. Queues may be used meanwhile. No flush may be running.
        """
        former, examined = self._recent, WalkedQueues()
        self._recent = examined
        while self._released:
            released = self._released.pop()
            for queue in released.walk():
                released.discard(queue)
                self.touched.note(queue)
                yield None
        for queue in former.walk():
            former.discard(queue)
            if not (queue in self.touched or queue in self.shared):
                queue.close()
                self.touched.closed(queue)
            yield None
        # Those of C first: one that it gives back meanwhile is among the touched ones then.
        for queue in self.shared.walk():
            examined.add(queue)
            yield queue
        for queue in self.touched.walk():
            is_new = queue not in examined
            examined.add(queue)
            yield queue if is_new else None

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create it if it does not exist."""
        return self._queues.get((topic, queue_id)) or self._open(topic, queue_id)

    def topic_folders(self) -> list[str]:
        """Return the names of the folders of topics on disk."""
        return self._files.list_dir(self._directory)

    def open_folder(self) -> int:
        """Return a descriptor of the folder of all queues, to be closed by the caller, or -1."""
        return self._files.open_folder(self._directory)

    def put_run(
        self, topic: str, queue_id: int, queue_offset: int, units: bytes | memoryview
    ) -> None:
        """Add units to a queue (:meth:`ConsumeQueue.put_run`), which is created if it does not
        exist.
        """
        queue = self.of(topic, queue_id)
        queue.put_run(queue_offset, units)
        if queue.began_again:
            queue.began_again = False
            self.changes.note(topic)
        if queue.hidden:
            self._report_hidden(topic, queue_id, queue)

    def _report_hidden(self, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        hidden, queue.hidden = queue.hidden, ()
        for queue_offset, physical_offset in hidden:
            self.hidden_count += 1
            if self.hidden_count > HIDDEN_LOGGED_MAX:
                continue
            unit = queue.unit(queue_offset)
            logger.warning(
                "queue %d of %s: no reader sees the message at offset %d of the log, because its"
                " queue offset %d belongs to the message at offset %s; two brokers were master at"
                " once, or a Java member of the group assigned the offset twice",
                queue_id,
                topic,
                physical_offset,
                queue_offset,
                "none" if unit is None else unit[0],
            )

    def names(self) -> Iterator[QueueName]:
        """Yield the names of all queues, of which there may be more or fewer meanwhile. A list of
        200,000 names would take 10 ms.
        """
        for topic in list(self._ids):
            for queue_id in list(self._ids.get(topic, ())):
                yield topic, queue_id

    def items(self) -> Iterator[tuple[QueueName, ConsumeQueue]]:
        """Yield every queue with its name."""
        return iter(self._queues.items())

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def max_physical_offset(self) -> int:
        """The end of the last message in the log that any queue has."""
        return max((queue.max_physical_offset for queue in self), default=0)

    def has_unit_of(self, physical_offset: int) -> bool:
        """Return whether a queue has a unit of the record at an offset."""
        return any(queue.has_unit_of(physical_offset) for queue in self)

    def truncate(self, log_end_offset: int) -> int:
        """Cut every queue to the end of the log. Return the number of queues that were cut."""
        self.changes.note_all()
        count = 0
        for queue in self:
            if queue.truncate(log_end_offset):
                queue.close()
                count += 1
                self.young_units = None
        return count

    def drop_unsynced(self, durable_to: int) -> None:
        """After an unclean stop, drop what may not be durable, from ``durable_to`` in the log."""
        self.changes.note_all()
        for queue in self:
            queue.drop_unsynced(durable_to)
            queue.close()
            queue.mark_suspect()

    def keep_unsynced(self, durable_to: int) -> bool:
        """After a kill that no power failure followed, keep the units of messages from
        ``durable_to`` in the log, which are those of the log (:mod:`unit_proof`), and drop those of
        delayed messages. Return whether all were kept.
        """
        self.changes.note_all()
        kept = True
        for (topic, _), queue in self.items():
            if topic == SCHEDULE_TOPIC and queue.max_physical_offset > durable_to:
                kept = False
                queue.drop_unsynced(durable_to)
                queue.close()
                queue.mark_suspect()
            else:
                queue.mark_unsynced(durable_to)
        return kept

    def begin_again(self, log_min_offset: int) -> None:
        """Correct the first offsets of all queues for a log that may start earlier than it did."""
        for queue in self:
            queue.reset_to(log_min_offset)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Raise the first offset of every queue to its first message in the log, at the start."""
        for queue in self:
            queue.correct_min_offset(log_min_offset)
            queue.close()
            if queue.is_durable:
                self.touched.discard(queue)

    def drop_topic(self, topic: str) -> int:
        """Delete the queues of a topic, and return their number."""
        queue_ids = sorted(self._ids.get(topic, ()))
        self.changes.note(topic)
        for queue_id in queue_ids:
            self._pop(topic, queue_id).destroy()
        if queue_ids:
            self._files.remove_tree(f"{self._directory}/{topic}")
        return len(queue_ids)

    def drop_below(self, log_min_offset: int, is_spared: Callable[[str], bool]) -> list[QueueName]:
        """Delete the queues whose last message is below the log, except those of topics for which
        ``is_spared`` returns true. Return their names.
        """
        expired = [
            name
            for name, queue in self._queues.items()
            if 0 < queue.max_physical_offset < log_min_offset and not is_spared(name[0])
        ]
        for topic, queue_id in expired:
            self.changes.note(topic)
            self._pop(topic, queue_id).destroy()
            self._files.remove_tree(f"{self._directory}/{topic}/{queue_id}")
            if topic not in self._ids:
                self._files.remove_tree(f"{self._directory}/{topic}")
        return expired

    def close(self) -> None:
        for queue in self:
            queue.close()


def _may_be_setting(fault: BrokenFileSequenceError) -> bool:
    return fault.length is not None and fault.length % QUEUE_UNIT_SIZE == 0


def is_queue_name(topic: bytes, queue_id: int) -> bool:
    """Return whether topic and queue id can name the directory of a queue, which must not be
    outside of ``consumequeue/``.
    """
    plain = b"/" not in topic and b"\0" not in topic
    return plain and queue_id >= 0 and topic not in (b"", b".", b"..")
