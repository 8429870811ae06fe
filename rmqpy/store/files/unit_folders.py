"""The ends of many consume queues at once, read by the C core (``native/folders.c``).

Without it each queue is read by :meth:`rmqpy.store.queues.consume_queue.ConsumeQueue.load`, with
the same result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final

from rmqpy.codec import backend
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.files import UnitFolders
from rmqpy.model.names import SCHEDULE_TOPIC

TOPICS_AT_ONCE: Final = 64
THREADS: Final = 8
"""The number of threads that read: a disk delivers more if it has several reads to do."""
_PIECE_BYTES: Final = 3276 * QUEUE_UNIT_SIZE
_ROWS_FIRST: Final = 256
_ROW: Final = Struct("=6q")
_OFFSET_MAX: Final = (1 << 63) - 1


def unit_folders(
    paths: Sequence[str], file_size: int, files_read: int, low: int | None
) -> Iterator[UnitFolders]:
    """See :meth:`rmqpy.model.files.FileSystem.unit_folders`."""
    if backend.implementation != "c":
        yield from (UnitFolders() for _ in paths)
        return
    parts = [paths[n : n + TOPICS_AT_ONCE] for n in range(0, len(paths), TOPICS_AT_ONCE)]

    def read(part: Sequence[str]) -> list[UnitFolders]:
        reader = _Reader(file_size, files_read, low)
        return [reader.read(path) for path in part]

    if len(parts) <= 1:
        for part in parts:
            yield from read(part)
        return
    from concurrent.futures import ThreadPoolExecutor  # most stores need none

    with ThreadPoolExecutor(THREADS, thread_name_prefix="rmqpy-queues") as pool:
        for found in pool.map(read, parts):
            yield from found


class _Reader:
    """The memory of ``rmq_folders``, for one topic after the other."""

    def __init__(self, file_size: int, files_read: int, low: int | None) -> None:
        from rmqpy.codec.native.binding import ffi, lib

        self._ffi, self._lib = ffi, lib
        self._state = state = ffi.new("rmq_folders *")
        state.file_size, state.files_read = file_size, files_read
        state.low = _OFFSET_MAX if low is None else low
        self._sums = low is not None
        self._buffer = state.buffer = ffi.new("uint8_t[]", min(file_size, _PIECE_BYTES))
        state.buffer_length = len(self._buffer)
        self._rows: Any = None
        self._reserve(_ROWS_FIRST)

    def _reserve(self, capacity: int) -> None:
        self._rows = self._state.rows = self._ffi.new("rmq_unit_folder[]", capacity)
        self._state.capacity = capacity

    def read(self, path: str) -> UnitFolders:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return UnitFolders()
        state = self._state
        state.descriptor = descriptor
        topic = path.rpartition("/")[2]
        name = os.fsencode(topic)
        state.topic = encoded = self._ffi.from_buffer("uint8_t[]", name)
        state.topic_length, state.any_tags = len(encoded), topic == SCHEDULE_TOPIC
        try:
            is_complete = bool(self._lib.rmq_read_folders(state))
            while state.count == state.capacity and not is_complete:
                self._reserve(2 * state.capacity)
                is_complete = bool(self._lib.rmq_read_folders(state))
        finally:
            os.close(descriptor)
        memory = self._ffi.buffer(self._rows, state.count * _ROW.size)
        units = (state.units, state.sum) if self._sums and not state.irregular else None
        return UnitFolders(list(_ROW.iter_unpack(memory)), is_complete, units)
