"""The units of consume queues as one sum, whatever the number of queues.

A pooled walk of the log (:class:`rmqpy.codec.tally.kernel.TallyPlan`) sums the units that its
messages must have, and :func:`pool_units_in_python` those that a queue does have. If both sums over
a store are equal, and the units of every queue are those of ascending messages without a gap, then
every message has its unit, no unit leads to anything else, and the messages of every queue are
numbered in the order of the log. Sums can be added in any order, so they can be computed anywhere.
They say nothing about where a difference is. The function exists in C too: take it from
:mod:`rmqpy.codec.tally.backend`.
"""

from __future__ import annotations

from typing import Final

from rmqpy.codec.layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.tally.kernel import pooled_digest
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.values import define

__all__ = ["OFFSET_MAX", "PooledUnits", "pool_units_in_python"]

OFFSET_MAX: Final = (1 << 63) - 1
_MASK64: Final = (1 << 64) - 1


@define(slots=True, kw_only=True)
class PooledUnits:
    """The units of one queue so far, in the order of its files.

    ``queue`` is its :func:`~rmqpy.codec.tally.kernel.queue_digest`. Units of messages from ``low``
    to before ``high`` count. ``first`` is the queue offset of the first one, and ``place`` the
    offset of the message of the last one, -1 if there is none. ``irregular`` means that the units
    are not those of ascending messages without a gap.
    """

    queue: int
    any_tags: bool = False
    low: int = 0
    high: int = OFFSET_MAX
    first: int = -1
    place: int = -1
    count: int = 0
    sum: int = 0
    irregular: bool = False


def pool_units_in_python(view: memoryview, number: int, units: PooledUnits) -> int:
    """Add the units of a file, the first of which has queue offset ``number``.

    Return the position after the last one: of a unit that was never written, or whose message is at
    or after ``high``, or of the end of the file.
    """
    position = 0
    while position + QUEUE_UNIT_SIZE <= len(view):
        place, size, tags_code = QUEUE_UNIT.unpack_from(view, position)
        is_filler = size == QUEUE_FILLER_SIZE
        if place == size == tags_code == 0 or (not is_filler and place >= units.high):
            break
        if is_filler or place < units.low:
            units.irregular = units.irregular or units.first >= 0
        else:
            units.irregular = units.irregular or place <= units.place
            if units.first < 0:
                units.first = number
            units.place = place
            units.count += 1
            tags_code = 0 if units.any_tags else tags_code
            digest = pooled_digest(units.queue, number, place, size, tags_code)
            units.sum = (units.sum + digest) & _MASK64
        position += QUEUE_UNIT_SIZE
        number += 1
    return position
