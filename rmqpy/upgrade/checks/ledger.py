"""The entries of one stopped member's DLedger files, and the index up to which a group agrees.

This module only reads files: the entries with their indexes and terms, and the checkpoint with the
committed index. Where a group may be cut can be decided only from all members together
(:func:`agreed_index`), because everything that a quorum has may have been acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from attrs import define, field

from rmqpy.audit.facts.learned import WALK, Learned
from rmqpy.audit.scan.range_json import counts_of
from rmqpy.audit.scan.ranges import Ending
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.message import decode_message
from rmqpy.codec.reframe import PROPERTIES_MAX_BEFORE, PROPERTIES_MAX_BEFORE_FIRST
from rmqpy.codec.scan import Scan, StopReason, is_end_filler
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.quorum import is_quorum
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.ledger.entry_recovery import DATA_SIZE_KEY
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError


class EntryView(Protocol):
    """The content of an open data file."""

    @property
    def view(self) -> memoryview: ...

    def close(self) -> None: ...


class DataFileBytes(Protocol):
    """A data file, its content, and its place in the log."""

    @property
    def path(self) -> str: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview: ...


@define(slots=True, frozen=True)
class EntryFile:
    """One data file.

    ``content_end`` is the position after the last entry; ``closed`` means that a filler follows.
    The indexes are -1 in a file without entries.
    """

    path: str
    base_offset: int
    size: int
    content_end: int
    closed: bool
    first_index: int
    last_index: int


@define(slots=True)
class Ledger:
    """The entries of one member.

    ``end_index`` is -1 without entries. ``committed_index`` is that of the checkpoint. ``too_long``
    has the offsets of messages whose properties are too long for the way back. ``version`` is the
    highest version of the records (4.9 reads version 1 only).
    """

    files: list[EntryFile] = field(factory=list)
    end_index: int = -1
    end_term: int = -1
    committed_index: int = -1
    version: int = 1
    too_long: list[int] = field(factory=list)

    @property
    def base_offset(self) -> int:
        return self.files[0].base_offset if self.files else 0


def read_ledger(
    files: FileSystem, settings: StoreSettings, learned: Learned | None = None
) -> Ledger:
    """Return a stopped member's ledger. Raise StoreError for files that no clean stop leaves.

    Files about which everything was ``learned`` are not read.
    """
    paths = StorePaths.from_settings(settings)
    self_id = settings.dledger_self_id
    if self_id is None:
        raise UpgradeRefusedError(
            f"{paths.root}: dLegerSelfId is not set in its broker.conf, expected the id of the"
            " member whose entries are there; write it into broker.conf, or pass no -c"
        )
    data_files = MappedFiles(
        files, (settings.dledger_data_path,), settings.mapped_file_size_commit_log
    )
    data_files.load(DATA_SIZE_KEY)
    try:
        ledger = read_entries(data_files, learned)
    finally:
        data_files.close()
    committed = MemberFiles(files, paths.dledger(self_id)).load_committed_index()
    ledger.committed_index = min(committed, ledger.end_index)
    return ledger


def read_sealed(files: FileSystem, settings: StoreSettings, learned: Learned) -> Ledger:
    """Return the first files of a member's ledger that are closed and known. Its group may be
    working.
    """
    ledger = Ledger()
    data_files = MappedFiles(
        files, (settings.dledger_data_path,), settings.mapped_file_size_commit_log
    )
    data_files.load(DATA_SIZE_KEY)
    try:
        for file in data_files:
            if not _add_known_file(ledger, file, learned):
                break
    finally:
        data_files.close()
    return ledger


def read_entries(files: Iterable[DataFileBytes], learned: Learned | None = None) -> Ledger:
    """Return the ledger in consecutive data files. Raise StoreError for damaged ones."""
    ledger = Ledger()
    for file in files:
        if learned is not None and _add_known_file(ledger, file, learned):
            continue
        if not _add_file(ledger, file):
            break
    return ledger


def _add_known_file(ledger: Ledger, file: DataFileBytes, learned: Learned) -> bool:
    """Add a closed file from what was learned about it; return False if it must be read."""
    value = learned.known(file.path, WALK)
    if value is None:
        return False
    result, counts = value["result"], counts_of(value["result"])
    if result["ending"] != Ending.FILLER.name or result["begin"] != file.first_offset:
        return False
    if counts["longest_properties"] > PROPERTIES_MAX_BEFORE_FIRST:
        return False  # Which messages are too long is not known.
    first = counts["first_index"], counts["first_term"]
    _check_follows(file, first, ledger)
    ledger.end_index, ledger.end_term = counts["last_index"], counts["last_term"]
    if counts["version_2"]:
        ledger.version = 2
    content_end = result["end"] - file.first_offset
    ledger.files.append(
        EntryFile(
            file.path, file.first_offset, file.size, content_end, True, first[0], ledger.end_index
        )
    )
    return True


def position_after(files: FileSystem, ledger: Ledger, index: int) -> tuple[int, int]:
    """Return the number of the file with entry ``index``, and the position after that entry.

    Raise UpgradeRefusedError if this member does not have the entry.
    """
    for number, entry_file in enumerate(ledger.files):
        if entry_file.first_index <= index <= entry_file.last_index:
            file = files.open_readonly(entry_file.path)
            try:
                return number, position_in(file.view, index)
            finally:
                file.close()
    raise UpgradeRefusedError(
        f"this member does not have entry {index}, its last one is {ledger.end_index}; start the"
        " group, let it catch up, and stop it again"
    )


def position_in(view: memoryview, index: int) -> int:
    """Return the position after entry ``index`` in the data file that contains it."""
    position = 0
    while True:
        _, size, found, *_ = ENTRY_HEADER.unpack_from(view, position)
        position += int(size)
        if found == index:
            return position


def term_of(ledger: Ledger, opened: Callable[[EntryFile], EntryView], index: int) -> int:
    """Return the term of entry ``index``, or -1 if the files do not have it."""
    for entry_file in ledger.files:
        if not entry_file.first_index <= index <= entry_file.last_index:
            continue
        file = opened(entry_file)
        try:
            position, found, term = 0, -1, -1
            while found != index:
                _, size, found, term, *_ = ENTRY_HEADER.unpack_from(file.view, position)
                position += int(size)
            return int(term)
        finally:
            file.close()
    return -1


def topics_after(files: FileSystem, ledger: Ledger, index: int) -> Counter[str]:
    """Return the number of messages of each topic after entry ``index``."""
    found: Counter[str] = Counter()
    for entry_file in ledger.files:
        if entry_file.last_index <= index:
            continue
        file = files.open_readonly(entry_file.path)
        try:
            offset, end = entry_file.base_offset, entry_file.base_offset + entry_file.content_end
            while offset < end:
                view = file.view[offset - entry_file.base_offset : entry_file.content_end]
                scan = scan_records(view, offset, dledger=True, check_crc=False)
                for at, record in zip(scan.entry_index, scan.offset, strict=True):
                    if at > index:
                        position = record - entry_file.base_offset
                        found[decode_message(file.view, position).topic] += 1
                if not len(scan):
                    break
                offset = scan.end
        finally:
            file.close()
    return found


def agreed_index(ledgers: Sequence[Ledger], group_size: int) -> int:
    """Return the index of the last entry that the group must keep.

    Every entry that may have been acknowledged is kept:

    * those that a member knows to be committed
    * those of the newest term that a quorum may have, if the members that are not given have them
    * if there is no such entry, the whole log of the member that an election would choose: what a
      quorum had committed before is in it

    What lies after them was never acknowledged. Raise UpgradeRefusedError if too few members are
    given.
    """
    if not is_quorum(len(ledgers), group_size):
        last = max(each.end_index for each in ledgers)
        raise UpgradeRefusedError(
            f"{len(ledgers)} of {group_size} members are given, too few to decide what was"
            f" acknowledged; give more members, or --cut-index {last}, which keeps all entries of"
            " these"
        )
    committed = max(ledger.committed_index for ledger in ledgers)
    newest = max(ledger.end_term for ledger in ledgers)
    ends = sorted((each.end_index for each in ledgers if each.end_term == newest), reverse=True)
    holders = group_size // 2 + 1 - (group_size - len(ledgers))
    return max(committed, ends[holders - 1] if holders <= len(ends) else ends[0])


def _add_file(ledger: Ledger, file: DataFileBytes) -> bool:
    """Add one file to ``ledger``. Return whether entries may follow in the next file."""
    first_index, end, stop = -1, file.first_offset, StopReason.LIMIT
    for scan in _scans(file):
        if len(scan):
            _check_follows(file, (scan.entry_index[0], scan.term[0]), ledger)
            first_index = scan.entry_index[0] if first_index < 0 else first_index
            _add_scan(ledger, file, scan)
        end, stop = scan.end, scan.stop
    position = end - file.first_offset
    closed = False
    if stop is StopReason.BLANK:
        closed = is_end_filler(file.view, position, file.end_offset - end, dledger=True)
    if not closed and stop not in (StopReason.END, StopReason.ZERO):
        raise StoreError(
            file.path,
            f"{stop.name} at position {position}, after entry {ledger.end_index}",
            "entries without a gap",
            "start this member once, so that the group repairs it, and stop it again",
        )
    last_index = ledger.end_index if first_index >= 0 else -1
    ledger.files.append(
        EntryFile(
            file.path, file.first_offset, file.size, position, closed, first_index, last_index
        )
    )
    return closed


def _scans(file: DataFileBytes) -> Iterator[Scan]:
    offset = file.first_offset
    while True:
        view = file.view[offset - file.first_offset :]
        scan = scan_records(view, offset, dledger=True, check_crc=True)
        yield scan
        offset = scan.end
        if scan.stop is not StopReason.LIMIT:
            return


def _check_follows(file: DataFileBytes, first: tuple[int, int], ledger: Ledger) -> None:
    index, term = first
    if ledger.end_index >= 0 and (index != ledger.end_index + 1 or term < ledger.end_term):
        raise StoreError(
            file.path,
            f"entry {index} of term {term} after entry {ledger.end_index} of term"
            f" {ledger.end_term}",
            f"entry {ledger.end_index + 1}",
            "fetch the file from another member",
        )


def _add_scan(ledger: Ledger, file: DataFileBytes, scan: Scan) -> None:
    ledger.end_index, ledger.end_term = scan.entry_index[-1], scan.term[-1]
    for offset, length in zip(scan.offset, scan.properties_length, strict=True):
        position = offset - file.first_offset
        first = position == layout.ENTRY_HEADER_SIZE
        if length > (PROPERTIES_MAX_BEFORE_FIRST if first else PROPERTIES_MAX_BEFORE):
            ledger.too_long.append(offset)
        magic_position = position + layout.MAGIC_POSITION
        if file.view[magic_position + 3] == layout.MESSAGE_MAGIC_V2 & 0xFF:
            ledger.version = 2
