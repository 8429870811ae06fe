"""Find messages through consume queues and key index, which lead to them without reading the log.

A consume queue has the messages of a queue that a consumer can see. The key index has an entry for
each key of a message, but may end before the log, or lack a file; those parts of the log are
walked. Such a walk ends at zeros in the last file with content, as the log does for a broker: the
rest of that file, a gigabyte of zeros, is not read.

The messages of a span of time are found by a binary search in the consume queue, as by a broker.
Nothing makes store times ascend, but every broker's clock that was not set back does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import pairwise

from attrs import define, field

from rmqpy.audit.checks.key_check import IndexTable, open_index
from rmqpy.audit.checks.messages import LogMessage, MessageSelection, MessageWalk, file_view
from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.scan.damage import FileView
from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.audit.scan.log_bytes import LogBytes
from rmqpy.audit.scan.queue_units import QueueBounds, open_units, read_ends, unit_at
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.kernel import UnitFiles
from rmqpy.codec.units import index_key_hash
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.store.files.framing import Framing

__all__ = ["MessageLookup", "RecordPlace", "index_gaps", "offsets_with_hash", "place_of"]

SLICE_BYTES_MIN = 64 << 10
SLICE_BYTES_MAX = 4 << 20
"""The sizes of the slices in which a part of the log without index entries is read."""
CHAIN_MAX = 1_000_000
"""The largest number of index entries of one slot that are followed."""


@define(slots=True, frozen=True)
class RecordPlace:
    """The file of the record at the physical ``offset``."""

    file: LogFile
    framing: Framing
    offset: int


def place_of(directory: StoreDirectory, offset: int) -> RecordPlace | None:
    """Return where the record at ``offset`` is, or None if no file has the offset."""
    for log in reversed(directory.logs):  # The later log owns an offset that both claim.
        file = log.file_at(offset)
        if file is not None:
            return RecordPlace(file, log.framing, offset)
    return None


def offsets_with_hash(table: IndexTable, key_hash: int) -> list[int]:
    """Return the physical offsets of the entries with a hash, newest first."""
    number = table.newest(key_hash)
    found = []
    for _ in range(CHAIN_MAX):
        if not 0 < number < table.entry_end:
            break
        entry_hash, offset, _, previous = table.entry(number)
        if entry_hash == key_hash:
            found.append(offset)
        if previous >= number:  # chains lead to older entries only
            break
        number = previous
    return found


def index_gaps(
    directory: StoreDirectory, tables: Sequence[IndexTable]
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the log that no index file covers; each starts with a record."""
    if not directory.logs:
        return
    begin = directory.logs[0].first_offset
    for table in tables:
        if table.header.begin_offset > begin:
            yield begin, table.header.begin_offset
        begin = max(begin, table.covered_end)
    yield begin, directory.logs[-1].end_offset


