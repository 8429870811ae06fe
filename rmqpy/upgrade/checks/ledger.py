"""The entries of one stopped member's DLedger files, and the index up to which a group agrees.

This module only reads files: the entries with their indexes and terms, and the checkpoint with the
committed index. Where a group may be cut can be decided only from all members together
(:func:`agreed_index`), because everything that a quorum has may have been acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, field

from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.scan import Scan, StopReason, is_end_filler
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.quorum import is_quorum
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.ledger.entry_recovery import DATA_SIZE_KEY
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.reframe import PROPERTIES_MAX_BEFORE, PROPERTIES_MAX_BEFORE_FIRST


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


def read_ledger(files: FileSystem, settings: StoreSettings) -> Ledger:
    """Return a stopped member's ledger. Raise StoreError for files that no clean stop leaves."""
    paths = StorePaths.from_settings(settings)
    self_id = settings.dledger_self_id
    assert self_id is not None, "only a member has a ledger"
    data_files = MappedFiles(
        files, (settings.dledger_data_path,), settings.mapped_file_size_commit_log
    )
    data_files.load(DATA_SIZE_KEY)
    ledger = Ledger()
    try:
        for file in data_files:
            if not _add_file(ledger, file):
                break
    finally:
        data_files.close()
    committed = MemberFiles(files, paths.dledger(self_id)).load_committed_index()
    ledger.committed_index = min(committed, ledger.end_index)
    return ledger


def position_after(files: FileSystem, ledger: Ledger, index: int) -> tuple[int, int]:
    """Return the number of the file with entry ``index``, and the position after that entry.

    Raise UpgradeRefusedError if this member does not have the entry.
    """
    for number, entry_file in enumerate(ledger.files):
        if entry_file.first_index <= index <= entry_file.last_index:
            file = files.open_readonly(entry_file.path)
            try:
                return number, _position_after(file.view, index)
            finally:
                file.close()
    raise UpgradeRefusedError(
        f"this member does not have entry {index}, its last one is {ledger.end_index}; start the"
        " group, let it catch up, and stop it again"
    )


def agreed_index(ledgers: Sequence[Ledger], group_size: int) -> int:
    """Return the index of the last entry that the group must keep.

    The group keeps every entry that a member knows to be committed, and every entry that a quorum
    has. Members whose last entries have the same term agree up to the shorter end. Raise
    UpgradeRefusedError if too few members are given, or if no quorum ended in the same term.
    """
    if not is_quorum(len(ledgers), group_size):
        raise UpgradeRefusedError(
            f"{len(ledgers)} of {group_size} members are given, too few to decide what was"
            " acknowledged; give more members, or --cut-index"
        )
    committed = max(ledger.committed_index for ledger in ledgers)
    newest = max(ledger.end_term for ledger in ledgers)
    ends = sorted((each.end_index for each in ledgers if each.end_term == newest), reverse=True)
    if not is_quorum(len(ends), group_size):
        terms = ", ".join(f"{each.end_index} of term {each.end_term}" for each in ledgers)
        raise UpgradeRefusedError(
            f"the members' last entries are {terms}: no quorum ended in one term; start the group,"
            " let it catch up, and stop it cleanly; or give --cut-index"
        )
    return max(committed, ends[group_size // 2])


def _position_after(view: memoryview, index: int) -> int:
    position = 0
    while True:
        _, size, found, *_ = ENTRY_HEADER.unpack_from(view, position)
        position += int(size)
        if found == index:
            return position


def _add_file(ledger: Ledger, file: MappedFile) -> bool:
    """Add one file to ``ledger``. Return whether entries may follow in the next file."""
    first_index, end, stop = -1, file.first_offset, StopReason.LIMIT
    for scan in _scans(file):
        if len(scan):
            _check_follows(file, scan, ledger)
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


def _scans(file: MappedFile) -> Iterator[Scan]:
    offset = file.first_offset
    while True:
        view = file.view[offset - file.first_offset :]
        scan = scan_records(view, offset, dledger=True, check_crc=True)
        yield scan
        offset = scan.end
        if scan.stop is not StopReason.LIMIT:
            return


def _check_follows(file: MappedFile, scan: Scan, ledger: Ledger) -> None:
    index, term = scan.entry_index[0], scan.term[0]
    if ledger.end_index >= 0 and (index != ledger.end_index + 1 or term < ledger.end_term):
        raise StoreError(
            file.path,
            f"entry {index} of term {term} after entry {ledger.end_index} of term"
            f" {ledger.end_term}",
            f"entry {ledger.end_index + 1}",
            "fetch the file from another member",
        )


def _add_scan(ledger: Ledger, file: MappedFile, scan: Scan) -> None:
    ledger.end_index, ledger.end_term = scan.entry_index[-1], scan.term[-1]
    for offset, length in zip(scan.offset, scan.properties_length, strict=True):
        position = offset - file.first_offset
        first = position == layout.ENTRY_HEADER_SIZE
        if length > (PROPERTIES_MAX_BEFORE_FIRST if first else PROPERTIES_MAX_BEFORE):
            ledger.too_long.append(offset)
        magic_position = position + layout.MAGIC_POSITION
        if file.view[magic_position + 3] == layout.MESSAGE_MAGIC_V2 & 0xFF:
            ledger.version = 2
