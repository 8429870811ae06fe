"""Check the key index against itself and against the log.

A file has a header, slots, and entries (:mod:`rmqpy.codec.layout`). The number of slots is a
setting that the file does not contain, so it is derived from the first and last entry. Each entry
is checked to be reachable from its slot: the slot leads to its newest entry, and each entry to the
previous one. The header states its first and last entry and the number of used slots (4.4 counts
entries there), and the files follow each other: readers skip files by these bounds. The seconds of
an entry are not checked: Java itself writes some relative to the begin of an earlier file.

For the comparison with the log, the audit of the log has summed a digest of every (position, key
hash) that the index must contain (:func:`rmqpy.codec.tally.kernel.key_digest`); the sum over the
entries must be equal. Only if the sums differ are log and index compared message by message.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from attrs import field

from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import map_file
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.codec.tally.kernel import key_hashes
from rmqpy.codec.units import (
    INDEX_ENTRY,
    INDEX_SLOT,
    IndexHeader,
    index_entry_position,
    index_file_size,
    index_slot_position,
)
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.model.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqpy.model.text import count_text
from rmqpy.model.values import define
from rmqpy.store.files.framing import Framing

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

__all__ = ["IndexTable", "KeyCheck", "KeyHole", "WalkTable", "open_index"]

DEFAULT_SLOTS = 5_000_000
USED_SLOTS = "number of used slots"
_MASK64 = (1 << 64) - 1
_OFFSET_IN_ENTRY = 4

KeyHole = tuple[int, int, int]
"""(offset of the first and of the last message, number of messages): they have keys, and no index
file covers them.
"""


@define(slots=True, frozen=True)
class IndexTable:
    """One index file."""

    file: str
    view: FileSlices
    header: IndexHeader
    slot_count: int

    @property
    def room(self) -> int:
        """The number after the last entry for which the file has space."""
        return (len(self.view) - index_entry_position(0, self.slot_count)) // (
            layout.INDEX_ENTRY_SIZE
        )

    @property
    def entry_end(self) -> int:
        """The number after the last entry; entries are numbered from 1."""
        return max(1, min(self.header.index_count, self.room))

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (key hash, physical offset, seconds, number of the slot's previous entry)."""
        position = index_entry_position(number, self.slot_count)
        raw = self.view[position : position + INDEX_ENTRY.size]
        key_hash, offset, seconds, previous = INDEX_ENTRY.unpack(raw)
        return key_hash, offset, seconds, previous

    def entries(self) -> Iterator[tuple[int, int, int, int]]:
        """Return an iterator over all entries in order."""
        first = index_entry_position(1, self.slot_count)
        end = index_entry_position(self.entry_end, self.slot_count)
        return INDEX_ENTRY.iter_unpack(self.view[first:end])

    @property
    def covered_end(self) -> int:
        """The offset of the last entry: every key of the messages before it is in the file."""
        return self.entry(self.entry_end - 1)[1]

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest entry in the slot of a key hash, or 0, without those that
        a broker has added since the header was read.
        """
        position = index_slot_position(key_hash, self.slot_count)
        raw = self.view[position : position + INDEX_SLOT.size]
        return self.counted(INDEX_SLOT.unpack(raw)[0])

    def counted(self, number: int) -> int:
        """Follow the chain of a slot back from entry ``number`` to the newest one that the header
        counted when it was read.
        """
        while self.entry_end <= number < self.room:
            previous = self.entry(number)[3]
            if previous >= number:
                break
            number = previous
        return number

    def first_at(self, offset: int) -> int:
        """Return the number of the first entry of a message at or after ``offset``."""
        low, high = 1, self.entry_end
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] < offset:
                low = middle + 1
            else:
                high = middle
        return low


def open_index(
    files: FileSystem,
    directory: StoreDirectory,
    settings: StoreSettings | None,
    *,
    scattered: bool = False,
) -> tuple[list[IndexTable], list[Finding]]:
    """Return the index files that have entries, in the order of the log, and findings for files
    that are empty though they have bytes, or whose names are in another order.

    ``scattered`` means that few of the entries will be read.
    """
    tables: list[IndexTable] = []
    found = []
    for file in sorted(directory.index_files, key=lambda file: file.path):
        relative = directory.relative(file.path)
        if file.size <= layout.INDEX_HEADER_SIZE:
            continue  # The facts report it.
        opened = files.open_slices if scattered else partial(map_file, files)
        table = _table(opened(file.path), file, relative, settings)
        if table is None or (table.header.index_count <= 1 and _has_content(files, file)):
            found.append(
                Finding(
                    code=FindingCode.INDEX_HEADER,
                    file=relative,
                    found="a header and entries that match no number of slots",
                )
            )
        elif table.entry_end > 1:
            if tables and table.header.begin_offset < tables[-1].header.end_offset:
                found.append(
                    Finding(
                        code=FindingCode.INDEX_HEADER,
                        file=relative,
                        offset=table.header.begin_offset,
                        found=f"a first entry for offset {table.header.begin_offset}",
                        expected=f"at least {tables[-1].header.end_offset}, where the file before"
                        " it ends",
                    )
                )
            tables.append(table)
    return sorted(tables, key=lambda table: table.header.begin_offset), found


def _table(
    view: FileSlices, file: LogFile, relative: str, settings: StoreSettings | None
) -> IndexTable | None:
    header = IndexHeader.decode(view[: layout.INDEX_HEADER_SIZE])
    if header.index_count <= 1:
        return IndexTable(relative, view, header, 0)
    candidates = []
    if settings is not None:
        candidates.append((settings.max_hash_slot_num, settings.max_index_num))
    candidates.append((DEFAULT_SLOTS, 4 * DEFAULT_SLOTS))
    for slots, entries in candidates:
        if index_file_size(slots, entries) == file.size:
            return IndexTable(relative, view, header, slots)
    found = _find_slot_count(view, header)
    return None if found is None else IndexTable(relative, view, header, found)


def _has_content(files: FileSystem, file: LogFile) -> bool:
    """Return whether an index file has bytes other than zero after its header."""
    data = map_log(files, file.path)
    return data.content_end(layout.INDEX_HEADER_SIZE) > layout.INDEX_HEADER_SIZE


def _find_slot_count(view: FileSlices, header: IndexHeader) -> int | None:
    """Derive the number of slots.

    The first entry belongs to the message at ``beginPhyOffset`` and has no predecessor, and the
    slot of the last entry must lead to it. If the log starts at 0, other places may look like that
    too; the right one has as many used slots as the header says.
    """
    fallback: int | None = None
    needle = header.begin_offset.to_bytes(8)
    data = bytes(view[:])
    at = layout.INDEX_HEADER_SIZE - 1
    while (at := data.find(needle, at + 1)) >= 0:
        slots, remainder = divmod(
            at - _OFFSET_IN_ENTRY - layout.INDEX_ENTRY_SIZE - layout.INDEX_HEADER_SIZE, 4
        )
        if remainder or slots < 1 or (len(data) - layout.INDEX_HEADER_SIZE - 4 * slots) % 20:
            continue
        table = IndexTable("", view, header, slots)
        _, offset, _, previous = table.entry(1)
        if (offset, previous) != (header.begin_offset, 0):
            continue
        last = table.entry_end - 1
        key_hash, *_ = table.entry(last)
        if table.newest(key_hash) != last:
            continue
        slots_end = layout.INDEX_HEADER_SIZE + slots * layout.INDEX_SLOT_SIZE
        used = INDEX_SLOT.iter_unpack(view[layout.INDEX_HEADER_SIZE : slots_end])
        if sum(number != 0 for (number,) in used) == header.slot_count:
            return slots
        fallback = slots if fallback is None else fallback
    return fallback


WalkTable = Callable[[IndexTable, int, int], IndexSums]
"""Walks a table, and sums its entries for messages from the first offset to before the second."""


@define(slots=True)
class KeyCheck:
    """Compares the key index with the sums of the log.

    ``totals`` is (count, sum) of the log for positions from ``low`` to before ``high``. With
    ``running`` a broker continues to write; entries that it adds after the header was read are
    ignored.
    """

    files: FileSystem
    directory: StoreDirectory
    tables: list[IndexTable]
    low: int
    high: int
    totals: tuple[int, int]
    walk: WalkTable
    running: bool = False
    uncovered: dict[tuple[int, int], KeyHole] = field(factory=dict)
    """Maps each hole to (first message in it, last message, count)."""
    missing: int = 0
    """The number of keys that are not found, for any reason."""

    @property
    def holes(self) -> Iterable[KeyHole]:
        return self.uncovered.values()

    def run(self) -> Iterator[list[Finding]]:
        if not self.tables:
            yield from self._nothing_indexed()
            return
        count, total = 0, 0
        for table in self.tables:
            sums = self.walk(table, self.low, self.high)
            if sums.wrong or sums.wrong_slots:
                yield list(self._chains(table))
            if not self.running:
                yield list(self._header(table, sums.used_slots))
            count += sum(each for each, _ in sums.files.values())
            total += sum(each for _, each in sums.files.values())
        if (count, total & _MASK64) != self.totals:
            yield from self._each_message()

    def _nothing_indexed(self) -> Iterator[list[Finding]]:
        self.missing = self.totals[0]
        if self.missing:
            self.uncovered[self.low, self.high] = self.low, self.high, self.missing
            code, found = (
                FindingCode.KEYS_NOT_INDEXED,
                f"no entries for {count_text(self.missing, 'key')}",
            )
            yield [Finding(code=code, file="index", offset=self.low, found=found)]

    def _header(self, table: IndexTable, used_slots: int) -> Iterator[Finding]:
        """Compare the header with the entries and with the first and last message."""
        header, last = table.header, table.entry_end - 1
        begin, end = table.entry(1)[1], table.entry(last)[1]
        expected = {
            USED_SLOTS: (header.slot_count, used_slots),
            "offset of the first entry": (header.begin_offset, begin),
            "offset of the last entry": (header.end_offset, end),
            "time of the first entry": (header.begin_timestamp_ms, self._store_time(begin)),
            "time of the last entry": (header.end_timestamp_ms, self._store_time(end)),
        }
        for name, (found, right) in expected.items():
            if right is not None and found != right:
                # 4.4 counted every entry, and a later version may have gone on from there.
                counts_entries = name == USED_SLOTS and used_slots < found <= last
                yield Finding(
                    code=FindingCode.INDEX_SLOTS if counts_entries else FindingCode.INDEX_HEADER,
                    file=table.file,
                    offset=begin,
                    field=name,
                    found=str(found),
                    expected=str(right),
                )

    def _store_time(self, offset: int) -> int | None:
        """Return when the message at ``offset`` was stored, or None if it cannot be read."""
        message = LogReader(self.files, self.directory, scattered=True).message(offset)
        return None if message is None else message.store_timestamp_ms

    def _chains(self, table: IndexTable) -> Iterator[Finding]:
        slots = table.slot_count
        newest = array("i", bytes(4 * slots))
        for number, (key_hash, offset, _, previous) in enumerate(table.entries(), 1):
            slot = key_hash % slots
            if key_hash < 0 or previous != newest[slot]:
                yield self._find(
                    FindingCode.KEY_CHAIN, table, offset, str(previous), str(newest[slot])
                )
            newest[slot] = number
        heads = layout.INDEX_HEADER_SIZE
        stored = INDEX_SLOT.iter_unpack(table.view[heads : heads + 4 * slots])
        for slot, (head,) in enumerate(stored):
            number = table.counted(head) if self.running else head
            if number != newest[slot]:
                offset = table.entry(newest[slot])[1] if newest[slot] else -1
                yield self._find(
                    FindingCode.KEY_CHAIN,
                    table,
                    offset,
                    f"slot {slot}: {number}",
                    f"{newest[slot]}",
                )

    def _find(
        self, code: FindingCode, table: IndexTable, offset: int, found: str, expected: str
    ) -> Finding:
        return Finding(code=code, file=table.file, offset=offset, found=found, expected=expected)

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Yield (low, high) for the offsets that no file covers; both bounds are excluded."""
        end = self.low - 1
        for table in self.tables:
            yield end, table.header.begin_offset
            end = max(end, table.header.end_offset)
        yield end, self.high

    def _hole(self, offset: int) -> tuple[int, int] | None:
        return next((hole for hole in self._holes() if hole[0] < offset < hole[1]), None)

    def _each_message(self) -> Iterator[list[Finding]]:
        for log in self.directory.logs:
            for file in log.files:
                if file.end_offset > self.low and file.size == log.file_size:
                    yield from self._file(file, log.framing)
        yield list(self._entries_past_the_end())
        yield [
            Finding(
                code=FindingCode.KEYS_NOT_INDEXED,
                file=self.tables[0].file.rpartition("/")[0],
                offset=first,
                found=f"{count_text(count, 'message')} with keys up to offset {last}",
            )
            for first, last, count in self.uncovered.values()
        ]

    def _file(self, file: LogFile, framing: Framing) -> Iterator[list[Finding]]:
        view = map_file(self.files, file.path)
        indexed: Counter[tuple[int, int]] = Counter()
        for table in self.tables:
            for number in range(table.first_at(file.first_offset), table.entry_end):
                key_hash, offset, _, _ = table.entry(number)
                if offset >= file.end_offset:
                    break
                indexed[offset, key_hash] += 1
        position = 0
        while position < len(view):
            scan = scan_records(
                view[position:],
                file.first_offset + position,
                dledger=framing is Framing.DLEDGER,
                check_crc=False,
            )
            yield list(self._rows(scan, view[position:], indexed, file))
            position = scan.end - file.first_offset
            if scan.stop is not StopReason.LIMIT:
                break
        yield [
            Finding(
                code=FindingCode.KEY_SURPLUS,
                file=self._table_of(offset),
                offset=offset,
                found=f"key hash {key_hash}",
            )
            for (offset, key_hash), count in sorted(indexed.items())
            if count > 0 and self.low <= offset < min(self.high, file.first_offset + position)
        ]

    def _rows(
        self, scan: Scan, view: memoryview, indexed: Counter[tuple[int, int]], file: LogFile
    ) -> Iterator[Finding]:
        for row, offset in enumerate(scan.offset):
            rolled_back = scan.sys_flag[row] & TRANSACTION_MASK == TRANSACTION_ROLLBACK
            if not self.low <= offset < self.high or rolled_back:
                continue
            start = scan.properties_position[row]
            raw = bytes(view[start : start + scan.properties_length[row]])
            required = Counter(key_hashes(scan.topic[row], raw))
            for key_hash, count in required.items():
                found = indexed.pop((offset, key_hash), 0)
                if found == count:
                    continue
                self.missing += max(count - found, 0)
                hole = self._hole(offset)
                if hole is not None:
                    first, _, messages = self.uncovered.get(hole, (offset, offset, 0))
                    same = self.uncovered.get(hole, (0, -1, 0))[1] == offset
                    self.uncovered[hole] = first, offset, messages + (not same)
                    continue
                code = FindingCode.KEY_MISSING if found < count else FindingCode.KEY_TWICE
                yield Finding(
                    code=code,
                    file=self.directory.relative(file.path),
                    offset=offset,
                    length=scan.size[row],
                    topic=java_text(scan.topic[row]),
                    queue_id=scan.queue_id[row],
                    queue_offset=scan.queue_offset[row],
                    field="key hash",
                    found=count_text(found, "entry"),
                    expected=f"{count} of {key_hash}",
                )

    def _entries_past_the_end(self) -> Iterator[Finding]:
        """Yield findings for entries that lead past the end of the log."""
        for table in self.tables:
            for key_hash, offset, _, _ in table.entries():
                beyond = all(log.file_at(offset) is None for log in self.directory.logs)
                if beyond and self.low <= offset < self.high:
                    yield self._find(
                        FindingCode.KEY_SURPLUS, table, offset, f"key hash {key_hash}", ""
                    )

    def _table_of(self, offset: int) -> str:
        for table in self.tables:
            number = table.first_at(offset)
            if number < table.entry_end and table.entry(number)[1] == offset:
                return table.file
        return self.tables[-1].file
