"""Sums over the units of derived files: consume queues, DLedger indexes, and the key index.

The walk over a log file sums a digest of every unit that must exist for its messages
(:mod:`rmqpy.codec.tally.kernel`). The functions of this module sum the units that do exist, per log
file to which they lead. Where the sums of a queue and a log file agree, every message of the file
has its unit, and no unit leads to anything else in the file; so neither of them has to be read
again for the comparison with the other. The functions exist in C too (:mod:`native_sums
<rmqpy.codec.tally.native_sums>`); :mod:`rmqpy.codec.tally.backend` chooses.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from typing import Final

from attrs import field

from rmqpy.codec import layout
from rmqpy.codec.entry import INDEX_UNIT
from rmqpy.codec.layout import QUEUE_FILLER_SIZE
from rmqpy.codec.tally.kernel import entry_digest, key_digest, tags_digest, unit_digest
from rmqpy.codec.units import INDEX_ENTRY, INDEX_SLOT, QUEUE_UNIT, index_entry_position
from rmqpy.model.values import define

__all__ = [
    "IndexSums",
    "SlotState",
    "UnitSums",
    "rewind_index_in_python",
    "slots_digest",
    "sum_units_in_python",
    "walk_index_in_python",
]

UnitSums = dict[int, tuple[int, int, int]]
"""Number of the log file (offset divided by the file size) → (count, sum of :func:`unit_digest`,
sum of :func:`tags_digest` or :func:`entry_digest`).
"""
SlotState = tuple[int, "array[int]"]
"""(Number of an entry, and for each slot that of its newest entry before it)."""
_MASK64: Final = (1 << 64) - 1


@define(slots=True)
class IndexSums:
    """The walk over the entries of a key index file.

    ``wrong`` counts entries that do not link to the previous one of their slot, ``wrong_slots``
    slots that do not lead to their newest entry. ``files`` maps numbers of log files to (count, sum
    of :func:`key_digest`).
    """

    wrong: int = 0
    wrong_slots: int = 0
    used_slots: int = 0
    max_offset: int = -1
    files: dict[int, tuple[int, int]] = field(factory=dict)


def slots_digest(newest: array[int]) -> str:
    """Return the digest of slots as they are in the file."""
    swapped = array("i", newest)
    if sys.byteorder == "little":
        swapped.byteswap()
    return hashlib.blake2b(swapped, digest_size=16).hexdigest()


def sum_units_in_python(
    view: memoryview, unit_size: int, first: int, log_file_size: int
) -> UnitSums:
    """Sum the units in ``view``, the first of which has the number ``first``: a queue offset or an
    entry's index. Units that were never written, and fillers, do not count.

    ``unit_size`` is 20 for a consume queue, 32 for a DLedger index.
    """
    sums: UnitSums = {}
    is_queue = unit_size == layout.QUEUE_UNIT_SIZE
    for number in range(len(view) // unit_size):
        at = number * unit_size
        if is_queue:
            place, size, tags = QUEUE_UNIT.unpack_from(view, at)
            other = tags_digest(first + number, tags)
        else:
            magic, place, size, index, term = INDEX_UNIT.unpack_from(view, at)
            other = entry_digest(first + number, magic, index, term)
        if (place == 0 and size == 0) or (is_queue and size == QUEUE_FILLER_SIZE):
            continue
        file = -1 if place < 0 else place // log_file_size
        count, one, two = sums.get(file, (0, 0, 0))
        one += unit_digest(first + number, place, size)
        sums[file] = count + 1, one & _MASK64, (two + other) & _MASK64
    return sums


def rewind_index_in_python(
    view: memoryview, slot_count: int, first: int, entry_end: int
) -> array[int] | None:
    """Return what the slots of a key index file were before the entries from ``first`` to before
    ``entry_end`` were added, or None if these are not the newest entries of their slots.
    """
    newest = array("i", bytes(4 * slot_count))
    for slot in range(slot_count):
        position = layout.INDEX_HEADER_SIZE + slot * layout.INDEX_SLOT_SIZE
        (newest[slot],) = INDEX_SLOT.unpack_from(view, position)
    for number in range(entry_end - 1, first - 1, -1):
        position = index_entry_position(number, slot_count)
        key_hash, _, _, previous = INDEX_ENTRY.unpack_from(view, position)
        if key_hash < 0 or newest[key_hash % slot_count] != number:
            return None
        newest[key_hash % slot_count] = previous
    return newest


def walk_index_in_python(
    view: memoryview,
    slot_count: int,
    entry_end: int,
    log_file_size: int,
    low: int,
    high: int,
    since: SlotState | None = None,
) -> IndexSums:
    """Walk the entries up to ``entry_end`` (exclusive) of the key index file in ``view``: from the
    first one, or ``since`` a state of the slots, which is changed.

    Only entries of messages in ``[low, high)`` are summed.
    """
    result = IndexSums()
    first, newest = since or (1, array("i", bytes(4 * slot_count)))
    for number in range(first, entry_end):
        position = index_entry_position(number, slot_count)
        key_hash, offset, _, previous = INDEX_ENTRY.unpack_from(view, position)
        if low <= offset < high:
            file = -1 if offset < 0 else offset // log_file_size
            count, total = result.files.get(file, (0, 0))
            result.files[file] = count + 1, (total + key_digest(offset, key_hash)) & _MASK64
        result.max_offset = max(result.max_offset, offset)
        if key_hash < 0:
            result.wrong += 1
            continue
        slot = key_hash % slot_count
        result.wrong += previous != newest[slot]
        newest[slot] = number
    for slot in range(slot_count):
        position = layout.INDEX_HEADER_SIZE + slot * layout.INDEX_SLOT_SIZE
        (head,) = INDEX_SLOT.unpack_from(view, position)
        result.used_slots += head != 0
        result.wrong_slots += head != newest[slot]
    return result
