"""Find where two stores differ: from their manifests alone, or to the byte with their files.

The logs are compared in the range that both have. A part that only one log has is a difference of
its own kind (BEGIN, END); a slave that lags differs only by its END. If the logs end in the same
block at different offsets, digests cannot decide that block (UNDECIDED): with both stores' files
its bytes are compared directly; with the files of the longer log alone, a digest of these bytes
decides, so no data needs to be sent.

===========  ====================================================================================
kind         offsets ``begin`` to ``end``
===========  ====================================================================================
LOG          only one store has this log
FILE_SIZE    the logs have files of different sizes: nothing else is compared
BEGIN        the part that only one store still has at the start
CONTENT      the first position with different bytes (from manifests: the block)
UNDECIDED    bytes that only the files can decide
END          the part that only one store has at the end
DIVIDE       the divided offsets
TABLE        a configuration table with different content
===========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from attrs import asdict, define, evolve

from rmqpy.audit.facts.facts import RecordFacts
from rmqpy.audit.facts.log_facts import record_at
from rmqpy.audit.facts.table_content import MEMBERS
from rmqpy.audit.replicas.manifest import LogDigest, LogFileDigest, Manifest
from rmqpy.audit.replicas.table_comparison import compare_tables, verdict_on_tables
from rmqpy.audit.replicas.verdict import DIFFERENT, NOTHING_COMPARED, Verdict
from rmqpy.audit.scan.blocks import digest_of
from rmqpy.audit.scan.directory import LogSegments, StoreDirectory
from rmqpy.audit.scan.queue_units import map_file
from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.model.files import FileSystem
from rmqpy.store.files.framing import Framing

__all__ = [
    "Difference",
    "DifferenceKind",
    "LocalStore",
    "compare_manifests",
    "compare_stores",
    "first_block",
    "first_difference",
    "first_different_byte",
    "verdict_on",
    "verdict_on_logs",
]

_CHUNK = 1 << 20


class DifferenceKind(Enum):
    """The kind of a difference; see the table above."""

    LOG = "log"
    FILE_SIZE = "file size"
    BEGIN = "begin"
    FILE = "file"
    CONTENT = "content"
    UNDECIDED = "undecided"
    END = "end"
    DIVIDE = "divide"
    TABLE = "table"


@define(slots=True, frozen=True, kw_only=True)
class Difference:
    """One difference; ``left`` and ``right`` describe the two stores.

    ``record`` and ``other`` are messages of the left and of the right store; they are known only if
    the files are available. They contain the first different byte. For an END it is the first
    message that only one store has; for a block that one store's files alone cannot narrow down it
    is the block's first message.
    """

    kind: DifferenceKind
    log: str = ""
    begin: int = -1
    end: int = -1
    left: str = ""
    right: str = ""
    record: RecordFacts | None = None
    other: RecordFacts | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty fields."""
        tree = asdict(self) | {"kind": self.kind.name}
        return {name: value for name, value in tree.items() if value not in (None, "", -1)}


@define(slots=True, frozen=True)
class LocalStore:
    """A store whose files can be read."""

    files: FileSystem
    directory: StoreDirectory


def compare_manifests(left: Manifest, right: Manifest) -> list[Difference]:
    """Return every difference that the digests show; for each log only the first CONTENT."""
    found: list[Difference] = []
    if left.divided_offset != right.divided_offset:
        values = str(left.divided_offset), str(right.divided_offset)
        found.append(Difference(kind=DifferenceKind.DIVIDE, left=values[0], right=values[1]))
    for kind in ("classic", "dledger"):
        one, two = left.log(kind), right.log(kind)
        if one is None and two is None:
            continue
        if one is None or two is None or not one.files or not two.files:
            found.append(
                Difference(kind=DifferenceKind.LOG, log=kind, left=_log(one), right=_log(two))
            )
            continue
        found += _compare_logs(kind, one, two)
    return found + list(_compare_tables(left, right))


