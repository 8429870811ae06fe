"""The kernel of every audit: checks each frame of a range of a log file and counts it in its queue.

``count_frames`` exists in C too: take it from :mod:`rmqpy.codec.tally.backend`. Both versions
produce equal tallies for any bytes.

The walk stops only where the start of the next frame is unknown (:class:`StopReason`, as in a scan,
except that an entry's pos, index and term do not stop it). Every other problem of a frame is an
event, a tuple of six numbers ``(kind, frame offset, queue, found, expected, previous)``:

==============  =============================  ================================================
kind            found                          expected
==============  =============================  ================================================
BODY_CRC        CRC-32 of the body             BODYCRC
PLACE           PHYSICALOFFSET                 the record's offset
PROPERTIES      0                              0
TOPIC           0                              0
CHECKSUM        0                              CRC-32 of the record
QUEUE_STEP      QUEUEOFFSET                    previous + 1; ``previous``: its frame's offset
UNIT            offset in the unit, -1 absent  the record's offset
ENTRY_PLACE     pos                            the entry's offset
ENTRY_INDEX     index                          previous + 1; ``previous``: its entry's offset
ENTRY_TERM      term                           the previous term (at least)
ENTRY_RESERVED  0                              0
ENTRY_UNIT      pos in the unit, -1 absent     the entry's offset
==============  =============================  ================================================

``queue`` is the number of the queue in the tally, -1 if there is none.

Digests of messages are sums, so they do not depend on how a log is divided into ranges.
``content`` covers the message itself (BODYCRC, QUEUEID, FLAG, QUEUEOFFSET, SYSFLAG, hosts, times,
RECONSUMETIMES, BODYLENGTH and the set of its properties, except those that contain the record's
location), ``place`` its location (PHYSICALOFFSET, PREPAREDTRANSACTIONOFFSET). ``mapped`` is the
same as ``place`` after both offsets are mapped to those of a classic log: the first record of a
DLedger file, at position 48, moves to the start of the file, and offsets that lead to it do too
(:mod:`rmqpy.codec.reframe`). No record of a classic log is at position 48, so the mapping
leaves classic logs as they are. All are 64-bit sums over a bucket of ``1 << BUCKET_SHIFT`` queue
offsets; messages without a queue offset are summed in bucket -1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Generic, TypeVar

from attrs import field

from rmqpy.codec import layout
from rmqpy.codec.entry import ENTRY_HEADER, encode_index_unit
from rmqpy.codec.hashes import crc32, java_hash_of_bytes
from rmqpy.codec.layout import BLOCK_DIGEST_BYTES, BLOCK_SHIFT, BLOCK_SIZE
from rmqpy.codec.properties import PROPERTY_SEPARATOR, locate_property, well_formed
from rmqpy.codec.scan import (
    StopReason,
    entry_ahead,
    key_hash_of_bytes,
    measure_record,
    record_ahead,
)
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.files import FileSlices
from rmqpy.model.flags import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    has_queue_unit,
)
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.model.values import define

__all__ = [
    "BLOCK_DIGEST_BYTES",
    "BLOCK_SHIFT",
    "BLOCK_SIZE",
    "BUCKET_SHIFT",
    "EVENT_LIMIT",
    "KERNEL_VERSION",
    "PLACE_PROPERTIES",
    "Event",
    "EventKind",
    "QueueTally",
    "Tally",
    "TallyPlan",
    "UnitRow",
    "add_sums",
    "classic_offset",
    "count_frames",
    "entry_digest",
    "mix64",
    "pooled_digest",
    "queue_digest",
    "tags_digest",
    "unit_digest",
]

KERNEL_VERSION: Final = 1
"""Rises when a tally or a sum changes its meaning; kept results of other versions are not used."""

BUCKET_SHIFT: Final = 10
EVENT_LIMIT: Final = 4096
"""The number of events at which the walk pauses. The caller takes the events and continues."""

EXT_ADDRESS_MAX: Final = -0x80000001
"""The upper bound of tags codes that are addresses in a consume queue extension."""

CHECKSUM_HEAD: Final = b"__CRC32#\x01"
CHECKSUM_SIZE: Final = 20
"""The size of the record checksum of 5.x at the end of the properties: name, ten digits (least
significant first), \\x02.
"""
COVER_HEAD: Final = b"__RMQPY_ENTRY\x01"
"""The name of the property that covers an entry header in a classic file (after leaving DLedger).
"""
PLACE_PROPERTIES: Final = frozenset(("__CRC32#", "__RMQPY_ENTRY"))
"""The properties that depend on a record's location, which ``content`` excludes."""

