"""How far a stream has come: an offset for every queue, the next to be read.

As Spark keeps it, the same JSON that earlier connectors wrote: ``{topic: {broker name: {queue id:
offset}}}``. Written sorted, so that equal positions are equal texts.
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
"""The offset of the next message by queue."""

EARLIEST: Final = -2
LATEST: Final = -1


def tree_of(position: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(position):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = position[queue]
    return tree


def position_of(tree: Any) -> Position:
    """ConfigFault where it is of another shape."""
    try:
        return {
            MessageQueue(topic, broker, _number(queue)): _offset(offset)
            for topic, brokers in tree.items()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
    except (AttributeError, ValueError):
        raise ConfigError(
            f"offsets {json.dumps(tree)[:200]} are not of the shape "
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
    """Where to begin, or to end. ``at`` may name EARLIEST and LATEST too; ``time_ms``: the first
    message stored then or later. For a queue that is not in ``at``: ``other``.
    """

    other: int = EARLIEST
    at: Mapping[MessageQueue, int] = field(factory=dict)
    time_ms: int | None = None

    def of(self, queue: MessageQueue) -> int:
        return self.at.get(queue, self.other)


def read_boundary(name: str, text: str, other: int) -> Boundary:
    """The option ``name``: ``earliest``, ``latest``, or JSON."""
    match text.strip().lower():
        case "earliest":
            return Boundary(other=EARLIEST)
        case "latest":
            return Boundary(other=LATEST)
    try:
        tree = json.loads(text)
    except ValueError:
        raise ConfigError(
            f"the option {name} is {text!r}: neither earliest nor latest nor JSON"
        ) from None
    return Boundary(other=other, at=position_of(tree))


def limited(begin: Position, end: Position, count: int) -> Position:
    """How far to go from ``begin`` towards ``end`` with ``count`` offsets in all.

    Queues get in proportion to what waits in them, each one at least. With fewer offsets than
    queues the turn goes round: it begins elsewhere as the whole moves on.
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
    """Whom what rounding left over goes to; ``shares`` grow meanwhile."""
    while count > 0:
        for queue in order:
            if count and queue in shares and shares[queue] < waiting[queue]:
                count -= 1
                yield queue
