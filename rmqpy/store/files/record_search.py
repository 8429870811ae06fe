"""Search for valid records in bytes where a scan cannot continue: after damage, or backwards from
the end of a log.

A place counts if a complete record was written there: with a known magic, the correct
PHYSICALOFFSET, sizes, body CRC, and text as its last bytes. The entries of a DLedger log are found
by the records inside them.
"""

from __future__ import annotations

from rmqpy.codec import layout
from rmqpy.codec.backend import content_end, magic_places, scan_records
from rmqpy.codec.properties import is_whole
from rmqpy.codec.scan import Scan
from rmqpy.model.text import count_text
from rmqpy.model.values import define
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles

COUNTED_BYTES_MAX = 4 << 30
"""The number of bytes in which messages are counted: seconds, before a refusal is shown."""

_WINDOW_BYTES = 1 << 20


@define(slots=True, frozen=True)
class FoundRecord:
    """A valid record: its file, its offset in the log, and its store time."""

    path: str
    offset: int
    timestamp_ms: int


def find_record(file: MappedFile, position: int) -> FoundRecord | None:
    """Return the first valid record at or after ``position``."""
    for place in magic_places(file.view, position, file_content_end(file, position)):
        found = _record_at(file, place - layout.MAGIC_POSITION)
        if found is not None:
            return found
    return None


def find_record_in_files(segments: MappedFiles, number: int) -> FoundRecord | None:
    """Return the first valid record in file ``number`` or a later one."""
    for later in range(number, len(segments)):
        found = find_record(segments[later], 0)
        if found is not None:
            return found
    return None


def count_messages(segments: MappedFiles, number: int, position: int, *, dledger: bool) -> str:
    """Return how many valid messages follow ``position`` of file ``number``, as text, such as
    ``3 messages``; ``at least`` if more than ``COUNTED_BYTES_MAX`` bytes follow.
    """
    count, left = 0, COUNTED_BYTES_MAX
    for later in range(number, len(segments)):
        file = segments[later]
        while left > 0 and (found := find_record(file, position)) is not None:
            start = found.offset - file.first_offset
            records, end = _valid_run(file, start, dledger=dledger)
            count, left, position = count + records, left - (end - position), end
        position = 0
        if left <= 0:
            return f"at least {count_text(count, 'message')}"
    return count_text(count, "message")


def _valid_run(file: MappedFile, position: int, *, dledger: bool) -> tuple[int, int]:
    """Return the number of valid records from the one at ``position`` on, and the position after
    them. ``dledger`` says that each is in an entry.
    """
    start = position - layout.ENTRY_HEADER_SIZE if dledger else position
    if start >= 0:
        scan = scan_records(
            file.view[start:], file.first_offset + start, dledger=dledger, check_crc=True
        )
        if len(scan):
            return len(scan), scan.end - file.first_offset
    return 1, position + 1  # the record is valid, the header of its entry is not


def age_ms(segments: MappedFiles) -> int:
    """Return the time between the store times of the first and the last valid record of a log."""
    first, last = find_record_in_files(segments, 0), _last_record(segments)
    return last.timestamp_ms - first.timestamp_ms if first is not None and last is not None else 0


def is_text_to_the_end(scan: Scan, view: memoryview) -> bool:
    """Return whether topic and properties of the last record of a scan of ``view``, which the CRC
    does not cover, are text. They are not if the record was cut off there.
    """
    begin, end = scan.topic_position[-1], scan.topic_position[-1] + scan.topic_length[-1]
    start, length = scan.properties_position[-1], scan.properties_length[-1]
    return 0 not in view[begin:end] and is_whole(bytes(view[start : start + length]))


def file_content_end(file: MappedFile, position: int) -> int:
    """Return the position after the last byte that is not zero, at least ``position``."""
    return content_end(file.view[: file.file.data_end(position)], position)


def _last_record(segments: MappedFiles) -> FoundRecord | None:
    for number in range(len(segments) - 1, -1, -1):
        file = segments[number]
        stop = file_content_end(file, 0)
        while stop > 0:
            start = max(0, stop - _WINDOW_BYTES)
            for place in reversed(list(magic_places(file.view, start, stop))):
                found = _record_at(file, place - layout.MAGIC_POSITION)
                if found is not None:
                    return found
            stop = start
    return None


def _record_at(file: MappedFile, position: int) -> FoundRecord | None:
    if position < 0:
        return None
    offset = file.first_offset + position
    view = file.view[position:]
    scan = scan_records(view, offset, dledger=False, check_crc=True, max_records=1)
    if len(scan) != 1 or scan.physical_offset[0] != offset or not is_text_to_the_end(scan, view):
        return None
    return FoundRecord(file.path, offset, scan.store_timestamp_ms[0])
