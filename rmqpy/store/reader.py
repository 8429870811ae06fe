"""QueueMessageReader: reads messages, offsets, and offsets by time from queues (the read side of
Java's DefaultMessageStore).

A page ends before the message that would exceed its limit (there are two limits: for messages near
the end of the log, which are in the page cache, and for old ones); its first message is included
whatever its size. A unit that does not lead to its message is skipped and recorded. A page also
ends before a damaged message that will be repaired with the copy of another member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqpy.codec.layout import (
    ENTRY_HEADER_SIZE,
    HOSTS_V6,
    MAGIC_POSITION,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_FILLER_SIZE,
    QUEUE_UNIT_SIZE,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_POSITIONS,
    SYS_FLAG_POSITION,
    TOPIC_LENGTH_SIZES,
)
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.config.loading import StoreSettings
from rmqpy.model.codes import GetMessageStatus
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.health import StoreHealth, Writer
from rmqpy.store.queues.table import QueueName
from rmqpy.store.queues.unit_check import is_message, is_plausible_unit, unit_matches_record
from rmqpy.store.results import GetMessageResult, QueryMessageResult
from rmqpy.store.startup import StoreContext, StoreParts

QUEUE_UNIT_LENGTH_POSITION = 8
"""The position of the record size in a unit."""

SCAN_WINDOW_BYTES = 16000
"""The size of the units, in bytes, that one read searches for messages that match a filter
(maxFilterMessageSize).
"""


Matcher = Callable[[int], bool]


@define(slots=True, frozen=True)
class RecordFilter:
    """A reader's filter by the content of messages. ``matches`` receives a record."""

    matches: Callable[[memoryview], bool]
    units_max: int = SCAN_WINDOW_BYTES // QUEUE_UNIT_SIZE
    """The number of messages that one read may examine."""


@define(slots=True, eq=False, repr=False)
class _Page:
    """The limits and the contents of one answer."""

    near_bytes: int
    near_count: int
    far_bytes: int
    far_count: int
    wanted: int
    bytes: int = 0
    count: int = 0

    @classmethod
    def of(cls, settings: StoreSettings, wanted: int) -> _Page:
        return cls(
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_disk,
            settings.max_transfer_count_on_message_in_disk,
            wanted,
        )

    def is_full(self, size: int, far: bool) -> bool:
        """Return whether a message of ``size`` bytes belongs on the next page."""
        if self.count == 0:
            return False
        if self.count >= self.wanted:
            return True
        if far:
            return self.bytes + size > self.far_bytes or self.count >= self.far_count
        return self.bytes + size > self.near_bytes or self.count >= self.near_count