_MASK64: Final = (1 << 64) - 1
_QUEUE_FACTOR: Final = 0x9E3779B97F4A7C15
_PROPERTY_FACTOR: Final = 0xC2B2AE3D27D4EB4F
_LENGTH_FACTOR: Final = 0x165667B19E3779F9
_TOPIC: Final = re.compile(rb"[%|a-zA-Z0-9_-]+")


class EventKind(IntEnum):
    """The problem of a frame that can be walked over. The C code uses the same values."""

    BODY_CRC = 0
    PLACE = 1
    PROPERTIES = 2
    TOPIC = 3
    CHECKSUM = 4
    QUEUE_STEP = 5
    UNIT = 6
    ENTRY_PLACE = 7
    ENTRY_INDEX = 8
    ENTRY_TERM = 9
    ENTRY_RESERVED = 10
    ENTRY_UNIT = 11


Event = tuple[int, int, int, int, int, int]


V = TypeVar("V", bound=FileSlices)


@define(slots=True, frozen=True)
class UnitFiles(Generic[V]):
    """The unit files of a consume queue or a DLedger index.

    File ``n`` begins at byte ``first + n * file_size`` of the sequence; a view of None represents a
    missing file. ``any_tags`` means that the tags code is not the hash of TAGS (delay topic).
    """

    views: tuple[V | None, ...]
    first: int
    file_size: int
    any_tags: bool = False

    def read(self, position: int, size: int) -> bytes | None:
        """Return the unit at byte ``position`` of the sequence; None if no file contains it."""
        place = position - self.first
        if place < 0 or not self.file_size:
            return None
        number, inside = divmod(place, self.file_size)
        view = self.views[number] if number < len(self.views) else None
        if view is None or inside + size > len(view):
            return None
        return bytes(view[inside : inside + size])


UnitRow = UnitFiles[memoryview]
"""Mapped unit files."""


@define(slots=True, frozen=True, kw_only=True)
class TallyPlan:
    """The checks that a walk performs.

    ``digests`` enables digests of messages, ``blocks`` those of the 64 KiB blocks walked over.
    ``units_of`` returns the consume queue of (topic, queue id), or None if it has no files; if it
    is None itself, consume queues are not checked. ``keys`` is the range of physical offsets (end
    exclusive) whose messages the key index must contain. ``file_size`` is the length of a log file,
    which ``mapped`` needs. ``sums`` adds up the units that queues and DLedger index must have.
    ``pooled`` does not tell queues apart: the units that all consume queues together must have are
    one sum, and neither steps of queue offsets nor digests are computed
    (:mod:`rmqpy.codec.tally.pooled`).
    """

    dledger: bool
    check_crc: bool = True
    digests: bool = True
    blocks: bool = False
    units_of: Callable[[bytes, int], UnitRow | None] | None = None
    entry_units: UnitRow | None = None
    keys: tuple[int, int] | None = None
    file_size: int = 0
    sums: bool = False
    pooled: bool = False


@define(slots=True)
class QueueTally:
    """The counts of one queue in a range.

    ``next_queue_offset`` is the expected queue offset of the next message, -1 if unknown;
    ``right_units`` counts the messages whose consume queue unit is correct.
    """

    topic: bytes
    queue_id: int
    count: int = 0
    unqueued: int = 0
    first_queue_offset: int = -1
    first_frame: int = -1
    last_queue_offset: int = -1
    last_frame: int = -1
    next_queue_offset: int = -1
    right_units: int = 0
    unit_count: int = 0
    unit_sum: int = 0
    """The sum of the digests of the units that the consume queue must have; ``tags_sum`` covers
    their tags codes (:mod:`rmqpy.codec.tally.derived_sums`).
    """
    tags_sum: int = 0
    buckets: dict[int, list[int]] = field(factory=dict)
    """Bucket number → [messages, content, place, mapped]."""


