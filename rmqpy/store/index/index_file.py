"""The key index: hash tables on disk that find messages by key (Java IndexFile, IndexService).

File: header 40 bytes, slots (4 bytes: newest entry number of the slot, 0 none), entries (20 bytes:
key hash, physical offset, seconds since the file's begin, previous entry number of the slot); the
numbers stand in codec/layout.py. Named by the local time of creation. ``hashSlotCount`` in the
header counts the slots in use, ``indexCount`` the entries plus 1.

Messages that share a hash are all found; the client filters by exact key.

The tables are not written in an order that survives a crash: after an unclean stop every file that
is not known to be whole is deleted, and dispatch fills the index again from where the others end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from attrs import define

from rmqpy.codec.backend import put_packed_keys
from rmqpy.codec.layout import (
    INDEX_COUNT_POSITION,
    INDEX_END_OFFSET_POSITION,
    INDEX_END_TIMESTAMP_POSITION,
    INDEX_SLOT_COUNT_POSITION,
)
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

NAME_DIGITS = 17
RESERVED_ENTRIES = 16 * 1024
"""Room on the disk is taken in such pieces: a write in place that finds none ends the process."""
assert INDEX_END_TIMESTAMP_POSITION == 8 and INDEX_END_OFFSET_POSITION == 24
assert INDEX_SLOT_COUNT_POSITION == 32 and INDEX_COUNT_POSITION == 36


class IndexFile:
    """One table. Written in place through a mapping: entry first, then its slot, then the
    header.
    """

    def __init__(self, file: StoreFile, slot_count: int, entry_count: int) -> None:
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
        """Entries below this number may be written in place: room on the disk is taken for them."""
        return self._reserved_entries

    def reserve(self) -> None:
        """Take room on the disk for the next entry, and some more. Raises OSError."""
        number = self.header.index_count
        if number < self._reserved_entries:
            return
        start = index_entry_position(number, self._slot_count) if number > 1 else 0
        end = min(number + RESERVED_ENTRIES, self._entry_count)
        if not self._reserved_entries and number > 1:
            # Found on disk: slots that were never used are holes.
            self._file.reserve(0, index_entry_position(0, self._slot_count))
        self._file.reserve(start, index_entry_position(end, self._slot_count) - start)
        self._reserved_entries = end

    def changed_by_c(self) -> None:
        """The C core has added entries: the header in the file is the true one."""
        self._header = None

    @property
    def is_full(self) -> bool:
        return self.header.index_count >= self._entry_count

    @property
    def is_empty(self) -> bool:
        return self.header.index_count <= 1

    def continue_from(self, previous: IndexHeader) -> None:
        """A new file begins where the previous one ended, until its first entry says better."""
        header = self.header
        header.begin_timestamp_ms = header.end_timestamp_ms = previous.end_timestamp_ms
        header.begin_offset = header.end_offset = previous.end_offset
        self._write_header()

    def put(self, entries: Sequence[IndexEntry]) -> None:
        """Add entries; there is room for them."""
        put_index_entries(self._file.writable, self._slot_count, self.header, entries)

    def put_packed(self, keys: bytes) -> None:
        """The same of entries as :data:`rmqpy.codec.packing.KEY` packs them."""
        put_packed_keys(self._file.writable, self._slot_count, keys)
        self.changed_by_c()

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash and a store time in range, newest first."""
        header, data = self.header, self._file.view
        (number,) = INDEX_SLOT.unpack_from(data, index_slot_position(key_hash, self._slot_count))
        while 0 < number < header.index_count:
            place = index_entry_position(number, self._slot_count)
            found_hash, offset, time_diff_s, previous = INDEX_ENTRY.unpack_from(data, place)
            if time_diff_s < 0:
                return
            stored_ms = header.begin_timestamp_ms + time_diff_s * 1000
            if found_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                yield offset
            # Chains lead to older entries only: anything else is damage, and could be a circle.
            if not 0 < previous < number or stored_ms < begin_ms:
                return
            number = previous

    def tail_count(self, physical_offset: int) -> int:
        """How many of the last entries are of the message at ``physical_offset``."""
        data, count = self._file.view, 0
        for number in range(self.header.index_count - 1, 0, -1):
            place = index_entry_position(number, self._slot_count)
            if INDEX_ENTRY.unpack_from(data, place)[1] != physical_offset:
                break
            count += 1
        return count

    def covers(self, begin_ms: int, end_ms: int) -> bool:
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
    """Files that have become full and are not durable yet."""

    files: FileSystem
    directory: str
    parts: tuple[IndexFile, ...]

    @property
    def timestamp_ms(self) -> int:
        """Up to there the index is durable once this has been run."""
        return self.parts[-1].header.end_timestamp_ms

    def run(self) -> None:
        """Blocks; may run in a worker thread. Afterwards the index is told by ``synced``."""
        for file in self.parts:
            file.sync()
        self.files.sync_dir(self.directory)


