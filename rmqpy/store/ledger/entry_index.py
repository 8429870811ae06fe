"""EntryIndex: the index files of a DLedger member. Unit ``n`` (32 bytes at ``32 * n``) contains the
position of entry ``n``.

The data files are authoritative, and the units are derived from them: recovery rewrites units that
are missing or differ. So units need not be durable when their entries are: they are synced before
each checkpoint, and recovery reads all entries after the durable one of the checkpoint.

Invariants: no unit follows that of the last entry (a later recovery would trust it), not even
after a power loss: a cut is durable before other units are written there; an index that does not
start at 0 starts with the file of the first entry.
"""

from __future__ import annotations

from rmqpy.codec.entry import IndexUnit, decode_index_unit
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.layout import INDEX_UNIT_SIZE
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.record_search import file_content_end

INDEX_FILE_SIZE = INDEX_UNIT_SIZE * 5 * 1024 * 1024
"""The file size (mappedFileSizeForEntryIndex), which no broker setting changes."""

_ZEROS_AT_ONCE = 1 << 16


class EntryIndex:
    """The index of one member. ``folder`` is named in error messages."""

    def __init__(self, files: FileSystem, segments: MappedFiles, folder: str) -> None:
        self._files = files
        self._segments = segments
        self.folder = folder
        self._flushed = segments.wrote_offset
        self._flushing = 0
        """The ends of the durable units, and of those that a running sync makes durable."""

    @property
    def durable_index(self) -> int:
        """The last entry whose unit is durable."""
        return self._flushed // INDEX_UNIT_SIZE - 1

    def put(self, first_index: int, units: bytes) -> None:
        """Write consecutive units; the first is that of entry ``first_index``."""
        offset = first_index * INDEX_UNIT_SIZE
        self._flushed = min(self._flushed, offset)
        while units:
            file = self._segments.find(offset)
            if file is None:
                file = self._segments.create(offset - offset % self._segments.file_size)
            start = offset - file.first_offset
            count = min(len(units), file.size - start)
            file.file.write(start, units[:count])
            file.wrote_position = start + count
            units = units[count:]
            offset += count

    def unit(self, index: int) -> IndexUnit:
        """Return the unit of entry ``index``. Raises StoreError if there is none."""
        unit = self.get(index)
        if unit is not None:
            return unit
        raise StoreError(
            self.folder,
            f"no index unit of entry {index}",
            "one 32-byte unit per entry",
            "stop the broker and remove the folder: the next start rebuilds it",
        )

    def find(self, position: int) -> IndexUnit | None:
        """Return the unit of the entry at ``position``, if there is one. Positions grow with the
        index.
        """
        if not self._segments:
            return None
        last = self._segments.last
        low = self._segments.min_offset // INDEX_UNIT_SIZE
        end = last.first_offset + file_content_end(last, 0)
        high = -(-end // INDEX_UNIT_SIZE)
        while low < high:
            middle = (low + high) // 2
            unit = self.get(middle)
            if unit is not None and unit.position == position:
                return unit
            if unit is None and self._is_unused(middle):
                low = middle + 1  # The log started over, after this unit.
            elif unit is None or unit.position > position:
                high = middle
            else:
                low = middle + 1
        return None

    def _is_unused(self, index: int) -> bool:
        return self.matches(index, bytes(INDEX_UNIT_SIZE))

    def get(self, index: int) -> IndexUnit | None:
        """Return the unit of entry ``index``, or None if there is none."""
        offset = index * INDEX_UNIT_SIZE
        file = self._segments.find(offset)
        if file is None:
            return None
        try:
            return decode_index_unit(file.view, offset - file.first_offset, offset)
        except InvalidRecordError:
            return None

    def matches(self, first_index: int, units: bytes) -> bool:
        """Return whether the units from ``first_index`` are exactly these bytes."""
        offset = first_index * INDEX_UNIT_SIZE
        found = b""
        while len(found) < len(units):
            file = self._segments.find(offset + len(found))
            if file is None:
                return False
            start = offset + len(found) - file.first_offset
            found += bytes(file.view[start : start + len(units) - len(found)])
        return found == units

    def conflicting_units(self, first_index: int, units: bytes) -> list[IndexUnit]:
        """Return the stored units that name the same entries as ``units``, but another term."""
        found = []
        begin = first_index * INDEX_UNIT_SIZE
        for offset in range(0, len(units), INDEX_UNIT_SIZE):
            unit = self.get(first_index + offset // INDEX_UNIT_SIZE)
            if unit is None:
                continue
            wanted = decode_index_unit(units, offset, begin + offset)
            same_entry = (unit.position, unit.size) == (wanted.position, wanted.size)
            if same_entry and unit.term != wanted.term:
                found.append(unit)
        return found

    def cut(self, count: int) -> None:
        """Remove the units from number ``count``, durably. Blocks if there are any."""
        end = count * INDEX_UNIT_SIZE
        self._flushed = min(self._flushed, end)
        self._flushing = min(self._flushing, end)
        if not self._segments:
            return
        changes = self._segments.changes
        self._segments.cut(max(end, self._segments.min_offset))
        if self._segments.changes != changes:
            self._segments.sync_directories()
        if self._clear_from(end):
            self._segments.last.sync()

    def expire(self, begin_index: int) -> None:
        """Remove the files that only contain units before ``begin_index``."""
        end = begin_index * INDEX_UNIT_SIZE
        while len(self._segments) > 1 and self._segments.first.end_offset <= end:
            file = self._segments.take_first()
            file.close()
            self._files.unlink(file.path)

    def remove_all(self) -> None:
        """Remove all units and files."""
        self._flushed = self._flushing = 0
        while self._segments:
            self._segments.drop_last()

    def settled(self, count: int) -> None:
        """Finish recovery, which has found or written ``count`` units. Blocks."""
        end = count * INDEX_UNIT_SIZE
        self.cut(count)
        if self._flushed < end:
            self.sync()
        self._flushed = end

    def take_dirty(self, count: int) -> tuple[MappedFile, ...]:
        """Return the files with units below ``count`` that no sync has covered. The caller starts a
        sync of them.
        """
        self._flushing = count * INDEX_UNIT_SIZE
        return tuple(file for file in self._segments if file.end_offset > self._flushed)

    def flushed(self) -> None:
        """Record that the files returned by :meth:`take_dirty` are durable."""
        self._flushed = self._flushing

    def sync(self) -> None:
        for file in self._segments:
            file.sync()
        self._segments.sync_directories()

    def close(self) -> None:
        self._segments.close()

    def _clear_from(self, end: int) -> bool:
        """Write zeros over the units from ``end``. Return whether there were any."""
        file = self._segments.last
        first = start = end - file.first_offset
        while start < file.size:
            stale = bytes(file.view[start : start + _ZEROS_AT_ONCE])
            if not stale.strip(b"\0"):
                break
            file.file.write(start, bytes(len(stale)))
            start += _ZEROS_AT_ONCE
        return start > first
