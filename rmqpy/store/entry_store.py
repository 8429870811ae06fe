"""EntryStore: the DLedger files of one member: entries in ``data/``, index units in ``index/``,
``checkpoint``, ``currterm``.

Data file: entries of [48-byte header][record]; an entry fits only if 8 bytes stay free behind it,
otherwise the file is closed by a filler (int32 -1, int32 rest, zeros to the end). Index unit ``n``
(32 bytes at ``32 * n``) says where entry ``n`` stands. ``checkpoint`` and ``currterm`` are property
texts with a ``.bak`` of their previous version.

Invariants: indexes are dense from ``begin_index`` to ``end_index``; the bytes behind the last entry
are zero; the first data file starts at ``base_offset`` (0, or the divided offset);
``committed_index <= end_index``.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from rmqpy.codec.entry import (
    INDEX_UNIT,
    EntryHeader,
    decode_entry_header,
    encode_entry_header,
)
from rmqpy.codec.faults import RecordFault
from rmqpy.codec.layout import (
    ENTRY_FILLER_MAGIC,
    ENTRY_FILLER_SIZE,
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    INDEX_UNIT_SIZE,
)
from rmqpy.codec.message import patch_record
from rmqpy.codec.scan import Scan
from rmqpy.dledger.member import HardState, LedgerEnd
from rmqpy.model.errors import StoreFault
from rmqpy.model.ids import LedgerIndex, PhysicalOffset, Term
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFile, MappedFiles
from rmqpy.store.small_files import read_with_backup, replace_with_backup
from rmqpy.store.staging import END, FILE_END, INDEX, STAGED, TERM, UNITS, UNITS_CAPACITY, Staging
from rmqpy.store.watermark import Watermark

INDEX_FILE_SIZE = INDEX_UNIT_SIZE * 5 * 1024 * 1024
"""mappedFileSizeForEntryIndex: fixed, no broker setting changes it."""

ENTRY_SIZE_MAX = 4 * 1024 * 1024
"""A Java member's encoding buffer: it cannot write a larger entry, header included."""

DATA_SIZE_KEY = "mappedFileSizeCommitLog"
_FILLER_HEAD = (ENTRY_FILLER_MAGIC & 0xFFFFFFFF).to_bytes(4)


@define(slots=True, frozen=True)
class EntryPaths:
    """``directory`` is ``<root>/dledger-<selfId>``; the data files may live elsewhere."""

    directory: str
    data: tuple[str, ...]

    @property
    def index(self) -> str:
        return f"{self.directory}/index"

    @property
    def checkpoint(self) -> str:
        return f"{self.directory}/checkpoint"

    @property
    def current_term(self) -> str:
        return f"{self.directory}/currterm"


