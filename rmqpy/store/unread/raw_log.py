"""Reads records and consume queue units of a store that is not open: its files as they are."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from attrs import field

from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.layout import QUEUE_UNIT_SIZE, TOPIC_LENGTH_SIZES
from rmqpy.codec.message import decode_message
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.model.values import define
from rmqpy.store.files.paths import StorePaths

_PAGE = 4096
_HEAD = Struct(">iI")
"""TOTALSIZE, MAGICCODE."""


def numbered_files(files: FileSystem, folder: str) -> list[tuple[int, str]]:
    """Return (first offset, path) of the files of a folder that are named by their offset."""
    names = [name for name in files.list_dir(folder) if name.isascii() and name.isdigit()]
    return sorted((int(name), f"{folder}/{name}") for name in names)


@define(slots=True)
class RawFiles:
    """The bytes of a sequence of files. Keeps the file that was read last open."""

    files: FileSystem
    parts: list[tuple[int, str]]
    _path: str = field(default="", init=False)
    _view: memoryview = field(factory=lambda: memoryview(b""), init=False)

    def at(self, offset: int) -> tuple[memoryview, int] | None:
        """Return (bytes of the file, position in it), or None if no file has the offset."""
        for first, path in reversed(self.parts):
            if first <= offset:
                view = self._mapped(path)
                return (view, offset - first) if offset - first < len(view) else None
        return None

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or fewer where the file ends."""
        found = self.at(offset)
        return bytes(found[0][found[1] : found[1] + size]) if found is not None else b""

    def _mapped(self, path: str) -> memoryview:
        if path != self._path:
            file = self.files.open_readonly(path)
            file.use_in_place()
            self._path, self._view = path, file.view
            file.close()
        return self._view


@define(slots=True)
class RawLog:
    """The records of a store, classic or DLedger, and the units of its consume queues."""

    files: FileSystem
    paths: StorePaths
    _log: RawFiles = field(init=False)

    def __attrs_post_init__(self) -> None:
        folders = self.paths.commit_log.split(",")
        for name in self.files.list_dir(self.paths.root):
            if name.startswith("dledger-"):
                folders.append(f"{self.paths.root}/{name}/data")
        parts = [part for folder in folders for part in numbered_files(self.files, folder)]
        self._log = RawFiles(self.files, sorted(parts))

    @property
    def begin(self) -> int:
        """The first offset of the log, 0 without files."""
        return self._log.parts[0][0] if self._log.parts else 0

    def record(self, offset: int) -> StoredMessage | None:
        """Return the message whose record is at a physical offset, or None."""
        found = self._log.at(offset) if offset >= 0 else None
        if found is None:
            return None
        try:
            message = decode_message(*found)
        except InvalidRecordError:
            return None
        return message if message.physical_offset == offset else None

    def has_record(self, offset: int, size: int) -> bool:
        """Return whether a record of this size is at a physical offset, by its first two fields."""
        found = self._log.at(offset) if offset >= 0 else None
        if found is None or found[1] + _HEAD.size > len(found[0]):
            return False
        length, magic = _HEAD.unpack_from(*found)
        return length == size and magic in TOPIC_LENGTH_SIZES

    def topics(self, prefix: str) -> list[str]:
        """Return the topics with consume queues whose names start with ``prefix``."""
        folder = self.paths.consume_queue
        return [name for name in self.files.list_dir(folder) if name.startswith(prefix)]

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last unit; 0 if there is none."""
        for first, path in reversed(self._queue(topic, queue_id)):
            file = self.files.open_readonly(path)
            try:
                end = file.data_end(0)
                while end > 0:
                    start = max(0, end - _PAGE)
                    data = bytes(file.view[start:end]).rstrip(b"\0")
                    if data:
                        return (first + start + len(data) + QUEUE_UNIT_SIZE - 1) // QUEUE_UNIT_SIZE
                    end = start
            finally:
                file.close()
        return 0

    def messages(self, topic: str, queue_id: int, first: int) -> Iterator[StoredMessage | None]:
        """Yield the messages of a queue from a queue offset on, None for one that is not there."""
        units = RawFiles(self.files, self._queue(topic, queue_id))
        for number in range(max(first, 0), self.queue_end(topic, queue_id)):
            unit = units.read(number * QUEUE_UNIT_SIZE, QUEUE_UNIT_SIZE)
            whole = len(unit) == QUEUE_UNIT_SIZE
            yield self.record(QUEUE_UNIT.unpack(unit)[0]) if whole else None

    def _queue(self, topic: str, queue_id: int) -> list[tuple[int, str]]:
        return numbered_files(self.files, f"{self.paths.consume_queue}/{topic}/{queue_id}")
