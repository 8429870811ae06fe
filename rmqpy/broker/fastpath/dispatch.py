"""Dispatch from the log to consume queues and key index in C: an ``Accelerator`` of the dispatcher.

C writes units and entries in place, as far as disk space is reserved for them, or through a
descriptor if the queue is not mapped; it reports arrivals in watched queues only. It stops before
the first record that it cannot handle; the store dispatches that record in Python.

Where much of the log waits, after the start of a broker that has to rebuild its queues, C gathers
units and entries in memory, and they are written here: a write of many pages costs a tenth of as
many page faults.
"""

from __future__ import annotations

from typing import Any, Final

from rmqpy.broker.fastpath.tables import Cdata, FastPathTables, c_array
from rmqpy.codec.layout import INDEX_ENTRY_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.native.binding import ffi, lib, memory_of
from rmqpy.store.commitlog.interface import ScanRange
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.index.index_file import IndexFile
from rmqpy.store.queues.consume_queue import END_STATE, MAX_PHYSICAL_STATE
from rmqpy.store.results import Arrival

ARRIVALS_MAX: Final = 1024
WRITTEN_MAX: Final = 1024
GATHERED_FROM_BYTES: Final = 1 << 20
"""The part of the log from which units and entries are gathered."""
GATHERED_LOG_BYTES: Final = 8 << 20
"""The part of the log that is dispatched at once then."""
GATHERED_QUEUES: Final = 64
GATHERED_UNITS_BYTES: Final = 12_800 * QUEUE_UNIT_SIZE
GATHERED_ENTRIES: Final = 1 << 16


class FastPathDispatcher:
    """The C step of dispatch, with its memory. The store dispatches the remaining records."""

    def __init__(self, core: Cdata, tables: FastPathTables, store: Any) -> None:
        self._core = core
        self._tables = tables
        self._index = store.index
        self._state = ffi.new("rmq_dispatch_state *")
        self._arrivals = self._state.arrivals = ffi.new("rmq_arrival[]", ARRIVALS_MAX)
        self._state.arrival_capacity = ARRIVALS_MAX
        self._written = self._state.written = ffi.new("int64_t[]", WRITTEN_MAX)
        self._state.written_capacity = WRITTEN_MAX
        self._gathered: _Gathered | None = None
        self._file: IndexFile | None = None
        self._file_data: Cdata = None

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> tuple[int, int] | None:
        state = self._state
        gathers = len(piece.view) >= GATHERED_FROM_BYTES
        if self._index is not None and not self._open_index():
            return None
        self._gather(gathers=gathers)
        view = ffi.from_buffer("uint8_t[]", piece.view)
        state.view = view
        state.length = min(len(piece.view), GATHERED_LOG_BYTES) if gathers else len(piece.view)
        state.base_offset = piece.offset
        state.dledger = piece.dledger
        lib.rmq_dispatch(self._core, state)
        del view  # The traceback of an error must not keep it: see memory_of.
        if not state.position:
            return None
        if self._file is not None:
            self._file.changed_by_c()
        if state.written_count:
            self._tables.wrote(ffi.unpack(state.written, state.written_count))
        if self._gathered is not None:
            self._write_gathered(self._gathered)
        if listener is not None:
            for i in range(state.arrival_count):
                arrival = state.arrivals[i]
                listener(
                    Arrival(
                        *self._tables.queue_name(arrival.queue),
                        arrival.queue_offset,
                        arrival.tags_code,
                        arrival.physical_offset,
                        arrival.store_timestamp,
                    )
                )
        return piece.offset + state.position, state.store_timestamp

    def close(self) -> None:
        self._file = self._file_data = self._gathered = None

    def _open_index(self) -> bool:
        file = self._index.newest
        if file is None:
            return False
        if file is not self._file:
            self._file = file
            self._file_data = self._state.index = memory_of(file.writable)
            self._state.index_slots = file.slot_count
        return True

    def _gather(self, *, gathers: bool) -> None:
        """Set whether C gathers units and entries. Raises OSError."""
        state, file = self._state, self._file
        if gathers and self._gathered is None:
            self._gathered = _Gathered()
            self._gathered.lend(state)
        elif not gathers and self._gathered is not None:
            self._gathered = None
            state.gathered_count, state.gathered_entries = 0, ffi.NULL
        if file is None:
            return
        if gathers:
            if not file.is_full:
                file.reserve(GATHERED_ENTRIES)
            space = file.header.index_count + GATHERED_ENTRIES
            state.index_entries = min(space, file.reserved_entries)
        else:
            state.index_entries = file.reserved_entries

    def _write_gathered(self, gathered: _Gathered) -> None:
        """Write what C has gathered. Raises OSError; a queue whose units were not written then ends
        where it did before, and the records are dispatched again. Raises StoreError if entries
        could not be written.
        """
        waiting, refused = gathered.parts(), None
        for done, (place, units) in enumerate(waiting):
            try:
                self._tables.queue(place.queue).write_added(place.end, units)
            except OSError as error:
                refused = error
                for former, _ in waiting[done:]:
                    left = self._tables.queue(former.queue)
                    left.state[END_STATE] = former.end
                    left.state[MAX_PHYSICAL_STATE] = former.max_physical
                break
        if self._file is not None:
            self._file.write_added(self._state.gathered_first_entry, gathered.entries)
        if refused is not None:
            if self._index is not None:
                self._index.resume()
            raise refused


class _Gathered:
    """The memory in which C gathers units and entries."""

    def __init__(self) -> None:
        self._places = ffi.new("rmq_gathered[]", GATHERED_QUEUES)
        self._memory = (
            c_array("uint8_t", GATHERED_QUEUES * GATHERED_UNITS_BYTES),
            c_array("uint8_t", GATHERED_ENTRIES * INDEX_ENTRY_SIZE),
        )
        self._units, self.entries = (memoryview(ffi.buffer(data)) for data in self._memory)

    def lend(self, state: Cdata) -> None:
        state.gathered, state.gathered_count = self._places, GATHERED_QUEUES
        state.gathered_units, state.gathered_entries = self._memory
        state.gathered_capacity = GATHERED_UNITS_BYTES

    def parts(self) -> list[tuple[Cdata, memoryview]]:
        """Return the places that have units, with these."""
        found = []
        for number, place in enumerate(self._places):
            if place.length:
                first = number * GATHERED_UNITS_BYTES
                found.append((place, self._units[first : first + place.length]))
        return found
