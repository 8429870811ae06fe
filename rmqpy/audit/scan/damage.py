"""Damage is a position where a frame should start and none does: find the wrong field, and the
position of the next frame.

The log continues after damage at the first of these positions:

1. the one to which the size of the damaged frame leads, or the sum of the lengths inside it (one of
   the two survives damage to any single field), if that position has a complete frame, the file's
   filler, or a damaged frame that still states its own position;
2. the first complete frame after the damage (:func:`rmqpy.codec.search.find_frames`) from which the
   log continues: to the filler or the end of the file, for more bytes than any frame is long, or to
   a position that was a frame. A forged frame in the body of a damaged message does not continue:
   the remainder of that message follows it;
3. otherwise, the first frame of the chain that reaches furthest.

The result depends only on the bytes, so it is the same for every split of a log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rmqpy.audit.scan.findings import FindingCode
from rmqpy.audit.scan.log_bytes import LogBytes
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import StopReason, is_end_filler
from rmqpy.codec.search import find_frames, is_frame
from rmqpy.model.values import define

__all__ = ["Diagnosis", "FileView", "diagnose", "next_frame", "was_a_frame"]

FRAME_BYTES_MAX: Final = 8 << 20
"""A size in bytes above that of any frame (Java's largest message setting in use is 4 MiB)."""

_INT: Final = struct.Struct(">i")
_UINT: Final = struct.Struct(">I")
_LONG: Final = struct.Struct(">q")


@define(slots=True, frozen=True)
class FileView:
    """The bytes of one log file and their framing.

    ``data`` may end before the file does, if the bytes after it must not be read.
    """

    data: LogBytes
    base_offset: int
    file_size: int
    dledger: bool

    @property
    def view(self) -> memoryview:
        return self.data.view

    @property
    def record_shift(self) -> int:
        """The number of bytes of a frame before its record."""
        return layout.ENTRY_HEADER_SIZE if self.dledger else 0

    def int_at(self, position: int) -> int:
        """Return the signed int32 at ``position``, or 0 after the end."""
        if position + 4 > len(self.view):
            return 0
        return int(_INT.unpack_from(self.view, position)[0])

    def uint_at(self, position: int) -> int:
        if position + 4 > len(self.view):
            return 0
        return int(_UINT.unpack_from(self.view, position)[0])

    def long_at(self, position: int) -> int:
        if position + 8 > len(self.view):
            return 0
        return int(_LONG.unpack_from(self.view, position)[0])

    def is_closed_at(self, position: int) -> bool:
        """Return whether a filler at ``position`` reaches exactly to the end of the file."""
        remaining = self.file_size - position
        return is_end_filler(self.view, position, remaining, dledger=self.dledger)


@define(slots=True, frozen=True)
class Diagnosis:
    """The field of a damaged frame that is wrong."""

    code: FindingCode
    field: str
    found: str
    expected: str


def next_frame(file: FileView, position: int) -> int | None:
    """Return the position at which the log continues after the damaged frame at ``position``.

    Return None if it does not continue in this file.
    """
    for end in _claimed_ends(file, position):
        if _continues_at(file, end):
            return end
    for end in _claimed_ends(file, position):
        # The next frame may be damaged too: its own position is enough if a length leads to it.
        if _states_its_position(file, end):
            return end
    best: tuple[int, int] | None = None
    chain_end = position
    stop = file.data.content_end(position)
    for start in find_frames(file.view, file.base_offset, position + 1, stop, dledger=file.dledger):
        if start < chain_end:
            continue
        end, proven = _run(file, start)
        if proven:
            return start
        # Frames of the same chain would only lead to the same end.
        chain_end = end
        if best is None or end > best[1]:
            best = start, end
    if best is not None:
        return best[0]
    return _closing_filler(file, position)


def _closing_filler(file: FileView, position: int) -> int | None:
    """Return the position of a filler after the damage that ends exactly with the file, or None."""
    magic = layout.BLANK_MAGIC if not file.dledger else 0xFFFFFFFF
    needle = magic.to_bytes(4)
    step = 1 << 20
    head = 0 if file.dledger else 4
    start = position + 1
    while start < len(file.view):
        chunk = bytes(file.view[start : start + step + 3])
        found = -1
        while (found := chunk.find(needle, found + 1)) >= 0:
            filler = start + found - head
            if filler > position and file.is_closed_at(filler):
                return filler
        start += step
    return None


def _continues_at(file: FileView, position: int) -> bool:
    return is_frame(
        file.view, file.base_offset, position, dledger=file.dledger
    ) or file.is_closed_at(position)


def _claimed_ends(file: FileView, position: int) -> Iterator[int]:
    """Yield the end of the frame at ``position`` according to each of the lengths in it."""
    record = position + file.record_shift
    shift = file.record_shift
    if file.dledger:
        yield position + max(file.int_at(position + 4), shift)
        yield record + max(file.int_at(position + layout.ENTRY_BODY_LENGTH_POSITION), 1)
    yield record + max(file.int_at(record), 1)
    inner = _inner_size(file, record)
    if inner is not None:
        yield record + inner


def _inner_size(file: FileView, record: int) -> int | None:
    """Return the size of a record as the sum of the lengths inside it, or None if impossible."""
    sys_flag = file.int_at(record + layout.SYS_FLAG_POSITION)
    head = layout.BODY_POSITIONS[sys_flag & layout.HOSTS_V6]
    body_bytes = file.int_at(record + head - 4)
    topic = record + head + body_bytes
    width = layout.TOPIC_LENGTH_SIZES.get(file.uint_at(record + layout.MAGIC_POSITION), 1)
    if body_bytes < 0 or topic + width > len(file.view):
        return None
    topic_bytes = int.from_bytes(file.view[topic : topic + width])
    properties = topic + width + topic_bytes
    if properties + 2 > len(file.view):
        return None
    properties_bytes = int.from_bytes(file.view[properties : properties + 2])
    return properties + 2 + properties_bytes - record


def _run(file: FileView, start: int) -> tuple[int, bool]:
    """Return (end of the chain of frames from ``start``, whether that end proves the chain)."""
    position = start
    while position - start <= FRAME_BYTES_MAX:
        scan = scan_records(
            file.view[position:],
            file.base_offset + position,
            dledger=file.dledger,
            check_crc=False,
            max_records=1024,
        )
        misplaced = scan.misplaced()
        if misplaced:
            return scan.frame_offset[misplaced[0]] - file.base_offset, True
        position = scan.end - file.base_offset
        if scan.stop is StopReason.LIMIT:
            continue
        if scan.stop is StopReason.END:
            return position, True
        if scan.stop is StopReason.BLANK:
            return position, file.is_closed_at(position)
        if scan.stop is StopReason.ZERO:
            return position, file.data.content_end(position) == position
        return position, was_a_frame(file, position)
    return position, True


def was_a_frame(file: FileView, position: int) -> bool:
    """Return whether there was once a frame at ``position``: one that has its magic code or states
    its position.
    """
    magic = file.uint_at(position + file.record_shift + layout.MAGIC_POSITION)
    return magic in layout.TOPIC_LENGTH_SIZES or _states_its_position(file, position)


def _states_its_position(file: FileView, position: int) -> bool:
    """Return whether pos or PHYSICALOFFSET of a frame at ``position`` equals its position."""
    record = position + file.record_shift
    if file.base_offset + position == 0:
        return False  # Zeros read as position 0.
    pos = file.long_at(position + layout.ENTRY_POS_POSITION) if file.dledger else -1
    physical_offset = file.long_at(record + layout.PHYSICAL_OFFSET_POSITION)
    return pos == file.base_offset + position or physical_offset == file.base_offset + record


def diagnose(file: FileView, position: int, stop: StopReason, length: int) -> Diagnosis:
    """Return the wrong field of the frame at ``position``.

    ``length`` is the number of bytes until the log continues, or 0 if it does not continue.
    """
    record = position + file.record_shift
    if stop is StopReason.ZERO:
        return Diagnosis(FindingCode.RECORD_ZEROED, "", "zeros", "a record")
    if file.dledger:
        found = _diagnose_entry(file, position, length)
        if found is not None:
            return found
    magic = file.uint_at(record + layout.MAGIC_POSITION)
    if magic not in layout.TOPIC_LENGTH_SIZES:
        text = f"{magic:#x}"
        return Diagnosis(FindingCode.RECORD_MAGIC, "MAGICCODE", text, layout.MAGICS_TEXT)
    size = file.int_at(record)
    inner = _inner_size(file, record)
    frame_length = length - file.record_shift
    if length and size != frame_length and inner == frame_length:
        return Diagnosis(FindingCode.RECORD_SIZE, "TOTALSIZE", str(size), str(inner))
    if stop in (StopReason.BAD_SIZE, StopReason.TRUNCATED) and inner != size:
        expected = f"{layout.RECORD_SIZE_MIN} to {file.file_size - record}"
        return Diagnosis(FindingCode.RECORD_SIZE, "TOTALSIZE", str(size), expected)
    found_text = (
        "lengths that lead past the end of the file" if inner is None else f"a sum of {inner}"
    )
    field = "BODYLENGTH, TOPICLENGTH, PROPERTIESLENGTH"
    return Diagnosis(FindingCode.RECORD_FIELDS, field, found_text, str(size))


def _diagnose_entry(file: FileView, position: int, length: int) -> Diagnosis | None:
    """Return the wrong field of an entry, or None if only the record in it is wrong."""
    magic = file.int_at(position)
    if magic != layout.ENTRY_MAGIC:
        expected = str(layout.ENTRY_MAGIC)
        return Diagnosis(FindingCode.ENTRY_MAGIC, "magic", str(magic), expected)
    size = file.int_at(position + 4)
    body = file.int_at(position + layout.ENTRY_BODY_LENGTH_POSITION)
    record_size = file.int_at(position + layout.ENTRY_HEADER_SIZE)
    if size == body + layout.ENTRY_HEADER_SIZE:
        magic = file.uint_at(position + layout.ENTRY_HEADER_SIZE + layout.MAGIC_POSITION)
        if record_size != body and magic in layout.TOPIC_LENGTH_SIZES:
            return Diagnosis(FindingCode.RECORD_SIZE, "TOTALSIZE", str(record_size), str(body))
        return None
    if size == length or size == record_size + layout.ENTRY_HEADER_SIZE:
        expected = str(size - layout.ENTRY_HEADER_SIZE)
        return Diagnosis(FindingCode.ENTRY_FIELDS, "bodyLength", str(body), expected)
    expected = str(body + layout.ENTRY_HEADER_SIZE)
    return Diagnosis(FindingCode.ENTRY_SIZE, "size", str(size), expected)
