"""The opening of the DLedger files of one member: load them, find the end, align the index units.

The data files are authoritative, and the index is derived from them. Units that are missing or
differ are rewritten, starting with the last data file on whose first entry both agree; without such
a file the whole index is rebuilt.

A damaged entry in the middle prevents the start, unless other members may have it and its unit
contains its end: then it becomes a gap, and nothing after it is read until it is repaired
(:mod:`rmqpy.store.ledger.entry_scrub`). An entry whose header and unit name different terms is
treated the same: one of the two is wrong, and a member that trusts the wrong one might lead without
entries that the others have. Damaged entries at the end are a torn tail.

The checkpoint shows which entries were on the disk: all up to its durable entry, and all that were
stored before the time of the last flush. A power failure may lose any page that was written later,
and keep the pages after it:

=================================  =============================================================
damage                             result
=================================  =============================================================
after what was on the disk         a torn tail, even if valid entries follow: cut off and kept in
                                   the quarantine
in the middle, in what was on the  a gap, as above
disk
at the end, in what was on the     a gap, if its unit contains its end. Otherwise it is cut off,
disk                               too; the log now ends before the durable entry, so the member
                                   neither leads nor votes for a member without these entries.
                                   Alone in its group, it does not start
=================================  =============================================================

A process that was killed while the machine kept running has lost nothing that it had written
(:mod:`rmqpy.store.files.boot_note`). A unit is written after its entry, so every entry with a unit
was on the disk then, in the sense of this table, and an entry without one was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, evolve

from rmqpy.codec.entry import IndexUnit, decode_entry_header
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.layout import ENTRY_FILLER_SIZE, ENTRY_HEADER_SIZE, RECORD_SIZE_MIN
from rmqpy.codec.message import check_record
from rmqpy.codec.scan import Scan
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import (
    DurablePoint,
    DurableTailMissingError,
    LogGap,
    LogRecovery,
    MidLogCorruptionError,
    WalkEnd,
    clean_start,
    unclean_start,
)
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger.entry_index import INDEX_FILE_SIZE, EntryIndex
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.ledger.member_state import DurableEntry, MemberFiles

DATA_SIZE_KEY = "mappedFileSizeCommitLog"


@define(slots=True, frozen=True)
class EntryPaths:
    """The paths of one member. ``directory`` is ``<root>/dledger-<selfId>``; the data files may be
    in another one.
    """

    directory: str
    data: tuple[str, ...]

    @property
    def index(self) -> str:
        """The folder of the index files."""
        return f"{self.directory}/index"


@define(slots=True, frozen=True, eq=False, repr=False)
class EntryOpening:
    """One attempt to open the entries.

    ``divided_offset`` is the end of the classic log before the entries, if there is one.
    ``safe_timestamp_ms`` is that of the checkpoint after an unclean stop, None after a clean one.
    """

    files: FileSystem
    paths: EntryPaths
    file_size: int
    divided_offset: int | None
    quarantine: str
    safe_timestamp_ms: int | None
    no_power_loss: bool = False
    """True if a process was killed and the machine has not been restarted since."""
    force: bool = False
    can_mend: bool = False
    """True if there are other members, which may have intact copies of damaged entries."""

    @property
    def is_clean(self) -> bool:
        """True after a clean stop."""
        return self.safe_timestamp_ms is None

    @property
    def member_files(self) -> MemberFiles:
        return MemberFiles(self.files, self.paths.directory)


HOLES_MAX = 64
"""The maximum number of damaged entries that are repaired individually. With more damage, copying
the store of another member is faster.
"""


def open_entries(opening: EntryOpening) -> tuple[EntryStore, WalkEnd]:
    """Open the entries. Return them, and the end of the log with the bytes moved to the quarantine.

    If there are no files, the entries start at the divided offset, or else at 0. Raises StoreError.
    """
    data = MappedFiles(opening.files, opening.paths.data, opening.file_size)
    units = MappedFiles(opening.files, (opening.paths.index,), INDEX_FILE_SIZE)
    try:
        data.load(DATA_SIZE_KEY)
        units.load("the format of the DLedger index")
        index = EntryIndex(opening.files, units, opening.paths.index)
        if not data:
            return _begin(opening, data, index), WalkEnd(data.min_offset, 0, at_blank=False)
        _check_join(opening, data)
        return _recover(opening, data, index)
    except BaseException:
        data.close()
        units.close()
        raise


def _begin(opening: EntryOpening, data: MappedFiles, index: EntryIndex) -> EntryStore:
    index.remove_all()
    data.create(opening.divided_offset or 0)
    data.last.sync()
    if not opening.force:
        # Without a checkpoint, what a power failure leaves would count as damage.
        opening.member_files.begin()
    store = _store(opening, data, index)
    _settle(store, opening, _durable_entry(opening, index))
    return store


def _store(opening: EntryOpening, data: MappedFiles, index: EntryIndex) -> EntryStore:
    return EntryStore(data, index, opening.member_files)


def _check_join(opening: EntryOpening, data: MappedFiles) -> None:
    divided = opening.divided_offset
    if divided is not None and data.min_offset != divided:
        raise StoreError(
            data.first.path,
            f"a DLedger log that starts at {data.min_offset}, and an old commit log that ends at"
            f" {divided}",
            "a DLedger log that starts where the old one ends",
            "restore the missing files of either from another member; or, when files of both logs"
            " cover the same offsets, decide which of them is wanted before anything is moved away",
        )


def _recover(
    opening: EntryOpening, data: MappedFiles, index: EntryIndex
) -> tuple[EntryStore, WalkEnd]:
    framing = Framing.DLEDGER
    holes: dict[int, LogGap] = {}
    durable = _durable_entry(opening, index)
    walker = LogRecovery(
        opening.files,
        data,
        framing,
        opening.quarantine,
        force=opening.force,
        is_mended=opening.can_mend,
        durable=_durable_point(opening, durable, data),
        holes=holes,
    )
    # Without durableIndex, a Java broker may have written the log since.
    if opening.no_power_loss and durable is not None:
        walker = evolve(walker, was_written=lambda offset: index.find(offset) is not None)
    doubtful: set[int] = set()
    if opening.safe_timestamp_ms is None:
        start = clean_start(data)
    else:
        start = unclean_start(data, framing, opening.safe_timestamp_ms)
        if durable is not None and data.find(durable.offset - 1) is not None:
            # Units of later entries may be missing, in any file.
            start = min(start, (durable.offset - 1 - data.min_offset) // data.file_size)
    while True:
        end = _find_end(walker, start, opening, holes, doubtful, index)
        store = _store(opening, data, index)
        store.resume(end.end)
        found = _accept_entries(store, walker, min(start, len(data) - 1), opening)
        if not found:
            break
        holes.update({hole.offset: hole for hole in found})
        doubtful.update(hole.offset for hole in found)
    if end.last in holes:
        store.accept_hole(holes[end.last])
    store.holes.update({hole.index: hole for hole in holes.values()})
    store.rewind()
    if opening.safe_timestamp_ms is not None:
        # The bytes that a killed process wrote may only be in the page cache: make them durable.
        for number in range(min(start, len(data) - 1), len(data)):
            data[number].sync()
        data.sync_directories()
        index.sync()
    _settle(store, opening, durable)
    return store, end


def _durable_entry(opening: EntryOpening, index: EntryIndex) -> DurableEntry | None:
    """Return the last entry that was committed and on the disk, or None if that is unknown: after
    an unclean stop, a checkpoint that Java has written does not show what was synced. With
    ``force``, nothing is expected.
    """
    if opening.force:
        return None
    checkpoint = opening.member_files.load_checkpoint()
    if checkpoint.durable is not None or not opening.is_clean:
        return checkpoint.durable
    unit = index.get(checkpoint.committed_index)
    end = unit.position + unit.size if unit is not None else 0
    return DurableEntry(checkpoint.committed_index, end)


def _durable_point(
    opening: EntryOpening, durable: DurableEntry | None, data: MappedFiles
) -> DurablePoint:
    if durable is None:
        return DurablePoint()
    offset = durable.offset if data.find(durable.offset - 1) is not None else 0
    # What was flushed after the last committed entry may have been replaced since.
    flushed = None if opening.is_clean else durable.offset
    return DurablePoint(offset, flushed, source=f"{opening.paths.directory}/checkpoint")


def _settle(store: EntryStore, opening: EntryOpening, durable: DurableEntry | None) -> None:
    """Finish recovery. Raises StoreError if the only member of a group has lost entries.

    After an unclean stop, only entries up to the durable one count as committed: others may have
    lost what was not synced, and the next leader decides about it.
    """
    lost = durable is not None and durable.index > store.end.index
    if durable is not None and lost and not opening.can_mend:
        raise StoreError(
            store.data.last.path,
            f"a log that ends at entry {store.end.index}",
            f"entries up to {durable.index}, which were on disk"
            f" ({opening.paths.directory}/checkpoint)",
            "restore the directory from a backup; or give up these entries by starting once with"
            " --force-truncate",
        )
    if durable is None or opening.is_clean:
        store.settle(opening.member_files.load_committed_index(), durable or DurableEntry())
    else:
        store.settle(durable.index, durable)
        store.derived_end = PhysicalOffset(store.committed.value)


def _accept_entries(
    store: EntryStore, walker: LogRecovery, start: int, opening: EntryOpening
) -> list[LogGap]:
    """Pass the entries to the store, starting with the last file whose first entry has a unit.
    Return the entries whose unit names another term; if there are any, the store cannot be used.
    """
    data, holes = walker.segments, walker.holes
    believe = opening.force or not opening.can_mend
    while start > 0 and not _is_known(store, holes, data[start].first_offset):
        start -= 1
    if start == 0 and not _is_known(store, holes, data.min_offset):
        store.invalidate_index()
    doubtful: list[LogGap] = []

    def visit(scan: Scan) -> None:
        for unit in store.accept_tail(scan, believe=believe):
            number = unit.index - scan.entry_index[0]
            # The lower of the two terms is not above that of the next entry.
            term = min(unit.term, scan.term[number])
            doubtful.append(LogGap(unit.position, unit.size, unit.index, term))

    walker.replay(start, int(store.end_offset), visit)
    return doubtful


def _find_end(
    walker: LogRecovery,
    start: int,
    opening: EntryOpening,
    holes: dict[int, LogGap],
    doubtful: set[int],
    index: EntryIndex,
) -> WalkEnd:
    """Return the end of the log, and what was moved to the quarantine. The log ends with a gap only
    if that was on the disk and is not one of ``doubtful``, the offsets of those whose term is
    uncertain, because votes depend on it. Raises StoreError.
    """
    moved, followed = 0, False
    while True:
        try:
            end = _walk(walker, min(start, len(walker.segments) - 1), opening, holes, index)
        except DurableTailMissingError as damage:
            if not opening.can_mend:
                raise
            moved += _cut(walker, index, damage.offset)
            walker = evolve(walker, durable=evolve(walker.durable, offset=damage.offset))
            continue
        moved, followed = moved + end.torn_bytes, followed or end.followed
        if holes and end.torn_bytes:
            continue  # The last entry may be another one now.
        was_on_disk = end.end <= walker.durable.offset or walker.was_written(end.last)
        if end.last not in holes or (was_on_disk and end.last not in doubtful):
            return evolve(end, torn_bytes=moved, followed=followed)
        moved += _cut(walker, index, end.last)
        del holes[end.last]
        doubtful.discard(end.last)


def _cut(walker: LogRecovery, index: EntryIndex, offset: int) -> int:
    """Move the entries from ``offset`` to the quarantine, and remove their units, which show that
    they had been written. Return the number of bytes moved.
    """
    moved = walker.force_truncate(offset)
    unit = index.find(offset)
    if unit is not None:
        index.cut(unit.index)
    return moved


def _walk(
    walker: LogRecovery,
    start: int,
    opening: EntryOpening,
    holes: dict[int, LogGap],
    index: EntryIndex,
) -> WalkEnd:
    """Return the end of the log; damage that can be repaired is added to ``holes``. Raises
    StoreError.
    """
    while True:
        try:
            return walker.recover(start)
        except MidLogCorruptionError as damage:
            unit = (
                _damaged_unit(walker.segments, index, damage.offset) if opening.can_mend else None
            )
            full = len(holes) >= HOLES_MAX
            if opening.force or full or unit is None or unit.position in holes:
                raise
            holes[unit.position] = LogGap(unit.position, unit.size, unit.index, unit.term)


def _damaged_unit(data: MappedFiles, index: EntryIndex, offset: int) -> IndexUnit | None:
    """Return the unit of the entry that ended a scan at ``offset``: the entry at that offset or, if
    it matches its unit, the entry before it, whose index or term is wrong.
    """
    unit = index.find(offset)
    if unit is not None and _matches_unit(data, unit):
        unit = index.get(unit.index - 1)
        if unit is None or _matches_unit(data, unit):
            return None
    file = data.find(unit.position) if unit is not None else None
    if unit is None or file is None:
        return None
    least = ENTRY_HEADER_SIZE + RECORD_SIZE_MIN
    fits = least <= unit.size <= file.end_offset - unit.position - ENTRY_FILLER_SIZE
    return unit if fits else None


def _matches_unit(data: MappedFiles, unit: IndexUnit) -> bool:
    """Return whether an entry matches its unit and its record is complete."""
    file = data.find(unit.position)
    if file is None:
        return False
    start = unit.position - file.first_offset
    try:
        header = decode_entry_header(file.view, start, unit.position)
        check_record(file.view[start + ENTRY_HEADER_SIZE : start + header.size], unit.position)
    except InvalidRecordError:
        return False
    return (header.index, header.term, header.size) == (unit.index, unit.term, unit.size)


def _is_known(store: EntryStore, holes: Mapping[int, LogGap], position: int) -> bool:
    return position in holes or store.knows(position)
