"""All consume queues of a store: ``consumequeue/<topic>/<queueId>/``, found on disk or made when
first needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import BrokenFileSequenceError
from rmqpy.store.files.paths import unused_name
from rmqpy.store.queues.consume_queue import ConsumeQueue

QueueName = tuple[str, int]
"""Topic and queue id."""


class ConsumeQueueTable:
    """The queues by name."""

    def __init__(self, files: FileSystem, directory: str, file_size: int) -> None:
        self._files = files
        self._directory = directory
        self._file_size = file_size
        self._queues: dict[QueueName, ConsumeQueue] = {}
        self._torn: dict[str, BrokenFileSequenceError] = {}
        """Directories of queues that are not whole, and why."""
        self.removals = 0
        """How often queues or units went away: who holds on to their files has to look again."""

    def load(self) -> None:
        """Find the queues; changes nothing on disk. Raises StoreError for entries that no broker
        has made, and where all files have a length that is not the configured one.

        A queue with a gap, or with a file of a wrong length, is left out unless the length may be
        the setting: it holds whole units, and no other file has the right one.
        """
        for topic in self._files.list_dir(self._directory):
            folder = f"{self._directory}/{topic}"
            if not self._files.is_dir(folder):
                raise StoreError(folder, "a file", "one directory a topic", "move it elsewhere")
            for name in self._files.list_dir(folder):
                is_number = name.isascii() and name.isdigit()
                if not (is_number and self._files.is_dir(f"{folder}/{name}")):
                    raise StoreError(
                        f"{folder}/{name}",
                        "a foreign entry",
                        "one directory a queue, named by its number",
                        "move it elsewhere; the Java broker would not start on it either",
                    )
                self._load_queue(topic, int(name))
        by_setting = [fault for fault in self._torn.values() if _may_be_setting(fault)]
        if by_setting and not any(queue.segments for queue in self):
            raise by_setting[0]

    def _load_queue(self, topic: str, queue_id: int) -> None:
        try:
            self._open(topic, queue_id).load()
        except BrokenFileSequenceError as fault:
            del self._queues[topic, queue_id]
            self._torn[f"{self._directory}/{topic}/{queue_id}"] = fault

    def set_torn_aside(self, quarantine: str) -> list[str]:
        """Once the log has been accepted: move the queues that could not be read away, to be built
        again. Returns where they were.
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
        """Once the log has been accepted: clear what stands behind the queues' ends."""
        for queue in self:
            queue.finish_recovery()

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self._directory}/{topic}/{queue_id}"
        if not is_queue_name(topic.encode("utf-8", "replace"), queue_id):
            raise StoreError(
                directory,
                f"a message of topic {topic!r} and queue {queue_id}",
                "a topic that can name a directory and a queue number from 0 on",
                "stop the broker and check the commit log: the message is damaged",
            )
        queue = ConsumeQueue(self._files, directory, self._file_size)
        self._queues[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when it is new."""
        return self._queues.get((topic, queue_id)) or self._open(topic, queue_id)

    def items(self) -> Iterator[tuple[QueueName, ConsumeQueue]]:
        return iter(self._queues.items())

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def max_physical_offset(self) -> int:
        """End of the furthest message that any queue knows."""
        return max((queue.max_physical_offset for queue in self), default=0)

    def truncate(self, log_end_offset: int) -> int:
        """Cut every queue to the log; returns how many had to be."""
        self.removals += 1
        return sum(queue.truncate(log_end_offset) for queue in self)

    def begin_again(self, log_min_offset: int) -> None:
        """As ``correct_min_offsets``, of a log that may begin further back than it did."""
        for queue in self:
            queue.reset_to(log_min_offset)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def drop_topic(self, topic: str) -> int:
        """Delete the queues of a topic; returns how many there were."""
        names = [name for name in self._queues if name[0] == topic]
        self.removals += 1
        for name in names:
            self._queues.pop(name).destroy()
        if names:
            self._files.remove_tree(f"{self._directory}/{topic}")
        return len(names)

    def drop_below(self, log_min_offset: int, spared_topic: str) -> list[QueueName]:
        """Delete queues whose last message is below the log, but not those of ``spared_topic``;
        returns them.
        """
        gone = [
            name
            for name, queue in self._queues.items()
            if name[0] != spared_topic and 0 < queue.max_physical_offset < log_min_offset
        ]
        for topic, queue_id in gone:
            self._queues.pop((topic, queue_id)).destroy()
            self._files.remove_tree(f"{self._directory}/{topic}/{queue_id}")
            if not any(name[0] == topic for name in self._queues):
                self._files.remove_tree(f"{self._directory}/{topic}")
        self.removals += bool(gone)
        return gone

    def close(self) -> None:
        for queue in self:
            queue.close()


def _may_be_setting(fault: BrokenFileSequenceError) -> bool:
    return fault.length is not None and fault.length % QUEUE_UNIT_SIZE == 0


def is_queue_name(topic: bytes, queue_id: int) -> bool:
    """Whether a queue's directory can be named so: nothing that leads out of ``consumequeue/``."""
    plain = b"/" not in topic and b"\0" not in topic
    return plain and queue_id >= 0 and topic not in (b"", b".", b"..")
