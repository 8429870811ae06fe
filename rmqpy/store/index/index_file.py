"""KeyIndex: hash tables on disk that find messages by key (Java IndexFile, IndexService).

File: header 40 bytes, slots (4 bytes: newest entry number of the slot, 0 none), entries (20 bytes:
key hash, physical offset, seconds since the start of the file, previous entry number of the slot);
the numbers are defined in codec/layout.py. Files are named by the local time of creation.
``hashSlotCount`` in the header counts the slots in use, ``indexCount`` the entries plus 1.

A search returns all messages that share a hash; the client filters by exact key.

The tables are not written in an order that survives a crash: after an unclean stop every file that
is not known to be complete is deleted, and dispatch continues the index where the other files end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

from rmqpy.codec.backend import put_packed_keys
from rmqpy.codec.layout import (
    INDEX_COUNT_POSITION,
    INDEX_END_OFFSET_POSITION,
    INDEX_END_TIMESTAMP_POSITION,
    INDEX_SLOT_COUNT_POSITION,
)
from rmqpy.codec.packing import KEY
from rmqpy.codec.units import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexEntry,
    IndexHeader,
    index_entry_position,
    index_file_size,
    index_key_hash,
    index_slot_position,
    put_index_entries,
)
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem, StoreFile
from rmqpy.model.values import define

NAME_DIGITS = 17
RESERVED_ENTRIES = 16 * 1024
"""The number of entries for which disk space is reserved at a time, because a write in place that
finds no space ends the process.
"""
assert INDEX_END_TIMESTAMP_POSITION == 8 and INDEX_END_OFFSET_POSITION == 24
assert INDEX_SLOT_COUNT_POSITION == 32 and INDEX_COUNT_POSITION == 36


class IndexFile:
    """One hash table, written in place through a mapping: the entry first, then its slot, then the
    header.
    """

    def __init__(self, file: StoreFile, slot_count: int, entry_count: int) -> None:
        file.use_in_place()
        self._file = file
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._header: IndexHeader | None = None
        self._reserved_entries = 0

    @property
    def header(self) -> IndexHeader:
        if self._header is None:
            self._header = IndexHeader.decode(self._file.view)
        return self._header

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def view(self) -> memoryview:
        return self._file.view

    @property
    def writable(self) -> memoryview:
        return self._file.writable

    @property
    def slot_count(self) -> int:
        return self._slot_count

    @property
    def entry_count(self) -> int:
        return self._entry_count

    @property
    def reserved_entries(self) -> int:
        """The number below which entries may be written in place: their disk space is reserved."""
        return self._reserved_entries

    def reserve(self, count: int = 1) -> None:
        """Reserve disk space for the next ``count`` entries, if as many fit, and for some more.
        Raises OSError.
        """
        number = self.header.index_count
        if min(number + count, self._entry_count) <= self._reserved_entries:
            return
        start = index_entry_position(number, self._slot_count) if number > 1 else 0
        end = min(number + count - 1 + RESERVED_ENTRIES, self._entry_count)
        if not self._reserved_entries and number > 1:
            # In a file found on disk, slots that were never used are holes.
            self._file.reserve(0, index_entry_position(0, self._slot_count))
        self._file.reserve(start, index_entry_position(end, self._slot_count) - start)
        self._reserved_entries = end

    def write_added(self, first: int, entries: memoryview) -> None:
        """Write the entries from number ``first`` on, after the C core has added them to slots and
        header. Raises StoreError: without them, the slots lead nowhere.
        """
        length = (self.header.index_count - first) * INDEX_ENTRY.size
        if not length:
            return
        try:
            position = index_entry_position(first, self._slot_count)
            self._file.write(position, entries[:length])
        except OSError as error:
            raise StoreError(
                self.path,
                f"{error.strerror or error} in reserved disk space",
                "a disk that can be written",
                "check the disk, then restart: the file is rebuilt",
            ) from error

    def changed_by_c(self) -> None:
        """Read the header from the file again, because the C core has added entries."""
        self._header = None

    @property
    def is_full(self) -> bool:
        """True if no further entry fits."""
        return self.header.index_count >= self._entry_count

    @property
    def is_empty(self) -> bool:
        """True if the file has no entry."""
        return self.header.index_count <= 1

    def continue_from(self, previous: IndexHeader) -> None:
        """Set the header of a new file to the end of the previous one, until its first entry
        replaces it.
        """
        header = self.header
        header.begin_timestamp_ms = header.end_timestamp_ms = previous.end_timestamp_ms
        header.begin_offset = header.end_offset = previous.end_offset
        self._write_header()

    def put(self, entries: Sequence[IndexEntry]) -> None:
        """Add entries. The caller has checked that they fit."""
        put_index_entries(self._file.writable, self._slot_count, self.header, entries)

    def put_packed(self, keys: bytes | memoryview) -> None:
        """Add entries that are packed as :data:`rmqpy.codec.packing.KEY`."""
        put_packed_keys(self._file.writable, self._slot_count, keys)
        self.changed_by_c()

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash and a store time in range, newest
        first.
        """
        header, data = self.header, self._file.view
        (number,) = INDEX_SLOT.unpack_from(data, index_slot_position(key_hash, self._slot_count))
        while 0 < number < header.index_count:
            position = index_entry_position(number, self._slot_count)
            found_hash, offset, time_diff_s, previous = INDEX_ENTRY.unpack_from(data, position)
            if time_diff_s < 0:
                return
            stored_ms = header.begin_timestamp_ms + time_diff_s * 1000
            if found_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                yield offset
            # Chains lead to older entries only. Any other link is damage and could form a cycle.
            if not 0 < previous < number or stored_ms < begin_ms:
                return
            number = previous

    def tail_count(self, physical_offset: int) -> int:
        """Return the number of last entries that belong to the message at ``physical_offset``."""
        data, count = self._file.view, 0
        for number in range(self.header.index_count - 1, 0, -1):
            position = index_entry_position(number, self._slot_count)
            if INDEX_ENTRY.unpack_from(data, position)[1] != physical_offset:
                break
            count += 1
        return count

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the store times of the entries overlap the range."""
        return self.header.begin_timestamp_ms <= end_ms and self.header.end_timestamp_ms >= begin_ms

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        header = self.header
        INDEX_HEADER.pack_into(
            self._file.writable,
            0,
            header.begin_timestamp_ms,
            header.end_timestamp_ms,
            header.begin_offset,
            header.end_offset,
            header.slot_count,
            header.index_count,
        )


@define(slots=True, frozen=True)
class IndexSync:
    """A task that syncs full files that are not durable yet."""

    files: FileSystem
    directory: str
    parts: tuple[IndexFile, ...]

    @property
    def timestamp_ms(self) -> int:
        """The store time in ms up to which the index is durable after :meth:`run`."""
        return self.parts[-1].header.end_timestamp_ms

    def run(self) -> None:
        """Sync the files. Blocks; may run in a worker thread. The caller reports it with
        :meth:`KeyIndex.synced`.
        """
        for file in self.parts:
            file.sync()
        self.files.sync_dir(self.directory)


class KeyIndex:
    """The index files of a store, oldest first."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        slot_count: int,
        entry_count: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._now_ms = now_ms
        self._interrupted: list[str] = []
        """The empty files, whose creation was interrupted by a kill, and a truncated file with the
        files after it. Their content is derived from the log again.
        """
        self._index_files: list[IndexFile] = []
        self.changes = 0
        """The number of times that a file was added or removed."""
        self._full: list[IndexFile] = []
        self._resume_offset = -1
        self._resume_skip = 0
        self._complete: IndexFile | None = None

    def load(self) -> None:
        """Open the files; change nothing on disk. Raises StoreError for an entry that is not an
        index file, and if the lengths of the files show that they were written with other settings.
        """
        expected = index_file_size(self._slot_count, self._entry_count)
        sizes: dict[str, int] = {}
        for name in self._files.list_dir(self._directory):
            path = f"{self._directory}/{name}"
            is_name = len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
            if not is_name or self._files.is_dir(path):
                raise StoreError(
                    path, "a foreign entry", "index files named by 17 digits", "move it elsewhere"
                )
            sizes[path] = self._files.size_of(path)
        self._check_settings(sizes, expected)
        torn = False
        for path, size in sizes.items():
            torn = torn or size not in (0, expected)
            if torn or size == 0:
                self._interrupted.append(path)
                continue
            file = IndexFile(self._files.open(path), self._slot_count, self._entry_count)
            self._index_files.append(file)

    def _check_settings(self, sizes: Mapping[str, int], expected: int) -> None:
        """Raise StoreError if the files were written with other settings: several files of one
        other length, or a longer one. A single file that is too short was truncated.
        """
        lengths = {size for size in sizes.values() if size}
        if expected in lengths or len(lengths) != 1:
            return
        (length,) = lengths
        if length > expected or len(sizes) > 1:
            raise StoreError(
                next(iter(sizes)),
                f"{length} bytes",
                f"{expected} bytes as maxHashSlotNum={self._slot_count} and"
                f" maxIndexNum={self._entry_count} say",
                "set these keys as the store was written, or delete the index folder: it is"
                " rebuilt",
            )

    def finish_recovery(self, log_end_offset: int, safe_timestamp_ms: int | None) -> None:
        """Delete files that do not match the log, after the log has been accepted.

        After an unclean stop ``safe_timestamp_ms`` is the index time of the checkpoint: files with
        younger entries are deleted, because a torn table looks like a complete one. So are files
        without entries, whose zeros do not show their age, and every file after a deleted one.
        """
        for path in self._interrupted:
            self._files.unlink(path)
        self._interrupted.clear()
        kept = 0
        while kept < len(self._index_files) and self._is_whole(
            kept, log_end_offset, safe_timestamp_ms
        ):
            kept += 1
        for file in self._index_files[kept:]:
            self._drop(file)
        if kept < len(self._index_files):
            # The files must not reappear: the log will have other messages after its end.
            self._files.sync_dir(self._directory)
            del self._index_files[kept:]
            self.changes += 1
        if safe_timestamp_ms is not None:
            self._full = list(self._index_files)
        self.resume()

    def resume(self) -> None:
        """Skip the keys of the last message in the index when it is dispatched again."""
        self._resume_offset = self._index_files[-1].header.end_offset if self._index_files else -1
        self._resume_skip = 0
        for file in reversed(self._index_files):
            count = file.tail_count(self._resume_offset)
            self._resume_skip += count
            if count < file.header.index_count - 1:
                break

    def _is_whole(self, number: int, log_end_offset: int, safe_timestamp_ms: int | None) -> bool:
        file = self._index_files[number]
        header = file.header
        if not file.is_empty and header.end_offset >= log_end_offset:
            return False
        if safe_timestamp_ms is None:
            return True
        if file.is_empty or header.end_timestamp_ms > safe_timestamp_ms:
            return False
        # If several files end in the same millisecond, the time alone does not identify one.
        before = self._index_files[number - 1].header.end_timestamp_ms if number else -1
        return before < safe_timestamp_ms

    def begin_file(self) -> None:
        """Put the next entry into a new file, although the newest one is not full."""
        self._complete = self.newest

    @property
    def end_offset(self) -> int | None:
        """The physical offset of the last message in the index, or None if there is none. Dispatch
        may continue with that message: its keys are not added twice.
        """
        return self._index_files[-1].header.end_offset if self._index_files else None

    def put(self, key_hashes: list[int], physical_offset: int, store_timestamp_ms: int) -> None:
        """Index one message under each key. A message that the index already has is skipped."""
        if self._index_files and physical_offset < self._index_files[-1].header.end_offset:
            return
        if physical_offset < self._resume_offset:
            return  # complete, because the keys of a later message could not be added
        done = self._resume_skip if physical_offset == self._resume_offset else 0
        for number, key_hash in enumerate(key_hashes[done:], done):
            try:
                file = self._writable_file()
            except OSError:
                self._resume_offset, self._resume_skip = physical_offset, number
                raise
            file.put(((key_hash, physical_offset, store_timestamp_ms),))

    def put_packed(self, keys: bytes | memoryview) -> None:
        """Index the keys of messages, packed as :data:`rmqpy.codec.packing.KEY` in the order of the
        log. Raises OSError.
        """
        rest = memoryview(keys)
        while rest:
            count = self._put_new(rest) or self._put_first(rest)
            rest = rest[count * KEY.size :]

    def _put_new(self, keys: memoryview) -> int:
        """Add the keys of messages that the index does not have, as far as disk space is reserved,
        and return their number. The keys of a message stay together.
        """
        file = self._index_files[-1] if self._index_files else None
        if file is None or file.is_full or file is self._complete:
            return 0
        (_, first_offset, _) = KEY.unpack_from(keys)
        header = file.header
        if header.end_offset >= first_offset or first_offset <= self._resume_offset:
            return 0
        try:
            file.reserve()
        except OSError:
            self._resume_offset, self._resume_skip = first_offset, 0
            raise
        count = len(keys) // KEY.size
        free_count = file.reserved_entries - header.index_count
        if count > free_count:
            count = free_count
            while count and _offset_of(keys, count) == _offset_of(keys, count - 1):
                count -= 1
        if count:
            file.put_packed(keys[: count * KEY.size])
        return count

    def _put_first(self, keys: memoryview) -> int:
        """Add the keys of the first message, and return their number."""
        first_offset = _offset_of(keys, 0)
        entries = list(takewhile(lambda entry: entry[1] == first_offset, KEY.iter_unpack(keys)))
        self.put([key_hash for key_hash, _, _ in entries], first_offset, entries[0][2])
        return len(entries)

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return the physical offsets of at most ``count_max`` messages, newest file first."""
        found: dict[int, None] = {}
        if count_max <= 0:
            return []
        key_hash = index_key_hash(topic, key)
        for file in reversed(self._index_files):
            if file.covers(begin_ms, end_ms):
                for offset in file.find(key_hash, begin_ms, end_ms):
                    found[offset] = None
                    if len(found) >= count_max:
                        return list(found)
            if file.header.begin_timestamp_ms < begin_ms:
                break
        return list(found)

    @property
    def parts(self) -> Sequence[IndexFile]:
        """The files, oldest first."""
        return self._index_files

    @property
    def newest(self) -> IndexFile | None:
        """The newest file, if there is one."""
        return self._index_files[-1] if self._index_files else None

    @property
    def last_update(self) -> tuple[int, int]:
        """The store time (ms) and physical offset of the newest entry; zeros if there is none."""
        if not self._index_files:
            return 0, 0
        return self._index_files[-1].header.end_timestamp_ms, self._index_files[
            -1
        ].header.end_offset

    def take_sync(self) -> IndexSync | None:
        """Return a task that makes full files durable, or None if they are durable."""
        if not self._full:
            return None
        return IndexSync(self._files, self._directory, tuple(self._full))

    def synced(self, sync: IndexSync) -> None:
        """Record that a sync was run without an error."""
        self._full = [file for file in self._full if file not in sync.parts]

    def pop_expired(self, log_min_offset: int) -> Iterator[IndexFile]:
        """Remove and yield the files whose messages are all below the log, except the last file."""
        while (
            len(self._index_files) > 1 and self._index_files[0].header.end_offset < log_min_offset
        ):
            file = self._index_files.pop(0)
            self.changes += 1
            if file in self._full:
                self._full.remove(file)
            yield file

    def sync(self) -> None:
        """Make the newest file and the names of all files durable."""
        if self._index_files:
            self._index_files[-1].sync()
            self._files.sync_dir(self._directory)

    def close(self) -> None:
        for file in self._index_files:
            file.close()

    def _drop(self, file: IndexFile) -> None:
        if file in self._full:
            self._full.remove(file)
        file.close()
        self._files.unlink(file.path)

    def _writable_file(self) -> IndexFile:
        newest = self.newest
        if newest is not None and not newest.is_full and newest is not self._complete:
            newest.reserve()
            return newest
        size = index_file_size(self._slot_count, self._entry_count)
        opened = self._files.open(self._new_path(), size=size)
        file = IndexFile(opened, self._slot_count, self._entry_count)
        file.reserve()
        if self._index_files:
            self._full.append(self._index_files[-1])
            file.continue_from(self._index_files[-1].header)
        self._index_files.append(file)
        self.changes += 1
        return file

    def _new_path(self) -> str:
        """Return the path of a new file. Its name is the local time in ms, or the next number if it
        is not later than every existing name: the order of names is the order of files.
        """
        newest = self._index_files[-1].path.rpartition("/")[2] if self._index_files else ""
        return f"{self._directory}/{index_file_name(self._now_ms(), newest)}"


def index_file_name(now_ms: int, newest: str) -> str:
    """Return the name of the file after ``newest``, which is "" for the first file."""
    moment = datetime.fromtimestamp(now_ms / 1000)
    name = moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
    return name if name > newest else str(int(newest) + 1).zfill(NAME_DIGITS)


def _offset_of(keys: memoryview, number: int) -> int:
    """Return the physical offset of the message of a packed key."""
    offset: int = KEY.unpack_from(keys, number * KEY.size)[1]
    return offset
