"""The offsets of the replayed messages by those of the recorded ones, queue by queue.

Most messages of a queue have moved by one common distance, because the target had another number of
messages. Only offsets with another distance are kept one by one, so the memory depends on how often
concurrent senders changed places.
"""

from __future__ import annotations

from attrs import define, field

Queue = tuple[str, int]


@define(slots=True)
class _QueueOffsets:
    first: int
    """The smallest recorded offset that was replayed."""
    distance: int
    others: dict[int, int] = field(factory=dict)


class OffsetMap:
    """Maps recorded queue offsets to those of the target."""

    def __init__(self) -> None:
        self._queues: dict[Queue, _QueueOffsets] = {}

    def add(self, queue: Queue, recorded: int, replayed: int) -> None:
        """Remember where a message is in the target."""
        distance = replayed - recorded
        known = self._queues.get(queue)
        if known is None:
            self._queues[queue] = _QueueOffsets(recorded, distance)
            return
        known.first = min(known.first, recorded)
        if distance != known.distance:
            known.others[recorded] = replayed

    def get(self, queue: Queue, recorded: int) -> int | None:
        """Return the offset in the target; None for a message from before the recording that the
        target does not have.
        """
        known = self._queues.get(queue)
        if known is None:
            return recorded  # Nothing was sent to it: the target is a copy, or lacks the message.
        if recorded < known.first:
            return recorded if known.distance == 0 else None
        return known.others.get(recorded, recorded + known.distance)
