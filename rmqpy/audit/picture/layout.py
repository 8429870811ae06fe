"""Where everything on a store map is: from what is known of replicas to shapes, without I/O.

All replicas share the axis of physical offsets. Each is a row of this form:

==========  ======================================================================================
lane        content
==========  ======================================================================================
files       one shape per log file up to its content, the classic log and the DLedger log in their
            colours; adjacent files that would be narrower than ``FILE_WIDTH_MIN`` are one shape
marks       the divide, and the committed and flushed positions
damage      cells with findings; the worst severity colours the cell
==========  ======================================================================================

Below all rows is one lane that shows whether the replicas have the same blocks.

Invariants: shapes of a lane do not overlap and are inside the axis; their number is bounded by the
width, whatever the number of files and findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from attrs import define, field

from rmqpy.audit.scan.findings import Severity
from rmqpy.model.text import count_text

__all__ = [
    "BlockTable",
    "DamagePlace",
    "FileOnMap",
    "LogPart",
    "MapLayout",
    "MapRow",
    "MapShape",
    "ReplicaMap",
    "lay_out",
]

WIDTH: Final = 960
LABEL: Final = 190
FILE_WIDTH_MIN: Final = 3.0
CELLS: Final = 192

BlockTable = Mapping[tuple[str, int], tuple[str, int]]
"""Digest and length of the content of each block, by the part of the log and the offset."""


class LogPart(Enum):
    """The side of the divide that a file is on."""

    CLASSIC = "classic"
    LEDGER = "ledger"


@define(slots=True, frozen=True)
class FileOnMap:
    """A file of a log: ``end`` is the end of its content, ``file_end`` that of the file."""

    name: str
    part: LogPart
    begin: int
    end: int
    file_end: int


@define(slots=True, frozen=True)
class DamagePlace:
    """One finding at an offset."""

    offset: int
    severity: Severity
    text: str


@define(slots=True, frozen=True, kw_only=True)
class ReplicaMap:
    """What is known of one replica; None is unknown. A replica whose blocks are unknown is not
    compared; one without blocks lacks those of the others.

    ``facts`` are sentences for the reader, such as the mode of the store and the age of the proof.
    """

    name: str
    files: Sequence[FileOnMap]
    divided_offset: int | None = None
    committed_offset: int | None = None
    flushed_offset: int | None = None
    damage: Sequence[DamagePlace] = ()
    blocks: BlockTable | None = field(default=None, repr=False)
    facts: Sequence[str] = ()

    @property
    def begin(self) -> int:
        return min((file.begin for file in self.files), default=0)

    @property
    def end(self) -> int:
        return max((file.end for file in self.files), default=0)


@define(slots=True, frozen=True)
class MapShape:
    """A rectangle, or a line if ``width`` is 0; ``kind`` is its class, ``title`` explains it."""

    kind: str
    x: float
    width: float
    title: str


@define(slots=True, frozen=True, kw_only=True)
class MapRow:
    """One replica. ``expired`` says which offsets are no longer there, "" if all are."""

    name: str
    expired: str
    files: Sequence[MapShape]
    marks: Sequence[MapShape]
    damage: Sequence[MapShape]
    facts: Sequence[str]


@define(slots=True, frozen=True, kw_only=True)
class MapLayout:
    """A whole map. ``agreement`` is empty for a single replica or without digests; ``ticks`` are
    offsets with their places.
    """

    rows: Sequence[MapRow]
    agreement: Sequence[MapShape]
    ticks: Sequence[tuple[float, int]]
    verdict: str


@define(slots=True, frozen=True)
class _OffsetAxis:
    begin: int
    end: int

    @property
    def span(self) -> int:
        return max(self.end - self.begin, 1)

    def x(self, offset: int) -> float:
        part = (offset - self.begin) / self.span
        return LABEL + (WIDTH - LABEL) * min(max(part, 0.0), 1.0)

    def cell(self, offset: int) -> int:
        return min(max((offset - self.begin) * CELLS // self.span, 0), CELLS - 1)

    def bounds(self, cell: int) -> tuple[int, int]:
        return (
            self.begin + cell * self.span // CELLS,
            self.begin + (cell + 1) * self.span // CELLS,
        )

    def shape(self, kind: str, begin: int, end: int, title: str) -> MapShape:
        left = self.x(begin)
        return MapShape(kind, left, max(self.x(end) - left, 0.5), title)


def lay_out(replicas: Sequence[ReplicaMap]) -> MapLayout:
    """Return the map of these replicas."""
    with_files = [each for each in replicas if each.files]
    axis = _OffsetAxis(
        min((each.begin for each in with_files), default=0),
        max((file.file_end for each in with_files for file in each.files), default=1),
    )
    agreement = list(_agreement(axis, replicas))
    return MapLayout(
        rows=[_row(axis, each) for each in replicas],
        agreement=agreement,
        ticks=[(axis.x(each), each) for each in _tick_offsets(axis)],
        verdict=_verdict(agreement, replicas),
    )


def _tick_offsets(axis: _OffsetAxis) -> list[int]:
    return [axis.begin + axis.span * part // 4 for part in range(5)]


def _row(axis: _OffsetAxis, replica: ReplicaMap) -> MapRow:
    expired = ""
    if replica.files and replica.begin > 0:
        expired = f"expired, or never here: offsets before {replica.begin:,}"
    return MapRow(
        name=replica.name,
        expired=expired,
        files=list(_files(axis, replica.files)),
        marks=list(_marks(axis, replica)),
        damage=list(_damage(axis, replica.damage)),
        facts=replica.facts,
    )


def _files(axis: _OffsetAxis, files: Sequence[FileOnMap]) -> Iterator[MapShape]:
    """Yield the empty rest of files, then their content."""
    for together in _merged(axis, files):
        first, last = together[0], together[-1]
        name = (
            first.name
            if first is last
            else f"{count_text(len(together), 'file')}, {first.name} and later"
        )
        if last.file_end > last.end:
            rest = f"{last.name}: not written yet, up to {last.file_end:,}"
            yield axis.shape("rest", last.end, last.file_end, rest)
        if last.end > first.begin:
            title = f"{name}: {first.begin:,} to {last.end:,}"
            yield axis.shape(first.part.value, first.begin, last.end, title)


def _merged(axis: _OffsetAxis, files: Sequence[FileOnMap]) -> Iterator[list[FileOnMap]]:
    together: list[FileOnMap] = []
    for file in files:
        if together and (
            file.part is not together[-1].part
            or file.begin != together[-1].file_end
            or axis.x(file.file_end) - axis.x(together[0].begin) > FILE_WIDTH_MIN
        ):
            yield together
            together = []
        together.append(file)
    if together:
        yield together


def _marks(axis: _OffsetAxis, replica: ReplicaMap) -> Iterator[MapShape]:
    for kind, offset, text in (
        ("divide", replica.divided_offset, "divide between the classic log and the DLedger log"),
        ("committed", replica.committed_offset, "committed: a quorum has everything before"),
        ("flushed", replica.flushed_offset, "flushed: on the disk up to here"),
    ):
        if offset is not None:
            yield MapShape(kind, axis.x(offset), 0.0, f"{text}, {offset:,}")


def _damage(axis: _OffsetAxis, places: Iterable[DamagePlace]) -> Iterator[MapShape]:
    by_cell: dict[int, list[DamagePlace]] = {}
    for place in places:
        by_cell.setdefault(axis.cell(place.offset), []).append(place)
    severities = list(Severity)
    for cell, found in sorted(by_cell.items()):
        worst = min(found, key=lambda each: severities.index(each.severity))
        more = f", and {len(found) - 1} more here" if len(found) > 1 else ""
        begin, end = axis.bounds(cell)
        title = f"{worst.text} at {worst.offset:,}{more}"
        yield axis.shape(worst.severity.value, begin, max(end, begin + 1), title)


def _agreement(axis: _OffsetAxis, replicas: Sequence[ReplicaMap]) -> Iterator[MapShape]:
    """Yield the lane of block equality, with adjacent cells of the same kind as one shape."""
    tables = [each.blocks for each in replicas if each.blocks is not None]
    if len(tables) < 2 or not any(tables):
        return
    counts: dict[int, list[int]] = {}
    for block in {key for table in tables for key in table}:
        number = _compared([table.get(block) for table in tables])
        length = max(found[1] for table in tables if (found := table.get(block)) is not None)
        last = axis.cell(block[1] + max(length, 1) - 1)
        for cell in range(axis.cell(block[1]), last + 1):
            counts.setdefault(cell, [0, 0, 0])[number] += 1
    kinds = {cell: _kind_of(each) for cell, each in counts.items()}
    start = 0
    for cell in range(1, CELLS + 1):
        if cell == CELLS or kinds.get(cell) != kinds.get(start):
            if start in kinds:
                begin, end = axis.bounds(start)[0], axis.bounds(cell - 1)[1]
                title = f"{begin:,} to {end:,}: {_AGREEMENTS[kinds[start]]}"
                yield axis.shape(kinds[start], begin, end, title)
            start = cell


def _compared(found: Sequence[tuple[str, int] | None]) -> int:
    """Return 0 for equal blocks, 1 for different ones, and 2 if they are not in all replicas.

    Blocks with less content than others belong to a replica that is behind: only blocks with the
    same length can differ.
    """
    present = [each for each in found if each is not None]
    lengths = [length for _, length in present]
    if any(len({each for each in present if each[1] == length}) > 1 for length in lengths):
        return 1
    return 0 if len(present) == len(found) and len(set(lengths)) == 1 else 2


_AGREEMENTS: Final = {
    "equal": "the same blocks in all replicas",
    "different": "blocks differ",
    "missing": "blocks are not in all replicas",
}


def _kind_of(counts: Sequence[int]) -> str:
    _, different, missing = counts
    return "different" if different else "missing" if missing else "equal"


def _verdict(agreement: Sequence[MapShape], replicas: Sequence[ReplicaMap]) -> str:
    if len(replicas) < 2:
        return ""
    if not agreement:
        return "The blocks of the replicas were not compared."
    kinds = {shape.kind for shape in agreement}
    if "different" in kinds:
        return "Some blocks differ between the replicas."
    if "missing" in kinds:
        return "The blocks that all replicas have are equal; some have more than others."
    return "All blocks are equal in all replicas."
