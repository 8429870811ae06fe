"""QueueRebuilds: the consume queues that must be rebuilt, because a reader found a unit that does
not lead to its message.

``rmqpy/queue-rebuilds`` is JSON: topic to queue id to the lowest such queue offset. While the store
runs, the unit is skipped, as in the Java broker. The next start cuts the queue there, or earlier if
the units before are wrong as well; dispatch rebuilds the rest from the log. A file that cannot be
read counts as empty: readers will find the units again.

Invariant: an entry stays on disk until the rebuilt units are durable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rmqpy.model.files import FileSystem
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import ConsumeQueueTable, QueueName
from rmqpy.store.queues.unit_check import unit_matches_record


class QueueRebuilds:
    """The queues of one store that must be rebuilt."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._offsets = _load(files, path)
        self._under_way: Mapping[QueueName, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, name: QueueName, queue_offset: int) -> None:
        """Record that the unit at ``queue_offset`` does not lead to its message. Blocks if that was
        not recorded before. Raises OSError if it could not be stored; the next read of the unit
        tries again.
        """
        known = self._offsets.get(name)
        if known is None or queue_offset < known:
            self._save({**self._offsets, name: queue_offset})

    def cut(self, queues: ConsumeQueueTable, log: CommitLog) -> list[str]:
        """Drop the recorded units and those after them, at a start. Return one note per queue, to
        be logged.
        """
        self._under_way = self._offsets
        notes = []
        for name, offset in self._offsets.items():
            queue = queues.find(*name)
            if queue is None:
                continue
            kept = _valid_end(queue, name, offset, log)
            queue.cut_at(kept)
            notes.append(
                f"consume queue {name[0]}/{name[1]} is rebuilt from queue offset {kept}:"
                f" the unit at {offset} did not lead to its message"
            )
        return notes

    def done(self) -> None:
        """Remove the entries that :meth:`cut` has used, whose rebuilt units are durable."""
        if self._under_way:
            left = {n: o for n, o in self._offsets.items() if self._under_way.get(n) != o}
            self._save(left)
            self._under_way = {}

    def _save(self, offsets: dict[QueueName, int]) -> None:
        tree: dict[str, dict[int, int]] = {}
        for (topic, queue_id), offset in offsets.items():
            tree.setdefault(topic, {})[queue_id] = offset
        if tree:
            self._files.replace_bytes(self._path, json.dumps(tree).encode())
        else:
            self._files.unlink(self._path)
        self._offsets = offsets


def _load(files: FileSystem, path: str) -> dict[QueueName, int]:
    try:
        return {
            (str(topic), int(queue_id)): int(offset)
            for topic, queues in json.loads(files.read_bytes(path)).items()
            for queue_id, offset in queues.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _valid_end(queue: ConsumeQueue, name: QueueName, offset: int, log: CommitLog) -> int:
    """Return the queue offset after the last unit before ``offset`` that leads to its message."""
    end = max(min(offset, queue.max_offset), queue.min_offset)
    while end > queue.min_offset:
        unit = queue.unit(end - 1)
        if unit is not None and unit_matches_record(log, unit[:2], name, end - 1):
            break
        end -= 1
    return end
