"""The file of a recording.

::

    file     magic "RMQPYTRF" | version u32 | record*
    record   size u32 | crc32 u32 of the payload | payload
    payload  kind u8 | connection u32 | time u64 in us | data

======  ========  ======================================================================
kind    name      data
======  ========  ======================================================================
1       REQUEST   a frame of the client, with its length
2       ANSWER    a frame of the broker: an answer, or a request to the client
3       OPENED    nothing: a client has connected
4       CLOSED    nothing
======  ========  ======================================================================

All numbers are big-endian. Times count from the begin of the recording and never decrease. Records
are appended; a writer that was killed leaves at most one torn record at the end, which a reader
leaves out, and which the next writer that appends cuts off. A wrong sum before that is damage.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO, Final, Self

from attrs import define

from rmqpy.model.errors import StoreError
from rmqpy.remoting.frame import LENGTH_BYTES, MAX_FRAME

MAGIC: Final = b"RMQPYTRF"
VERSION: Final = 1
_FILE_HEAD: Final = Struct(">8sI")
_HEAD: Final = Struct(">II")
_PAYLOAD: Final = Struct(">BIQ")
PAYLOAD_MAX: Final = _PAYLOAD.size + LENGTH_BYTES + MAX_FRAME


class RecordKind(IntEnum):
    """The kinds of the module's table."""

    REQUEST = 1
    ANSWER = 2
    OPENED = 3
    CLOSED = 4


@define(slots=True, frozen=True)
class TrafficRecord:
    """One record; ``time_us`` counts from the begin of the recording."""

    kind: RecordKind
    connection: int
    time_us: int
    data: bytes = b""


class RecordingWriter:
    """Appends records to a new file, or to an existing one with ``append``."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self.begin_us = 0
        """The time of the last record of the file that is continued."""
        self.connections = 0
        """The number of connections that it has."""
        if append and path.exists():
            end = self._continue(path)
            self._file: BinaryIO = path.open("r+b")
            self._file.truncate(end)
            self._file.seek(end)
        else:
            self._file = path.open("xb")
            self._file.write(_FILE_HEAD.pack(MAGIC, VERSION))
            self._file.flush()
        self.bytes_written = self._file.tell()

    def _continue(self, path: Path) -> int:
        reader = RecordingReader(path)
        for record in reader:
            self.begin_us = record.time_us
            self.connections = max(self.connections, record.connection)
        return reader.end

    def append(self, record: TrafficRecord) -> None:
        """Append one record; it is in the file after :meth:`flush`. Raises OSError."""
        payload = _PAYLOAD.pack(record.kind, record.connection, record.time_us) + record.data
        self._file.write(_HEAD.pack(len(payload), zlib.crc32(payload)) + payload)
        self.bytes_written += _HEAD.size + len(payload)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Sync and close the file. Idempotent."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RecordingReader:
    """Reads the records one after the other, and keeps one in memory.

    ``end`` is the position after the last whole record that was read, and ``torn_bytes`` what
    follows it. Raises StoreError for a file that is no recording, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.end = _FILE_HEAD.size
        self.torn_bytes = 0
        with path.open("rb") as file:
            head = file.read(_FILE_HEAD.size)
        found, version = _FILE_HEAD.unpack(head) if len(head) == _FILE_HEAD.size else (head, 0)
        if found != MAGIC:
            raise self._error(f"the first bytes {head[:8]!r}", f"{MAGIC!r}", "give a recording")
        if version != VERSION:
            raise self._error(
                f"version {version}", f"version {VERSION}", "read it with the rmqpy that wrote it"
            )

    def __iter__(self) -> Iterator[TrafficRecord]:
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(self.end)
            while (record := self._read(file, size)) is not None:
                yield record

    def _read(self, file: BinaryIO, size: int) -> TrafficRecord | None:
        left = size - self.end
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            self.torn_bytes = left
            return None
        length, crc = _HEAD.unpack(head)
        if not _PAYLOAD.size <= length <= PAYLOAD_MAX:
            raise self._damage(f"a record of {length} bytes")
        payload = file.read(length)
        if len(payload) < length:
            self.torn_bytes = left
            return None
        is_last = _HEAD.size + length == left
        if zlib.crc32(payload) != crc:
            if is_last:  # The file system may have kept its size and lost its data.
                self.torn_bytes = left
                return None
            raise self._damage("a wrong checksum")
        kind, connection, time_us = _PAYLOAD.unpack_from(payload)
        if kind not in RecordKind.__members__.values():
            raise self._damage(f"kind {kind}")
        self.end += _HEAD.size + length
        return TrafficRecord(RecordKind(kind), connection, time_us, payload[_PAYLOAD.size :])

    def _damage(self, found: str) -> StoreError:
        return self._error(
            f"{found} at offset {self.end}", "a whole record", "copy the file again, or record anew"
        )

    def _error(self, found: str, expected: str, remedy: str) -> StoreError:
        return StoreError(str(self._path), found, expected, remedy)
