"""Opening the DLedger files of one member: load, find the end, bring the index units in line.

The data files are the truth, the index is derived from them: units that are missing or differ are
written again from the last data file on whose first entry both agree; without such a file the whole
index is built anew.
"""

from __future__ import annotations

from attrs import define

from rmqpy.model.errors import StoreFault
from rmqpy.store.commitlog.recovery import Framing, Walker, clean_start, unclean_start
from rmqpy.store.entry_index import INDEX_FILE_SIZE, EntryIndex
from rmqpy.store.entry_store import DATA_SIZE_KEY, EntryPaths, EntryStore
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFiles
from rmqpy.store.member_files import MemberFiles


@define(slots=True, frozen=True)
class EntryOpening:
    """``divided_offset``: where the classic log ends that stands in front of the entries, if any.
    ``safe_timestamp_ms`` is the checkpoint's after an unclean stop, None after a clean one.
    """

    files: FileLayer
    paths: EntryPaths
    file_size: int
    divided_offset: int | None
    quarantine: str
    safe_timestamp_ms: int | None
    force: bool = False


def open_entries(opening: EntryOpening) -> tuple[EntryStore, int]:
    """The entries, and how many torn bytes were moved away behind them. Where there are no files
    the entries begin at the divided offset, else at 0. Raises StoreFault.
    """
    data = MappedFiles(opening.files, opening.paths.data, opening.file_size)
    units = MappedFiles(opening.files, (opening.paths.index,), INDEX_FILE_SIZE)
    try:
        data.load(DATA_SIZE_KEY)
        units.load("the format of the DLedger index")
        index = EntryIndex(opening.files, units, opening.paths.index)
        if not data:
            return _begin(opening, data, index), 0
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
    store = _store(opening, data, index)
    store.settle()
    return store


def _store(opening: EntryOpening, data: MappedFiles, index: EntryIndex) -> EntryStore:
    return EntryStore(data, index, MemberFiles(opening.files, opening.paths.directory))


def _check_join(opening: EntryOpening, data: MappedFiles) -> None:
    divided = opening.divided_offset
    if divided is not None and data.min_offset != divided:
        raise StoreFault(
            data.first.path,
            f"a DLedger log that begins at {data.min_offset}, and an old commit log that ends at"
            f" {divided}",
            "the one to begin where the other ends",
            "restore the missing files of either from another member; or, when files of both logs"
            " cover the same offsets, ask which of them is wanted before anything is moved away",
        )


def _recover(
    opening: EntryOpening, data: MappedFiles, index: EntryIndex
) -> tuple[EntryStore, int]:
    framing = Framing.DLEDGER
    walker = Walker(opening.files, data, framing, opening.quarantine, force=opening.force)
    if opening.safe_timestamp_ms is None:
        start = clean_start(data)
    else:
        start = unclean_start(data, framing, opening.safe_timestamp_ms)
    end = walker.recover(start)
    store = _store(opening, data, index)
    store.resume(end.end)
    start = min(start, len(data) - 1)
    while start > 0 and not store.agrees(data[start].first_offset):
        start -= 1
    if start == 0 and not store.agrees(data.min_offset):
        index.remove_all()
    walker.replay(start, end.end, store.adopt)
    store.rewind()
    if opening.safe_timestamp_ms is not None:
        # What a killed process wrote is in the page cache only: from here on it counts as durable.
        for number in range(start, len(data)):
            data[number].sync()
        data.sync_directories()
        index.sync()
    store.settle()
    return store, end.torn_bytes
