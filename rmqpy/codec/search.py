"""The search for frames without walking to them, which is possible because a frame contains its own
offset.

A complete frame begins at an offset of a log if magic and lengths are valid, the CRC of the body
matches, and PHYSICALOFFSET (for an entry also pos) equals that offset. It was then almost certainly
written there; only a walk can detect a forged frame inside the body of a message.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.codec import layout
from rmqpy.codec.backend import magic_places, scan_records

__all__ = ["find_frames", "is_frame"]


def is_frame(view: memoryview, base_offset: int, position: int, *, dledger: bool) -> bool:
    """Return whether a complete frame begins at ``position`` of a file whose first byte is
    ``base_offset``.
    """
    if position < 0 or position >= len(view):
        return False
    offset = base_offset + position
    found = scan_records(view[position:], offset, dledger=dledger, check_crc=True, max_records=1)
    return len(found) == 1 and found.physical_offset[0] == found.offset[0]


def find_frames(
    view: memoryview, base_offset: int, start: int, stop: int, *, dledger: bool
) -> Iterator[int]:
    """Yield the positions of complete frames from ``start`` to before ``stop``, ascending."""
    head = layout.MAGIC_POSITION + (layout.ENTRY_HEADER_SIZE if dledger else 0)
    for place in magic_places(view, start + head, min(stop + head, len(view))):
        position = place - head
        if position < stop and is_frame(view, base_offset, position, dledger=dledger):
            yield position
