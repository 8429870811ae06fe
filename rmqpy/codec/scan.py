"""A scan of the records of one log file, classic or DLedger, which reports exactly where and why it
ends.

Dispatch (reput), recovery and audit use it. ``scan_records``, ``dictionary_encode`` (each topic or
host once, then numbers), ``magic_places`` and ``content_end`` exist in C too: take them from
:mod:`rmqpy.codec.backend`. Both versions return equal results for any bytes, which includes the
order of the checks below.

A record is valid if, in this order: its magic is known (else BAD_MAGIC); TOTALSIZE is at least that
of the smallest record (else BAD_SIZE) and within the view (else TRUNCATED); the lengths inside are
not negative and add up to TOTALSIZE (else BAD_FIELDS); the CRC of the body matches, if the check is
requested and the body is not empty (else BAD_CRC). In DLedger files the 48 bytes of the entry are
checked first: magic 1, size, then (else BAD_FIELDS) the body length, pos = the entry's offset,
index = previous + 1, and a term that is not smaller than the previous one; the record must fill the
body.

PHYSICALOFFSET is not checked: callers compare the columns ``physical_offset`` and ``offset``
(:meth:`Scan.misplaced`).
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, cast

from rmqpy.codec import layout
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.hashes import crc32, java_hash_of_bytes
from rmqpy.codec.message import HEADS
from rmqpy.codec.properties import locate_property
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.values import define

_STEP: Final = 1 << 20
_ZEROS: Final = bytes(_STEP)
_SPLIT_MAX: Final = 3
"""The bytes of a magic code that may extend beyond the step in which it begins."""


class StopReason(IntEnum):
    """The reason why a scan ended at :attr:`Scan.end`. The C code uses the same values."""

    END = 0
    """The view ended after a valid record."""
    BLANK = 1
    """The file's filler: continue with the next file."""
    ZERO = 2
    """The file ends here, because size and magic are 0."""
    BAD_MAGIC = 3
    BAD_SIZE = 4
    """TOTALSIZE (or the entry's size) is smaller than any record."""
    TRUNCATED = 5
    """The view ends inside a record, or the size is corrupt and too large."""
    BAD_FIELDS = 6
    BAD_CRC = 7
    LIMIT = 8
    """``max_records`` were found; continue at ``end``."""


@define(slots=True, frozen=True)
class DictionaryColumn:
    """A column whose ``numbers`` are indexes into ``texts``, in the order of first appearance."""

    numbers: array[int]
    texts: list[bytes]

    def to_list(self) -> list[bytes]:
        """Return the text of every row; equal texts are the same object."""
        texts = self.texts
        return [texts[number] for number in self.numbers]


NumberParts = Callable[[memoryview, Sequence[int], Sequence[int]], DictionaryColumn]


