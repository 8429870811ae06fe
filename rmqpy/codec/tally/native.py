"""The C version of :func:`rmqpy.codec.tally.kernel.count_frames`. Only
:mod:`rmqpy.codec.tally.backend` imports it.

A call copies the tally to C, walks until the range ends, a frame cannot be walked over, or the
events must be taken, and copies the tally back. C returns to Python once for each queue that is
not in its table yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from rmqpy._native import ffi, lib
from rmqpy.codec import layout
from rmqpy.codec.scan import StopReason, measure_record
from rmqpy.codec.tally.kernel import BLOCK_SHIFT, EVENT_LIMIT, Tally, UnitRow, add_sums

__all__ = ["tally_frames"]

_EVENT_COLUMNS: Final = 6
_BUCKET_COLUMNS: Final = 6
_EVENT_CAPACITY: Final = EVENT_LIMIT + 64
_BUCKET_CAPACITY: Final = 4096
_QUEUES_MIN: Final = 64
_NEW_QUEUE: Final = len(StopReason)
_COUNTS: Final = (
    "records",
    "frame_bytes",
    "body_bytes",
    "version_2",
    "min_store_ms",
    "max_store_ms",
    "largest_record",
    "longest_properties",
    "first_frame",
    "last_frame",
    "first_index",
    "first_term",
    "last_index",
    "last_term",
    "right_entry_units",
    "key_count",
    "key_sum",
    "entry_sum",
    "term_sum",
    "pooled_count",
    "pooled_without",
    "pooled_sum",
)
_QUEUE_COUNTS: Final = (
    "count",
    "unqueued",
    "first_queue_offset",
    "first_frame",
    "last_queue_offset",
    "last_frame",
    "next_queue_offset",
    "right_units",
    "unit_count",
    "unit_sum",
    "tags_sum",
)


def tally_frames(
    view: memoryview, base_offset: int, position: int, stop: int, tally: Tally
) -> tuple[int, StopReason]:
    """See :func:`rmqpy.codec.tally.kernel.count_frames`."""
    stop = min(stop, len(view))
    if position >= stop:
        return position, StopReason.END
    return _Session(view, base_offset, (position, stop), tally).run()


class _Session:
    def __init__(
        self, view: memoryview, base_offset: int, places: tuple[int, int], tally: Tally
    ) -> None:
        self.view = view
        self.tally = tally
        self.kept: list[Any] = []
        """The memory that C points to, which these references keep alive."""
        position, stop = places
        state = self.state = ffi.new("rmq_tally_state *")
        state.view = self._keep(ffi.from_buffer("uint8_t[]", view))
        state.length = len(view)
        state.base_offset = base_offset
        state.file_size = tally.plan.file_size
        state.position, state.stop = position, stop
        plan = tally.plan
        state.dledger, state.check_crc = plan.dledger, plan.check_crc
        state.digests, state.check_keys = plan.digests, plan.keys is not None
        state.sums, state.pooled = plan.sums, plan.pooled
        assert not plan.pooled or not (plan.digests or plan.units_of), "queues are not told apart"
        state.key_low, state.key_high = plan.keys or (0, 0)
        self._point(state.entry_units, plan.entry_units)
        self.events = array("q", bytes(8 * _EVENT_COLUMNS * _EVENT_CAPACITY))
        state.events = self._keep(ffi.from_buffer("int64_t[]", self.events))
        state.event_capacity = _EVENT_CAPACITY
        self.buckets = array("q", bytes(8 * _BUCKET_COLUMNS * _BUCKET_CAPACITY))
        state.buckets = self._keep(ffi.from_buffer("int64_t[]", self.buckets))
        state.bucket_capacity = _BUCKET_CAPACITY
        state.first_block = position >> BLOCK_SHIFT
        count = ((stop - 1) >> BLOCK_SHIFT) - (position >> BLOCK_SHIFT) + 1
        self.blocks = array("q", bytes(16 * count))
        state.blocks = self._keep(ffi.from_buffer("int64_t[]", self.blocks))
        for name in _COUNTS:
            setattr(state, name, getattr(tally, name))
        self.capacity = 0
        self._make_queues()

    def run(self) -> tuple[int, StopReason]:
        state = self.state
        while True:
            stop = lib.rmq_tally(state)
            if stop == _NEW_QUEUE:
                self._add_queue(state.position)
            elif stop == StopReason.LIMIT and state.bucket_count == _BUCKET_CAPACITY:
                self._take_buckets()
            else:
                break
        self._take_back()
        return state.position, StopReason(stop)

    def _keep(self, item: Any) -> Any:
        self.kept.append(item)
        return item

    def _point(self, files: Any, row: UnitRow | None) -> None:
        if row is None:
            return
        views = [
            ffi.NULL if view is None else self._keep(ffi.from_buffer("uint8_t[]", view))
            for view in row.views
        ]
        files.views = self._keep(ffi.new("uint8_t *[]", views))
        files.first_offset = row.first
        files.file_size = row.file_size
        files.count = len(views)

    def _make_queues(self) -> None:
        """Allocate space for twice the known queues and copy them."""
        tally = self.tally
        self.capacity = max(_QUEUES_MIN, 2 * len(tally.queues))
        self.queues = ffi.new("rmq_tally_queue[]", self.capacity)
        slots = 1 << (2 * self.capacity - 1).bit_length()
        self.table = ffi.new("int32_t[]", slots)
        ffi.memmove(self.table, b"\xff" * (4 * slots), 4 * slots)
        self.state.queues, self.state.table = self.queues, self.table
        self.state.table_mask = slots - 1
        for number in range(len(tally.queues)):
            self._fill_queue(number)

    def _fill_queue(self, number: int) -> None:
        known, queue = self.tally.queues[number], self.queues[number]
        queue.topic = self._keep(ffi.from_buffer("uint8_t[]", known.topic))
        queue.topic_length = len(known.topic)
        queue.queue_id = known.queue_id
        for name in _QUEUE_COUNTS:
            setattr(queue, name, getattr(known, name))
        units = self.tally.unit_rows[number]
        self._point(queue.units, units)
        queue.any_tags = units is not None and units.any_tags
        lib.rmq_tally_add_queue(self.state, number)

    def _add_queue(self, position: int) -> None:
        record = position + (layout.ENTRY_HEADER_SIZE if self.tally.plan.dledger else 0)
        places = measure_record(self.view, record, len(self.view) - record)
        assert not isinstance(places, StopReason), "C has measured this record"
        fields, _, topic, properties = places
        if len(self.tally.queues) == self.capacity:
            self._take_queues()
            self.tally.queue_number(bytes(self.view[topic : properties - 2]), fields[3])
            self._make_queues()
            return
        number = self.tally.queue_number(bytes(self.view[topic : properties - 2]), fields[3])
        self._fill_queue(number)

    def _take_back(self) -> None:
        tally, state = self.tally, self.state
        for name in _COUNTS:
            setattr(tally, name, getattr(state, name))
        self._take_buckets()
        self._take_queues()
        cells = self.events
        for start in range(0, _EVENT_COLUMNS * state.event_count, _EVENT_COLUMNS):
            kind, frame, queue, found, expected, previous = cells[start : start + _EVENT_COLUMNS]
            tally.events.append((kind, frame, queue, found, expected, previous))
        if not tally.plan.blocks:
            return
        for number, first in enumerate(range(0, len(self.blocks), 2), state.first_block):
            if self.blocks[first + 1]:
                block = tally.blocks.setdefault(number, [self.blocks[first], 0])
                block[1] += self.blocks[first + 1]

    def _take_buckets(self) -> None:
        cells = self.buckets
        for start in range(0, _BUCKET_COLUMNS * self.state.bucket_count, _BUCKET_COLUMNS):
            queue, bucket, *sums = cells[start : start + _BUCKET_COLUMNS]
            self._add_bucket(queue, bucket, sums)
        self.state.bucket_count = 0

    def _add_bucket(self, number: int, bucket: int, sums: Sequence[int]) -> None:
        total = self.tally.queues[number].buckets.setdefault(bucket, [0, 0, 0, 0])
        add_sums(total, sums)

    def _take_queues(self) -> None:
        for number, known in enumerate(self.tally.queues):
            queue = self.queues[number]
            for name in _QUEUE_COUNTS:
                setattr(known, name, getattr(queue, name))
            if queue.bucket_messages:
                sums = queue.bucket_content, queue.bucket_place, queue.bucket_mapped
                self._add_bucket(number, queue.bucket, (queue.bucket_messages, *sums))
                queue.bucket_messages = 0