@define(slots=True)
class Tally:
    """The counts of a walk so far. A paused walk continues with the same object."""

    plan: TallyPlan
    records: int = 0
    frame_bytes: int = 0
    body_bytes: int = 0
    version_2: int = 0
    min_store_ms: int = -1
    max_store_ms: int = -1
    largest_record: int = 0
    longest_properties: int = 0
    first_frame: int = -1
    last_frame: int = -1
    first_index: int = -1
    first_term: int = -1
    last_index: int = -1
    last_term: int = -1
    right_entry_units: int = 0
    key_count: int = 0
    key_sum: int = 0
    entry_sum: int = 0
    """The sum of the digests of the units that the DLedger index must have, like ``unit_sum``."""
    term_sum: int = 0
    pooled_count: int = 0
    """With a pooled plan: the number of messages that must have a unit in a consume queue;
    ``pooled_without`` counts the other messages, ``pooled_sum`` is the sum of the units.
    """
    pooled_without: int = 0
    pooled_sum: int = 0
    queues: list[QueueTally] = field(factory=list)
    events: list[Event] = field(factory=list)
    blocks: dict[int, list[int]] = field(factory=dict)
    """Block number in the file → [position of its first frame, frames that begin in it], if the
    plan asks for blocks.
    """
    queue_numbers: dict[tuple[bytes, int], int] = field(factory=dict)
    unit_rows: list[UnitRow | None] = field(factory=list)

    def queue_number(self, topic: bytes, queue_id: int) -> int:
        """Return the number of a queue. A new queue gets the next number."""
        number = self.queue_numbers.get((topic, queue_id))
        if number is None:
            number = self.queue_numbers[topic, queue_id] = len(self.queues)
            self.queues.append(QueueTally(topic, queue_id))
            units_of = self.plan.units_of
            self.unit_rows.append(units_of(topic, queue_id) if units_of else None)
        return number