def dictionary_encode(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> DictionaryColumn:
    """Return the dictionary encoding of parts of the view: equal parts have equal numbers."""
    known: dict[bytes, int] = {}
    numbers = array("i")
    for start, length in zip(positions, lengths, strict=True):
        numbers.append(known.setdefault(bytes(view[start : start + length]), len(known)))
    return DictionaryColumn(numbers, list(known))


@define(slots=True)
class Scan:
    """The result of a scan, one column per field. Positions are relative to the start of the view,
    offsets to the start of the log.
    """

    frame_offset: array[int]
    """The offset of the record's frame: of the entry in a DLedger file, else of the record."""
    offset: array[int]
    size: array[int]
    queue_id: array[int]
    queue_offset: array[int]
    physical_offset: array[int]
    """The field PHYSICALOFFSET; equal to ``offset`` in an intact log."""
    sys_flag: array[int]
    flag: array[int]
    born_timestamp_ms: array[int]
    store_timestamp_ms: array[int]
    reconsume_times: array[int]
    prepared_transaction_offset: array[int]
    tags_code: array[int]
    """The hash of TAGS, 0 if absent. (In the delay topic the tags code is a time set by the store.)
    """
    delay_level: array[int]
    """The value of DELAY as Java's parseInt reads it; 0 if absent or not a number."""
    topic_position: array[int]
    topic_length: array[int]
    properties_position: array[int]
    properties_length: array[int]
    uniq_key_hash: array[int]
    """The index key hash of ``topic#UNIQ_KEY``; -1 if UNIQ_KEY is absent."""
    keys_position: array[int]
    """The position of the value of KEYS. The length is 0 if KEYS is absent."""
    keys_length: array[int]
    entry_index: array[int]
    """The index of the entry; -1 in classic files, like ``term``."""
    term: array[int]
    topic: list[bytes]
    end: int
    """The offset after the frame of the last valid record, where the stop reason applies."""
    stop: StopReason

    def __len__(self) -> int:
        return len(self.offset)

    def misplaced(self) -> list[int]:
        """Return the rows whose PHYSICALOFFSET does not match their offset."""
        if self.offset.tobytes() == self.physical_offset.tobytes():  # almost always
            return []
        places = zip(self.offset, self.physical_offset, strict=True)
        return [row for row, (offset, field) in enumerate(places) if offset != field]


COLUMN_COUNT: Final = 23
"""The number of numeric columns: the fields of :class:`Scan` before ``topic``. The order is the
same in C.
"""

SCAN_LIMIT: Final = 4096
BASE_OFFSET_MAX: Final = 1 << 62

_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_SHORT: Final = struct.Struct(">h")
_LENGTH_FORMS: Final = {1: struct.Struct(">b"), 2: _SHORT}
_INT: Final = struct.Struct(">i")
_SIZE_MAGIC: Final = struct.Struct(">iI")
_MAGIC_SIZE: Final = struct.Struct(">ii")
_NUMBER: Final = re.compile(rb"([+-]?)0*([0-9]{1,10})")
_TOPIC_POSITION: Final = 14
_TOPIC_LENGTH: Final = 15
_NOT_AN_ENTRY: Final = (-1, -1)


def scan_records(
    view: memoryview,
    base_offset: int,
    *,
    dledger: bool,
    check_crc: bool,
    max_records: int = SCAN_LIMIT,
    topics: bool = True,
) -> Scan:
    """Scan ``view``, a part of one file that begins at ``base_offset`` of the log with a record, or
    with an entry if ``dledger`` is set. Without ``topics``, that column stays empty.
    """
    assert max_records > 0, "a scan that may find nothing"
    assert 0 <= base_offset <= BASE_OFFSET_MAX, f"base offset {base_offset}"
    walk = _ScanWalk(view, base_offset, check_crc)
    stop = walk.run(dledger, max_records)
    columns = [array("q", column) for column in zip(*walk.rows, strict=True)]
    if not columns:
        columns = [array("q") for _ in range(COLUMN_COUNT)]
    return scan_of_columns(columns, view, base_offset + walk.position, stop, topics=topics)


def scan_of_columns(
    columns: Sequence[array[int]],
    view: memoryview,
    end: int,
    stop: StopReason,
    number: NumberParts = dictionary_encode,
    *,
    topics: bool = True,
) -> Scan:
    """Return the Scan of numeric columns. Topics are read from ``view``; equal topics are the same
    object.
    """
    names: list[bytes] = []
    if topics:
        names = number(view, columns[_TOPIC_POSITION], columns[_TOPIC_LENGTH]).to_list()
    make = cast("Callable[..., Scan]", Scan)
    return make(*columns, names, end, stop)


def walk_records(
    view: memoryview, base_offset: int, stop: int, *, dledger: bool
) -> tuple[int, StopReason]:
    """Walk from the frame at the start of ``view`` to the first frame at or after offset ``stop``.

    Return that frame's offset and LIMIT, or the offset at which the walk ended earlier and the
    reason. Exists in C too.
    """
    end, reason = base_offset, StopReason.LIMIT
    while reason is StopReason.LIMIT and end < stop:
        scan = scan_records(view[end - base_offset :], end, dledger=dledger, check_crc=False)
        row = bisect_left(scan.frame_offset, stop)
        if row < len(scan):
            return scan.frame_offset[row], StopReason.LIMIT
        end, reason = scan.end, scan.stop
    return end, reason


def measure_record(
    data: memoryview, start: int, rest: int
) -> StopReason | tuple[tuple[Any, ...], int, int, int]:
    """Return fields 1 to 15 of the record at ``start``, which may have up to ``rest`` bytes, and
    the positions of body, topic and properties. The properties end with the record. If there is no
    valid record, return the reason.
    """
    size, magic = _SIZE_MAGIC.unpack_from(data, start)
    if magic not in layout.TOPIC_LENGTH_SIZES:
        return StopReason.BAD_MAGIC
    if size < layout.RECORD_SIZE_MIN:
        return StopReason.BAD_SIZE
    if size > rest:
        return StopReason.TRUNCATED
    topic_length = _LENGTH_FORMS[layout.TOPIC_LENGTH_SIZES[magic]]
    (sys_flag,) = _INT.unpack_from(data, start + layout.SYS_FLAG_POSITION)
    head = HEADS[sys_flag & _HOSTS_V6]
    end = start + size
    if size < head.size + topic_length.size + 2:
        return StopReason.BAD_FIELDS
    fields = head.unpack_from(data, start)
    body = start + head.size
    body_end = body + fields[-1]
    if body_end < body or body_end + topic_length.size + 2 > end:
        return StopReason.BAD_FIELDS
    topic = body_end + topic_length.size
    topic_end = topic + topic_length.unpack_from(data, body_end)[0]
    if topic_end < topic or topic_end + 2 > end:
        return StopReason.BAD_FIELDS
    properties = topic_end + 2
    if properties + _SHORT.unpack_from(data, topic_end)[0] != end:
        return StopReason.BAD_FIELDS
    return fields, body, topic, properties


def record_ahead(view: memoryview, start: int) -> int | StopReason:
    """Return the TOTALSIZE of the record at ``start``, or the reason why there is no record."""
    if len(view) - start < layout.BLANK_SIZE:
        return StopReason.TRUNCATED
    size, magic = _SIZE_MAGIC.unpack_from(view, start)
    if magic == layout.BLANK_MAGIC:
        return StopReason.BLANK
    if size == 0 and magic == 0:
        return StopReason.ZERO
    return int(size)


def entry_ahead(view: memoryview, start: int) -> int | StopReason:
    """Return the size of the complete entry at ``start``, or the reason why there is none."""
    rest = len(view) - start
    if rest < layout.ENTRY_FILLER_SIZE:
        return StopReason.TRUNCATED
    magic, size = _MAGIC_SIZE.unpack_from(view, start)
    if magic == layout.ENTRY_FILLER_MAGIC:
        return StopReason.BLANK
    if size == 0 and magic == 0:
        return StopReason.ZERO
    if magic != layout.ENTRY_MAGIC:
        return StopReason.BAD_MAGIC
    if size < layout.ENTRY_HEADER_SIZE + layout.RECORD_SIZE_MIN:
        return StopReason.BAD_SIZE
    return StopReason.TRUNCATED if size > rest else int(size)


class _ScanWalk:
    """A scan in progress; ``position`` is after the last valid frame."""

    __slots__ = ("base_offset", "check_crc", "data", "position", "rows")

    def __init__(self, view: memoryview, base_offset: int, check_crc: bool) -> None:
        self.data = view
        self.base_offset = base_offset
        self.check_crc = check_crc
        self.position = 0
        self.rows: list[tuple[int, ...]] = []

    def run(self, dledger: bool, max_records: int) -> StopReason:
        step = self._entry if dledger else self._classic
        while self.position < len(self.data):
            if len(self.rows) == max_records:
                return StopReason.LIMIT
            stop = step()
            if stop is not None:
                return stop
        return StopReason.END

    def _classic(self) -> StopReason | None:
        start = self.position
        size = record_ahead(self.data, start)
        if isinstance(size, StopReason):
            return size
        stop = self._record(start, len(self.data) - start, *_NOT_AN_ENTRY)
        if stop is None:
            self.position = start + size
        return stop

    def _entry(self) -> StopReason | None:
        start = self.position
        size = entry_ahead(self.data, start)
        if isinstance(size, StopReason):
            return size
        _, _, index, term, pos, _, _, _, length = ENTRY_HEADER.unpack_from(self.data, start)
        body = start + layout.ENTRY_HEADER_SIZE
        if length != size - layout.ENTRY_HEADER_SIZE or pos != self.base_offset + start:
            return StopReason.BAD_FIELDS
        if self.rows:
            *_, last_index, last_term = self.rows[-1]
            if index != last_index + 1 or term < last_term:
                return StopReason.BAD_FIELDS
        elif index < 0 or term < 0:
            return StopReason.BAD_FIELDS
        record_size, record_magic = _SIZE_MAGIC.unpack_from(self.data, body)
        is_record = record_magic in layout.TOPIC_LENGTH_SIZES
        if is_record and record_size != length:
            return StopReason.BAD_FIELDS
        stop = self._record(body, length, index, term)
        if stop is None:
            self.position = start + size
        return stop

    def _record(self, start: int, rest: int, index: int, term: int) -> StopReason | None:
        """Check the record at ``start``, which may have up to ``rest`` bytes, and add it to the
        result.
        """
        data = self.data
        places = measure_record(data, start, rest)
        if isinstance(places, StopReason):
            return places
        fields, body, topic, properties = places
        end = start + fields[0]
        body_end = body + fields[-1]
        if self.check_crc and body_end > body and crc32(data[body:body_end]) != fields[2]:
            return StopReason.BAD_CRC
        name = bytes(data[topic : properties - 2])
        offset = self.base_offset + start
        frame_offset = offset if index < 0 else offset - layout.ENTRY_HEADER_SIZE
        head_columns = (frame_offset, offset, fields[0], fields[3], fields[5], fields[6])
        self.rows.append(
            (
                *head_columns,
                *(fields[7], fields[4], fields[8], fields[11], fields[14], fields[15]),
                *self._from_properties(name, (topic, properties, end)),
                index,
                term,
            )
        )
        return None

    def _from_properties(self, name: bytes, places: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the columns ``tags_code`` to ``keys_length``."""
        topic, properties, end = places
        raw = bytes(self.data[properties:end])
        start, stop = locate_property(raw, b"TAGS")
        tags_code = java_hash_of_bytes(raw[start:stop]) if stop else 0
        start, stop = locate_property(raw, b"DELAY")
        delay_level = _parse_int(raw[start:stop]) if stop else 0
        start, stop = locate_property(raw, b"UNIQ_KEY")
        key_hash = key_hash_of_bytes(name, raw[start:stop]) if stop else -1
        start, stop = locate_property(raw, b"KEYS")
        keys = (properties + start, stop - start) if stop else (0, 0)
        lengths = (topic, len(name), properties, len(raw))
        return (tags_code, delay_level, *lengths, key_hash, *keys)


def is_end_filler(view: memoryview, position: int, remaining: int, *, dledger: bool) -> bool:
    """Return whether a filler at ``position`` closes a file that has ``remaining`` bytes left.

    A classic file ends with the size and ``BLANK_MAGIC``, a DLedger file with
    ``ENTRY_FILLER_MAGIC`` and the size. Damaged bytes may contain the magic alone, so the size must
    match as well.
    """
    first = int.from_bytes(view[position : position + 4])
    second = int.from_bytes(view[position + 4 : position + 8])
    if dledger:
        return (first, second) == (layout.ENTRY_FILLER_MAGIC & 0xFFFFFFFF, remaining)
    return (first, second) == (remaining, layout.BLANK_MAGIC)


def key_hash_of_bytes(topic: bytes, key: bytes) -> int:
    """Return the index key hash of ``topic#key``, given their stored bytes."""
    value = abs(java_hash_of_bytes(topic + b"#" + key))
    return value if value <= 0x7FFFFFFF else 0


def _parse_int(raw: bytes) -> int:
    """Return the result of Java's Integer.parseInt for ASCII digits, or 0 if it would throw."""
    match = _NUMBER.fullmatch(raw)
    value = int(match[1] + match[2]) if match else 0
    return value if -0x80000000 <= value <= 0x7FFFFFFF else 0


def magic_places(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """Yield the positions of record magics from ``start`` to before ``stop``, ascending."""
    while start < stop:
        chunk = bytes(view[start : min(start + _STEP, stop) + _SPLIT_MAX])
        places = []
        for magic in layout.MAGIC_BYTES:
            place = -1
            while (place := chunk.find(magic, place + 1)) >= 0:
                if start + place < min(start + _STEP, stop):
                    places.append(start + place)
        yield from sorted(places)
        start += _STEP


def content_end(view: memoryview, position: int = 0) -> int:
    """Return the position after the last nonzero byte, but at least ``position``."""
    stop = len(view)
    while stop > position:
        start = max(position, stop - _STEP)
        chunk = bytes(view[start:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        stop = start
    return position
