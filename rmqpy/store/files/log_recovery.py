"""LogRecovery: finds the end of a log after a stop, with one scan for classic and DLedger files,
clean and unclean stops.

The scan starts at a file that is known to be good (the third-last after a clean stop; after an
unclean one the last whose first message is older than the checkpoint) and proceeds record by record
to the first position without a record. The bytes after that position determine the result:

============================================  =====================================================
after the end                                 result
============================================  =====================================================
zeros, an empty file, or nothing              the end of the log
bytes without a valid record                  a torn tail: kept in rmqpy/quarantine/, then zeroed
a valid record, here or in a later file       damage in the middle: StoreError, nothing changes
a record that was written completely          damage, as above: the process was killed, the machine
                                              still runs, and a derived unit leads to the record
the same, after the last durable point        what a power loss leaves: cut off like a torn tail
============================================  =====================================================

Pages reach the disk in any order, so after a power loss a hole may be followed by valid records.
They were promised to nobody if the hole is after the :class:`DurablePoint`.

A damaged entry that can be fetched from another member is passed as a :class:`LogGap`, which the
scan skips.

The body CRC does not cover topic and properties, so the last record counts only if these are text
to their end: a record that was cut off inside its properties has correct lengths and a correct CRC.
(If these bytes contain other text, the damage cannot be detected.) After the durable point, no
record counts that has a sector of zeros in its properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import evolve, field

from rmqpy.codec.backend import scan_records
from rmqpy.codec.properties import verify_property_crc
from rmqpy.codec.scan import Scan, StopReason, is_end_filler
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files import lost_pages
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles, file_name
from rmqpy.store.files.paths import unused_name
from rmqpy.store.files.record_search import (
    FoundRecord,
    count_messages,
    file_content_end,
    find_record,
    find_record_in_files,
    is_text_to_the_end,
)

CLEAN_START_FILES = 3
"""The number of files that a clean recovery examines, as in Java."""

KEPT_BYTES_MAX = 256 << 20
"""The number of bytes that are kept of what a power loss left after the durable point."""

_SEARCH_CHUNK = 1 << 20
_SECTOR_BYTES = 512
"""The unit in which unsynced bytes are missing after a power loss; pages are multiples of it."""
_NOTHING_WRITTEN = bytes(_SECTOR_BYTES)


@define(slots=True, frozen=True)
class WalkEnd:
    """The end of a scan: ``end`` is the offset after the last good record, in file number
    ``number``.

    ``at_blank`` means that the file is closed by a BLANK (or filler) and that no file follows.
    """

    end: int
    number: int
    at_blank: bool
    torn_bytes: int = 0
    last: int = -1
    """The offset at which the last record, or the last gap, starts."""
    followed: bool = False
    """True if valid records were among the bytes that were moved."""
    given_up: str = ""
    """How many valid messages were given up by force, as text; empty if there were none."""


@define(slots=True, frozen=True)
class DurablePoint:
    """What is known to have been on disk when the machine or the process stopped: the log up to
    ``offset``, which ``source`` contains.

    Bytes after that may have been there too. ``flushed_offset`` is the end of the last flush; if
    only its time is known, because Java has written the log, ``flushed_ms`` is the store time of
    its last message. If neither is known, or the stop was clean, all records there are count.
    """

    offset: int = 0
    flushed_offset: int | None = None
    flushed_ms: int | None = None
    source: str = "rmqpy/recovery-point"

    @property
    def covers_all(self) -> bool:
        """True if every record that is found was durable."""
        return self.flushed_offset is None and self.flushed_ms is None

    def covers(self, offset: int, timestamp_ms: int) -> bool:
        """Return whether the record with this offset and store time was durable, and so all before
        it.
        """
        if self.flushed_offset is not None:
            return offset < self.flushed_offset
        return self.flushed_ms is None or timestamp_ms < self.flushed_ms


class MidLogCorruptionError(StoreError):
    """Raised if no record starts at ``offset``, but a valid one follows, or was there before."""

    offset = -1


class DurableTailMissingError(MidLogCorruptionError):
    """Raised if no valid record follows at or after ``offset``, but there were durable ones."""


@define(slots=True, frozen=True)
class LogGap:
    """A damaged entry whose position is known: ``offset``, and ``size`` with its header."""

    offset: int
    size: int
    index: int
    term: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@define(slots=True)
class _RecoveryWalk:
    """The state of a recovery: the last good record, for checks across calls of the scan."""

    index: int = -1
    term: int = -1
    frame_offset: int = -1
    whole: bool = True

    def take(self, scan: Scan, view: memoryview) -> None:
        """Record the last record of a scan of ``view``."""
        if not len(scan):
            return
        self.whole = is_text_to_the_end(scan, view)
        self.frame_offset = scan.frame_offset[-1]
        self.index, self.term = scan.entry_index[-1], scan.term[-1]

    def step_over(self, hole: LogGap) -> None:
        """Continue as if the entry of ``hole`` had been read."""
        self.index, self.term = hole.index, hole.term
        self.frame_offset, self.whole = hole.offset, True

    def continues(self, scan: Scan) -> bool:
        """Return whether the first record of ``scan`` follows the last good one (entries only)."""
        if not len(scan) or self.index < 0:
            return True
        return scan.entry_index[0] == self.index + 1 and scan.term[0] >= self.term


@define(slots=True, frozen=True, eq=False, repr=False)
class LogRecovery:
    """The recovery of the files of one log. With ``force``, which the operator requests, the log is
    cut at damage in the middle instead of being refused.
    """

    files: FileSystem
    segments: MappedFiles
    framing: Framing
    quarantine: str
    check_crc: bool = True
    force: bool = False
    check_property_crc: bool = False
    durable: DurablePoint = field(factory=DurablePoint)
    """A scan that ends before it has met damage; one that ends after it, a torn tail."""
    holes: Mapping[int, LogGap] = field(factory=dict)
    """The damaged entries to skip, by their offset."""

    is_mended: bool = False
    """True if a refusal is not shown, because the damage can be mended: then nothing is counted."""

    was_written: Callable[[int], bool] = lambda _offset: False
    """Returns whether the record at an offset is known to have been written completely, and not to
    have been lost in a power failure.
    """

    def recover(self, start_number: int, start_offset: int | None = None) -> WalkEnd:
        """Find the end, starting at file ``start_number`` (at ``start_offset`` in it, the start of
        a record), cut the files there, and clear a torn tail. Changes nothing if it raises
        StoreError.
        """
        found = self._walk(start_number, start_offset)
        lost_pages.raise_if_any()  # their zeros are not the end of the log
        end = self._judge_tail(found)
        count = len(self.segments)
        self.segments.cut(end.end)
        if len(self.segments) < count:
            self.segments.sync_directories()
        return end

    def _durable_records_missing(self, end: WalkEnd) -> DurableTailMissingError:
        file = self.segments[end.number]
        fault = DurableTailMissingError(
            file.path,
            f"no record at offset {end.end} (byte {end.end - file.first_offset} of the file)",
            f"records up to offset {self.durable.offset}, which were on disk"
            f" ({self.durable.source})",
            "restore the file from a backup or a replica; or give up everything from there on by"
            " starting once with --force-truncate (it keeps the bytes in rmqpy/quarantine); or, if"
            f" the log was replaced on purpose, remove {self.durable.source}",
        )
        fault.offset = end.end
        return fault

    def force_truncate(self, offset: int) -> int:
        """Move everything from ``offset``, the start of a record, to the quarantine like a torn
        tail. Return the number of bytes moved.
        """
        number = next(n for n, file in enumerate(self.segments) if offset < file.end_offset)
        moved = self._move_from(number, offset - self.segments[number].first_offset)
        self.segments.cut(offset)
        self.segments.sync_directories()
        return moved

    def replay(self, start_number: int, end: int, visit: Callable[[Scan], None]) -> None:
        """Pass every record from file ``start_number`` to ``end``, which recovery found to be
        valid, to ``visit``.
        """
        for number in range(start_number, len(self.segments)):
            file = self.segments[number]
            offset = file.first_offset
            while offset < min(end, file.end_offset):
                if offset in self.holes:
                    offset = self.holes[offset].end
                    continue
                stop = self._next_hole(offset, end)
                view = file.view[offset - file.first_offset : stop - file.first_offset]
                scan = self._scan(view, offset, check_crc=False)
                visit(scan)
                offset = scan.end
                if scan.stop is not StopReason.LIMIT and offset not in self.holes:
                    break

    def _next_hole(self, offset: int, end: int) -> int:
        """Return the offset of the next gap after ``offset``, or ``end`` if there is none
        before it.
        """
        return min([end, *(hole for hole in self.holes if hole > offset)])

    def _scan(self, view: memoryview, offset: int, *, check_crc: bool, topics: bool = True) -> Scan:
        dledger = self.framing is Framing.DLEDGER
        return scan_records(view, offset, dledger=dledger, check_crc=check_crc, topics=topics)

    def _walk(self, number: int, offset: int | None) -> WalkEnd:
        walk = _RecoveryWalk()
        while True:
            file = self.segments[number]
            offset, stop = self._walk_file(file, offset or file.first_offset, walk)
            if stop is not StopReason.BLANK:
                return WalkEnd(offset, number, at_blank=False, last=walk.frame_offset)
            if number + 1 == len(self.segments):
                return WalkEnd(offset, number, at_blank=True, last=walk.frame_offset)
            number, offset = number + 1, None

    def _walk_file(
        self, file: MappedFile, offset: int, walk: _RecoveryWalk
    ) -> tuple[int, StopReason]:
        """Return the offset after the last good record of a file, and why the scan stopped."""
        while True:
            hole = self.holes.get(offset)
            if hole is not None:
                walk.step_over(hole)
                offset = hole.end
            stop_at = self._next_hole(offset, file.end_offset)
            view = file.view[offset - file.first_offset : stop_at - file.first_offset]
            scan = self._scan(view, offset, check_crc=self.check_crc, topics=False)
            if not walk.continues(scan):
                return offset, StopReason.BAD_FIELDS
            misplaced = scan.misplaced()
            if misplaced:
                return scan.frame_offset[misplaced[0]], StopReason.BAD_FIELDS
            damaged = self._first_damaged(scan, file) if self.check_property_crc else None
            if damaged is None and not self.durable.covers_all:
                damaged = self._first_hollow(scan, view, offset)
            if damaged is not None:
                return damaged, StopReason.BAD_CRC
            walk.take(scan, view)
            offset = scan.end
            if scan.stop is StopReason.LIMIT or offset in self.holes:
                file.release(offset - file.first_offset)
                continue
            stop = scan.stop
            if stop is StopReason.BLANK:
                position, remaining = offset - file.first_offset, file.end_offset - offset
                dledger = self.framing is Framing.DLEDGER
                if is_end_filler(file.view, position, remaining, dledger=dledger):
                    return offset, stop
                stop = StopReason.BAD_FIELDS
            if walk.frame_offset >= file.first_offset and not walk.whole:
                return walk.frame_offset, StopReason.TRUNCATED
            return offset, stop

    def _first_hollow(self, scan: Scan, view: memoryview, offset: int) -> int | None:
        """Return the offset of the first record after the durable point that lacks a sector of its
        properties, which the CRC does not cover. ``view`` starts at ``offset``.
        """
        durable = self.durable
        for row, length in enumerate(scan.properties_length):
            if length < _SECTOR_BYTES:
                continue  # If the sector is missing, the header of the next record is too.
            frame = scan.frame_offset[row]
            if frame < durable.offset or durable.covers(frame, scan.store_timestamp_ms[row]):
                continue
            start = scan.properties_position[row]
            aligned = start + -(offset + start) % _SECTOR_BYTES
            for sector in range(aligned, start + length - _SECTOR_BYTES + 1, _SECTOR_BYTES):
                if view[sector : sector + _SECTOR_BYTES] == _NOTHING_WRITTEN:
                    return scan.frame_offset[row]
        return None

    @staticmethod
    def _first_damaged(scan: Scan, file: MappedFile) -> int | None:
        """Return the offset of the first record that does not match its checksum."""
        for frame, offset, size in zip(scan.frame_offset, scan.offset, scan.size, strict=True):
            start = offset - file.first_offset
            if not verify_property_crc(file.view[start : start + size]):
                return frame
        return None

    def _judge_tail(self, end: WalkEnd) -> WalkEnd:
        """Refuse damage; move a torn tail to the quarantine. Return the end with what was moved."""
        file = self.segments[end.number]
        reached = file.end_offset if end.at_blank else end.end
        is_short = reached < self.durable.offset and not self.force
        if end.at_blank:
            if is_short:
                raise self._durable_records_missing(end)
            return end
        position = end.end - file.first_offset
        later = find_record(file, position)
        if later is None:
            later = find_record_in_files(self.segments, end.number + 1)
        was_written = not self.force and self.was_written(end.end)
        if later is not None and not self.force:
            covered = self.durable.covers(later.offset, later.timestamp_ms)
            if is_short or was_written or covered:
                raise self._damage_in_the_middle(end, later)
        if is_short:
            raise self._durable_records_missing(end)
        if was_written:
            raise self._last_record_damaged(end)
        limit = None if self.force or later is None else end.end + KEPT_BYTES_MAX
        given_up = self._count_after(end) if self.force and later is not None else ""
        moved = self._move_from(end.number, position, limit)
        return evolve(end, torn_bytes=moved, followed=later is not None, given_up=given_up)

    def _count_after(self, end: WalkEnd) -> str:
        """Return the number of messages that can be read after damage at ``end``, as text."""
        position = end.end - self.segments[end.number].first_offset
        dledger = self.framing is Framing.DLEDGER
        return count_messages(self.segments, end.number, position, dledger=dledger)

    def _last_record_damaged(self, end: WalkEnd) -> DurableTailMissingError:
        file = self.segments[end.number]
        fault = DurableTailMissingError(
            file.path,
            f"a damaged last record at offset {end.end} (byte {end.end - file.first_offset} of the"
            " file)",
            "a whole record: a unit leads to it, so the process had written it completely, and the"
            " machine has not been restarted since",
            "restore the file from a backup or a replica; or give up this record by starting once"
            " with --force-truncate (it keeps the bytes in rmqpy/quarantine)",
        )
        fault.offset = end.end
        return fault

    def _damage_in_the_middle(self, end: WalkEnd, later: FoundRecord) -> MidLogCorruptionError:
        file = self.segments[end.number]
        counted = "" if self.is_mended else f", with {self._count_after(end)} that can be read,"
        fault = MidLogCorruptionError(
            file.path,
            f"a damaged record at offset {end.end} (byte {end.end - file.first_offset} of the file)"
            f" with a valid one after it at offset {later.offset} in {later.path}",
            "records without a gap up to the end of the log",
            "restore the file from a backup or a replica; or give up everything from the damage"
            f" on{counted} by starting once with --force-truncate (it keeps the bytes in"
            " rmqpy/quarantine)",
        )
        fault.offset = end.end
        return fault

    def _move_from(self, number: int, position: int, limit: int | None = None) -> int:
        """Move everything after ``position`` of file ``number`` to the quarantine, which keeps the
        bytes up to the offset ``limit``. Return the number of bytes moved.

        This runs from the end backwards: if it is interrupted, the next start finds the same
        damage.
        """
        lost_pages.raise_if_any()
        moved = 0
        for later in range(len(self.segments) - 1, number, -1):
            moved += self._quarantine(self.segments[later], 0, limit)
        return moved + self._quarantine(self.segments[number], position, limit)

    def _quarantine(self, file: MappedFile, position: int, limit: int | None) -> int:
        """Copy the bytes from ``position`` to the last one that is not zero to the quarantine, then
        zero them.
        """
        stop = file_content_end(file, position)
        if stop <= position:
            return 0
        kept_stop = stop if limit is None else min(stop, limit - file.first_offset)
        if kept_stop > position:
            self._keep(file, position, kept_stop)
        for start in range(position, stop, _SEARCH_CHUNK):
            file.file.write(start, bytes(min(_SEARCH_CHUNK, stop - start)))
        file.sync()
        return stop - position

    def _keep(self, file: MappedFile, position: int, stop: int) -> None:
        """Copy the bytes from ``position`` to ``stop`` to the quarantine."""
        name = f"{self.quarantine}/{file_name(file.first_offset + position)}.bin"
        kept = self.files.open(unused_name(self.files, name), size=stop - position)
        try:
            for start in range(position, stop, _SEARCH_CHUNK):
                kept.write(start - position, file.view[start : min(start + _SEARCH_CHUNK, stop)])
            kept.sync()
        finally:
            kept.close()
        self.files.sync_dir(self.quarantine)


def clean_start(row: MappedFiles) -> int:
    """Return the number of the file at which recovery starts after a clean stop."""
    return max(0, len(row) - CLEAN_START_FILES)


def last_safe_file(row: MappedFiles, framing: Framing, safe_timestamp_ms: int) -> int | None:
    """Return the number of the last file whose first record is complete and not younger than the
    checkpoint.
    """
    for number in range(len(row) - 1, -1, -1):
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
    return None


def unclean_start(row: MappedFiles, framing: Framing, safe_timestamp_ms: int) -> int:
    """Return the number of the file at which recovery starts after an unclean stop."""
    return last_safe_file(row, framing, safe_timestamp_ms) or 0
