"""Search in large ranges of bytes: for magic codes, and for the start of trailing zeros.

Both functions exist in C too: take them from :mod:`rmqpy.codec.backend`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqpy.codec import layout

__all__ = ["content_end", "magic_places"]

_STEP: Final = 1 << 20
_ZEROS: Final = bytes(_STEP)
_SPLIT_MAX: Final = 3
"""The bytes of a magic code that may extend beyond the step in which it begins."""


def magic_places(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """Yield the positions of records' magic codes from ``start`` to before ``stop``, ascending."""
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
    """Return the position after the last byte that is not zero, at least ``position``."""
    stop = len(view)
    while stop > position:
        start = max(position, stop - _STEP)
        chunk = bytes(view[start:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        stop = start
    return position
