"""Columns of messages: the positions of the parts of scanned records, and functions that copy many
parts into one block of memory or reference them as views.

All functions exist in C too: take them from :mod:`rmqpy.codec.backend`. Positions count from the
start of the view, as in a :class:`rmqpy.codec.scan.Scan`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.hashes import crc32
from rmqpy.codec.properties import PROPERTY_TAGS, locate_property
from rmqpy.codec.scan import measure_record
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.values import define

__all__ = [
    "PART_COUNT",
    "PropertyParts",
    "RecordColumns",
    "gather",
    "part_views",
    "property_parts",
    "record_parts",
]

_BORN_HOST: Final = 48
_HOST_SIZE: Final = 8
_CRC_FIELD: Final = 2
_INLINE_MAX: Final = 12
_INLINE_VIEW: Final = struct.Struct("=i12s")
_VIEW: Final = struct.Struct("=i4sii")


@define(slots=True)
class RecordColumns:
    """The positions of the parts of records, one column per part. A host is address and port.

    ``crc_agrees`` is 0 if the check was not requested. The length of TAGS is 0 if a message has
    none.
    """

    body_position: array[int]
    body_length: array[int]
    body_crc: array[int]
    crc_agrees: array[int]
    born_host_position: array[int]
    born_host_length: array[int]
    store_host_position: array[int]
    store_host_length: array[int]
    tags_position: array[int]
    tags_length: array[int]


PART_COUNT: Final = 10


@define(slots=True)
class PropertyParts:
    """The properties of many messages. Those of message i are the items from ``starts[i]`` to
    before ``starts[i + 1]``, in the order of first appearance; of equal names the last value
    counts.
    """

    starts: array[int]
    name_position: array[int]
    name_length: array[int]
    value_position: array[int]
    value_length: array[int]


def record_parts(
    view: memoryview, frames: Sequence[int], *, check_crc: bool, shift: int = 0
) -> RecordColumns:
    """Return the columns of the valid records that begin ``shift`` bytes after ``frames``."""
    rows = [_row(view, start + shift, check_crc) for start in frames]
    columns = zip(*rows, strict=True) if rows else [()] * PART_COUNT
    return RecordColumns(*(array("q", column) for column in columns))


def _row(view: memoryview, start: int, check_crc: bool) -> tuple[int, ...]:
    measured = measure_record(view, start, len(view) - start)
    assert isinstance(measured, tuple), f"no record at position {start}: {measured!r}"
    fields, body, _, properties = measured
    size, crc, sys_flag, body_length = fields[0], fields[_CRC_FIELD], fields[7], fields[-1]
    born = _HOST_SIZE + layout.HOST_V6_EXTRA * bool(sys_flag & BORN_HOST_V6)
    store = _HOST_SIZE + layout.HOST_V6_EXTRA * bool(sys_flag & STORE_HOST_V6)
    raw = bytes(view[properties : start + size])
    tags, tags_end = locate_property(raw, PROPERTY_TAGS.encode())
    return (
        body,
        body_length,
        crc,
        int(check_crc and crc32(view[body : body + body_length]) == crc),
        start + _BORN_HOST,
        born,
        start + _BORN_HOST + born + 8,
        store,
        properties + tags if tags_end else 0,
        tags_end - tags,
    )


def gather(view: memoryview, positions: Sequence[int], lengths: Sequence[int]) -> bytes:
    """Return the concatenated parts of the view."""
    return b"".join(
        view[start : start + length] for start, length in zip(positions, lengths, strict=True)
    )


def part_views(view: memoryview, positions: Sequence[int], lengths: Sequence[int]) -> bytes:
    """Return the parts as Arrow views into ``view``, the only buffer.

    An Arrow view (16 bytes) is the length, followed by the part itself if it has up to 12 bytes,
    otherwise by its first four bytes, the number of the buffer (0), and the position.
    """
    return b"".join(
        _INLINE_VIEW.pack(length, bytes(view[start : start + length]))
        if length <= _INLINE_MAX
        else _VIEW.pack(length, bytes(view[start : start + 4]), 0, start)
        for start, length in zip(positions, lengths, strict=True)
    )


def property_parts(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> PropertyParts | None:
    """Return the properties of the property strings at these positions.

    None means that the caller must read each with ``decode_properties``. The Python version always
    returns None, the C version if a message has more than 23 properties or names that are not
    ASCII.
    """
    return None
