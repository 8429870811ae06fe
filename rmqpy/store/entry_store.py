"""EntryStore: the DLedger files of one member: entries in ``data/``, index units in ``index/``, ``checkpoint``, ``currterm``.

Data file: entries of [48-byte header][record]; an entry fits only if 8 bytes stay free behind it, otherwise the file is
closed by a filler (int32 -1, int32 rest, zeros to the end). Index unit ``n`` (32 bytes at ``32 * n``) says where entry
``n`` stands. ``checkpoint`` and ``currterm`` are property texts with a ``.bak`` of their previous version.

Invariants: indexes are dense from ``begin_index`` to ``end_index``; the bytes behind the last entry are zero; the first
data file starts at ``base_offset`` (0, or the divided offset); ``committed_index <= end_index``.
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
from rmqpy.codec.layout import (
    ENTRY_FILLER_MAGIC,
    ENTRY_FILLER_SIZE,
    ENTRY_HEADER_SIZE,
    ENTRY_MAGIC,
    INDEX_UNIT_SIZE,
)
from rmqpy.codec.faults import RecordFault
from rmqpy.codec.message import patch_record
from rmqpy.codec.scan import Scan
from rmqpy.dledger.member import HardState, LedgerEnd
from rmqpy.model.errors import StoreFault
from rmqpy.model.ids import LedgerIndex, PhysicalOffset, Term
from rmqpy.store.commitlog.recovery import Framing, Walker, clean_start, unclean_start
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFile, MappedFiles, file_name
from rmqpy.store.small_files import read_with_backup, replace_with_backup
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
    """The entries of one member. Made by :func:`open_entries`."""

    def __init__(self, files: FileLayer, paths: EntryPaths, data: MappedFiles, index: MappedFiles) -> None:
        self._files = files
        self._paths = paths
        self._data = data
        self._index = index
        self._end_offset = data.wrote_offset
        self._staged: list[bytes | bytearray] = []
        self._staged_from = self._end_offset
        self._staged_units: list[bytes] = []
        self._staged_index = 0
        self.begin_index = LedgerIndex(-1)
        self.end = LedgerEnd()
        self.committed_index = LedgerIndex(-1)
        self._saved_checkpoint = (-2, -2)
        self.stored = Watermark("stored", -1)
        """Highest index that is in the files."""
        self.committed = Watermark("committed", data.min_offset)
        """End of the last committed entry, as an offset."""
        self.flushed = Watermark("flushed", self._end_offset)

    @property
    def base_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self._data.min_offset)

    @property
    def end_offset(self) -> PhysicalOffset:
        """Where the next entry goes, staged ones counted."""
        return PhysicalOffset(self._end_offset)

    @property
    def written_offset(self) -> PhysicalOffset:
        """Everything below has been given to the files."""
        return PhysicalOffset(self._staged_from)

    @property
    def data(self) -> MappedFiles:
        return self._data

    def append(
        self, term: Term, first_index: LedgerIndex, records: Sequence[bytearray], store_timestamp_ms: int
    ) -> list[PhysicalOffset]:
        """Stage one entry a record; returns each record's physical offset (entry position + 48), written into it."""
        assert first_index == self.end.index + 1, "entries are appended in order"
        offsets = []
        for number, record in enumerate(records):
            index = LedgerIndex(first_index + number)
            size = ENTRY_HEADER_SIZE + len(record)
            assert size <= ENTRY_SIZE_MAX
            self._make_room(size)
            position = self._end_offset
            patch_record(record, 0, None, position + ENTRY_HEADER_SIZE, store_timestamp_ms)
            self._staged.append(encode_entry_header(index, term, position, len(record)))
            self._staged.append(record)
            self._staged_units.append(INDEX_UNIT.pack(ENTRY_MAGIC, position, size, index, term))
            self._end_offset = position + size
            self.end = LedgerEnd(index, term)
            offsets.append(PhysicalOffset(position + ENTRY_HEADER_SIZE))
        if self.begin_index < 0:
            self.begin_index = first_index
        return offsets

    def commit(self) -> None:
        """Write what is staged: entries with one write a file, then their index units."""
        self._commit_data()
        if self._staged_units:
            first = self.end.index + 1 - len(self._staged_units)
            self._write_units(first, b"".join(self._staged_units))
            self._staged_units.clear()
            self.stored.advance(self.end.index)

    def entry(self, index: int) -> tuple[EntryHeader, memoryview]:
        """Header and body of a stored entry. Raises IndexError outside begin..end, RecordFault for damage."""
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

    def dirty_files(self) -> tuple[MappedFile, ...]:
        """Files with bytes that no sync has covered: data, then index."""
        start = self.flushed.value
        if start >= self._staged_from:
            return ()
        data = [file for file in self._data if file.end_offset > start]
        return (*data, self._index.last) if self._index else tuple(data)

    def load_hard_state(self) -> HardState:
        """``currterm``; a fresh one when there is none. Raises StoreFault when it cannot be read."""
        pairs = self._read_pairs(self._paths.current_term)
        if pairs is None:
            return HardState()
        return HardState(Term(_number(pairs, "currTerm", self._paths.current_term)), pairs.get("voteLeader") or None)

    def save_hard_state(self, state: HardState) -> None:
        """Durable when it returns: a vote that is forgotten may be given twice."""
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n"
        replace_with_backup(self._files, self._paths.current_term, text.encode())

    def save_checkpoint(self) -> None:
        """Remember the committed index (every 3 s and at the end); nothing is written when nothing changed."""
        current = (self.committed_index, self.stored.value)
        if current != self._saved_checkpoint:
            text = f"committedIndex={current[0]}\nendIndex={current[1]}\n"
            replace_with_backup(self._files, self._paths.checkpoint, text.encode())
            self._saved_checkpoint = current

    def close(self) -> None:
        self._data.close()
        self._index.close()

    def _make_room(self, size: int) -> None:
        """Roll to the next file when ``size`` bytes and a filler head do not fit the current one."""
        file = self._data.find(self._end_offset)
        if file is None:
            file = self._data.create(self._end_offset - self._end_offset % self._data.file_size)
        rest = file.end_offset - self._end_offset
        if size + ENTRY_FILLER_SIZE <= rest:
            return
        # The bytes behind are zero already: a fresh file is, and recovery zeroes what it cuts.
        self._staged.append(_FILLER_HEAD + rest.to_bytes(4))
        self._end_offset += ENTRY_FILLER_SIZE
        self._commit_data()
        file.wrote_position = file.size
        self._end_offset = self._staged_from = file.end_offset
        self._data.create(file.end_offset)

    def _commit_data(self) -> None:
        if not self._staged:
            return
        file = self._data.find(self._staged_from)
        assert file is not None
        data = b"".join(self._staged)
        position = self._staged_from - file.first_offset
        file.file.write(position, data)
        file.wrote_position = position + len(data)
        self._staged.clear()
        self._staged_from = self._end_offset

    def _write_units(self, first_index: int, units: bytes) -> None:
        place = first_index * INDEX_UNIT_SIZE
        while units:
            file = self._index.find(place)
            if file is None:
                file = self._index.create(place - place % INDEX_FILE_SIZE)
            start = place - file.first_offset
            count = min(len(units), file.size - start)
            file.file.write(start, units[:count])
            file.wrote_position = start + count
            units = units[count:]
            place += count

    def _unit(self, index: int) -> tuple[int, int]:
        """(position, size) of an entry, by its index unit."""
        place = index * INDEX_UNIT_SIZE
        file = self._index.find(place)
        assert file is not None
        _, position, size, found, _ = INDEX_UNIT.unpack_from(file.view, place - file.first_offset)
        assert found == index, f"index unit {index} says {found}"
        return position, size

    def _read_pairs(self, path: str) -> dict[str, str] | None:
        raw = read_with_backup(self._files, path, _looks_like_pairs)
        if raw is None:
            return None
        lines = (line for line in raw.decode("utf-8", "replace").splitlines() if "=" in line)
        return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}

    def recover(self, walker: Walker, start_number: int) -> int:
        """Find the end of the entries, rebuild index units that are missing or differ; returns torn bytes moved away."""
        end = walker.recover(start_number)
        assert end.number >= 0
        self._end_offset = self._staged_from = end.end
        if end.at_blank:
            # A filler with no file behind it: the next entry makes that file.
            last = self._data.last
            last.wrote_position = last.size
            self._end_offset = self._staged_from = last.end_offset
        return end.torn_bytes

    def adopt(self, scan: Scan) -> None:
        """Entries found by recovery, in order: their index units must be there and agree, else they are written."""
        if not len(scan):
            return
        units = b"".join(
            INDEX_UNIT.pack(ENTRY_MAGIC, position, ENTRY_HEADER_SIZE + size, index, term)
            for position, size, index, term in zip(
                scan.frame_offset, scan.size, scan.entry_index, scan.term, strict=True
            )
        )
        first = scan.entry_index[0]
        if self.end.index >= 0 and first != self.end.index + 1:
            raise StoreFault(
                file_name(scan.frame_offset[0]),
                f"entry {first} behind entry {self.end.index}",
                f"entry {self.end.index + 1}",
                "restore the data files from another member",
            )
        if self._units_at(first, len(units)) != units:
            self._write_units(first, units)
        self.end = LedgerEnd(LedgerIndex(scan.entry_index[-1]), Term(scan.term[-1]))

    def settle(self) -> None:
        """After recovery: begin index from the first entry, index files cut to the end, committed index from the checkpoint."""
        self.stored = Watermark("stored", self.end.index)
        self.flushed = Watermark("flushed", self._end_offset)
        units_end = (self.end.index + 1) * INDEX_UNIT_SIZE
        self._index.cut(units_end)
        if self._index:
            self._clear_units(units_end)
        if self.end.index >= 0:
            first = decode_entry_header(self._data.first.view, 0, self._data.first.first_offset)
            self.begin_index = first.index
        pairs = self._read_pairs(self._paths.checkpoint)
        if pairs is not None and self.end.index >= 0:
            remembered = _number(pairs, "committedIndex", self._paths.checkpoint)
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


def open_entries(
    files: FileLayer,
    paths: EntryPaths,
    file_size: int,
    base_offset: int,
    *,
    quarantine: str,
    safe_timestamp_ms: int | None,
    force: bool = False,
) -> EntryStore:
    """Load and recover the entries, or begin at ``base_offset`` when there are none.

    ``safe_timestamp_ms`` is the checkpoint's after an unclean stop, None after a clean one.
    """
    data = MappedFiles(files, paths.data, file_size)
    data.load(DATA_SIZE_KEY)
    index = MappedFiles(files, (paths.index,), INDEX_FILE_SIZE)
    index.load("the DLedger index format")
    if not data:
        while index:
            index.drop_last()
        data.create(base_offset)
        store = EntryStore(files, paths, data, index)
        store.settle()
        return store
    store = EntryStore(files, paths, data, index)
    walker = Walker(files, data, Framing.DLEDGER, quarantine, force=force, visit=store.adopt)
    if safe_timestamp_ms is None:
        start = clean_start(data)
    else:
        start = unclean_start(data, Framing.DLEDGER, safe_timestamp_ms)
    store.recover(walker, start)
    store.settle()
    return store


def _looks_like_pairs(raw: bytes) -> bool:
    return b"=" in raw


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