class EntryStore:
    """The entries of one member. Made by :func:`rmqpy.store.entry_recovery.open_entries`."""

    def __init__(
        self, files: FileLayer, paths: EntryPaths, data: MappedFiles, index: MappedFiles
    ) -> None:
        self._files = files
        self._paths = paths
        self._data = data
        self._index = index
        self.staging = Staging(data.wrote_offset, units=True)
        self.begin_index = LedgerIndex(-1)
        self.committed_index = LedgerIndex(-1)
        self._saved_checkpoint = (-2, -2)
        self.stored = Watermark("stored", -1)
        """Highest index that is in the files."""
        self.committed = Watermark("committed", data.min_offset)
        """End of the last committed entry, as an offset."""
        self.flushed = Watermark("flushed", data.wrote_offset)
        self._flushed_units = 0
        self._flushing_units = 0

    @property
    def base_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self._data.min_offset)

    @property
    def end_offset(self) -> PhysicalOffset:
        """Where the next entry goes, staged ones counted."""
        return PhysicalOffset(self.staging.state[END])

    @property
    def end(self) -> LedgerEnd:
        """Index and term of the last entry, staged ones counted."""
        state = self.staging.state
        return LedgerEnd(LedgerIndex(state[INDEX] - 1), Term(state[TERM]))

    @end.setter
    def end(self, end: LedgerEnd) -> None:
        self.staging.state[INDEX] = end.index + 1
        self.staging.state[TERM] = end.term

    @property
    def written_offset(self) -> PhysicalOffset:
        """Everything below has been given to the files."""
        return PhysicalOffset(self.staging.staged_from)

    @property
    def data(self) -> MappedFiles:
        return self._data

    def append(
        self,
        term: Term,
        first_index: LedgerIndex,
        records: Sequence[bytearray],
        store_timestamp_ms: int,
    ) -> list[PhysicalOffset]:
        """Stage one entry a record; returns each record's physical offset (entry position + 48),
        written into it.
        """
        assert first_index == self.end.index + 1, "entries are appended in order"
        staging, state = self.staging, self.staging.state
        offsets = []
        for number, record in enumerate(records):
            index = LedgerIndex(first_index + number)
            size = ENTRY_HEADER_SIZE + len(record)
            assert size <= ENTRY_SIZE_MAX
            self.make_room(size)
            position = state[END]
            patch_record(record, 0, None, position + ENTRY_HEADER_SIZE, store_timestamp_ms)
            staging.put(encode_entry_header(index, term, position, len(record)))
            staging.put(record)
            staging.put_unit(INDEX_UNIT.pack(ENTRY_MAGIC, position, size, index, term))
            state[INDEX] = index + 1
            state[TERM] = term
            offsets.append(PhysicalOffset(position + ENTRY_HEADER_SIZE))
        return offsets

    def commit(self) -> None:
        """Write what is staged: entries with one write a file, then their index units."""
        self._commit_data()
        state = self.staging.state
        if state[UNITS]:
            first = LedgerIndex(state[INDEX] - state[UNITS])
            self._write_units(first, self.staging.staged_units)
            state[UNITS] = 0
            if self.begin_index < 0:
                self.begin_index = first
            self.stored.advance(self.end.index)

    def entry(self, index: int) -> tuple[EntryHeader, memoryview]:
        """Header and body of a stored entry. Raises IndexError outside begin..end, RecordFault or
        StoreFault for damage.
        """
        if not self.begin_index <= index <= self.stored.value:
            raise IndexError(f"entry {index} is outside {self.begin_index}..{self.stored.value}")
        position, _ = self._unit(index)
        file = self._data.find(position)
        assert file is not None
        start = position - file.first_offset
        header = decode_entry_header(file.view, start, position)
        return header, file.view[start + ENTRY_HEADER_SIZE : start + header.size]

    def commit_to(self, index: LedgerIndex) -> None:
        """A quorum has every entry up to ``index``."""
        if index <= self.committed_index:
            return
        assert index <= self.stored.value, "committed before it was stored"
        self.committed_index = index
        position, size = self._unit(index)
        self.committed.advance(position + size)

    def is_body_start(self, offset: int) -> bool:
        """Whether an entry's record begins at ``offset`` (its header stands in front of it)."""
        file = self._data.find(offset)
        if file is None or offset - file.first_offset < ENTRY_HEADER_SIZE:
            return False
        position = offset - ENTRY_HEADER_SIZE
        try:
            decode_entry_header(file.view, position - file.first_offset, position)
        except RecordFault:
            return False
        return True

    def file_at(self, offset: int) -> MappedFile | None:
        return self._data.find(offset)

    def release_first_file(self) -> MappedFile:
        """The first data file leaves the log, and index files that only tell of it with it. All in
        it is committed, and another follows.
        """
        following = self._data[1]
        begin = decode_entry_header(following.view, 0, following.first_offset).index
        file = self._data.take_first()
        self.begin_index = LedgerIndex(begin)
        while len(self._index) > 1 and self._index.first.end_offset <= begin * INDEX_UNIT_SIZE:
            units = self._index.take_first()
            self._files.unlink(units.path)
            units.close()
        return file

    def dirty_files(self) -> tuple[MappedFile, ...]:
        """Files with bytes that no sync has covered: data, then index."""
        start = self.flushed.value
        if start >= self.staging.staged_from:
            return ()
        data = (file for file in self._data if file.end_offset > start)
        index = (file for file in self._index if file.end_offset > self._flushed_units)
        self._flushing_units = (self.stored.value + 1) * INDEX_UNIT_SIZE
        return (*data, *index)

    def mark_flushed(self, offset: PhysicalOffset) -> None:
        """The files that :meth:`dirty_files` has named are durable."""
        self._flushed_units = self._flushing_units
        self.flushed.advance(offset)

    def load_hard_state(self) -> HardState:
        """``currterm``; a fresh one when there is none. Raises StoreFault when it cannot be
        read.
        """
        pairs = self._read_pairs(self._paths.current_term)
        if pairs is None:
            return HardState()
        return HardState(
            Term(_number(pairs, "currTerm", self._paths.current_term)),
            pairs.get("voteLeader") or None,
        )

    def save_hard_state(self, state: HardState) -> None:
        """Durable when it returns: a vote that is forgotten may be given twice."""
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n"
        replace_with_backup(self._files, self._paths.current_term, text.encode())

    def save_checkpoint(self) -> None:
        """Remember the committed index (every 3 s and at the end); nothing is written when nothing
        changed.
        """
        current = (self.committed_index, self.stored.value)
        if current != self._saved_checkpoint:
            text = f"committedIndex={current[0]}\nendIndex={current[1]}\n"
            replace_with_backup(self._files, self._paths.checkpoint, text.encode())
            self._saved_checkpoint = current

    def close(self) -> None:
        self._data.close()
        self._index.close()

    def make_room(self, size: int) -> None:
        """Let an entry of ``size`` bytes follow the end: in its file (it rolls to the next one when
        a filler head would not fit behind it), and in staging.
        """
        staging = self.staging
        end = staging.state[END]
        file = self._data.find(end)
        if file is None:
            file = self._data.create(end - end % self._data.file_size)
        rest = file.end_offset - end
        if size + ENTRY_FILLER_SIZE > rest:
            # One step after the other, each of which may fail and is done again then.
            self._commit_data()
            following = self._data.find(file.end_offset) or self._data.create(file.end_offset)
            # The bytes behind are zero already: a fresh file is, and recovery zeroes what it cuts.
            file.file.write(file.size - rest, _FILLER_HEAD + rest.to_bytes(4))
            file.wrote_position = file.size
            staging.restart(file.end_offset)
            file = following
        staging.state[FILE_END] = file.end_offset
        if not staging.has_room(size) or staging.state[UNITS] == UNITS_CAPACITY:
            self.commit()
            staging.grow(size)

    def _commit_data(self) -> None:
        staging = self.staging
        if not staging.state[STAGED]:
            return
        file = self._data.find(staging.staged_from)
        assert file is not None
        position = staging.staged_from - file.first_offset
        file.file.write(position, staging.staged)
        file.wrote_position = position + staging.state[STAGED]
        staging.restart(staging.state[END])

    def _write_units(self, first_index: int, units: bytes) -> None:
        place = first_index * INDEX_UNIT_SIZE
        while units:
            file = self._index.find(place)
            if file is None:
                file = self._index.create(place - place % self._index.file_size)
            start = place - file.first_offset
            count = min(len(units), file.size - start)
            file.file.write(start, units[:count])
            file.wrote_position = start + count
            units = units[count:]
            place += count

    def _unit(self, index: int) -> tuple[int, int]:
        """(position, size) of an entry, by its index unit."""
        raw = self._units_at(index, INDEX_UNIT_SIZE)
        found = -1
        if len(raw) == INDEX_UNIT_SIZE:
            _, position, size, found, _ = INDEX_UNIT.unpack(raw)
        if found != index:
            raise StoreFault(
                self._paths.index,
                f"no index unit of entry {index}",
                "one 32-byte unit an entry",
                "stop the broker and remove the folder: the next start builds it again",
            )
        return position, size

    def _read_pairs(self, path: str) -> dict[str, str] | None:
        return read_with_backup(self._files, path, _decode_pairs)

    # Recovery

    def resume(self, end_offset: int) -> None:
        """The entries end at ``end_offset`` (at the end of a file: the next one makes a file)."""
        self.staging.restart(end_offset)

    def adopt(self, scan: Scan) -> None:
        """Entries found by recovery, in order: their index units must be there and agree, else they
        are written.
        """
        units = b"".join(
            INDEX_UNIT.pack(ENTRY_MAGIC, position, ENTRY_HEADER_SIZE + size, index, term)
            for position, size, index, term in zip(
                scan.frame_offset, scan.size, scan.entry_index, scan.term, strict=True
            )
        )
        if not units:
            return
        first = scan.entry_index[0]
        if self._units_at(first, len(units)) != units:
            self._write_units(first, units)
        self.end = LedgerEnd(LedgerIndex(scan.entry_index[-1]), Term(scan.term[-1]))

    def agrees(self, position: int) -> bool:
        """Whether the entry at ``position`` is readable and its index unit says so."""
        file = self._data.find(position)
        if file is None:
            return False
        try:
            header = decode_entry_header(file.view, position - file.first_offset, position)
        except RecordFault:
            return False
        unit = INDEX_UNIT.pack(ENTRY_MAGIC, position, header.size, header.index, header.term)
        return self._units_at(header.index, len(unit)) == unit

    def settle(self) -> None:
        """After recovery: begin index from the first entry, index files cut to the end, committed
        index from the checkpoint.
        """
        self.stored = Watermark("stored", self.end.index)
        self.flushed = Watermark("flushed", self.end_offset)
        units_end = (self.end.index + 1) * INDEX_UNIT_SIZE
        self._flushed_units = units_end
        if self._index:
            self._index.cut(max(units_end, self._index.min_offset))
            self._clear_units(units_end)
        if self.end.index < 0:
            return
        first = self._data.first
        try:
            self.begin_index = decode_entry_header(first.view, 0, first.first_offset).index
        except RecordFault as fault:
            raise StoreFault(
                first.path, str(fault), "an entry at its begin", "restore it from another member"
            ) from fault
        remembered = read_committed_index(self._files, self._paths.directory)
        if remembered >= self.begin_index:
            self.commit_to(LedgerIndex(min(remembered, self.end.index)))

    def _units_at(self, first_index: int, length: int) -> bytes:
        place = first_index * INDEX_UNIT_SIZE
        found = b""
        while len(found) < length:
            file = self._index.find(place + len(found))
            if file is None:
                break
            start = place + len(found) - file.first_offset
            found += bytes(file.view[start : start + length - len(found)])
        return found

    def _clear_units(self, units_end: int) -> None:
        """No unit behind the last entry may stay: a later recovery would believe it."""
        file = self._index.last
        start = units_end - file.first_offset
        step = 1 << 16
        while start < file.size:
            stale = bytes(file.view[start : start + step])
            if not stale.strip(b"\0"):
                return
            file.file.write(start, bytes(len(stale)))
            start += step


def read_committed_index(files: FileLayer, directory: str) -> int:
    """What a member's ``checkpoint`` says; -1 when there is none. Raises StoreFault."""
    path = EntryPaths(directory, ()).checkpoint
    pairs = read_with_backup(files, path, _decode_pairs)
    return -1 if pairs is None else _number(pairs, "committedIndex", path)


def _decode_pairs(raw: bytes) -> dict[str, str]:
    """``key=value`` lines; ValueError when there is none."""
    lines = [line.partition("=") for line in raw.decode().splitlines() if "=" in line]
    if not lines:
        raise ValueError("no line key=value in it")
    return {key.strip(): value.strip() for key, _, value in lines}


def _number(pairs: dict[str, str], key: str, path: str) -> int:
    try:
        return int(pairs[key])
    except (KeyError, ValueError):
        raise StoreFault(
            path,
            f"{key}={pairs.get(key)}",
            f"a whole number for {key}",
            "restore the file from its .bak",
        ) from None