@define(slots=True)
class _Queue:
    """A consume queue that is searched. ``name`` is its path."""

    name: str
    units: UnitFiles[FileSlices]
    bounds: QueueBounds
    log: LogReader
    _times: dict[int, int] = field(factory=dict, init=False)
    """The store times that a search has seen, by queue offset."""

    def messages(self, first: int, end: int) -> list[int]:
        """Return the physical offsets of the messages from a queue offset to before another."""
        span = range(max(first, self.bounds.min_offset), min(end, self.bounds.max_offset))
        return sorted(offset for each in span if (offset := self._offset(each)) is not None)

    def first_since(self, time_ms: int, low: int) -> int:
        """Return the first queue offset from ``low`` on whose message was stored at ``time_ms`` or
        later, or the end of the queue.
        """
        high = self.bounds.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._time(middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        self._check_times()
        return low

    def _time(self, queue_offset: int) -> int:
        """Return the store time of a message; a filler counts as older than all messages."""
        if queue_offset not in self._times:
            offset = self._offset(queue_offset)
            message = None if offset is None else self.log.message(offset)
            self._times[queue_offset] = -1 if message is None else message.store_timestamp_ms
        return self._times[queue_offset]

    def _check_times(self) -> None:
        found = sorted(self._times.items())
        for (before, older), (after, newer) in pairwise(found):
            if newer < older:
                raise StoreError(
                    self.name,
                    f"a message {after} that was stored {older - newer} ms before message {before}",
                    "store times that ascend, in which a time can be looked up",
                    "select by time without a lookup: the clock of a broker was set back",
                )

    def _offset(self, queue_offset: int) -> int | None:
        """Return the physical offset of a message, None for a filler."""
        offset, size, _ = unit_at(self.units, queue_offset) or (0, 0, 0)
        if size == layout.QUEUE_FILLER_SIZE:
            return None
        slot = self.bounds.topic, self.bounds.queue_id, queue_offset
        if self.log.identity(offset, size) != slot:
            raise self._wrong(queue_offset, offset)
        return offset

    def _wrong(self, queue_offset: int, offset: int) -> StoreError:
        return StoreError(
            self.name,
            f"a unit {queue_offset} that does not lead to its message, but to {offset}",
            "the message with this queue offset",
            "run rmqpy pipeline audit for details, then rmqpy pipeline rebuild",
        )


@define(slots=True, frozen=True)
class MessageLookup:
    """Searches one store; the results are physical offsets in ascending order."""

    files: FileSystem
    directory: StoreDirectory

    def in_queue(
        self, topic: str, queue_id: int, first: int, end: int, limit: int | None = None
    ) -> list[int]:
        """Return the messages with queue offsets from ``first`` to before ``end``.

        ``limit`` is the confirmed end of a running broker. Raise StoreError if the store has no
        such queue, or if a unit of it does not lead to its message.
        """
        return self._queue(topic, queue_id, limit).messages(first, end)

    def between(
        self, topic: str, queue_id: int, first_ms: int, end_ms: int, limit: int | None = None
    ) -> list[int]:
        """Return the messages of a queue from the first one that was stored at ``first_ms`` or
        later to before the first one that was stored at ``end_ms`` or later.

        Raise StoreError as ``in_queue`` does, and if the search sees that store times descend.
        """
        queue = self._queue(topic, queue_id, limit)
        first = queue.first_since(first_ms, queue.bounds.min_offset)
        return queue.messages(first, queue.first_since(end_ms, first))

    def _queue(self, topic: str, queue_id: int, limit: int | None) -> _Queue:
        name = f"{self.directory.root}/consumequeue/{topic}/{queue_id}"
        queues = self.directory.queues
        folders = [each for each in queues if (each.topic, each.queue_id) == (topic, queue_id)]
        units = None
        if folders:
            units = open_units(self.files, folders[0].segments)
        if units is None:
            raise StoreError(
                name,
                "no consume queue",
                "the one through which messages are found",
                "correct topic and queueId, or restore it with rmqpy pipeline rebuild",
            )
        begin = min((log.first_offset for log in self.directory.logs), default=0)
        bounds = read_ends(folders[0], units, begin, limit)
        return _Queue(name, units, bounds, LogReader(self.files, self.directory, scattered=True))

    def with_key(self, topic: str, key: str) -> list[int]:
        """Return the messages that have ``key`` among KEYS, or as UNIQ_KEY."""
        selection = MessageSelection(topic=topic, key=key)
        log = LogReader(self.files, self.directory, scattered=True)
        tables, _ = open_index(self.files, self.directory, None, scattered=True)
        found = set()
        key_hash = index_key_hash(topic, key)
        for offset in {each for table in tables for each in offsets_with_hash(table, key_hash)}:
            message = log.message(offset)
            if message is not None and message.topic == topic and selection.matches(message):
                found.add(offset)
        for begin, end in index_gaps(self.directory, tables):
            found.update(self._walked(begin, end, selection))
        return sorted(found)

    def _walked(self, begin: int, end: int, selection: MessageSelection) -> Iterator[int]:
        for log in self.directory.logs:
            shift = layout.ENTRY_HEADER_SIZE if log.framing is Framing.DLEDGER else 0
            for file in log.files:
                if file.end_offset <= begin or file.first_offset >= end:
                    continue
                start = max(begin - file.first_offset - shift, 0)
                stop = min(end - file.first_offset, file.size)
                rest = yield from self._walked_slices(file, log.framing, (start, stop), selection)
                if rest is not None:
                    walk = MessageWalk(file_view(self.files, file, log.framing), selection)
                    yield from _offsets(walk.run(rest, stop))

    def _walked_slices(
        self, file: LogFile, framing: Framing, span: tuple[int, int], selection: MessageSelection
    ) -> Generator[int, None, int | None]:
        """Yield the messages of the frames that start in a span of a file, from its slices.

        Return the position from which the file must be mapped, because there is damage, or because
        much of it must be read. Return None if nothing is left.
        """
        opened, dledger = self.files.open_slices(file.path), framing is Framing.DLEDGER
        position, stop = span
        size = SLICE_BYTES_MIN
        while position < stop:
            if size > SLICE_BYTES_MAX:
                return position
            base, view = file.first_offset + position, opened[position : position + size]
            scan = scan_records(view, base, dledger=dledger, check_crc=False)
            length = scan.end - base
            whole = LogBytes(view[:length], length)
            walk = MessageWalk(FileView(whole, base, length, dledger), selection)
            yield from _offsets(walk.run(0, min(stop - position, length)))
            position += length
            if position >= stop:
                return None
            is_cut = scan.stop in (StopReason.END, StopReason.TRUNCATED)
            if is_cut and position + len(view) - length < len(opened):
                size *= 2
            elif scan.stop is not StopReason.LIMIT:
                is_end = scan.stop is StopReason.ZERO and self._is_last_with_content(file)
                return None if is_end or scan.stop is StopReason.BLANK else position
        return None

    def _is_last_with_content(self, file: LogFile) -> bool:
        later = [
            each
            for log in self.directory.logs
            for each in log.files
            if each.first_offset > file.first_offset
        ]
        return not any(any(self.files.open_slices(each.path)[:8]) for each in later)


def _offsets(messages: Iterable[LogMessage]) -> Iterator[int]:
    return (each.message.physical_offset for each in messages)
