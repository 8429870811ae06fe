"""The ends of many consume queues at once, read by the C core (``native/folders.c``).

Without it each queue is read by :meth:`rmqpy.store.queues.consume_queue.ConsumeQueue.load`, with
the same result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final

from rmqpy.codec import backend
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.files import UnitFolders
from rmqpy.model.names import SCHEDULE_TOPIC

TOPICS_AT_ONCE: Final = 64
THREADS: Final = 8
"""The number of threads that read: a disk delivers more if it has several reads to do."""
_PIECE_BYTES: Final = 3276 * QUEUE_UNIT_SIZE
_ROWS_FIRST: Final = 16 * TOPICS_AT_ONCE
_TOPIC: Final = Struct("=qqQii")
_ROW: Final = Struct("=6q")
_OFFSET_MAX: Final = (1 << 63) - 1


def unit_folders(
    directory: str, topics: Sequence[str], file_size: int, files_read: int, low: int | None
) -> Iterator[UnitFolders]:
    """See :meth:`rmqpy.model.files.FileSystem.unit_folders`."""
    descriptor = open_folder(directory) if backend.implementation == "c" else -1
    if descriptor < 0:
        yield from (UnitFolders() for _ in topics)
        return
    parts = [topics[n : n + TOPICS_AT_ONCE] for n in range(0, len(topics), TOPICS_AT_ONCE)]

    def read(part: Sequence[str]) -> list[UnitFolders]:
        return _read(part, descriptor, file_size, files_read, low)

    try:
        if len(parts) <= 1:
            for part in parts:
                yield from read(part)
            return
        from concurrent.futures import ThreadPoolExecutor  # most stores need none

        with ThreadPoolExecutor(THREADS, thread_name_prefix="rmqpy-queues") as pool:
            for found in pool.map(read, parts):
                yield from found
    finally:
        os.close(descriptor)


def open_folder(path: str) -> int:
    """See :meth:`rmqpy.model.files.FileSystem.open_folder`."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(
    topics: Sequence[str], descriptor: int, file_size: int, files_read: int, low: int | None
) -> list[UnitFolders]:
    """Return what the C core finds in the folders of topics."""
    from rmqpy.codec.native.binding import ffi, lib

    state = ffi.new("rmq_folders *")
    state.descriptor, state.file_size, state.files_read = descriptor, file_size, files_read
    state.low = _OFFSET_MAX if low is None else low
    buffer = state.buffer = ffi.new("uint8_t[]", min(file_size, _PIECE_BYTES))
    state.buffer_length = len(buffer)
    encoded = (b"%c%b\0" % (topic == SCHEDULE_TOPIC, os.fsencode(topic)) for topic in topics)
    names = b"".join(encoded)
    state.names = ffi.from_buffer("char[]", names)
    found = state.topics = ffi.new("rmq_topic_folder[]", len(topics))
    state.topic_count = len(topics)
    state.capacity = _ROWS_FIRST
    rows = state.rows = ffi.new("rmq_unit_folder[]", _ROWS_FIRST)
    while not lib.rmq_read_folders(state):
        state.capacity *= 2
        rows = state.rows = ffi.new("rmq_unit_folder[]", state.capacity)
    each = _ROW.iter_unpack(ffi.buffer(rows, state.count * _ROW.size))
    return [
        UnitFolders(
            list(islice(each, count)),
            bool(is_complete),
            None if low is None or irregular else (units, total),
        )
        for count, units, total, is_complete, irregular in _TOPIC.iter_unpack(ffi.buffer(found))
    ]
