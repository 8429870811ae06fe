"""The position of a stream: for every queue the offset of the next message to read.

Spark stores a position as the JSON that earlier connectors wrote: ``{topic: {broker name: {queue
id: offset}}}``. The keys are sorted, so that equal positions are equal texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import define, field

from rmqpy.model.errors import ConfigError
from rmqpy.remoting.bodies import MessageQueue

__all__ = [
    "EARLIEST",
    "LATEST",
    "Boundary",
    "Position",
    "limited",
    "position_of",
    "read_boundary",
    "tree_of",
]

Position = dict[MessageQueue, int]
"""The offset of the next message, by queue."""

EARLIEST: Final = -2
LATEST: Final = -1


def tree_of(position: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return a position as a JSON object."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(position):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = position[queue]
    return tree


def position_of(tree: Any) -> Position:
    """Return the position in a JSON object. Raise ConfigError if it has another shape."""
    try:
        return {
            MessageQueue(topic, broker, _number(queue)): _offset(offset)
            for topic, brokers in tree.items()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
    except (AttributeError, ValueError):
        raise ConfigError(
            f"offsets {json.dumps(tree)[:200]} do not have the shape "
            '{"topic": {"broker name": {"queue id": offset}}}'
        ) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(value)
    return value


@define(slots=True, frozen=True, kw_only=True)
class Boundary:
    """The start or the end of a read.

    ``at`` has offsets by queue, which may be EARLIEST or LATEST; queues that are not in it use
    ``other``. If ``time_ms`` is set, it selects the first message stored at that time or later.
    """

    other: int = EARLIEST
    at: Mapping[MessageQueue, int] = field(factory=dict)
    time_ms: int | None = None

    def of(self, queue: MessageQueue) -> int:
        """Return the offset for ``queue``."""
        return self.at.get(queue, self.other)


def read_boundary(name: str, text: str, other: int) -> Boundary:
    """Parse the option ``name``, which is ``earliest``, ``latest``, or JSON.

    Raise ConfigError for any other text.
    """
    match text.strip().lower():
        case "earliest":
            return Boundary(other=EARLIEST)
        case "latest":
            return Boundary(other=LATEST)
    try:
        tree = json.loads(text)
    except ValueError:
        raise ConfigError(
            f"the option {name} is {text!r}: expected earliest, latest, or JSON"
        ) from None
    return Boundary(other=other, at=position_of(tree))


def limited(begin: Position, end: Position, count: int) -> Position:
    """Return the position that is ``count`` offsets in total after ``begin``, at most ``end``.

    Each queue receives a share proportional to its waiting messages, at least 1. With fewer offsets
    than queues the shares rotate: they start at another queue as the whole position advances.
    """
    waiting = {queue: end[queue] - begin[queue] for queue in sorted(end)}
    waiting = {queue: size for queue, size in waiting.items() if size > 0}
    total = sum(waiting.values())
    if total <= count:
        return dict(end)
    shares = _shares(waiting, count, sum(begin.values()))
    return {queue: begin[queue] + shares.get(queue, 0) for queue in end}


def _shares(waiting: Mapping[MessageQueue, int], count: int, turn: int) -> Position:
    queues = list(waiting)
    first = turn % len(queues)
    order = queues[first:] + queues[:first]
    shares = {queue: 1 for queue in order[:count]}
    left, total = count - len(shares), sum(waiting.values()) - len(shares)
    for queue in shares:
        more = left * (waiting[queue] - 1) // total if total else 0
        shares[queue] += more
    for queue in _repeated(order, shares, waiting, count - sum(shares.values())):
        shares[queue] += 1
    return shares


def _repeated(
    order: list[MessageQueue], shares: Position, waiting: Mapping[MessageQueue, int], count: int
) -> Iterator[MessageQueue]:
    """Yield the queues that receive the offsets left over by rounding, one offset each.

    The caller increases ``shares`` for each queue.
    """
    while count > 0:
        for queue in order:
            if count and queue in shares and shares[queue] < waiting[queue]:
                count -= 1
                yield queue
