"""Opening the DLedger files of one member: load, find the end, bring the index units in line.

The data files are the truth, the index is derived from them: units that are missing or differ are
written again from the last data file on whose first entry both agree; without such a file the whole
index is built anew.
"""

from __future__ import annotations

from attrs import define

from rmqpy.model.errors import StoreFault
from rmqpy.store.commitlog.recovery import Framing, Walker, clean_start, unclean_start
from rmqpy.store.entry_store import DATA_SIZE_KEY, INDEX_FILE_SIZE, EntryPaths, EntryStore
from rmqpy.store.files import FileLayer
from rmqpy.store.mapped_files import MappedFiles


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
    index = MappedFiles(opening.files, (opening.paths.index,), INDEX_FILE_SIZE)
    try:
        data.load(DATA_SIZE_KEY)
        index.load("the format of the DLedger index")
        if not data:
            return _begin(opening, data, index), 0
        _check_join(opening, data)
        return _recover(opening, data, index)
    except BaseException:
        data.close()
        index.close()
        raise


def _begin(opening: EntryOpening, data: MappedFiles, index: MappedFiles) -> EntryStore:
    while index:
        index.drop_last()
    data.create(opening.divided_offset or 0)
    data.last.sync()
    store = EntryStore(opening.files, opening.paths, data, index)
    store.settle()
    return store


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
    opening: EntryOpening, data: MappedFiles, index: MappedFiles
) -> tuple[EntryStore, int]:
    framing = Framing.DLEDGER
    walker = Walker(opening.files, data, framing, opening.quarantine, force=opening.force)
    if opening.safe_timestamp_ms is None:
        start = clean_start(data)
    else:
        start = unclean_start(data, framing, opening.safe_timestamp_ms)
    end = walker.recover(start)
    store = EntryStore(opening.files, opening.paths, data, index)
    # A filler with no file behind it: the next entry makes that file.
    store.resume(data.last.end_offset if end.at_blank else end.end)
    start = min(start, len(data) - 1)
    while start > 0 and not store.agrees(data[start].first_offset):
        start -= 1
    if start == 0 and not store.agrees(data.min_offset):
        while index:
            index.drop_last()
    walker.replay(start, end.end, store.adopt)
    if opening.safe_timestamp_ms is not None:
        # What a killed process wrote is in the page cache only: from here on it counts as durable.
        for number in range(start, len(data)):
            data[number].sync()
        for file in index:
            file.sync()
        data.sync_directories()
        index.sync_directories()
    store.settle()
    return store, end.torn_bytes
