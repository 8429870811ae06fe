"""Dispatch (Java ReputMessageService): from the log to its derived files, and reports of arrivals.

Two cursors advance through the log up to ``confirm_offset``: one for the consume queues (and
arrivals), one for the key index. Normally they advance together; when the index must be rebuilt,
its cursor follows alone, in bounded steps, so that no request waits for it.

Invariants: a cursor is at the start of a record's frame or at the start of a file; it does not pass
``confirm_offset`` (after a restart in DLedger mode it may start after it: the derived files contain
what was committed before, and the log has not confirmed that yet); a record that cannot be read
stops both with a StoreError (nothing is skipped).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from rmqpy.codec.backend import find_queue_ends, pack_records, scan_records
from rmqpy.codec.hashes import java_text
from rmqpy.codec.layout import BLANK_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.packing import PackedUnits, QueueEnds
from rmqpy.codec.scan import Scan, StopReason, is_end_filler
from rmqpy.model.clock import Clock
from rmqpy.model.errors import StoreError
from rmqpy.model.flags import has_queue_unit
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.commitlog.interface import CommitLog, ScanRange
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.queues.table import ConsumeQueueTable
from rmqpy.store.results import Arrival

STEP_RECORDS = 512
"""Records that one step in Python dispatches; each may be the first of its queue."""
ALL = 1 << 62
STEP_BYTES = 32 << 10
"""The part of the log that is dispatched before the clock is read: the first message of a queue
since the start costs as much as hundreds of others.
"""
SMALL_LAG_BYTES = 1 << 20
"""An index that lags behind the queues by at most this catches up at once."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
DEFAULT_DELAY_MS = 1000
"""The delay of a level that messageDelayLevel does not name."""

ACCELERATED_STEP_RECORDS = 8
"""Records that one step in Python dispatches before the accelerator is tried again."""

ArrivalListener = Callable[[Arrival], None]


class Accelerator(Protocol):
    """A faster implementation of a step of dispatch, with the same result, for some records."""

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> tuple[int, int] | None:
        """Dispatch records of ``piece``, from its start, to the queues, to the index and, for
        watched queues, to the listener. Return the offset after the last one and its store time, or
        None if not even the first could be dispatched.
        """

    def register_queues(self, scan: Scan) -> None:
        """Learn the queues of records that were dispatched without the accelerator."""


