"""RecoveryPoint: the offset up to which log and consume queues are durable. rmqpy keeps it in
addition to Java's checkpoint, which contains only times and leads to the start of a file.

``rmqpy/recovery-point`` is JSON: ``offset`` (a record ends there; everything before it is durable
in the log, and its units in the consume queues), ``tail`` (CRC of the last bytes before it, which
reveals a log that was changed later), ``queues`` (topic to queue to next queue offset, at that
time). It is written with each flush of the derived files, and at a clean stop.

Invariant: a start of an intact log has the same result with and without the point, and is faster
with it. Where records are missing, the point decides what that is: damage below it, and above it
what a power loss left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rmqpy.codec.backend import crc32
from rmqpy.model.encoded_rows import EncodedRows
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.mapped_files import MappedFiles

RECOVERY_POINT_NAME = "recovery-point"
TAIL_BYTES = 4096

QueueEnds = Mapping[str, Mapping[int, int]]


@define(slots=True, frozen=True)
class RecoveryPoint:
    """A stored recovery point."""

    offset: int
    tail: int
    queues: QueueEnds

    @classmethod
    def load(cls, files: FileSystem, path: str) -> RecoveryPoint | None:
        """Return the stored point, or None if there is none that can be read, because it is only a
        shortcut.
        """
        try:
            found = json.loads(files.read_bytes(path))
            queues = {
                str(topic): {int(queue): int(end) for queue, end in ends.items()}
                for topic, ends in found["queues"].items()
            }
            return cls(int(found["offset"]), int(found["tail"]), queues)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def holds(self, row: MappedFiles) -> bool:
        """Return whether the point belongs to this log."""
        return _tail(row, self.offset) == self.tail


class EncodedQueueEnds:
    """The ends of all queues as a recovery point contains them. Only topics with changes are
    encoded again.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[int, int]] = {}
        self.rows = EncodedRows(self._row, b", ")
        """The rows of the topics."""

    def set(self, topic: str, queue_id: int, end: int | None) -> None:
        """Set the end of one queue; None if the queue does not exist."""
        ends = self._ends.setdefault(topic, {})
        if ends.get(queue_id) == end:
            return
        if end is not None:
            ends[queue_id] = end
            self.rows.note(topic)
            return
        del ends[queue_id]
        if ends:
            self.rows.note(topic)
        else:
            del self._ends[topic]
            self.rows.discard(topic)

    def _row(self, topic: str) -> bytes:
        return f"{json.dumps(topic)}: {json.dumps(self._ends[topic])}".encode()


@define(slots=True, frozen=True)
class NewRecoveryPoint:
    """A recovery point to be saved. ``queues`` is the rows of the topics, in parts."""

    offset: int
    tail: int
    queues: Sequence[bytes]

    @classmethod
    def of(cls, row: MappedFiles, offset: int, queues: EncodedQueueEnds) -> NewRecoveryPoint | None:
        """Return the point at ``offset``, or None if no file contains bytes before it."""
        tail = _tail(row, offset)
        return None if tail is None else cls(offset, tail, queues.rows.parts())

    def save(self, files: FileSystem, path: str) -> None:
        """Store the point durably. Blocks; may run in a worker thread."""
        begin = f'{{"offset": {self.offset}, "tail": {self.tail}, "queues": {{'
        files.replace_bytes(path, begin.encode(), *self.queues, b"}}")


def _tail(row: MappedFiles, offset: int) -> int | None:
    """Return the CRC of the bytes before ``offset``, in its file."""
    file = row.find(offset - 1) if offset > 0 else None
    if file is None:
        return None
    end = offset - file.first_offset
    return crc32(file.view[max(0, end - TAIL_BYTES) : end])
