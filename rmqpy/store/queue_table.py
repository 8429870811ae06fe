"""All consume queues of a store: ``consumequeue/<topic>/<queueId>/``, found on disk or made when first needed."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.model.errors import StoreFault
from rmqpy.store.consume_queue import ConsumeQueue
from rmqpy.store.files import FileLayer

QueueName = tuple[str, int]
"""Topic and queue id."""


class ConsumeQueueTable:
    """The queues by name. ``damaged`` holds those that ended at a hole when they were loaded."""

    def __init__(self, files: FileLayer, directory: str, file_size: int) -> None:
        self._files = files
        self._directory = directory
        self._file_size = file_size
        self._queues: dict[QueueName, ConsumeQueue] = {}
        self.damaged: list[QueueName] = []

    def load(self) -> None:
        """Raises StoreFault for entries that no broker has made."""
        for topic in self._files.list_dir(self._directory):
            folder = f"{self._directory}/{topic}"
            if not self._files.is_dir(folder):
                raise StoreFault(folder, "a file", "one directory a topic", "move it elsewhere")
            for name in self._files.list_dir(folder):
                if not (name.isascii() and name.isdigit() and self._files.is_dir(f"{folder}/{name}")):
                    raise StoreFault(
                        f"{folder}/{name}",
                        "a foreign entry",
                        "one directory a queue, named by its number",
                        "move it elsewhere; the Java broker would not start on it either",
                    )
                queue = self._open(topic, int(name))
                if not queue.load():
                    self.damaged.append((topic, int(name)))

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self._files, f"{self._directory}/{topic}/{queue_id}", self._file_size)
        self._queues[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when it is new. Names have been checked before anything was stored."""
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
        return sum(queue.truncate(log_end_offset) for queue in self)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def drop_topic(self, topic: str) -> int:
        """Delete the queues of a topic; returns how many there were."""
        names = [name for name in self._queues if name[0] == topic]
        for name in names:
            self._queues.pop(name).destroy()
        self._files.remove_tree(f"{self._directory}/{topic}")
        return len(names)

    def destroy(self) -> None:
        """Delete every queue: there is no log that they could point into."""
        for topic in {topic for topic, _ in self._queues}:
            self.drop_topic(topic)

    def close(self) -> None:
        for queue in self:
            queue.close()
