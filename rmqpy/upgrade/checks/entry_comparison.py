"""Compare the DLedger logs of two members, entry by entry.

Blocks of 64 KiB are compared by the digests of the manifests, which cover every byte of the
entries, also fields without a CRC. Only blocks that differ, or in which one log ends, are read.

Two entries with the same index are either the same entry or of different terms, unless the term
had two leaders because a member had forgotten its vote (it was restored from a backup):

==============================  ===================================================================
the entries differ, and         the difference is
==============================  ===================================================================
have the same index and term    DAMAGE: one of them is not what the leader wrote, or the term had
                                two leaders
have another term, and both     COMMITTED: the group committed two different entries
members know it as committed
have another term, and one      PENDING: the group decides after a start, and cuts the other one
member does not know that
==============================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from attrs import define, field, fields

from rmqpy.audit.facts.log_reader import MessageValue
from rmqpy.audit.replicas.certificate_text import JAVA_NAMES
from rmqpy.audit.replicas.manifest import LogDigest, LogFileDigest, Manifest
from rmqpy.codec import layout
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.upgrade.checks.replica import Replica

__all__ = ["CommonPrefix", "EntryComparison", "EntryConflict", "common_prefix", "compare_entries"]

BLOCKS_MAX: Final = 64
"""The maximum number of blocks that are read; differences in later blocks are not counted."""
_HEADER_NAMES: Final = (
    *("magic", "size", "index", "term", "pos"),
    *("channel", "chainCrc", "bodyCrc", "bodySize"),
)


class EntryConflict(Enum):
    """What it means that two entries differ; see the table above."""

    DAMAGE = "damage"
    COMMITTED = "committed"
    PENDING = "pending"


@define(slots=True)
class ConflictGroup:
    """All differences of one kind; the values are those of the first."""

    count: int = 0
    first_index: int = -1
    last_index: int = -1
    place: str = ""
    fields: str = ""


@define(slots=True)
class EntryComparison:
    """The comparison of two logs. ``end_one`` and ``end_two`` are the indexes of their last
    entries, ``is_complete`` is False if differences were not counted.
    """

    end_one: int
    end_two: int
    conflicts: dict[EntryConflict, ConflictGroup] = field(factory=dict)
    is_complete: bool = True

    @property
    def differs(self) -> bool:
        return bool(self.conflicts)


@define(slots=True, frozen=True)
class _Entry:
    offset: int
    index: int
    term: int
    data: bytes


def compare_entries(first: Replica, second: Replica) -> EntryComparison | None:
    """Compare the entries that both members have; return None if one of them has no entry."""
    one, two = (each.survey().manifest for each in (first, second))
    mine, theirs = one.log("dledger"), two.log("dledger")
    if mine is None or theirs is None or not mine.files or not theirs.files:
        return None
    found = EntryComparison(_last_index(one), _last_index(two))
    committed = min(_committed(one), _committed(two))
    seen: set[int] = set()
    for number, (file, other, begin) in enumerate(_different_blocks(mine, theirs)):
        if number == BLOCKS_MAX:
            found.is_complete = False
            break
        stop, is_explained = begin + BLOCK_SIZE, False
        entries = {each.index: each for each in _entries(first, file, begin, stop)}
        for entry in _entries(second, other, begin, stop):
            match = entries.get(entry.index)
            if match is None or match.data == entry.data:
                continue
            is_explained = True
            if entry.index not in seen:
                seen.add(entry.index)
                _add(found, match, entry, committed)
        is_full = stop <= min(file.end, other.end) or file.end == other.end
        if is_full and not is_explained:
            _add_lost(found, file, begin)
    for file, end in _broken_files(mine, theirs):
        _add_lost(found, file, end)
    return found


@define(slots=True, frozen=True)
class CommonPrefix:
    """The last entry that two logs have in common, by index, and whether the entries after it have
    the same term, so that one of them is damaged, or the term had two leaders.
    """

    last_index: int
    has_same_term: bool = False


def common_prefix(first: Replica, second: Replica) -> CommonPrefix | None:
    """Return the common prefix of two logs, or None if they have no file in common. Entries that
    one of them has expired count as common.
    """
    mine, theirs = (each.survey().manifest.log("dledger") for each in (first, second))
    if mine is None or theirs is None:
        return None
    others = {file.first_offset: file for file in theirs.files}
    last = _last_index(first.survey().manifest)
    are_compared = False
    for file in mine.files:
        other = others.get(file.first_offset)
        begin = file.first_offset if other is None else _first_difference(file, other)
        if begin is None or (other is None and not are_compared):
            are_compared |= other is not None
            continue
        stop = begin + BLOCK_SIZE
        theirs_here = [] if other is None else list(_entries(second, other, begin, stop))
        found = {entry.index: entry for entry in theirs_here}
        for entry in _entries(first, file, begin, stop):
            match = found.get(entry.index)
            if match is None or match.data != entry.data:
                has_same_term = match is not None and match.term == entry.term
                return CommonPrefix(entry.index - 1, has_same_term)
            last = entry.index
        return CommonPrefix(last)
    return CommonPrefix(last) if are_compared else None


def _first_difference(file: LogFileDigest, other: LogFileDigest) -> int | None:
    """Return the offset of the first block in which two files differ or one of them ends, or None
    if both have the same entries.
    """
    number = next(file.blocks.different(other.blocks), None)
    return None if number is None else file.first_offset + number * BLOCK_SIZE


def _broken_files(mine: LogDigest, theirs: LogDigest) -> Iterator[tuple[LogFileDigest, int]]:
    """Yield (file, offset) for the files whose entries end early in one log, although both logs
    continue in later files.
    """
    others = {file.first_offset: file for file in theirs.files}
    last = min(mine.files[-1].first_offset, theirs.files[-1].first_offset)
    first = max(mine.begin, theirs.begin)
    for file in mine.files:
        if not first <= file.first_offset < last:
            continue
        other = others.get(file.first_offset)
        end = file.first_offset if other is None else min(file.end, other.end)
        if other is None or file.end != other.end:
            yield file, end


def _different_blocks(
    mine: LogDigest, theirs: LogDigest
) -> Iterator[tuple[LogFileDigest, LogFileDigest, int]]:
    """Yield (file, file of the other log, offset) of every block that may differ."""
    others = {file.first_offset: file for file in theirs.files}
    for file in mine.files:
        other = others.get(file.first_offset)
        if other is None:
            continue
        end = min(file.end, other.end)
        for number in file.blocks.different(other.blocks):
            begin = file.first_offset + number * BLOCK_SIZE
            if begin < end:
                yield file, other, begin


def _entries(replica: Replica, file: LogFileDigest, begin: int, stop: int) -> Iterator[_Entry]:
    """Yield the entries with bytes in a block, up to the first one that cannot be framed."""
    starts = [group.offset for group in file.blocks.groups]
    start = max((each for each in starts if each <= begin), default=file.first_offset)
    end = min((each for each in starts if each >= stop), default=file.end)
    base = file.first_offset
    data = replica.read(file.path, start - base, end - base)
    position = 0
    while position + layout.ENTRY_HEADER_SIZE <= len(data):
        magic, size, index, term, *_ = ENTRY_HEADER.unpack_from(data, position)
        if (
            magic != layout.ENTRY_MAGIC
            or not layout.ENTRY_HEADER_SIZE < size <= len(data) - position
        ):
            return
        if start + position + size > begin:
            raw = bytes(data[position : position + size])
            yield _Entry(start + position, index, term, raw)
        position += size


def _add(found: EntryComparison, one: _Entry, two: _Entry, committed: int) -> None:
    if one.term == two.term:
        kind = EntryConflict.DAMAGE
    else:
        kind = EntryConflict.COMMITTED if one.index <= committed else EntryConflict.PENDING
    group = found.conflicts.setdefault(kind, ConflictGroup())
    if not group.count:
        group.first_index = one.index
        group.place, group.fields = _described(one, two)
    group.count += 1
    group.last_index = one.index


def _add_lost(found: EntryComparison, file: LogFileDigest, begin: int) -> None:
    group = found.conflicts.setdefault(EntryConflict.DAMAGE, ConflictGroup())
    if not group.count:
        group.place = f"offset {begin} in {file.path}, where no entry can be read in one of them"
        group.fields = "everything"
    group.count += 1


def _described(one: _Entry, two: _Entry) -> tuple[str, str]:
    """Return the place of two entries, and the names of the fields that differ."""
    place = f"offset {one.offset}"
    headers = [ENTRY_HEADER.unpack_from(each.data, 0) for each in (one, two)]
    names = [name for name, a, b in zip(_HEADER_NAMES, *headers, strict=False) if a != b]
    try:
        messages = [decode_message(each.data, layout.ENTRY_HEADER_SIZE) for each in (one, two)]
    except InvalidRecordError:
        return place, ", ".join([*names, "the record"])
    place += f", topic {messages[0].topic}, queue {messages[0].queue_id}"
    place += f" offset {messages[0].queue_offset}"
    mine, theirs = map(MessageValue.of, messages)
    for attribute in fields(MessageValue):
        name = attribute.name
        if name in JAVA_NAMES and getattr(mine, name) != getattr(theirs, name):
            names.append(JAVA_NAMES[name])
    if messages[0].body != messages[1].body:
        names.append("the body")
    return place, ", ".join(names) or "bytes that no reader shows"


def _last_index(manifest: Manifest) -> int:
    ledger = manifest.facts.get("ledger") or {}
    return int((ledger.get("last") or {}).get("index", -1))


def _committed(manifest: Manifest) -> int:
    return int((manifest.facts.get("ledger_state") or {}).get("committed_index", -1))
