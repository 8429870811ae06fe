"""The sealed files of a store: those to which nobody writes any more.

A file of a log or a queue is sealed if a later file of the same row has content; files that were
allocated ahead have none. A key index file is sealed if a later one has entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.codec.layout import INDEX_HEADER_SIZE
from rmqpy.model.files import FileSystem

__all__ = ["sealed_files"]

HEAD_BYTES = INDEX_HEADER_SIZE
"""The first bytes of a file, of which one is not zero if the file has content."""


def sealed_files(files: FileSystem, directory: StoreDirectory) -> frozenset[str]:
    """Return the paths of the sealed files. The first bytes of the last files are read."""
    return frozenset(path for row in _rows(directory) for path in _sealed(files, row))


def _rows(directory: StoreDirectory) -> Iterator[Sequence[LogFile]]:
    ledger = directory.ledger
    classic = directory.classic.files
    if ledger is not None:
        yield (*classic, *ledger.data.files)
        yield ledger.index.files
    else:
        yield classic
    for queue in directory.queues:
        yield queue.segments.files
    yield sorted(directory.index_files, key=lambda file: file.path)


def _sealed(files: FileSystem, row: Sequence[LogFile]) -> Iterator[str]:
    last = len(row) - 1
    while last > 0 and not _has_content(files, row[last]):
        last -= 1
    yield from (file.path for file in row[:last])


def _has_content(files: FileSystem, log_file: LogFile) -> bool:
    file = files.open_readonly(log_file.path)
    try:
        return any(file.read(0, min(HEAD_BYTES, file.size)))
    finally:
        file.close()
