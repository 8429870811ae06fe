"""Dispatch from the log to consume queues and key index in C: an ``Accelerator`` of the dispatcher.

C writes units and entries in place, as far as disk space is reserved for them, or through a
descriptor if the queue is not mapped; it reports arrivals in watched queues only. It stops before
the first record that it cannot handle; the store dispatches that record in Python.
"""

from __future__ import annotations

from typing import Any, Final

from rmqpy.broker.fastpath.tables import Cdata, FastPathTables
from rmqpy.codec.native.binding import ffi, lib, memory_of
from rmqpy.store.commitlog.interface import ScanRange
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.index.index_file import IndexFile
from rmqpy.store.results import Arrival

ARRIVALS_MAX: Final = 1024
WRITTEN_MAX: Final = 1024


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
        self._file: IndexFile | None = None
        self._file_data: Cdata = None

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> tuple[int, int] | None:
        state = self._state
        if self._index is not None and not self._open_index():
            return None
        view = ffi.from_buffer("uint8_t[]", piece.view)
        state.view = view
        state.length = len(piece.view)
        state.base_offset = piece.offset
        state.dledger = piece.dledger
        lib.rmq_dispatch(self._core, state)
        if not state.position:
            return None
        if self._file is not None:
            self._file.changed_by_c()
        if state.written_count:
            self._tables.wrote(ffi.unpack(state.written, state.written_count))
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
        self._file = self._file_data = None

    def _open_index(self) -> bool:
        file = self._index.newest
        if file is None:
            return False
        if file is not self._file:
            self._file = file
            self._file_data = self._state.index = memory_of(file.writable)
            self._state.index_slots = file.slot_count
        self._state.index_entries = file.reserved_entries
        return True
