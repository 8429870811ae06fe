"""The C version of :func:`rmqpy.codec.tally.pooled.pool_units_in_python`."""

from __future__ import annotations

from rmqpy._native import ffi, lib
from rmqpy.codec.tally.pooled import PooledUnits

__all__ = ["pool_units"]


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
