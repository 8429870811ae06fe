"""The sums of the open files of the key index and of the DLedger index.

These files become large before they are sealed (:mod:`rmqpy.audit.facts.learned`), so only what was
added to them since they were read last is read. The last entry that was known then must still be
the same. In a key index file the slots are read, too: taken back by the entries that were added
since, they must be what they were then, so every slot still leads to the same entry of that time.
What cannot be seen this way is an older entry that was overwritten in place.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from attrs import define

from rmqpy.audit.facts.learned import Learned
from rmqpy.audit.scan.directory import LogFile
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.codec import layout
from rmqpy.codec.backend import content_end
from rmqpy.codec.tally.backend import rewind_index, sum_units, walk_index
from rmqpy.codec.tally.derived_sums import IndexSums, UnitSums, slots_digest
from rmqpy.codec.units import index_entry_position
from rmqpy.model.files import FileSystem, StoreFile

__all__ = ["EVERYWHERE", "IndexHeads", "add_sums"]

EVERYWHERE: Final = (0, (1 << 63) - 1)
CHUNK_BYTES: Final = 1 << 22
_UNIT: Final = layout.INDEX_UNIT_SIZE
_ENTRY: Final = layout.INDEX_ENTRY_SIZE
_MASK64: Final = (1 << 64) - 1


@define(slots=True, frozen=True)
class _Walked:
    """The sums of a walk, and the slots that its entries lead to."""

    sums: IndexSums
    newest: array[int]

    def value(self) -> dict[str, Any]:
        """Return what is kept of it."""
        files = sorted([number, *each] for number, each in self.sums.files.items())
        slots = slots_digest(self.newest)
        return {"max_offset": self.sums.max_offset, "slots": slots, "files": files}


@define(slots=True, eq=False)
class IndexHeads:
    """Sums open index files, and learns the sums of the entries that they have."""

    files: FileSystem
    learned: Learned

    def unit_sums(self, file: LogFile, log_file_size: int) -> UnitSums:
        """Return the sums of an open file of the DLedger index."""
        learned, path = self.learned, file.path
        opened = self.files.open_readonly(path)
        try:
            known = learned.known_head(path)
            if known is not None and (
                known["log_file_size"] != log_file_size
                or opened.read(known["bytes"] - _UNIT, _UNIT).hex() != known["last"]
            ):
                known = None
            start = known["bytes"] if known is not None else 0
            before = _unit_sums_of(known) if known is not None else {}
            if known is not None and learned.full:
                sums, _, _ = self._sum(opened, file, (0, start), log_file_size)
                if sums != before:
                    learned.note_wrong(path)
                before = sums
            rest, end, last = self._sum(opened, file, (start, opened.data_end(0)), log_file_size)
        finally:
            opened.close()
        total = add_sums(before, rest)
        if known is not None and not learned.full:
            learned.head_used(path, end - start)
        else:
            learned.read(path, end)
        if end > start:
            rows = [[number, *each] for number, each in total.items()]
            value = {"log_file_size": log_file_size, "bytes": end, "sums": rows, "last": last}
            learned.keep_head(path, value)
        return total

    def _sum(
        self, opened: StoreFile, file: LogFile, span: tuple[int, int], log_file_size: int
    ) -> tuple[UnitSums, int, str]:
        """Return the sums of the units between two positions, the position after the last one that
        is not zero, and that unit.
        """
        sums: UnitSums = {}
        end, last = span[0], ""
        for position in range(*span, CHUNK_BYTES):
            stop = min(position + CHUNK_BYTES, -(-span[1] // _UNIT) * _UNIT, opened.size)
            data = memoryview(opened.read(position, stop - position))
            first = (file.first_offset + position) // _UNIT
            sums = add_sums(sums, sum_units(data, _UNIT, first, log_file_size))
            count = -(-content_end(data, 0) // _UNIT)
            if count:
                end, last = position + count * _UNIT, data[(count - 1) * _UNIT :][:_UNIT].hex()
        return sums, end, last

    def index_sums(self, path: str, walk: tuple[int, int], log_file_size: int) -> IndexSums:
        """Return the sums of an open file of the key index; ``walk`` is (slots, end of the
        entries).
        """
        learned, (slot_count, entry_end) = self.learned, walk
        known = learned.known_head(path)
        if known is not None and (
            known["walk"] != [slot_count, log_file_size] or known["entries"] > entry_end
        ):
            known = None
        if known is not None and not learned.full:
            found = self._continued(path, known, entry_end)
            if found is not None:
                learned.head_used(path, _bytes_read(slot_count, known["entries"], entry_end))
                if known["entries"] < entry_end:
                    self._keep_index(path, walk, log_file_size, found)
                return found.sums
        view = map_log(self.files, path).view
        if known is not None and learned.full:
            then = _walk(view, (slot_count, known["entries"]), log_file_size).value()
            if then != {name: known[name] for name in then}:
                learned.note_wrong(path)
        walked = _walk(view, walk, log_file_size)
        learned.read(path, _bytes_read(slot_count, 1, entry_end))
        if not walked.sums.wrong:
            self._keep_index(path, walk, log_file_size, walked)
        return walked.sums

    def _continued(self, path: str, known: dict[str, Any], entry_end: int) -> _Walked | None:
        """Return the sums of the known entries and those after them, or None if these do not
        continue the known ones.
        """
        slot_count, log_file_size = known["walk"]
        first: int = known["entries"]
        view = self._fetched(path, slot_count, first, entry_end)
        last = index_entry_position(first - 1, slot_count)
        newest = rewind_index(view, slot_count, first, entry_end)
        if (
            newest is None
            or slots_digest(newest) != known["slots"]
            or view[last : last + _ENTRY].hex() != known["last"]
        ):
            return None
        since = first, newest
        sums = walk_index(view, slot_count, entry_end, log_file_size, *EVERYWHERE, since)
        if sums.wrong or sums.wrong_slots:
            return None
        sums.max_offset = max(sums.max_offset, known["max_offset"])
        for number, count, total in known["files"]:
            more = sums.files.get(number, (0, 0))
            sums.files[number] = count + more[0], (total + more[1]) & _MASK64
        return _Walked(sums, newest)

    def _fetched(self, path: str, slot_count: int, first: int, entry_end: int) -> memoryview:
        """Return the bytes of a file, of which slots and entries from ``first`` on are in memory:
        mapped pages are read one by one.
        """
        opened = self.files.open_readonly(path)
        try:
            entries = (index_entry_position(each, slot_count) for each in (first, entry_end))
            for begin, end in ((0, index_entry_position(0, slot_count)), tuple(entries)):
                for position in range(begin, end, CHUNK_BYTES):
                    opened.read(position, min(CHUNK_BYTES, end - position))
        finally:
            opened.close()
        return map_log(self.files, path, scattered=True).view

    def _keep_index(
        self, path: str, walk: tuple[int, int], log_file_size: int, walked: _Walked
    ) -> None:
        slot_count, entry_end = walk
        last = index_entry_position(entry_end - 1, slot_count)
        view = map_log(self.files, path, scattered=True).view
        value = {
            "walk": [slot_count, log_file_size],
            "entries": entry_end,
            "bytes": _ENTRY * (entry_end - 1),
            "last": view[last : last + _ENTRY].hex(),
            **walked.value(),
        }
        self.learned.keep_head(path, value)


def add_sums(one: UnitSums, other: UnitSums) -> UnitSums:
    total = dict(one)
    for number, (count, first, second) in other.items():
        before = total.get(number, (0, 0, 0))
        total[number] = (
            before[0] + count,
            (before[1] + first) & _MASK64,
            (before[2] + second) & _MASK64,
        )
    return total


def _unit_sums_of(value: dict[str, Any]) -> UnitSums:
    return {number: (count, one, two) for number, count, one, two in value["sums"]}


def _walk(view: memoryview, walk: tuple[int, int], log_file_size: int) -> _Walked:
    """Walk the entries of a file from the first one on; ``walk`` is (slots, end of the entries)."""
    slot_count, entry_end = walk
    newest = array("i", bytes(4 * slot_count))
    since = 1, newest
    sums = walk_index(view, slot_count, entry_end, log_file_size, *EVERYWHERE, since)
    return _Walked(sums, newest)


def _bytes_read(slot_count: int, first: int, entry_end: int) -> int:
    """Return the size of header and slots, and of the entries from ``first`` on."""
    return index_entry_position(0, slot_count) + _ENTRY * (entry_end - first)
