"""The position of a stream: for every queue the offset of the next message to read.

Spark stores a position as the JSON that earlier connectors wrote: ``{topic: {broker name: {queue
id: offset}}}``. The keys are sorted, so that equal positions are equal texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    "read_times",
    "tree_of",
]

Position = dict[MessageQueue, int]
"""The offset of the next message, by queue."""

EARLIEST: Final = -2
LATEST: Final = -1
ANY_BROKER: Final = ""
"""The broker name of a queue whose broker is not named."""


def tree_of(position: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return a position as a JSON object."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(position):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = position[queue]
    return tree


def position_of(tree: Any) -> Position:
    """Return the position in a JSON object. Raise ConfigError if it has another shape."""
    return _values(tree, _offset, lambda brokers: brokers)


def _values(tree: Any, value_of: Callable[[Any], int], by_broker: Callable[[Any], Any]) -> Position:
    try:
        return {
            MessageQueue(topic, broker, _number(queue)): value_of(value)
            for topic, brokers in tree.items()
            for broker, queues in by_broker(brokers).items()
            for queue, value in queues.items()
        }
    except (AttributeError, ValueError):
        raise ConfigError(
            f"offsets {json.dumps(tree)[:200]} do not have the shape "
            '{"topic": {"broker name": {"queue id": offset}}}'
        ) from None


def _by_broker(queues: Any) -> Any:
    """Return the queues of a topic by broker; Kafka's shape names none."""
    is_plain = all(isinstance(value, int) for value in queues.values())
    return {ANY_BROKER: queues} if is_plain else queues


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(value)
    return value


def _time(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


@define(slots=True, frozen=True, kw_only=True)
class Boundary:
    """The start or the end of a read.

    ``at`` has offsets by queue, which may be EARLIEST or LATEST, and ``times`` has times in ms,
    which select the first message stored then or later; queues in neither use ``time_ms`` if it is
    set, otherwise ``other``. A queue of ANY_BROKER stands for the one of whatever broker has it.
    """

    other: int = EARLIEST
    at: Mapping[MessageQueue, int] = field(factory=dict)
    times: Mapping[MessageQueue, int] = field(factory=dict)
    time_ms: int | None = None

    def of(self, queue: MessageQueue) -> int:
        """Return the offset for ``queue``."""
        found = _find(self.at, queue)
        return self.other if found is None else found

    def time_of(self, queue: MessageQueue) -> int | None:
        """Return the time in ms that determines the offset for ``queue``, or None."""
        found = _find(self.times, queue)
        return self.time_ms if found is None else found

    def check(self, queues: Iterable[MessageQueue]) -> None:
        """Raise ConfigError if a queue is named without its broker and several brokers have it."""
        brokers: dict[tuple[str, int], set[str]] = {}
        for queue in queues:
            brokers.setdefault((queue.topic, queue.queue_id), set()).add(queue.broker_name)
        for named in (*self.at, *self.times):
            found = sorted(brokers.get((named.topic, named.queue_id), ()))
            if named.broker_name == ANY_BROKER and len(found) > 1:
                raise ConfigError(
                    f"found queue {named.queue_id} of {named.topic} on the brokers"
                    f" {', '.join(found)}, expected one; name the broker:"
                    ' {"topic": {"broker name": {"queue id": offset}}}'
                )


def _find(values: Mapping[MessageQueue, int], queue: MessageQueue) -> int | None:
    plain = MessageQueue(queue.topic, ANY_BROKER, queue.queue_id)
    return values.get(queue, values.get(plain))


def read_boundary(name: str, text: str, other: int) -> Boundary:
    """Parse the option ``name``, which is ``earliest``, ``latest``, or JSON.

    Raise ConfigError for any other text.
    """
    match text.strip().lower():
        case "earliest":
            return Boundary(other=EARLIEST)
        case "latest":
            return Boundary(other=LATEST)
    tree = _parsed(name, text, "earliest, latest, or JSON")
    return Boundary(other=other, at=_values(tree, _offset, _by_broker))


def read_times(name: str, text: str, other: int) -> Boundary:
    """Parse the option ``name``, JSON with times in ms in place of offsets, or raise ConfigError.

    Queues without a time use ``other``.
    """
    tree = _parsed(name, text, 'JSON like {"topic": {"queue id": time in ms}}')
    return Boundary(other=other, times=_values(tree, _time, _by_broker))


def _parsed(name: str, text: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f"the option {name} is {text!r}: expected {expected}") from None


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
