"""The kernel of audits, in C or Python as chosen by :mod:`rmqpy.codec.backend`."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rmqpy.codec import backend
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.derived_sums import IndexSums, SlotState, UnitSums
from rmqpy.codec.tally.kernel import Tally
from rmqpy.codec.tally.pooled import PooledUnits

if TYPE_CHECKING:
    from rmqpy.codec.tally.native_pooled import FolderPool

__all__ = [
    "folder_pool",
    "pool_units",
    "queue_digest",
    "rewind_index",
    "sum_units",
    "tally_frames",
    "walk_index",
]

_TallyFrames = Callable[[memoryview, int, int, int, Tally], tuple[int, StopReason]]
_SumUnits = Callable[[memoryview, int, int, int], UnitSums]
_PoolUnits = Callable[[memoryview, int, PooledUnits], int]
_QueueDigest = Callable[[bytes, int], int]
_RewindIndex = Callable[[memoryview, int, int, int], "array[int] | None"]


class _WalkIndex(Protocol):
    def __call__(
        self,
        view: memoryview,
        slot_count: int,
        entry_end: int,
        log_file_size: int,
        low: int,
        high: int,
        since: SlotState | None = None,
    ) -> IndexSums: ...


def _choose() -> tuple[_TallyFrames, _SumUnits, _WalkIndex, _RewindIndex, _PoolUnits, _QueueDigest]:
    if backend.implementation == "c":
        from rmqpy.codec.tally import native, native_pooled, native_sums

        return (
            native.tally_frames,
            native_sums.sum_units,
            native_sums.walk_index,
            native_sums.rewind_index,
            native_pooled.pool_units,
            native_pooled.queue_digest,
        )
    from rmqpy.codec.tally import derived_sums, kernel, pooled

    return (
        kernel.count_frames,
        derived_sums.sum_units_in_python,
        derived_sums.walk_index_in_python,
        derived_sums.rewind_index_in_python,
        pooled.pool_units_in_python,
        kernel.queue_digest,
    )


tally_frames, sum_units, walk_index, rewind_index, pool_units, queue_digest = _choose()


def folder_pool(descriptor: int, low: int) -> FolderPool | None:
    """Return what reads many queues at once, or None without the C core."""
    if backend.implementation != "c":
        return None
    from rmqpy.codec.tally.native_pooled import FolderPool

    return FolderPool(descriptor, low)
