"""Finding frames without walking to them: a frame says itself where it belongs.

A place in a log holds a whole frame when magic and lengths fit, the body has its CRC and
PHYSICALOFFSET (of an entry: pos too) is that very place. Such a place is almost certainly a frame
that was written there; a forged one inside a message's body is told apart only by walking to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.chosen import scan_records

__all__ = ["content_end", "find_frames", "is_frame", "magic_places"]

_STEP: Final = 1 << 20
_ZEROS: Final = bytes(_STEP)
_SPLIT_MAX: Final = 3
"""Bytes of a magic code that may stand behind the step in which it begins."""


def is_frame(view: memoryview, base_offset: int, position: int, *, dledger: bool) -> bool:
    """Whether a whole frame stands at ``position`` of a file that begins at ``base_offset``."""
    if position < 0 or position >= len(view):
        return False
    offset = base_offset + position
    found = scan_records(view[position:], offset, dledger=dledger, check_crc=True, max_records=1)
    return len(found) == 1 and found.physical_offset[0] == found.offset[0]


def find_frames(
    view: memoryview, base_offset: int, start: int, stop: int, *, dledger: bool
) -> Iterator[int]:
    """Positions from ``start`` to before ``stop`` where a whole frame stands, ascending."""
    head = layout.MAGIC_POSITION + (layout.ENTRY_HEADER_SIZE if dledger else 0)
    for place in magic_places(view, start + head, min(stop + head, len(view))):
        position = place - head
        if position < stop and is_frame(view, base_offset, position, dledger=dledger):
            yield position


def magic_places(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """Where the magic code of a record begins, between ``start`` and before ``stop``."""
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
    """Position behind the last byte that is not zero, at least ``position``."""
    stop = len(view)
    while stop > position:
        start = max(position, stop - _STEP)
        chunk = bytes(view[start:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        stop = start
    return position