def compare_stores(
    left: Manifest, right: Manifest, one: LocalStore | None, two: LocalStore | None
) -> list[Difference]:
    """Return the differences to the byte, as far as the stores' files are available."""
    found = []
    for difference in compare_manifests(left, right):
        exact: Difference | None = difference
        if difference.kind in (DifferenceKind.CONTENT, DifferenceKind.UNDECIDED):
            if one is not None and two is not None:
                exact = _first_difference(one, two, difference)
            else:
                exact = _with_one((left, one), (right, two), difference)
        elif difference.kind is DifferenceKind.END:
            exact = _first_after((left, one), (right, two), difference)
        if exact is not None:
            found.append(exact)
    return found


def verdict_on(differences: Sequence[Difference], left: Manifest, right: Manifest) -> Verdict:
    """Return the verdict on two stores with these differences.

    One is contained in the other if only the starts and ends of the logs differ, all in its favour,
    or only tables of which one is behind the other.
    """
    if not left.messages or not right.messages:
        return NOTHING_COMPARED
    tables = verdict_on_tables(tuple(compare_tables(left, right)))
    in_left = in_right = False
    for each in differences:
        if each.kind is DifferenceKind.TABLE and each.log in MEMBERS:
            if tables == DIFFERENT or left.contents is None or right.contents is None:
                return DIFFERENT
            continue
        one, two = left.log(each.log), right.log(each.log)
        if each.kind not in (DifferenceKind.BEGIN, DifferenceKind.END) or not one or not two:
            return DIFFERENT
        is_left = one.end > two.end if each.kind is DifferenceKind.END else one.begin < two.begin
        in_left, in_right = in_left or is_left, in_right or not is_left
    verdict = verdict_on_logs(left, right, in_left=in_left, in_right=in_right)
    return tables if verdict.is_equal else verdict


def verdict_on_logs(left: Manifest, right: Manifest, *, in_left: bool, in_right: bool) -> Verdict:
    """Return the verdict on two stores whose logs are the same in the range that both have.

    ``in_left`` and ``in_right`` say which has more than that range. As the range has the same
    messages in both, the totals say how many more; if the longer log does not have more messages,
    their number is not known.
    """
    more = left.messages - right.messages
    only_left = (more if more > 0 else None) if in_left else 0
    only_right = (-more if more < 0 else None) if in_right else 0
    return Verdict.on_contents(left.name, right.name, only_left, only_right)


