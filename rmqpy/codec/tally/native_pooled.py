"""The C versions of :func:`rmqpy.codec.tally.pooled.pool_units_in_python`, and of
:func:`rmqpy.codec.tally.kernel.queue_digest`.
"""

from __future__ import annotations

from rmqpy._native import ffi, lib
from rmqpy.codec.tally.pooled import PooledUnits

__all__ = ["pool_units", "queue_digest"]


def pool_units(view: memoryview, number: int, units: PooledUnits) -> int:
    """See :func:`rmqpy.codec.tally.pooled.pool_units_in_python`."""
    if not len(view):
        return 0
    content = ffi.from_buffer("uint8_t[]", view)
    state = ffi.new(
        "rmq_pooled_units *",
        (
            *(content, len(view), 0, number, units.queue, units.any_tags, units.irregular),
            *(units.low, units.high, units.first, units.place, units.count, units.sum),
        ),
    )
    lib.rmq_pool_units(state)
    units.first, units.place = state.first, state.place
    units.count, units.sum = state.count, state.sum
    units.irregular = bool(state.irregular)
    return int(state.position)


def queue_digest(topic: bytes, queue_id: int) -> int:
    """See :func:`rmqpy.codec.tally.kernel.queue_digest`."""
    return int(lib.rmq_queue_digest(ffi.from_buffer("uint8_t[]", topic), len(topic), queue_id))
