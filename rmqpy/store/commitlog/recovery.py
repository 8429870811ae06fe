"""Finding the end of a log after a stop: one walk for classic and DLedger files, clean and unclean stops.

The walk starts at a file that is known to be good (the third-last after a clean stop; after an unclean one the last
whose first message is older than the checkpoint) and goes record by record to the first place that holds none. What
stands behind that place decides:

==============================================  ==========================================================
behind the end                                  then
==============================================  ==========================================================
zeros, an empty file made ahead, nothing        the end of the log
bytes that hold no valid record                 a torn tail: kept in ``rmqpy/quarantine/``, then zeroed
a valid record, here or in a later file         damage in the middle: StoreFault, nothing is touched
==============================================  ==========================================================

The body CRC does not cover topic and properties, so the last record counts only if these are well-formed text: a record
that was cut off inside its properties has right lengths and a right CRC.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from attrs import define

from rmqpy.codec import layout
from rmqpy.codec.chosen import scan_records
from rmqpy.codec.properties import well_formed
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.model.errors import StoreFault
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFile, MappedFiles, file_name

CLEAN_START_FILES = 3
"""A clean recovery looks at this many files, as Java's does."""

_SEARCH_CHUNK = 1 << 20
_V1 = layout.MESSAGE_MAGIC_V1.to_bytes(4)
_V2 = layout.MESSAGE_MAGIC_V2.to_bytes(4)


class Framing(Enum):
    CLASSIC = "classic"
    DLEDGER = "dledger"


@define(slots=True, frozen=True)
class WalkEnd:
    """Where the walk stopped: ``end`` is the offset behind the last good record, in file number ``number``.

    ``at_blank``: the file is closed by a BLANK (or filler) and no file follows.
    """

    end: int
    number: int
    at_blank: bool
    torn_bytes: int


@define(slots=True, frozen=True)
class Walker:
    """Walks a row. ``visit`` gets every scan in order (dispatch rebuilds nothing here; DLedger checks its index).

    ``force`` cuts at damage in the middle instead of refusing: the operator has asked for it.
    """

    files: FileLayer
    row: MappedFiles
    framing: Framing
    quarantine: str
    check_crc: bool = True
    force: bool = False
    visit: Callable[[Scan], None] | None = None

    def recover(self, start_number: int) -> WalkEnd:
        """Find the end from file ``start_number`` on, cut the row there, clear what is torn. Raises StoreFault."""
        end = self._walk(start_number)
        torn_bytes = self._judge_tail(end)
        self.row.cut(end.end)
        if self.row and self.row.last.end_offset > end.end:
            self.row.last.wrote_position = end.end - self.row.last.first_offset
        return WalkEnd(end.end, end.number, end.at_blank, torn_bytes)

    def _walk(self, number: int) -> WalkEnd:
        while True:
            file = self.row[number]
            offset, stop = self._walk_file(file)
            if stop is not StopReason.BLANK:
                return WalkEnd(offset, number, at_blank=False, torn_bytes=0)
            if number + 1 == len(self.row):
                return WalkEnd(offset, number, at_blank=True, torn_bytes=0)
            number += 1

    def _walk_file(self, file: MappedFile) -> tuple[int, StopReason]:
        offset = file.first_offset
        while True:
            view = file.view[offset - file.first_offset :]
            scan = scan_records(
                view,
                offset,
                dledger=self.framing is Framing.DLEDGER,
                check_crc=self.check_crc,
            )
            good, stop = self._good_rows(scan, view)
            if good < len(scan):
                end = scan.frame_offset[good]
                scan = self._first_rows(view, offset, good)
                self._visit(scan)
                return end, stop
            self._visit(scan)
            offset = scan.end
            if scan.stop is not StopReason.LIMIT:
                return offset, scan.stop

    def _visit(self, scan: Scan) -> None:
        if self.visit is not None and len(scan):
            self.visit(scan)

    def _first_rows(self, view: memoryview, offset: int, count: int) -> Scan:
        dledger = self.framing is Framing.DLEDGER
        stop = view[:0] if count == 0 else view
        return scan_records(stop, offset, dledger=dledger, check_crc=False, max_records=max(1, count))

    @staticmethod
    def _good_rows(scan: Scan, view: memoryview) -> tuple[int, StopReason]:
        """How many rows count: not those from the first that is not at its place, not a last one that is torn."""
        misplaced = scan.misplaced()
        if misplaced:
            return misplaced[0], StopReason.BAD_FIELDS
        if len(scan) and scan.stop not in (StopReason.BLANK, StopReason.LIMIT):
            start, length = scan.properties_position[-1], scan.properties_length[-1]
            if 0 in scan.topic[-1] or not well_formed(bytes(view[start : start + length])):
                return len(scan) - 1, StopReason.TRUNCATED
        return len(scan), scan.stop

    def _judge_tail(self, end: WalkEnd) -> int:
        """Refuse damage in the middle; move a torn tail to the quarantine. Returns the bytes moved."""
        if end.at_blank:
            return 0
        file = self.row[end.number]
        position = end.end - file.first_offset
        later = _find_record(file, position + 1)
        if later is None:
            later = self._record_in_later_files(end.number + 1)
        if later is not None and not self.force:
            path, offset = later
            raise StoreFault(
                file.path,
                f"a damaged record at offset {end.end} (byte {position} of the file) with a valid one behind it"
                f" at offset {offset} in {path}",
                "records without a gap up to the end of the log",
                "restore the file from a backup or a replica; or give up everything from the damage on by"
                " starting once with --force-truncate (it keeps the bytes in rmqpy/quarantine)",
            )
        moved = self._quarantine(file, position)
        for number in range(end.number + 1, len(self.row)):
            moved += self._quarantine(self.row[number], 0)
        return moved

    def _record_in_later_files(self, number: int) -> tuple[str, int] | None:
        for later in range(number, len(self.row)):
            found = _find_record(self.row[later], 0)
            if found is not None:
                return found
        return None

    def _quarantine(self, file: MappedFile, position: int) -> int:
        """Keep the bytes from ``position`` to the last that is not zero, then zero them."""
        stop = _content_end(file.view, position)
        if stop <= position:
            return 0
        name = f"{self.quarantine}/{file_name(file.first_offset + position)}.bin"
        self.files.replace_bytes(name, bytes(file.view[position:stop]))
        for start in range(position, stop, _SEARCH_CHUNK):
            file.file.write(start, bytes(min(_SEARCH_CHUNK, stop - start)))
        file.sync()
        return stop - position


