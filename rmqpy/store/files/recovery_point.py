"""RecoveryPoint: up to where log and consume queues are durable, in bytes; ours, beside Java's
checkpoint, which only knows times and leads to the begin of a file.

``rmqpy/recovery-point`` is JSON: ``offset`` (a record ends there, everything in front of it is
durable in the log, and its units in the consume queues), ``tail`` (CRC of the last bytes in front
of it, by which a log that has been changed since is told), ``queues`` (topic to queue to next queue
offset, at that time). Written with each flush of the derived files, and at a clean stop.

Invariant: a start that believes the point finds what a start without it finds, only sooner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import define

from rmqpy.codec.backend import crc32
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import MappedFiles

TAIL_BYTES = 4096

QueueEnds = Mapping[str, Mapping[int, int]]


@define(slots=True, frozen=True)
class RecoveryPoint:
    offset: int
    tail: int
    queues: QueueEnds

    @classmethod
    def of(cls, row: MappedFiles, offset: int, queues: QueueEnds) -> RecoveryPoint | None:
        """The point at ``offset``; None where no file holds bytes in front of it."""
        tail = _tail(row, offset)
        return None if tail is None else cls(offset, tail, queues)

    @classmethod
    def load(cls, files: FileSystem, path: str) -> RecoveryPoint | None:
        """None when there is none that can be read: it is only a short cut."""
        try:
            found = json.loads(files.read_bytes(path))
            queues = {
                str(topic): {int(queue): int(end) for queue, end in ends.items()}
                for topic, ends in found["queues"].items()
            }
            return cls(int(found["offset"]), int(found["tail"]), queues)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, files: FileSystem, path: str) -> None:
        """Blocks until it is durable; may run in a worker thread."""
        content = {"offset": self.offset, "tail": self.tail, "queues": self.queues}
        files.replace_bytes(path, json.dumps(content).encode())

    def holds(self, row: MappedFiles) -> bool:
        """Whether the log is the one that the point is about."""
        return _tail(row, self.offset) == self.tail


def _tail(row: MappedFiles, offset: int) -> int | None:
    """CRC of the bytes in front of ``offset``, in its file."""
    file = row.find(offset - 1) if offset > 0 else None
    if file is None:
        return None
    end = offset - file.first_offset
    return crc32(file.view[max(0, end - TAIL_BYTES) : end])