class KeyIndex:
    """The row of index files, oldest first."""

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
        """Files of 0 bytes, whose creation was interrupted by a kill; a cut one, and those behind
        it. The log says again what they said.
        """
        self._index_files: list[IndexFile] = []
        self._full: list[IndexFile] = []
        self._resume_offset = -1
        self._resume_skip = 0

    def load(self) -> None:
        """Open the files; changes nothing on disk. Raises StoreError for what is no index file, and
        where the length of all files says that the settings are not those of the store.
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
        """Several files of one other length, or a longer one, were written so; a single one that is
        too short was cut.
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
                "set these keys as the store was written, or delete the index folder: it is built"
                " again",
            )

    def finish_recovery(self, log_end_offset: int, safe_timestamp_ms: int | None) -> None:
        """Once the log has been accepted: delete files that it cannot have filled.

        After an unclean stop ``safe_timestamp_ms`` is the checkpoint's index time: files with
        younger entries go, because a torn table cannot be told from a whole one; so does a file
        without any, which may be younger than its zeros say, and every file behind one that goes.
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
            # They must not come back: the log will be another one behind its end.
            self._files.sync_dir(self._directory)
            del self._index_files[kept:]
        if safe_timestamp_ms is not None:
            self._full = list(self._index_files)
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
        # The time alone does not tell which of several files that end in one millisecond was meant.
        before = self._index_files[number - 1].header.end_timestamp_ms if number else -1
        return before < safe_timestamp_ms

    @property
    def end_offset(self) -> int | None:
        """Physical offset of the last message in the index; None when there is none. Dispatch may
        begin again with that message: the keys that it has in the index are not added twice.
        """
        return self._index_files[-1].header.end_offset if self._index_files else None

    def put(self, key_hashes: list[int], physical_offset: int, store_timestamp_ms: int) -> None:
        """Index one message under each key; one that the index has already passed is skipped."""
        if self._index_files and physical_offset < self._index_files[-1].header.end_offset:
            return
        done = self._resume_skip if physical_offset == self._resume_offset else 0
        for number, key_hash in enumerate(key_hashes[done:], done):
            try:
                file = self._writable_file()
            except OSError:
                self._resume_offset, self._resume_skip = physical_offset, number
                raise
            file.put(((key_hash, physical_offset, store_timestamp_ms),))

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of at most ``count_max`` messages, newest file first."""
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
    def newest(self) -> IndexFile | None:
        return self._index_files[-1] if self._index_files else None

    @property
    def last_update(self) -> tuple[int, int]:
        """Store time (ms) and physical offset of the newest entry; zeros when there is none."""
        if not self._index_files:
            return 0, 0
        return self._index_files[-1].header.end_timestamp_ms, self._index_files[
            -1
        ].header.end_offset

    def take_sync(self) -> IndexSync | None:
        """The work that makes full files durable; None when they are."""
        if not self._full:
            return None
        return IndexSync(self._files, self._directory, tuple(self._full))

    def synced(self, sync: IndexSync) -> None:
        """A sync has been run without an error."""
        self._full = [file for file in self._full if file not in sync.parts]

    def pop_expired(self, log_min_offset: int) -> Iterator[IndexFile]:
        """Let go of files that only know messages below the log, never of the last."""
        while (
            len(self._index_files) > 1 and self._index_files[0].header.end_offset < log_min_offset
        ):
            file = self._index_files.pop(0)
            if file in self._full:
                self._full.remove(file)
            yield file

    def sync(self) -> None:
        """Make the newest file durable, and the names of all."""
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
        if self._index_files and not self._index_files[-1].is_full:
            self._index_files[-1].reserve()
            return self._index_files[-1]
        size = index_file_size(self._slot_count, self._entry_count)
        opened = self._files.open(self._new_path(), size=size)
        file = IndexFile(opened, self._slot_count, self._entry_count)
        file.reserve()
        if self._index_files:
            self._full.append(self._index_files[-1])
            file.continue_from(self._index_files[-1].header)
        self._index_files.append(file)
        return file

    def _new_path(self) -> str:
        """The local time to the millisecond, later than every name in the row: the order of names
        is the order of files.
        """
        newest = self._index_files[-1].path.rpartition("/")[2] if self._index_files else ""
        return f"{self._directory}/{index_file_name(self._now_ms(), newest)}"


def index_file_name(now_ms: int, newest: str) -> str:
    """The name of the file behind ``newest``, "" for the first."""
    moment = datetime.fromtimestamp(now_ms / 1000)
    name = moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
    return name if name > newest else str(int(newest) + 1).zfill(NAME_DIGITS)