def clean_start(row: MappedFiles) -> int:
    """File number from which a cleanly stopped log is walked."""
    return max(0, len(row) - CLEAN_START_FILES)


def unclean_start(row: MappedFiles, framing: Framing, safe_timestamp_ms: int) -> int:
    """The last file whose first record is whole and not younger than the checkpoint; else the first."""
    for number in range(len(row) - 1, 0, -1):
        file = row[number]
        first = scan_records(
            file.view,
            file.first_offset,
            dledger=framing is Framing.DLEDGER,
            check_crc=False,
            max_records=1,
        )
        if len(first) and 0 < first.store_timestamp_ms[0] <= safe_timestamp_ms:
            return number
    return 0


def is_blank_file(file: MappedFile) -> bool:
    """Whether a file was made ahead and never written."""
    return _content_end(file.view, 0) == 0


def _content_end(view: memoryview, position: int) -> int:
    """Offset behind the last byte that is not zero, at least ``position``."""
    stop = len(view)
    while stop > position:
        start = max(position, stop - _SEARCH_CHUNK)
        chunk = bytes(view[start:stop]).rstrip(b"\0")
        if chunk:
            return start + len(chunk)
        stop = start
    return position


def _find_record(file: MappedFile, position: int) -> tuple[str, int] | None:
    """The first valid record at or behind ``position``: magic, right PHYSICALOFFSET, sizes and body CRC agree."""
    view = file.view
    stop = _content_end(view, position)
    while position < stop:
        chunk = bytes(view[position : min(position + _SEARCH_CHUNK, stop)])
        for magic in (_V1, _V2):
            place = -1
            while (place := chunk.find(magic, place + 1)) >= 0:
                start = position + place - layout.MAGIC_POSITION
                if start >= 0 and _is_record(file, start):
                    return file.path, file.first_offset + start
        position += max(1, len(chunk) - len(_V1) + 1) if len(chunk) == _SEARCH_CHUNK else len(chunk)
    return None


def _is_record(file: MappedFile, position: int) -> bool:
    offset = file.first_offset + position
    found = scan_records(file.view[position:], offset, dledger=False, check_crc=True, max_records=1)
    return len(found) == 1 and found.physical_offset[0] == offset
