"""What is in the consume queues and tables that RocketMQ 5.x keeps in RocksDB, if it can be read.

Without the optional library (``pip install rmqpy[rocksdb]``) these are only named.
"""

from __future__ import annotations

import json
import os
from collections import Counter

from attrs import evolve

from rmqpy.audit.facts.unread_damage import Damage
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.text import count_text
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import UnreadData, UnreadKind
from rmqpy.store.unread.raw_log import RawLog
from rmqpy.store.unread.rocksdb import missing_manifest
from rmqpy.store.unread.rocksdb_reader import can_read_rocksdb, read_rocks_units, read_rocksdb

_INSTALL = " (not read: rmqpy[rocksdb] is not installed)"
_KINDS = (UnreadKind.ROCKSDB_QUEUES, UnreadKind.ROCKSDB_TABLES)


def read_rocksdb_content(
    files: FileSystem, paths: StorePaths, unread: list[UnreadData]
) -> tuple[list[UnreadData], list[Damage]]:
    """Return ``unread`` with what RocksDB contains, and what is wrong there."""
    found: list[UnreadData] = []
    damage: list[Damage] = []
    for each in unread:
        # A RocksDB without its manifest is reported already; files in memory have no folder.
        if (
            each.kind not in _KINDS
            or not os.path.isdir(each.path)
            or missing_manifest(files, each.path)
        ):
            found.append(each)
        elif not can_read_rocksdb():
            found.append(evolve(each, found=each.found + _INSTALL))
        else:
            try:
                is_queues = each.kind is UnreadKind.ROCKSDB_QUEUES
                read, wrong = _queues(files, paths, each) if is_queues else _table(each)
                found.append(read)
                damage += [(each.path, text) for text in wrong]
            except StoreError as error:
                found.append(each)
                damage.append((each.path, error.found))
    return found, damage


def _queues(
    files: FileSystem, paths: StorePaths, unread: UnreadData
) -> tuple[UnreadData, list[str]]:
    """Count the units of each topic; each must lead to a record, and follow the one before."""
    log = RawLog(files, paths)
    counts: Counter[str] = Counter()
    ends: dict[tuple[str, int], int] = {}
    wrong, first_wrong = 0, ""
    for unit in read_rocks_units(unread.path):
        queue = (unit.topic, unit.queue_id)
        leads = unit.physical_offset < log.begin or log.has_record(unit.physical_offset, unit.size)
        if not leads or ends.get(queue, unit.queue_offset) != unit.queue_offset:
            wrong += 1
            first_wrong = first_wrong or (
                f"{unit.topic} queue {unit.queue_id}, queue offset {unit.queue_offset}, physical"
                f" offset {unit.physical_offset}"
            )
        ends[queue] = unit.queue_offset + 1
        counts[unit.topic] += 1
    texts = []
    if wrong:
        texts.append(
            f"{count_text(wrong, 'unit')} in RocksDB without a message or after a gap, the first"
            " one:"
            f" {first_wrong}"
        )
    content = f"{count_text(counts.total(), 'message')} in {count_text(len(ends), 'queue')}"
    found = f"{unread.found}: {content}"
    return evolve(unread, found=found, messages=tuple(sorted(counts.items()))), texts


def _table(unread: UnreadData) -> tuple[UnreadData, list[str]]:
    """Count the entries of a table, all of which must be JSON."""
    count = 0
    wrong = []
    for key, value in read_rocksdb(unread.path):
        count += 1
        try:
            json.loads(value)
        except ValueError:
            wrong.append(f"the entry {key[:60]!r} is no JSON: {value[:60]!r}")
    return evolve(unread, found=f"{unread.found}: {count_text(count, 'entry')}"), wrong
