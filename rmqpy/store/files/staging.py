"""Staging: the end of a log as one piece of memory, written by Python and by the C core alike.

``buffer`` holds the bytes that have their place in the log and are not in its file yet; ``state``
holds the numbers of the end. Both sides read and write these and keep nothing of their own, so
that records of either can follow each other in any order. C gets the addresses before it appends;
``generation`` changes with them.

=========  ===============================================================
``state``  meaning
=========  ===============================================================
END        offset behind the last byte of the log, staged ones counted
STAGED     bytes in ``buffer``; they begin at END - STAGED in the log
FILE_END   offset behind the file that takes the next byte; 0 without one
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
"""The largest record of the default settings, and then some. Only what is used is memory."""
UNITS_CAPACITY = 8192
"""Index units that may be staged."""


class Staging:
    """See the module's text. With ``units`` there is room for index units of entries as well."""

    __slots__ = ("buffer", "generation", "kept", "state", "units")

    def __init__(self, end: int, *, units: bool = False) -> None:
        self.state = array("q", (end, 0, 0, 0, 0, -1))
        self.buffer = _memory(CAPACITY)
        self.units = _memory(UNITS_CAPACITY * INDEX_UNIT_SIZE if units else 1)
        self.generation = 0
        self.kept = 0
        """So many bytes at the front of ``buffer`` were written last and still stand there. Who
        lets C stage more sets it to 0: a message that is given up leaves its bytes here too.
        """

    @property
    def staged_from(self) -> int:
        """Where the staged bytes begin in the log: everything before has been written."""
        return self.state[END] - self.state[STAGED]

    @property
    def staged(self) -> memoryview:
        """The staged bytes; valid until the next change."""
        return self.buffer[: self.state[STAGED]]

    def written(self) -> None:
        """The staged bytes are in the log's file now."""
        self.kept = self.state[STAGED]
        self.state[STAGED] = 0

    def recent(self, offset: int) -> memoryview | None:
        """All of the log from ``offset`` on, if it was written last and is still here; valid until
        more is staged. It spares who reads it the pages of the file.
        """
        state, kept = self.state, self.kept
        if not kept or state[STAGED] or offset + kept != state[END]:
            return None
        return self.buffer[:kept]

    @property
    def staged_units(self) -> bytes:
        return bytes(self.units[: self.state[UNITS] * INDEX_UNIT_SIZE])

    def has_room(self, length: int) -> bool:
        return self.state[STAGED] + length <= len(self.buffer)

    def grow(self, length: int) -> None:
        """Make room for ``length`` bytes where nothing is staged."""
        assert not self.state[STAGED]
        if length > len(self.buffer):
            self.buffer = _memory(length)
            self.generation += 1

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes that follow the end. There is room."""
        state = self.state
        start = state[STAGED]
        length = len(data)
        self.buffer[start : start + length] = data
        state[STAGED] = start + length
        state[END] += length

    def put_units(self, units: bytes) -> None:
        """Index units behind the others. There is room."""
        start = self.state[UNITS] * INDEX_UNIT_SIZE
        self.units[start : start + len(units)] = units
        self.state[UNITS] += len(units) // INDEX_UNIT_SIZE

    def restart(self, end: int) -> None:
        """Nothing is staged; the log ends at ``end``."""
        self.state[END] = end
        self.state[STAGED] = 0
        self.kept = 0


def _memory(length: int) -> memoryview:
    """Zero bytes that cost nothing before they are touched, at an address that stays."""
    return memoryview(mmap.mmap(-1, length))