def first_different_byte(one: bytes, two: bytes) -> int:
    """Return the position of the first byte that differs, or -1 if none does."""
    if one == two:
        return -1
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high) // 2
        if one[: middle + 1] == two[: middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def first_difference(differences: list[Difference]) -> Difference | None:
    """Return the difference at the smallest offset, where two logs diverge.

    Return None if only tables differ, or if no offset is known.
    """
    placed = [each for each in differences if each.begin >= 0]
    return min(placed, key=lambda each: each.begin, default=None)


_Side = tuple[Manifest, LocalStore | None]


def _first_after(left: _Side, right: _Side, where: Difference) -> Difference:
    """Return an END with the first message that only one store has, if its files are available."""
    for is_left, (manifest, store) in ((True, left), (False, right)):
        log = manifest.log(where.log)
        if store is None or log is None or log.end != where.end:
            continue
        file = next(file for file in log.files if file.end > where.begin)
        offset = max(where.begin, file.first_offset)
        record = _record_in(store, file, where.log, offset)
        return evolve(where, record=record) if is_left else evolve(where, other=record)
    return where


def _with_one(left: _Side, right: _Side, where: Difference) -> Difference | None:
    """Compare a block for which only one store's files are available.

    If the other log ends in the block, a digest decides. Otherwise the block's first message is
    added to the difference.
    """
    for is_left, mine, theirs in ((True, left, right), (False, right, left)):
        store = mine[1]
        if store is None:
            continue
        own, other = (_file_at(manifest, where) for manifest, _ in (mine, theirs))
        if where.kind is DifferenceKind.UNDECIDED and own.end > other.end:
            view = _view(store, own, where.log)[where.begin - own.first_offset :]
            rest = view[: other.end - where.begin]
            if digest_of(rest) == _block(other, where.begin):
                return None
            where = evolve(where, kind=DifferenceKind.CONTENT)
        record = _record_in(store, own, where.log, where.begin)
        return evolve(where, record=record) if is_left else evolve(where, other=record)
    return where


def _file_at(manifest: Manifest, where: Difference) -> LogFileDigest:
    log = manifest.log(where.log)
    assert log is not None, "both have been compared"
    return next(file for file in log.files if file.first_offset <= where.begin < file.end_offset)


def _view(store: LocalStore, file: LogFileDigest, kind: str) -> memoryview:
    segments = _segments_of(store.directory, kind)
    log_file = segments.file_at(file.first_offset) if segments else None
    assert log_file is not None, "the manifest is of these files"
    return map_file(store.files, log_file.path)


def _record_in(
    store: LocalStore, file: LogFileDigest, kind: str, offset: int
) -> RecordFacts | None:
    framing = Framing.DLEDGER if kind == "dledger" else Framing.CLASSIC
    return _record_over(_view(store, file, kind), file.first_offset, offset, framing)


def _log(log: LogDigest | None) -> str:
    return f"{log.begin} to {log.end}" if log is not None and log.files else "none"


def _compare_logs(kind: str, left: LogDigest, right: LogDigest) -> Iterator[Difference]:
    if left.file_size != right.file_size:
        yield Difference(
            kind=DifferenceKind.FILE_SIZE,
            log=kind,
            left=str(left.file_size),
            right=str(right.file_size),
        )
        return
    begin, end = max(left.begin, right.begin), min(left.end, right.end)
    if left.begin != right.begin:
        yield Difference(
            kind=DifferenceKind.BEGIN,
            log=kind,
            begin=min(left.begin, right.begin),
            end=begin,
            left=f"begins at {left.begin}",
            right=f"begins at {right.begin}",
        )
    yield from _compare_files(kind, left, right)
    yield from _compare_content(kind, left, right)
    if left.end != right.end:
        longest = max(left.end, right.end)
        yield Difference(
            kind=DifferenceKind.END,
            log=kind,
            begin=end,
            end=longest,
            left=f"ends at {left.end}",
            right=f"ends at {right.end}",
        )


def _compare_files(kind: str, left: LogDigest, right: LogDigest) -> Iterator[Difference]:
    """Yield the ranges between the common start and end for which only one log has files."""
    begin, end = max(left.begin, right.begin), min(left.end, right.end)
    ones, twos = ({file.first_offset for file in log.files} for log in (left, right))
    found: Difference | None = None
    for offset in sorted(ones ^ twos):
        if not begin <= offset < end:
            continue
        has = [("present" if offset in each else "missing") for each in (ones, twos)]
        if found is not None and (found.end, found.left) == (offset, has[0]):
            found = evolve(found, end=offset + left.file_size)
            continue
        if found is not None:
            yield found
        found = Difference(
            kind=DifferenceKind.FILE,
            log=kind,
            begin=offset,
            end=offset + left.file_size,
            left=has[0],
            right=has[1],
        )
    if found is not None:
        yield found


def _compare_content(kind: str, left: LogDigest, right: LogDigest) -> Iterator[Difference]:
    files = {file.first_offset: file for file in right.files}
    for one in left.files:
        two = files.get(one.first_offset)
        if two is None:
            continue
        different = first_block(one, two)
        if different is None:
            continue
        begin, end, decided = different
        yield Difference(
            kind=DifferenceKind.CONTENT if decided else DifferenceKind.UNDECIDED,
            log=kind,
            begin=begin,
            end=end,
            left=_block(one, begin),
            right=_block(two, begin),
        )
        if decided:
            return


def _block(file: LogFileDigest, begin: int) -> str:
    if not file.blocks.is_whole:
        return f"{file.blocks.digest} (all blocks of the file)"
    number = (begin - file.first_offset) // BLOCK_SIZE
    return file.blocks[number] if number < len(file.blocks) else "nothing"


def first_block(one: LogFileDigest, two: LogFileDigest) -> tuple[int, int, bool] | None:
    """Return (begin, end, decided) of the first block that the digests do not prove equal.

    ``decided`` is False for a block in which one of the logs ends: only its bytes can decide. If a
    manifest has no digests of single blocks, the file counts as one block.
    """
    end = min(one.end, two.end)
    if not (one.blocks.is_whole and two.blocks.is_whole):
        is_same = one.blocks.digest == two.blocks.digest and one.end == two.end
        return None if is_same else (one.first_offset, end, one.end == two.end)
    whole = (end - one.first_offset) // BLOCK_SIZE
    for number in one.blocks.different(two.blocks):
        begin = one.first_offset + number * BLOCK_SIZE
        if number < whole or (one.end == two.end and begin < end):
            return begin, min(begin + BLOCK_SIZE, end), True
        break
    begin = one.first_offset + whole * BLOCK_SIZE
    if one.end == two.end or begin == end:
        return None
    return begin, end, False


def _compare_tables(left: Manifest, right: Manifest) -> Iterator[Difference]:
    ones = {table.name: table for table in left.tables}
    twos = {table.name: table for table in right.tables}
    for name in sorted({*ones, *twos}):
        one, two = ones.get(name), twos.get(name)
        values = [table.digest or table.source if table else "none" for table in (one, two)]
        if values[0] != values[1]:
            yield Difference(kind=DifferenceKind.TABLE, log=name, left=values[0], right=values[1])


def _first_difference(one: LocalStore, two: LocalStore, where: Difference) -> Difference | None:
    """Return the first byte that differs in ``where``, or None if there is none."""
    logs = [
        segments
        for store in (one, two)
        if (segments := _segments_of(store.directory, where.log)) is not None
    ]
    assert len(logs) == 2, "both have been compared"
    offset = where.begin
    while offset < where.end:
        views = []
        for store, segments in zip((one, two), logs, strict=True):
            file = segments.file_at(offset)
            assert file is not None
            view = map_file(store.files, file.path)
            stop = min(offset + _CHUNK, where.end, file.end_offset) - file.first_offset
            views.append((view[offset - file.first_offset : stop], view, file.first_offset))
        (left, left_view, base), (right, right_view, _) = views
        if bytes(left) != bytes(right):
            at = first_different_byte(bytes(left), bytes(right))
            framing = logs[0].framing
            return evolve(
                where,
                kind=DifferenceKind.CONTENT,
                begin=offset + at,
                end=offset + at,
                left=f"byte {left[at]:#04x}",
                right=f"byte {right[at]:#04x}",
                record=_record_over(left_view, base, offset + at, framing),
                other=_record_over(right_view, base, offset + at, framing),
            )
        offset += len(left)
    return None


def _segments_of(directory: StoreDirectory, kind: str) -> LogSegments | None:
    if kind == "classic":
        return directory.classic
    return directory.ledger.data if directory.ledger else None


def _record_over(view: memoryview, base: int, offset: int, framing: Framing) -> RecordFacts | None:
    """Return the record that contains ``offset``, or None."""
    position = 0
    while True:
        scan = scan_records(
            view[position:],
            base + position,
            dledger=framing is Framing.DLEDGER,
            check_crc=False,
        )
        ends = [*scan.frame_offset[1:], scan.end]
        for frame, following in zip(scan.frame_offset, ends, strict=False):
            if frame <= offset < following:
                return record_at(view, base, frame, framing)
        position = scan.end - base
        if scan.stop is not StopReason.LIMIT:
            return None