class Dispatcher:
    """The dispatch of the records of a log to its consume queues and key index.

    ``delay_levels`` maps level to delay in ms. If ``index`` is None, there is no key index.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: KeyIndex | None,
        delay_levels: Mapping[int, int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._delay_levels = dict(delay_levels)
        self.queue_cursor = 0
        self.index_cursor = 0
        self._rebuilt_offset = 0
        self.store_timestamp_ms = 0
        self._open_tail = False
        self._on_arrival: ArrivalListener | None = None
        self._accelerator: Accelerator | None = None

    def subscribe(self, listener: ArrivalListener) -> None:
        """Call ``listener`` with each message that becomes readable."""
        self._on_arrival = listener

    def install_accelerator(self, accelerator: Accelerator | None) -> None:
        """Offer each range to ``accelerator`` first; None removes it."""
        self._accelerator = accelerator

    def use_log(self, log: CommitLog) -> None:
        """Continue at the same offsets in another log, which contains them."""
        self._log = log

    def start(self, queue_cursor: int, index_cursor: int) -> None:
        """Set the cursors, but not to less than the start of the log."""
        low = self._log.min_offset
        self.queue_cursor = max(queue_cursor, low)
        self.index_cursor = max(index_cursor, low)
        self._rebuilt_offset = self._log.confirm_offset

    def skip_to(self, offset: int) -> None:
        """Continue the consume queues at ``offset``: they have the units of all messages before."""
        if self._index is None:
            self.index_cursor = max(self.index_cursor, offset)
        self.queue_cursor = max(self.queue_cursor, offset)

    def set_open_tail(self, is_open: bool) -> None:
        """Set whether the log may end inside a record whose rest has not arrived yet (a slave)."""
        self._open_tail = is_open

    def reset_to(self, low: int) -> None:
        """Dispatch from ``low``, where the log starts now, if that is before the cursors. Queues
        and index skip the messages that they already have.
        """
        if low < self.queue_cursor:
            self.queue_cursor = self.index_cursor = low

    @property
    def behind_bytes(self) -> int:
        """The number of readable bytes of the log that the consume queues do not have yet."""
        behind = self._log.confirm_offset - self.queue_cursor
        return behind if behind > 0 else 0

    @property
    def is_behind(self) -> bool:
        """True if :meth:`run` has something to do."""
        return self.queue_cursor < self._log.confirm_offset or self.index_cursor < self.queue_cursor

    @property
    def is_rebuilding_queues(self) -> bool:
        """True if the consume queues still lack messages that the log had at the start."""
        return self.queue_cursor < self._rebuilt_offset

    @property
    def index_behind_bytes(self) -> int:
        """The number of bytes of the log that the consume queues have and the key index does
        not.
        """
        return max(0, self.queue_cursor - self.index_cursor) if self._index is not None else 0

    def run(self, bytes_max: int = ALL) -> None:
        """Dispatch to the consume queues up to ``confirm_offset``, but at most ``bytes_max``.
        Raises StoreError for a record that cannot be read.
        """
        stop = min(self._log.confirm_offset, self.queue_cursor + bytes_max)
        while self.queue_cursor < stop and (self._step_ahead() or self._step()):
            pass
        if 0 < self.queue_cursor - self.index_cursor <= SMALL_LAG_BYTES:
            with suppress(StoreError):  # Damage after the index cursor must not stop the queues.
                self.index_step()

    def run_for(self, duration_ms: int, bytes_max: int, clock: Clock) -> None:
        """Dispatch like :meth:`run`, but begin no further step after ``duration_ms``."""
        end_ms, left, before = clock.monotonic_ms() + duration_ms, bytes_max, -1
        while left > 0 and self.queue_cursor != before:
            before = self.queue_cursor
            self.run(min(left, STEP_BYTES))
            if not self.behind_bytes or clock.monotonic_ms() >= end_ms:
                return
            left -= self.queue_cursor - before

    def queue_ends_ahead(self) -> dict[tuple[bytes, int], int]:
        """Return the next offsets of the queues that have messages between the cursor and
        ``confirm_offset``.
        """
        ends: dict[tuple[bytes, int], int] = {}
        offset, stop = self.queue_cursor, self._log.confirm_offset
        while offset < stop:
            piece = next(iter(self._log.ranges(PhysicalOffset(offset))))
            found = find_queue_ends(piece.view, piece.offset, dledger=piece.dledger)
            ends |= found.ends
            if self._waits_for_rest(piece, found):
                break
            offset = self._next_start(piece, found)
        return ends

    def index_step(self) -> bool:
        """Advance a lagging index by one bounded step. Return True if it still lags."""
        if self._index is None or self.index_cursor >= self.queue_cursor:
            return False
        for piece in self._log.ranges(PhysicalOffset(self.index_cursor)):
            scan = self._scan(piece, self.queue_cursor)
            packed = pack_records(piece.view, scan, len(scan), with_keys=True)
            self._index.put_packed(packed.keys)
            self.index_cursor = self._next_start(piece, scan)
            break
        return self.index_cursor < self.queue_cursor

    @property
    def is_caught_up(self) -> bool:
        """True if every complete record that is readable has been dispatched."""
        if self.behind_bytes and self._open_tail:
            for piece in self._log.ranges(PhysicalOffset(self.queue_cursor)):
                return self._waits_for_rest(piece, self._scan(piece))
        return not self.behind_bytes

    @property
    def _is_together(self) -> bool:
        return self._index is None or self.index_cursor == self.queue_cursor

    def _step_ahead(self) -> bool:
        """Let the accelerator dispatch the last write. Return False if that was not possible."""
        if self._accelerator is None:
            return False
        piece = self._log.recent(PhysicalOffset(self.queue_cursor))
        return piece is not None and self._accelerate(piece)

    def _step(self) -> bool:
        """Dispatch one step. Return False if only the start of a record is left."""
        for piece in self._log.ranges(PhysicalOffset(self.queue_cursor)):
            if self._accelerate(piece):
                return True
            scan = self._scan(piece, self.index_cursor)
            set_deliver_times(scan, self._delay_levels)
            together = self._is_together
            index = self._index if together else None
            packed = pack_records(piece.view, scan, len(scan), with_keys=index is not None)
            self._to_queues(scan, packed)
            if index is not None:
                index.put_packed(packed.keys)
            waits = self._waits_for_rest(piece, scan)
            next_cursor = scan.end if waits else self._next_start(piece, scan)
            if together:
                self.index_cursor = next_cursor
            self.queue_cursor = next_cursor
            if len(scan):
                self.store_timestamp_ms = scan.store_timestamp_ms[-1]
                self._report_arrivals(scan)
            if self._accelerator is not None:
                self._accelerator.register_queues(scan)
            return not waits
        raise AssertionError(f"nothing to read at {self.queue_cursor} below confirm_offset")

    def _accelerate(self, piece: ScanRange) -> bool:
        """Let the accelerator perform the step. Return False if Python must perform it."""
        if self._accelerator is None or not self._is_together:
            return False
        done = self._accelerator.take(piece, self._on_arrival)
        if done is None:
            return False
        self.queue_cursor, self.store_timestamp_ms = done
        self.index_cursor = self.queue_cursor
        return True

    def _scan(self, piece: ScanRange, meeting: int = 0) -> Scan:
        """Return the records of one step, but none at or after ``meeting``, the other cursor, so
        that the two cursors can meet there. While they are apart, the accelerator can do nothing,
        so a step need not end soon for it.
        """
        view = piece.view
        if piece.offset < meeting < piece.offset + len(view):
            view = view[: meeting - piece.offset]
        may_accelerate = self._accelerator is not None and self._is_together
        limit = ACCELERATED_STEP_RECORDS if may_accelerate else STEP_RECORDS
        return scan_records(
            view, piece.offset, dledger=piece.dledger, check_crc=False, max_records=limit
        )

    def _waits_for_rest(self, piece: ScanRange, scan: Scan | QueueEnds) -> bool:
        """Return whether the log ends inside the record at the end of ``scan``, whose rest may
        still arrive.
        """
        position = scan.end - piece.offset
        if not self._open_tail or scan.stop is not StopReason.TRUNCATED:
            return False
        if piece.offset + len(piece.view) >= piece.file_end:
            return False
        if len(piece.view) - position < BLANK_SIZE:
            return True
        size = int.from_bytes(piece.view[position : position + 4], signed=True)
        return size <= piece.file_end - scan.end

    @staticmethod
    def _next_start(piece: ScanRange, scan: Scan | QueueEnds) -> int:
        """Return the offset at which the next step starts."""
        if scan.stop in (StopReason.END, StopReason.LIMIT):
            return scan.end
        rest = piece.file_end - scan.end
        if scan.stop is StopReason.BLANK:
            if is_end_filler(piece.view, scan.end - piece.offset, rest, dledger=piece.dledger):
                return piece.file_end
        raise StoreError(
            f"commit log at offset {scan.end}",
            f"{scan.stop.name} where a record must begin",
            "records without a gap",
            "stop the broker, check the disk, and restore the file from a backup or a replica",
        )

    def _to_queues(self, scan: Scan, packed: PackedUnits) -> None:
        for row, queue_offset, count, start in packed.runs:
            topic, queue_id = java_text(scan.topic[row]), scan.queue_id[row]
            first, end = start * QUEUE_UNIT_SIZE, (start + count) * QUEUE_UNIT_SIZE
            self._queues.put_run(topic, queue_id, queue_offset, packed.units[first:end])

    def _report_arrivals(self, scan: Scan) -> None:
        if self._on_arrival is None:
            return
        for row, sys_flag in enumerate(scan.sys_flag):
            if not sys_flag or has_queue_unit(sys_flag):
                self._on_arrival(
                    Arrival(
                        java_text(scan.topic[row]),
                        scan.queue_id[row],
                        scan.queue_offset[row],
                        scan.tags_code[row],
                        scan.offset[row],
                        scan.store_timestamp_ms[row],
                    )
                )


def set_deliver_times(scan: Scan, delay_levels: Mapping[int, int]) -> None:
    """Replace the tags code of messages in the delay topic by the time (ms) when they are due."""
    if _SCHEDULE_TOPIC not in scan.topic:
        return
    max_level = max(delay_levels, default=0)
    for row, topic in enumerate(scan.topic):
        level = min(scan.delay_level[row], max_level)
        if level > 0 and topic == _SCHEDULE_TOPIC:
            delay_ms = delay_levels.get(level, DEFAULT_DELAY_MS)
            scan.tags_code[row] = scan.store_timestamp_ms[row] + delay_ms
