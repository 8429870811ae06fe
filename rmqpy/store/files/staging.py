"""Staging: the end of a log in one buffer, to which both Python and the C core append.

``buffer`` contains the bytes that have an offset in the log and are not in its file yet; ``state``
contains the numbers that describe the end. Both sides read and write these and keep no copy, so
that their records can follow each other in any order. C receives the addresses before it appends;
``generation`` changes with them.

=========  ===============================================================
``state``  meaning
=========  ===============================================================
END        offset after the last byte of the log, including staged ones
STAGED     bytes in ``buffer``; they start at END - STAGED in the log
FILE_END   offset after the file that receives the next byte; 0 without one
INDEX      DLedger: index of the next entry
UNITS      DLedger: index units in ``units``
TERM       DLedger: term of the last entry; -1 without one
=========  ===============================================================
"""

from __future__ import annotations

import mmap
from array import array

from rmqpy.codec.layout import INDEX_UNIT_SIZE

END, STAGED, FILE_END, INDEX, UNITS, TERM = range(6)

CAPACITY = 4608 * 1024
"""The size of the buffer: more than the largest record with the default settings. Only the used
part takes memory.
"""
UNITS_CAPACITY = 8192
"""The number of index units that may be staged."""


class Staging:
    """The staged end of one log. With ``units``, index units of entries can be staged as well."""

    __slots__ = ("buffer", "generation", "kept", "state", "units")

    def __init__(self, end: int, *, units: bool = False) -> None:
        self.state = array("q", (end, 0, 0, 0, 0, -1))
        self.buffer = _memory(CAPACITY)
        self.units = _memory(UNITS_CAPACITY * INDEX_UNIT_SIZE if units else 1)
        self.generation = 0
        self.kept = 0
        """The number of bytes at the start of ``buffer`` that were written last and are still
        valid.
        """

    @property
    def staged_from(self) -> int:
        """The offset at which the staged bytes start; everything before it has been written."""
        return self.state[END] - self.state[STAGED]

    @property
    def staged(self) -> memoryview:
        """The staged bytes; valid until the next change."""
        return self.buffer[: self.state[STAGED]]

    def written(self) -> None:
        """Record that the staged bytes have been written to the file of the log."""
        self.kept = self.state[STAGED]
        self.state[STAGED] = 0

    def forget_recent(self) -> None:
        """Make :meth:`recent` return None until the next write. Call before C stages more: an
        abandoned message leaves its bytes in ``buffer`` too.
        """
        self.kept = 0

    def recent(self, offset: int) -> memoryview | None:
        """Return the log from ``offset`` to its end, if these bytes were written last and are still
        in memory, or None. They are valid until more is staged, and save the reader from touching
        the pages of the file.
        """
        state, kept = self.state, self.kept
        if not kept or state[STAGED] or offset + kept != state[END]:
            return None
        return self.buffer[:kept]

    @property
    def staged_units(self) -> bytes:
        """The staged index units."""
        return bytes(self.units[: self.state[UNITS] * INDEX_UNIT_SIZE])

    def has_room(self, length: int) -> bool:
        """Return whether ``length`` more bytes can be staged."""
        return self.state[STAGED] + length <= len(self.buffer)

    def grow(self, length: int) -> None:
        """Enlarge the buffer to at least ``length`` bytes. Nothing may be staged."""
        assert not self.state[STAGED]
        if length > len(self.buffer):
            self.buffer = _memory(length)
            self.generation += 1

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Stage bytes after the end. The caller has checked that they fit."""
        state = self.state
        start = state[STAGED]
        length = len(data)
        self.buffer[start : start + length] = data
        state[STAGED] = start + length
        state[END] += length

    def put_units(self, units: bytes) -> None:
        """Stage index units after the others. The caller has checked that they fit."""
        start = self.state[UNITS] * INDEX_UNIT_SIZE
        self.units[start : start + len(units)] = units
        self.state[UNITS] += len(units) // INDEX_UNIT_SIZE

    def restart(self, end: int) -> None:
        """Reset to a log that ends at ``end``, with nothing staged."""
        self.state[END] = end
        self.state[STAGED] = 0
        self.kept = 0


def _memory(length: int) -> memoryview:
    """Return zero bytes that take no memory before they are touched, at a fixed address."""
    return memoryview(mmap.mmap(-1, length))
