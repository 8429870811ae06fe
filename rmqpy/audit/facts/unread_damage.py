"""What is wrong with files of RocketMQ 5.x: they lead to no message, or Java cannot read them.

rmqpy's broker does not use these files, so only audits look into them (:mod:`rmqpy.store.unread`
says what is there). A store of 5.x can be sound in every file that rmqpy reads and damaged here.

============  ====================================================================================
kind          what is checked
============  ====================================================================================
timer wheel   a slot that waits has as many units in the timer log as it counts, and each of them
              leads to a record of its size
batch queues  each unit leads to a record of its size, and its queue offset follows the one before
compaction    the same for the units of ``compactionCq`` and the records of ``compactionLog``
RocksDB       the manifest that ``CURRENT`` names is there
controller    the epochs and the identity can be read
============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqpy.audit.facts.controller_files import read_controller_facts
from rmqpy.codec.units import BATCH_UNIT, BATCH_UNIT_SIZE
from rmqpy.model.files import FileSystem
from rmqpy.model.text import count_text
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import UnreadData, UnreadKind
from rmqpy.store.unread.pop import REVIVE_TOPIC_PREFIX
from rmqpy.store.unread.raw_log import RawFiles, RawLog, numbered_files
from rmqpy.store.unread.rocksdb import missing_manifest
from rmqpy.store.unread.timers import TimerReader

Damage = tuple[str, str]
"""Path, and what was found there."""

HasRecord = Callable[[int, int], bool]
"""Whether a record of a size (second) is at an offset (first)."""

_ROCKSDB = (UnreadKind.ROCKSDB_QUEUES, UnreadKind.ROCKSDB_TABLES, UnreadKind.POP_ROCKSDB)


def find_unread_damage(
    files: FileSystem, paths: StorePaths, unread: list[UnreadData]
) -> Iterator[Damage]:
    """Yield what is wrong with the data in ``unread``."""
    for each in unread:
        if each.kind is UnreadKind.TIMER_WHEEL:
            reader = TimerReader(RawLog(files, paths), REVIVE_TOPIC_PREFIX)
            broken = list(reader.broken_slots())
            if broken:
                text = count_text(len(broken), "slot")
                yield (
                    each.path,
                    f"{text} with other units in the timer log than counted, or with units that"
                    f" lead to no message, the first one {broken[0]}",
                )
        elif each.kind is UnreadKind.BATCH_QUEUES:
            log = RawLog(files, paths)
            for folder in _queue_folders(files, each.path):
                yield from _batch_queue(files, folder, log.has_record, log.begin)
        elif each.kind is UnreadKind.COMPACTION:
            for folder in _queue_folders(files, each.path):
                queue = folder.replace("/compactionLog/", "/compactionCq/", 1)
                log = RawLog(files, StorePaths(folder, folder))
                yield from _batch_queue(files, queue, log.has_record, 0)
        elif each.kind in _ROCKSDB:
            missing = missing_manifest(files, each.path)
            if missing:
                yield each.path, f"a RocksDB without {missing}, which its CURRENT names"
        elif each.kind is UnreadKind.CONTROLLER:
            facts = read_controller_facts(files, paths)
            yield from ((each.path, text) for text in (facts.problems if facts else ()))


def _queue_folders(files: FileSystem, folder: str) -> Iterator[str]:
    for topic in files.list_dir(folder):
        for name in files.list_dir(f"{folder}/{topic}"):
            yield f"{folder}/{topic}/{name}"


def _batch_queue(
    files: FileSystem, folder: str, has_record: HasRecord, log_begin: int
) -> Iterator[Damage]:
    """Check that the units of a queue lead to records, and that their queue offsets ascend."""
    wrong, first_wrong, expected = 0, "", -1
    for offset, size, base, count in batch_units(files, folder):
        leads = offset < log_begin or has_record(offset, size)
        if not leads or (expected >= 0 and base < expected):
            wrong += 1
            first_wrong = first_wrong or f"queue offset {base}, physical offset {offset}"
        expected = base + max(count, 1)
    if wrong:
        yield (
            folder,
            f"{count_text(wrong, 'unit that leads', 'units that lead')} to no message, the first"
            f" one for {first_wrong}",
        )


def batch_units(files: FileSystem, folder: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (physical offset, size, first queue offset, number of messages) of the units in a
    folder of 46-byte units; in each file, up to the first one that was not written.
    """
    parts = numbered_files(files, folder)
    data = RawFiles(files, parts)
    for start, path in parts:
        for position in range(start, start + files.size_of(path), BATCH_UNIT_SIZE):
            raw = data.read(position, BATCH_UNIT_SIZE)
            if len(raw) < BATCH_UNIT_SIZE or not any(raw):
                break
            offset, size, _, _, base, count = BATCH_UNIT.unpack(raw)[:6]
            yield offset, size, base, count
