"""Turn one DLedger data file into a classic commit log file: the bytes that must change.

A data file is ``[48-byte header][record]`` repeated, then a filler or zeros. Every record is
extended over the header after it, by one reserved property of exactly 48 bytes, so that nothing
else moves:

===========================  ======================================================================
record                       afterwards
===========================  ======================================================================
first of a file              starts 48 bytes earlier (PHYSICALOFFSET says so); grows over its own
                             header and over the next one: 96 bytes, 48 when it is also the last
any other but the last       same place, grows by 48
last before the filler       unchanged, unless it is also the first
filler                       BLANK with the same length
===========================  ======================================================================

TOTALSIZE and PROPERTIESLENGTH change accordingly; the body and its CRC stay.
PREPAREDTRANSACTIONOFFSET changes if the half message has moved. A record checksum (``__CRC32#``,
the last 20 bytes) stays last and is computed again.

The reserved property holds the index and the term of every header that it covers, so that the
entries can still be identified afterwards. Its separator is part of its bytes: it is the first
byte, unless the properties are empty (no separator is needed) or end in a separator (then it is
the last byte).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from attrs import define

from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.message import encode_blank
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.model.errors import StoreError

RESERVED_PROPERTY: Final = b"__RMQPY_ENTRY"
"""The name of the property that covers entry headers; clients never send it."""

PROPERTIES_MAX_BEFORE: Final = layout.PROPERTIES_BYTES_MAX - layout.ENTRY_HEADER_SIZE
PROPERTIES_MAX_BEFORE_FIRST: Final = layout.REVERSIBLE_PROPERTIES_MAX
"""The largest size of the properties, in bytes, with which a record can be converted; the second
value applies to the first record of a file.
"""

OFFSET_MAX: Final = (1 << 63) - 1

CHECKSUM_HEAD: Final = b"__CRC32#\x01"
CHECKSUM_SIZE: Final = 20
"""The checksum property of 5.x: name, separator, ten digits (lowest first), separator."""

_PREPARED_BEFORE_BODY: Final = layout.BODY_POSITION - 76
"""The position of PREPAREDTRANSACTIONOFFSET with two IPv4 hosts."""
_HEADER = layout.ENTRY_HEADER_SIZE
_SEPARATOR = b"\x02"


@define(slots=True, frozen=True)
class Edit:
    """Bytes to write at a position of the file."""

    position: int
    data: bytes


@define(slots=True, frozen=True)
class DataFile:
    """A data file: its bytes and the offset of the first byte.

    ``view`` covers the whole file. ``end`` is the position after the last entry that is converted,
    or the file's end if a filler closes it. Offsets of messages outside of
    ``[moved_from, moved_to)`` stay, as plans of earlier versions demand: they left references to
    half messages whose file has expired as they were, so the result depended on the oldest file.
    """

    view: memoryview
    base_offset: int
    end: int
    moved_from: int = 0
    moved_to: int = OFFSET_MAX

    @property
    def size(self) -> int:
        return len(self.view)

    @property
    def content(self) -> memoryview:
        return self.view[: self.end]

    def new_offset(self, offset: int) -> int:
        """Return the offset in the new log of the message at ``offset`` of the old one. No record
        of a classic log is at position 48, because a record before it would have to fit there.
        """
        if not self.moved_from <= offset < self.moved_to:
            return offset
        return offset - _HEADER if offset % self.size == _HEADER else offset


@define(slots=True, frozen=True)
class Piece:
    """Records of a data file that are changed together, as positions in the file.

    The first piece starts at 0. Any other starts at a record, whose header belongs to the piece
    before. The last one ends where the content ends.
    """

    start: int
    end: int


def pieces_of(file: DataFile, target_bytes: int) -> Iterator[Piece]:
    """Divide a data file into pieces of about ``target_bytes``; yield none if it has no entry.

    Raise StoreError for a damaged file, after the pieces before the damage.
    """
    start = 0
    for scan, _ in _scans(file.content, file.base_offset):
        for offset in scan.offset:
            position = offset - file.base_offset
            if position > _HEADER and position - start >= target_bytes:
                yield Piece(start, position)
                start = position
        if not len(scan) and start == 0:
            return
    yield Piece(start, file.end)


def too_long(file: DataFile) -> list[int]:
    """Return the offsets of messages whose properties are too long to add the reserved one."""
    found = []
    for scan, _ in _scans(file.content, file.base_offset):
        for offset, length in zip(scan.offset, scan.properties_length, strict=True):
            first = offset - file.base_offset == _HEADER
            if length > (PROPERTIES_MAX_BEFORE_FIRST if first else PROPERTIES_MAX_BEFORE):
                found.append(offset)
    return found


def edits_of(file: DataFile, piece: Piece) -> Iterator[Edit]:
    """Yield the changes of one piece in order, all inside it. Raise StoreError for damage."""
    position = piece.start
    if piece.start:
        view = file.view[piece.start : piece.end]
        scan = scan_records(
            view, file.base_offset + piece.start, dledger=False, check_crc=True, max_records=1
        )
        if len(scan) != 1:
            raise _damaged(file, piece.start, scan.stop)
        position = scan.end - file.base_offset
        yield from _edits_of_scan(file, view, scan, piece.start, _covers(file, position))
    if position == piece.end:
        return
    view = file.view[position : piece.end]
    for scan, start in _scans(view, file.base_offset + position):
        begin = position + start
        end = scan.end - file.base_offset
        yield from _edits_of_scan(
            file, file.view[begin : piece.end], scan, begin, _covers(file, end)
        )
        if scan.stop is StopReason.BLANK:
            rest = file.size - end
            yield Edit(end, encode_blank(rest))


def strip_reserved(properties: bytes) -> bytes:
    """Return the properties as they were before the conversion, without the record checksum."""
    kept = _without_checksum(properties)
    while True:
        head = kept.rfind(RESERVED_PROPERTY + b"\x01")
        if head < 0:
            return kept
        tail = kept[head:]
        closed = tail.endswith(_SEPARATOR)
        if tail.find(_SEPARATOR) not in (-1, len(tail) - 1):
            return kept
        before = head if closed or head == 0 else head - 1
        if (len(kept) - before) % _HEADER:
            return kept
        kept = kept[:before]


def covered_entries(properties: bytes) -> list[tuple[int, int]]:
    """Return (index, term) of every entry header that the reserved property at the end covers."""
    raw = _without_checksum(properties)
    _, found, value = raw.rpartition(RESERVED_PROPERTY + b"\x01")
    if not found:
        return []
    words = value.removesuffix(_SEPARATOR).rstrip(b"-").split(b".")
    numbers = [int(word, 16) for word in words]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _covers(file: DataFile, end: int) -> bool:
    """Return whether an entry begins at ``end``; the record before it must cover its header."""
    return (
        end + _HEADER <= file.end and int.from_bytes(file.view[end : end + 4]) == layout.ENTRY_MAGIC
    )


def _scans(view: memoryview, base_offset: int) -> Iterator[tuple[Scan, int]]:
    """Yield the scans of an entry file page by page, each with its start position in ``view``."""
    position = 0
    while True:
        scan = scan_records(view[position:], base_offset + position, dledger=True, check_crc=True)
        yield scan, position
        position = scan.end - base_offset
        if scan.stop is StopReason.LIMIT:
            continue
        if scan.stop in (StopReason.END, StopReason.BLANK, StopReason.ZERO):
            return
        # A piece ends inside the header of the next entry, which belongs to this piece.
        if scan.stop in (StopReason.TRUNCATED, StopReason.BAD_SIZE) and len(view) - position == 48:
            return
        raise StoreError(
            f"DLedger data at offset {scan.end}",
            f"{scan.stop.name} where an entry must start",
            "entries without a gap",
            "fetch the file from another member, or check it with rmqpy store fsck",
        )


def _edits_of_scan(
    file: DataFile, view: memoryview, scan: Scan, begin: int, last_covers: bool
) -> Iterator[Edit]:
    """Yield the changes of one scan; ``view`` and ``scan`` start at ``begin`` of the file."""
    count = len(scan)
    columns = zip(
        scan.offset,
        scan.size,
        scan.properties_position,
        scan.properties_length,
        scan.prepared_transaction_offset,
        strict=True,
    )
    for row, (offset, size, properties_position, length, prepared) in enumerate(columns):
        start = offset - file.base_offset
        if scan.physical_offset[row] != offset:
            raise StoreError(
                f"DLedger data at offset {offset}",
                f"a record with the physical offset {scan.physical_offset[row]}",
                "PHYSICALOFFSET = entry position + 48",
                "fetch the file from another member",
            )
        first = start == _HEADER
        back = row + 1 < count or last_covers
        new_prepared = file.new_offset(prepared)
        if not first and not back and new_prepared == prepared:
            continue
        headers = ([0] if first else []) + ([start + size] if back else [])
        properties = bytes(view[properties_position : properties_position + length])
        extended = _extend(file, properties, headers, offset)
        checksum = _has_checksum(properties)
        properties_at = begin + properties_position
        if first or checksum or new_prepared != prepared:
            record = bytearray(file.view[start : properties_at - 2])
            record += len(extended).to_bytes(2) + extended
            _patch(file, record, scan, row, new_prepared)
            if checksum:
                record[-CHECKSUM_SIZE:] = _checksum(record)
            yield Edit(start - _HEADER if first else start, bytes(record))
            continue
        total = size + len(extended) - length
        yield Edit(start, total.to_bytes(4))
        yield Edit(properties_at - 2, len(extended).to_bytes(2))
        yield Edit(properties_at + length, extended[length:])


def _patch(file: DataFile, record: bytearray, scan: Scan, row: int, prepared: int) -> None:
    """Set total size, physical offset and prepared offset of a record written as a whole."""
    record[0:4] = len(record).to_bytes(4)
    offset = scan.offset[row]
    if offset - file.base_offset == _HEADER:
        position = layout.PHYSICAL_OFFSET_POSITION
        record[position : position + 8] = (offset - _HEADER).to_bytes(8)
    body_position = layout.BODY_POSITIONS[scan.sys_flag[row] & layout.HOSTS_V6]
    position = body_position - _PREPARED_BEFORE_BODY
    record[position : position + 8] = prepared.to_bytes(8, signed=True)


def _extend(file: DataFile, properties: bytes, headers: list[int], offset: int) -> bytes:
    """Return the properties with the reserved one added; it is as long as the covered headers."""
    if not headers:
        return properties
    size = len(headers) * _HEADER
    if len(properties) + size > layout.PROPERTIES_BYTES_MAX:
        raise StoreError(
            f"message at offset {offset}",
            f"properties of {len(properties)} bytes",
            f"at most {layout.PROPERTIES_BYTES_MAX - size}, for the way back to a classic log",
            "export the message and let its file expire, or stay with DLedger",
        )
    words = []
    for position in headers:
        _, _, index, term, *_ = ENTRY_HEADER.unpack_from(file.view, position)
        words.append(b"%016x.%016x" % (index, term))
    text = RESERVED_PROPERTY + b"\x01" + b".".join(words)
    rest = _without_checksum(properties)
    if not rest:
        closing = _SEPARATOR if rest != properties else b""
        return text.ljust(size - len(closing), b"-") + closing + properties
    if rest.endswith(_SEPARATOR):
        return rest + text.ljust(size - 1, b"-") + _SEPARATOR + properties[len(rest) :]
    return rest + _SEPARATOR + text.ljust(size - 1, b"-")


def _has_checksum(properties: bytes) -> bool:
    return properties[-CHECKSUM_SIZE:].startswith(CHECKSUM_HEAD) and properties[-1:] == _SEPARATOR


def _without_checksum(properties: bytes) -> bytes:
    return properties[:-CHECKSUM_SIZE] if _has_checksum(properties) else properties


def _checksum(record: bytearray) -> bytes:
    """Return the checksum property of a finished record.

    Its value is the CRC-32 of all bytes before the property, lowest digit first.
    """
    value = zlib.crc32(memoryview(record)[:-CHECKSUM_SIZE]) & layout.CRC_MASK
    return CHECKSUM_HEAD + f"{value:010d}"[::-1].encode() + _SEPARATOR


def _damaged(file: DataFile, position: int, stop: StopReason) -> StoreError:
    return StoreError(
        f"DLedger data at offset {file.base_offset + position}",
        f"{stop.name} where a record must start",
        "entries without a gap",
        "fetch the file from another member",
    )
