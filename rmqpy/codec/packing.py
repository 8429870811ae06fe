"""Packed records of a scan, from which consume queues and key index are rebuilt.

==============  =========================================================================
units           20 bytes each, as in a consume queue, run after run
keys            key hash, physical offset, store time in ms: one for each key of a message
==============  =========================================================================

A run is a sequence without gaps in one queue. :func:`find_queue_ends` only finds where the queues
end. The functions exist in C too (native/pack.c, native/index.c): take them from
:mod:`rmqpy.codec.backend`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import Scan, StopReason, scan_records
from rmqpy.codec.units import QUEUE_UNIT, IndexHeader, index_key_hash, put_index_entries
from rmqpy.model.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK, has_queue_unit
from rmqpy.model.values import define

__all__ = [
    "KEY",
    "PackedRun",
    "PackedUnits",
    "QueueEnds",
    "find_queue_ends",
    "key_hashes",
    "pack_records",
    "put_packed_keys",
]

KEY: Final = struct.Struct(">iqq")
"""The struct of a packed key: key hash, physical offset, store time in ms."""

PackedRun = tuple[int, int, int, int]
"""A run: the row of its first record, that record's queue offset, the number of units, and the
index of the first unit in ``units``.
"""


@define(slots=True, frozen=True)
class PackedUnits:
    """The packed records of a scan. Runs of one queue are in the order of the log."""

    runs: list[PackedRun]
    units: bytes | memoryview
    keys: bytes | memoryview


def pack_records(view: memoryview, scan: Scan, count: int, *, with_keys: bool) -> PackedUnits:
    """Pack the first ``count`` records of a scan of ``view``."""
    firsts: list[tuple[int, int]] = []
    units: list[bytearray] = []
    open_runs: dict[tuple[bytes, int], int] = {}
    for row in range(count):
        if not has_queue_unit(scan.sys_flag[row]):
            continue
        queue, offset = (scan.topic[row], scan.queue_id[row]), scan.queue_offset[row]
        number = open_runs.get(queue)
        if number is None or _next(firsts[number][1], units[number]) != offset:
            number = open_runs[queue] = len(firsts)
            firsts.append((row, offset))
            units.append(bytearray())
        units[number] += QUEUE_UNIT.pack(scan.offset[row], scan.size[row], scan.tags_code[row])
    runs, position = [], 0
    for (row, first), packed in zip(firsts, units, strict=True):
        runs.append((row, first, len(packed) // QUEUE_UNIT.size, position))
        position += len(packed) // QUEUE_UNIT.size
    keys = _keys(view, scan, count) if with_keys else b""
    return PackedUnits(runs, b"".join(units), keys)


@define(slots=True, frozen=True)
class QueueEnds:
    """The next queue offset after each queue's last record, by topic and queue id; and, as of a
    :class:`~rmqpy.codec.scan.Scan`, the end of the last record and what is there.
    """

    ends: dict[tuple[bytes, int], int]
    end: int
    stop: StopReason


def find_queue_ends(view: memoryview, base_offset: int, *, dledger: bool) -> QueueEnds:
    """Find the queues of the records of a part of a log file, which starts with a record."""
    ends: dict[tuple[bytes, int], int] = {}
    end, stop = base_offset, StopReason.LIMIT
    while stop is StopReason.LIMIT:
        scan = scan_records(view[end - base_offset :], end, dledger=dledger, check_crc=False)
        rows = zip(scan.topic, scan.queue_id, scan.queue_offset, scan.sys_flag, strict=True)
        ends |= {(row[0], row[1]): row[2] + 1 for row in rows if has_queue_unit(row[3])}
        end, stop = scan.end, scan.stop
    return QueueEnds(ends, end, stop)


def _next(first: int, units: bytearray) -> int:
    return first + len(units) // QUEUE_UNIT.size


def _keys(view: memoryview, scan: Scan, count: int) -> bytes:
    return b"".join(
        KEY.pack(key_hash, scan.offset[row], scan.store_timestamp_ms[row])
        for row, hashes in key_hashes(scan, view, count)
        for key_hash in hashes
    )


def key_hashes(scan: Scan, view: memoryview, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (row, key hashes) for those of the first ``count`` records that have keys to index."""
    for row in range(count):
        if scan.sys_flag[row] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        hashes = [scan.uniq_key_hash[row]] if scan.uniq_key_hash[row] >= 0 else []
        length = scan.keys_length[row]
        if length:
            start = scan.keys_position[row]
            topic = java_text(scan.topic[row])
            words = java_text(bytes(view[start : start + length])).split(" ")
            hashes += [index_key_hash(topic, word) for word in words if word]
        if hashes:
            yield row, hashes


def put_packed_keys(index: memoryview, slot_count: int, keys: bytes | memoryview) -> None:
    """Add packed keys to an index file that has space for them."""
    header = IndexHeader.decode(index)
    put_index_entries(index, slot_count, header, KEY.iter_unpack(keys))