def mix64(value: int) -> int:
    """Return ``value`` with its 64 bits mixed, so that each affects all others (splitmix64)."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def count_frames(
    view: memoryview, base_offset: int, position: int, stop: int, tally: Tally
) -> tuple[int, StopReason]:
    """Walk the frames from ``position`` to before ``stop`` of a file whose first byte is
    ``base_offset``.

    Return the position at which the walk ended and the reason: END at or after ``stop``, LIMIT if
    the caller must take the events.
    """
    walk = _TallyWalk(view, base_offset, tally)
    step = walk.entry if tally.plan.dledger else walk.classic
    stop = min(stop, len(view))
    while position < stop:
        if len(tally.events) >= EVENT_LIMIT:
            return position, StopReason.LIMIT
        size = step(position)
        if isinstance(size, StopReason):
            return position, size
        position += size
    return position, StopReason.END


@define(slots=True)
class _TallyWalk:
    view: memoryview
    base_offset: int
    tally: Tally

    def classic(self, start: int) -> int | StopReason:
        size = record_ahead(self.view, start)
        if isinstance(size, StopReason):
            return size
        places = measure_record(self.view, start, len(self.view) - start)
        if isinstance(places, StopReason):
            return places
        self._count(start, places[0][0])
        self._record(start, start, places)
        return int(places[0][0])

    def entry(self, start: int) -> int | StopReason:
        size = entry_ahead(self.view, start)
        if isinstance(size, StopReason):
            return size
        header = ENTRY_HEADER.unpack_from(self.view, start)
        if header[8] != size - layout.ENTRY_HEADER_SIZE:
            return StopReason.BAD_FIELDS
        body = start + layout.ENTRY_HEADER_SIZE
        places = measure_record(self.view, body, header[8])
        if isinstance(places, StopReason):
            return places
        if places[0][0] != header[8]:
            return StopReason.BAD_FIELDS
        previous = self.tally.last_frame
        self._count(start, size)
        self._header(start, header, previous)
        self._record(start, body, places)
        return size

    def _count(self, start: int, size: int) -> None:
        tally = self.tally
        frame = self.base_offset + start
        if tally.first_frame < 0:
            tally.first_frame = frame
        tally.last_frame = frame
        tally.records += 1
        tally.frame_bytes += size
        if tally.plan.blocks:
            tally.blocks.setdefault(start >> BLOCK_SHIFT, [start, 0])[1] += 1

    def _event(self, kind: EventKind, start: int, queue: int, *numbers: int) -> None:
        found, expected, previous = (*numbers, 0, 0, 0)[:3]
        frame = self.base_offset + start
        self.tally.events.append((kind, frame, queue, found, expected, previous))

    def _header(self, start: int, header: tuple[int, ...], previous: int) -> None:
        tally = self.tally
        _, size, index, term, pos, *reserved, _ = header
        place = self.base_offset + start
        if pos != place:
            self._event(EventKind.ENTRY_PLACE, start, -1, pos, place)
        if previous >= 0:
            if index != tally.last_index + 1:
                expected = tally.last_index + 1
                self._event(EventKind.ENTRY_INDEX, start, -1, index, expected, previous)
            if term < tally.last_term:
                self._event(EventKind.ENTRY_TERM, start, -1, term, tally.last_term)
        else:
            tally.first_index, tally.first_term = index, term
        tally.last_index, tally.last_term = index, term
        if any(reserved):
            self._event(EventKind.ENTRY_RESERVED, start, -1)
        if tally.plan.sums:
            tally.entry_sum = (tally.entry_sum + unit_digest(index, place, size)) & _MASK64
            term_digest = entry_digest(index, header[0], index, term)
            tally.term_sum = (tally.term_sum + term_digest) & _MASK64
        if tally.plan.entry_units is not None:
            self._entry_unit(start, encode_index_unit(place, size, index, term))

    def _entry_unit(self, start: int, unit: bytes) -> None:
        units = self.tally.plan.entry_units
        assert units is not None
        index = int.from_bytes(unit[16:24], signed=True)
        found = None
        if 0 <= index < 1 << 56:
            found = units.read(index * layout.INDEX_UNIT_SIZE, layout.INDEX_UNIT_SIZE)
        if found == unit:
            self.tally.right_entry_units += 1
            return
        pos = -1 if found is None else int.from_bytes(found[4:12], signed=True)
        self._event(EventKind.ENTRY_UNIT, start, -1, pos, self.base_offset + start)

    def _record(
        self, start: int, record: int, places: tuple[tuple[int, ...], int, int, int]
    ) -> None:
        """Check and count the record at ``record``, whose frame begins at ``start``."""
        tally, view = self.tally, self.view
        fields, body, topic, properties = places
        size, magic, stored_crc, queue_id = fields[:4]
        end, body_end = record + size, body + fields[-1]
        name = bytes(view[topic : properties - 2])
        raw = bytes(view[properties:end])
        pooled = tally.plan.pooled
        number = -1 if pooled else tally.queue_number(name, queue_id)
        place = self.base_offset + record
        tally.body_bytes += fields[-1]
        tally.version_2 += magic == layout.MESSAGE_MAGIC_V2
        tally.largest_record = max(tally.largest_record, size)
        tally.longest_properties = max(tally.longest_properties, len(raw))
        stored_ms = fields[11]
        tally.max_store_ms = max(tally.max_store_ms, stored_ms)
        if tally.min_store_ms < 0 or stored_ms < tally.min_store_ms:
            tally.min_store_ms = stored_ms
        if tally.plan.check_crc and body_end > body:
            crc = crc32(view[body:body_end])
            if crc != stored_crc:
                self._event(EventKind.BODY_CRC, start, number, crc, stored_crc)
        if fields[6] != place:
            self._event(EventKind.PLACE, start, number, fields[6], place)
        if not well_formed(raw):
            self._event(EventKind.PROPERTIES, start, number)
        if not _TOPIC.fullmatch(name):
            self._event(EventKind.TOPIC, start, number)
        if len(raw) >= CHECKSUM_SIZE and raw.startswith(CHECKSUM_HEAD, len(raw) - CHECKSUM_SIZE):
            self._checksum(start, number, record, end)
        if tally.plan.keys is not None:
            self._keys(name, raw, place, fields[7])
        if pooled:
            self._pool((name, queue_id), (place, size), fields, raw)
            return
        self._queue(start, number, (place, size), fields, raw)
        if tally.plan.digests:
            self._digest(number, (record, body), place, fields, raw)

    def _checksum(self, start: int, number: int, record: int, end: int) -> None:
        crc = crc32(self.view[record : end - CHECKSUM_SIZE])
        expected = f"{crc:010d}"[::-1].encode() + PROPERTY_SEPARATOR
        if bytes(self.view[end - len(expected) : end]) != expected:
            self._event(EventKind.CHECKSUM, start, number, 0, crc)

    def _keys(self, name: bytes, raw: bytes, place: int, sys_flag: int) -> None:
        tally = self.tally
        assert tally.plan.keys is not None
        low, high = tally.plan.keys
        if not low <= place < high or sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        for key_hash in key_hashes(name, raw):
            tally.key_count += 1
            tally.key_sum = (tally.key_sum + key_digest(place, key_hash)) & _MASK64

    def _pool(
        self,
        queue: tuple[bytes, int],
        where: tuple[int, int],
        fields: Sequence[int],
        raw: bytes,
    ) -> None:
        """Add the unit that the record must have to the sum of all queues."""
        tally, (place, size) = self.tally, where
        if not has_queue_unit(fields[7]) or fields[7] & INNER_BATCH:
            tally.pooled_without += 1
            return
        first, last = locate_property(raw, b"TAGS")
        has_tags = last and queue[0] != SCHEDULE_TOPIC.encode()
        tags_code = java_hash_of_bytes(raw[first:last]) if has_tags else 0
        digest = pooled_digest(queue_digest(*queue), fields[5], place, size, tags_code)
        tally.pooled_count += 1
        tally.pooled_sum = (tally.pooled_sum + digest) & _MASK64

    def _queue(
        self,
        start: int,
        number: int,
        where: tuple[int, int],
        fields: Sequence[int],
        raw: bytes,
    ) -> None:
        tally = self.tally
        queue = tally.queues[number]
        queue_offset, sys_flag = fields[5], fields[7]
        if not has_queue_unit(sys_flag):
            queue.unqueued += 1
            return
        frame = self.base_offset + start
        expected = queue.next_queue_offset
        if expected >= 0 and queue_offset != expected:
            self._event(
                EventKind.QUEUE_STEP, start, number, queue_offset, expected, queue.last_frame
            )
        if not queue.count:
            queue.first_queue_offset, queue.first_frame = queue_offset, frame
        queue.count += 1
        queue.last_queue_offset, queue.last_frame = queue_offset, frame
        if sys_flag & INNER_BATCH:
            queue.next_queue_offset = -1
            return
        queue.next_queue_offset = queue_offset + 1
        place, size = where
        first, last = locate_property(raw, b"TAGS")
        tags_code = java_hash_of_bytes(raw[first:last]) if last else 0
        if tally.plan.sums:
            queue.unit_count += 1
            queue.unit_sum = (queue.unit_sum + unit_digest(queue_offset, place, size)) & _MASK64
            queue.tags_sum = (queue.tags_sum + tags_digest(queue_offset, tags_code)) & _MASK64
        units = tally.unit_rows[number]
        if units is None:
            return
        found = None
        if 0 <= queue_offset < 1 << 56:
            found = units.read(queue_offset * layout.QUEUE_UNIT_SIZE, layout.QUEUE_UNIT_SIZE)
        if found is None:
            self._event(EventKind.UNIT, start, number, -1, place)
            return
        unit_place, unit_size, unit_tags = QUEUE_UNIT.unpack(found)
        tags_right = units.any_tags or unit_tags == tags_code or unit_tags <= EXT_ADDRESS_MAX
        if unit_place == place and unit_size == size and tags_right:
            queue.right_units += 1
        else:
            absent = unit_place == 0 and unit_size == 0
            self._event(EventKind.UNIT, start, number, -1 if absent else unit_place, place)

    def _digest(
        self,
        number: int,
        starts: tuple[int, int],
        place: int,
        fields: Sequence[int],
        raw: bytes,
    ) -> None:
        record, body = starts
        view, queue = self.view, self.tally.queues[number]
        first = crc32(view[record + layout.BODY_CRC_POSITION : record + 28])
        second = crc32(view[record + layout.SYS_FLAG_POSITION : body - 12])
        third = sum(
            crc32(piece)
            for piece in raw.split(PROPERTY_SEPARATOR)
            if piece and not piece.startswith((CHECKSUM_HEAD, COVER_HEAD))
        )
        queue_offset = fields[5]
        content = mix64(
            (first << 32 | second) + third * _PROPERTY_FACTOR + fields[-1] * _LENGTH_FACTOR
        )
        prepared, file_size = fields[15], self.tally.plan.file_size
        where = _mix_place(queue_offset, place, prepared)
        header = layout.ENTRY_HEADER_SIZE
        if record == header:
            place -= header
        mapped = _mix_place(queue_offset, place, classic_offset(prepared, file_size))
        bucket = queue_offset >> BUCKET_SHIFT if has_queue_unit(fields[7]) else -1
        add_sums(queue.buckets.setdefault(bucket, [0, 0, 0, 0]), (1, content, where, mapped))


def _mix_place(queue_offset: int, offset: int, prepared: int) -> int:
    return mix64(queue_offset * _QUEUE_FACTOR + offset) + mix64(prepared + _PROPERTY_FACTOR)


def classic_offset(offset: int, file_size: int) -> int:
    """Return the offset in a classic log of the message at ``offset`` of a log of either kind."""
    is_first = offset > 0 and file_size > 0 and offset % file_size == layout.ENTRY_HEADER_SIZE
    return offset - layout.ENTRY_HEADER_SIZE if is_first else offset


def add_sums(total: list[int], sums: Sequence[int]) -> None:
    """Add the sums of a bucket to ``total``, which is changed."""
    total[0] += sums[0]
    for place in (1, 2, 3):
        total[place] = (total[place] + sums[place]) & _MASK64


def key_hashes(topic: bytes, raw_properties: bytes) -> list[int]:
    """Return the hashes of a message in the key index: of UNIQ_KEY, then of each key in KEYS."""
    hashes = []
    start, stop = locate_property(raw_properties, b"UNIQ_KEY")
    if stop:
        hashes.append(key_hash_of_bytes(topic, raw_properties[start:stop]))
    start, stop = locate_property(raw_properties, b"KEYS")
    words = raw_properties[start:stop].split(b" ") if stop else []
    return hashes + [key_hash_of_bytes(topic, word) for word in words if word]


def key_digest(place: int, key_hash: int) -> int:
    """Return the value that one entry of the key index adds to the sum of all entries."""
    return mix64(place * _QUEUE_FACTOR + key_hash)


def unit_digest(number: int, place: int, size: int) -> int:
    """Return the value that unit ``number`` of a consume queue or a DLedger index adds to the sum
    of all units: number, offset, and size of what it leads to.
    """
    return mix64(number * _QUEUE_FACTOR + place + size * _LENGTH_FACTOR)


def queue_digest(topic: bytes, queue_id: int) -> int:
    """Return the value that stands for a queue in the digests of its units."""
    value = (len(topic) << 32) ^ (queue_id & 0xFFFFFFFF)
    for start in range(0, len(topic) // 8 * 8 + 1, 8):
        word = int.from_bytes(topic[start : start + 8].ljust(8, b"\0"), sys.byteorder)
        value = ((value ^ word) * _QUEUE_FACTOR) & _MASK64
        value ^= value >> 32
    return value


def pooled_digest(queue: int, number: int, place: int, size: int, tags_code: int) -> int:
    """Return the value that unit ``number`` of a consume queue, whose :func:`queue_digest` is
    ``queue``, adds to the sum of the units of all queues.
    """
    return mix64(
        queue
        + number * _QUEUE_FACTOR
        + place
        + size * _LENGTH_FACTOR
        + tags_code * _PROPERTY_FACTOR
    )


def tags_digest(number: int, tags_code: int) -> int:
    """Return the value that a unit's tags code adds to a second sum."""
    return mix64(number * _QUEUE_FACTOR + tags_code + _PROPERTY_FACTOR)


def entry_digest(number: int, magic: int, index: int, term: int) -> int:
    """Return the value that the other fields of a DLedger index unit add to a second sum."""
    return mix64(number * _QUEUE_FACTOR + magic * _PROPERTY_FACTOR + index * _LENGTH_FACTOR + term)