class QueueMessageReader:
    """The read side of a store."""

    def __init__(self, context: StoreContext, parts: StoreParts, health: StoreHealth) -> None:
        self._settings = context.settings
        self.use_log(parts.opened)
        self._queues = parts.queues
        self._index = parts.index
        self._dispatcher = parts.dispatcher
        self._rebuilds = parts.rebuilds
        self._health = health
        ratio = context.settings.access_message_in_memory_max_ratio
        self._memory_distance = context.memory_bytes * ratio // 100

    def use_log(self, opened: OpenedLog) -> None:
        """Read from this log from now on."""
        self._log: CommitLog = opened.log
        self._entries = opened.entries

    def change_settings(self, settings: StoreSettings) -> None:
        """Apply the limits of ``settings`` to the pages read from now on."""
        self._settings = settings

    @property
    def memory_distance(self) -> int:
        """The distance in bytes from the end of the log beyond which a message counts as being on
        disk: accessMessageInMemoryMaxRatio percent of the machine's memory.
        """
        return self._memory_distance

    def queue_names(self) -> Iterator[QueueName]:
        """Yield the topic and queue id of every consume queue, while queues come and go."""
        return self._queues.names()

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        wanted: RecordFilter | None = None,
    ) -> GetMessageResult:
        """Return one page of messages, starting at queue offset ``offset``.

        ``matcher`` filters by tags code; ``wanted`` filters the records that remain. None accepts
        all. While the consume queues are rebuilt after a start, no offset is reported as out of
        bounds: the queue may still lack messages that it had before.
        """
        queue = self._queues.find(topic, queue_id)
        if self._dispatcher.is_rebuilding_queues and (
            queue is None or not queue.min_offset <= offset < queue.max_offset
        ):
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, max_offset=offset)
        if queue is None:
            return self._elsewhere(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            result = self._elsewhere(GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset, 0)
        elif offset < low:
            result = self._elsewhere(GetMessageStatus.OFFSET_TOO_SMALL, offset, low)
        elif offset == high:
            result = GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset)
        elif offset > high:
            result = self._elsewhere(GetMessageStatus.OFFSET_OVERFLOW_BADLY, offset, high)
        else:
            result = self._page((topic, queue_id), offset, max_count, matcher, wanted)
        result.min_offset, result.max_offset = low, high
        return result

    def _elsewhere(self, status: GetMessageStatus, offset: int, corrected: int) -> GetMessageResult:
        """Return a result without messages whose next offset is ``corrected``.

        A slave may lag behind its master: it corrects offsets only if offsetCheckInSlave is true.
        """
        keep = self._health.is_slave and not self._settings.offset_check_in_slave
        return GetMessageResult(status, offset if keep else corrected)

    def _page(
        self,
        name: QueueName,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        wanted: RecordFilter | None,
    ) -> GetMessageResult:
        queue = self._queues.of(*name)
        window = max(SCAN_WINDOW_BYTES // QUEUE_UNIT_SIZE, max_count)
        if wanted is not None:
            window = min(window, wanted.units_max)
        units = queue.units(offset, window)
        if not units:
            return GetMessageResult(
                GetMessageStatus.OFFSET_FOUND_NULL, queue.next_file_start(offset)
            )
        log, page = self._log, _Page.of(self._settings, max_count)
        result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE)
        end = pulled = log.confirm_offset
        scanned = 0
        for physical_offset, size, tags_code in QUEUE_UNIT.iter_unpack(units):
            if page.is_full(size, end - physical_offset > self._memory_distance):
                break
            if size == QUEUE_FILLER_SIZE:
                scanned += 1
                continue
            leads = is_plausible_unit(log, physical_offset, size)
            if leads and physical_offset + size > end:
                # After a restart in DLedger mode the message is not committed yet. It will become
                # readable again, so it must not be skipped.
                break
            scanned += 1
            if leads:
                pulled = physical_offset
                if matcher is not None and not matcher(tags_code):
                    continue
            message = self._message(name, offset + scanned - 1, (physical_offset, size))
            if message is None and leads and self.is_awaiting_repair(physical_offset):
                scanned -= 1
                break
            if message is None:
                if not leads or physical_offset >= log.min_offset:
                    self._note_dangling_unit(name, offset + scanned - 1)
                if not result.messages:
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if wanted is not None and not wanted.matches(message):
                continue
            result.messages.append(message)
            page.bytes += size
            page.count += 1
        if result.messages:
            result.status = GetMessageStatus.FOUND
        elif scanned == 0:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
        result.next_begin_offset = offset + scanned
        result.behind_bytes = end - pulled
        result.suggest_pulling_from_slave = result.behind_bytes > self._memory_distance
        return result

    def _message(
        self, name: QueueName, queue_offset: int, place: tuple[int, int]
    ) -> memoryview | None:
        """Return the message of a unit, or None if it was removed or the unit does not lead to
        it.
        """
        if not is_plausible_unit(self._log, *place) or place[0] < self._log.min_offset:
            return None
        message = self._log.read(PhysicalOffset(place[0]), place[1])
        if message is None or not is_message(message, name, queue_offset):
            return None
        return message

    def _note_dangling_unit(self, name: QueueName, queue_offset: int) -> None:
        """Record that a unit does not lead to its message, so that the next start rebuilds it."""
        try:
            self._rebuilds.note(name, queue_offset)
        except OSError as error:
            self._health.write_failed(Writer.DERIVED, error)

    def queue_units(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]:
        """Return up to ``max_count`` units (physical offset, size, tags code) from queue offset
        ``offset``, up to the confirmed end of the log; fewer at the end of a file.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return []
        end = self._log.confirm_offset
        return [
            (physical_offset, size, tags_code)
            for physical_offset, size, tags_code in QUEUE_UNIT.iter_unpack(
                queue.units(offset, max_count)
            )
            if physical_offset + size <= end or size == QUEUE_FILLER_SIZE
        ]

    def queue_bytes(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> tuple[int, int]:
        """Return the number of messages from ``offset`` (at most ``max_count``, and within one
        file), and the sum of their sizes in bytes.
        """
        queue = self._queues.find(topic, queue_id)
        data = queue.read_units(offset, max_count) if queue is not None else b""
        first = QUEUE_UNIT_LENGTH_POSITION
        size = 0  # Each of the four bytes of the sizes is summed over all units at once.
        for place in range(first, first + 4):
            column = data[place::QUEUE_UNIT_SIZE]
            alike = column.count(column[:1]) == len(column)  # This is common and cheap to test.
            size = (size << 8) + (column[0] * len(column) if alike and column else sum(column))
        return len(data) // QUEUE_UNIT_SIZE, size

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message, or 0 if the queue does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message in the log, or 0 if there is no queue."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether the message at this queue offset is within :attr:`memory_distance` of the
        end of the log; False if there is none.
        """
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        return unit is not None and self._log.confirm_offset - unit[0] <= self._memory_distance

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time (ms) of a message, or -1 if there is none."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        name = (topic, queue_id)
        if unit is None or not unit_matches_record(self._log, unit[:2], name, queue_offset):
            return -1
        message = self._log.read(PhysicalOffset(unit[0]), unit[1])
        return record_store_timestamp(message) if message is not None else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message stored at ``timestamp_ms``, or else of the message
        nearest to that time (the earlier one on a tie), or 0 if the queue is empty.

        The search covers the whole queue by store time. The Java broker first selects a queue file
        by its modification time, which a copied file does not keep.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low, high = int(queue.min_offset), int(queue.max_offset)
        while low < high:
            middle = (low + high) // 2
            if self.store_timestamp_at(topic, queue_id, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == queue.max_offset:
            return low - 1
        later = self.store_timestamp_at(topic, queue_id, low)
        if later == timestamp_ms or low == queue.min_offset:
            return low
        earlier = self.store_timestamp_at(topic, queue_id, low - 1)
        return low - 1 if timestamp_ms - earlier <= later - timestamp_ms else low

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the record that starts at ``physical_offset``, or None if none starts there."""
        return record_at(self._log, physical_offset)

    def is_awaiting_repair(self, physical_offset: int) -> bool:
        """Return whether the message itself is damaged and its entry will be fetched from another
        member: readers must not skip it.
        """
        return self._entries is not None and self._entries.is_awaiting_repair(physical_offset)

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryMessageResult:
        """Return messages of a topic by key, newest index file first, up to ``maxMsgsNumBatch``."""
        result = QueryMessageResult()
        if self._index is None:
            return result
        count = min(max_count, self._settings.max_msgs_num_batch)
        for offset in self._index.find(topic, key, count, begin_ms, end_ms):
            record = self.message_at(offset)
            if record is not None:
                result.messages.append(record)
        timestamp_ms, offset = self._index.last_update
        result.index_last_update_timestamp_ms = timestamp_ms
        result.index_last_update_physical_offset = offset
        return result

    def earliest_store_timestamp(self) -> int:
        """Return the store time (ms) of the first message in the log, or -1 if there is none."""
        for piece in self._log.ranges(self._log.min_offset):
            position = ENTRY_HEADER_SIZE if piece.dledger else 0
            record = self.message_at(piece.offset + position)
            return record_store_timestamp(record) if record is not None else -1
        return -1


def record_store_timestamp(record: memoryview) -> int:
    """Return the STORETIMESTAMP of a record, in ms."""
    sys_flag = int.from_bytes(record[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], signed=True)
    place = STORE_TIMESTAMP_POSITIONS[sys_flag & HOSTS_V6]
    return int.from_bytes(record[place : place + 8], signed=True)


def record_at(log: CommitLog, physical_offset: int) -> memoryview | None:
    """Return the record that starts at ``physical_offset``, or None if none starts there."""
    if physical_offset < 0:
        return None
    head = log.read(PhysicalOffset(physical_offset), MAGIC_POSITION + 4)
    if head is None or int.from_bytes(head[MAGIC_POSITION:]) not in TOPIC_LENGTH_SIZES:
        return None
    size = int.from_bytes(head[:4], signed=True)
    record = log.read(PhysicalOffset(physical_offset), size) if size >= RECORD_SIZE_MIN else None
    if record is None:
        return None
    place = PHYSICAL_OFFSET_POSITION
    return record if int.from_bytes(record[place : place + 8]) == physical_offset else None
