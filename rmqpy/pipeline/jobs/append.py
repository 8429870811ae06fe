"""Append the new messages of a store to a table: each message once, whatever happens between.

Ranges are read by threads and proven in the order of the log (:class:`Chain`). Each range with rows
is one commit, which records where the next one starts (:mod:`rmqpy.pipeline.lake.tables`). So an
append that was killed continues after its last commit. Before the first commit, the last row of the
table is compared with the store: another store, or one that lost messages, is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Final

from attrs import define, evolve, field

from rmqpy.audit.checks.engine import ordered_map
from rmqpy.audit.facts.reader import read_confirmed_end
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.ranges import WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.pipeline.arrow.message_filter import MessageFilter, log_batches
from rmqpy.pipeline.arrow.rows import MessageColumns
from rmqpy.pipeline.lake.table_rows import TableRows
from rmqpy.pipeline.lake.tables import IDENTITY, LakeTable, Position
from rmqpy.pipeline.spark.work_units import (
    Chain,
    OpenWorkUnit,
    SkippedRange,
    WorkUnit,
    WorkUnitResult,
    partition_store,
)
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Append", "AppendPlan", "GoneMessagesError", "selection_of", "write_parquet"]

RANGE_BYTES: Final = 256 << 20
"""The default size of a range, and so of a commit, in bytes of the log."""


class GoneMessagesError(RmqError):
    """The store has expired messages that were not appended: ``size`` bytes of its log."""

    def __init__(self, root: str, end: int, first: int) -> None:
        super().__init__(
            f"{root}: found the first message at offset {first}, expected {end}, where the table"
            f" ends: {first - end} bytes have expired that were not appended, or their"
            " file has a wrong length; --allow-gap continues without them"
        )
        self.size = first - end


@define(slots=True, frozen=True, kw_only=True)
class AppendPlan:
    """The options of an append.

    ``broker`` is the value of the column brokerName. ``topics`` limits the topics, None selects
    all but the system's. ``allow_gap`` continues where messages have expired.
    """

    root: str
    broker: str
    files: FileSystem = field(factory=OsFileSystem)
    topics: frozenset[str] | None = None
    internal_topics: bool = False
    rows: TableRows = field(factory=TableRows)
    range_bytes: int = RANGE_BYTES
    workers: int = field(factory=lambda: os.cpu_count() or 1)
    allow_gap: bool = False
    progress: ProgressSink = field(factory=NoProgress)
    check: Callable[[], None] = field(default=lambda: None)
    """Raises an error before each commit, and at the end, if the store has changed meanwhile."""


@define(slots=True, frozen=True, kw_only=True)
class ReadRange(WorkUnitResult):
    """A range as batches of rows; ``unreadable`` bodies could not be read for fields or masks."""

    batches: Sequence[pyarrow.RecordBatch]
    unreadable: int
    record_shift: int


@define(slots=True)
class Append:
    """One append of a store to ``table``; afterwards the fields say what was done.

    ``gap`` is the number of bytes of the log that had expired. ``is_recognised`` is False if the
    last row of the table could not be compared, because its message has expired in the store.
    """

    plan: AppendPlan
    table: LakeTable
    rows: int = 0
    commits: int = 0
    unreadable: int = 0
    gap: int = 0
    is_recognised: bool = True
    begin: int = -1
    end: int = -1
    skipped: list[SkippedRange] = field(factory=list)

    def run(self) -> None:
        """Append. Raise RmqError if the table and the store do not belong together."""
        plan, files = self.plan, self.plan.files
        check_selection(self.table, plan)
        directory = read_directory(files, plan.root)
        limit = read_confirmed_end(files, directory)
        ranges, excluded = partition_store(directory, plan.range_bytes, limit)
        position = self.table.position(plan.broker)
        if position is not None:
            self._recognise(ranges, position)
            self.begin = self.end = position.end
            ranges = [
                evolve(work, start=max(work.start, position.end))
                for work in ranges
                if work.stop > position.end
            ]
            excluded = [each for each in excluded if each.offset + each.size > position.end]
        self.skipped += excluded
        plan.progress.expect(sum(work.stop - work.start for work in ranges))
        self._append(ranges)
        plan.check()

    def _append(self, ranges: Sequence[WorkRange]) -> None:
        proof: Chain[ReadRange] = Chain(self._read, self.end)
        units: Iterator[WorkUnit] = map(WorkUnit, ranges)
        if self.end >= 0 and ranges and ranges[0].start == self.end:
            units = chain([WorkUnit(ranges[0], self.end)], map(WorkUnit, ranges[1:]))
        for found in ordered_map(self._read, units, self.plan.workers):
            proven = proof.take(found)
            if proven is not None:
                self._commit(proven)
            self.plan.progress.advance(found.work.stop - found.work.start)

    def _read(self, unit: WorkUnit) -> ReadRange:
        opened = OpenWorkUnit(unit, self.plan.files)
        batches, unreadable = [], 0
        if opened.places is not None:
            columns = MessageColumns(broker_name=self.plan.broker)
            selection = MessageFilter(
                internal_topics=self.plan.internal_topics, topics=self.plan.topics
            )
            for batch in log_batches(opened.walk, opened.places, columns, selection):
                rows, failed = self.plan.rows.batch(batch)
                batches.append(rows)
                unreadable += failed
        return ReadRange(
            **opened.outcome(None),
            batches=batches,
            unreadable=unreadable,
            record_shift=opened.walk.file.record_shift,
        )

    def _commit(self, found: ReadRange) -> None:
        import pyarrow as pa

        self.skipped += found.skipped
        self.end = found.end
        if not found.batches:
            return
        rows = pa.Table.from_batches(found.batches)
        last = rows["physicalOffset"][-1].as_py()
        self.plan.check()
        self.table.append(rows, self.plan.broker, Position(found.end, last))
        if self.begin < 0:
            self.begin = found.begin
        self.rows += len(rows)
        self.commits += 1
        self.unreadable += found.unreadable

    def _recognise(self, ranges: Sequence[WorkRange], position: Position) -> None:
        """Raise RmqError unless the store is the one whose messages the table has."""
        root, broker = self.plan.root, self.plan.broker
        if not ranges or position.end > ranges[-1].stop:
            end = ranges[-1].stop if ranges else 0
            raise RmqError(
                f"{root}: found a log up to offset {end}, expected at least {position.end}, where"
                f" the rows of {broker} end: it is another store, or one that lost messages;"
                " correct DIR or --broker-name, or name a new table"
            )
        first = ranges[0].start
        if position.end < first:
            if not self.plan.allow_gap:
                raise GoneMessagesError(root, position.end, first)
            self.gap = first - position.end
        if position.last < first:
            self.is_recognised = False
            return
        found, expected = (
            self._stored_row(ranges, position.last),
            self.table.row(broker, position.last),
        )
        if expected is None:
            raise RmqError(
                f"found no row of {broker} at physicalOffset {position.last}, expected the last"
                " one that was appended: rows were deleted or changed; name a new table"
            )
        if found != dict(expected):
            raise RmqError(
                f"{root}: found {_text(found)} at offset {position.last}, expected"
                f" {_text(expected)} as in the table: it is another store, or its log was"
                " changed; correct DIR or --broker-name, or name a new table"
            )

    def _stored_row(self, ranges: Sequence[WorkRange], offset: int) -> dict[str, Any] | None:
        """Return the columns IDENTITY of the message at a physical offset, None without one."""
        work = next((each for each in ranges if each.start <= offset < each.stop), None)
        if work is None:  # in a file of a wrong length
            return None
        files = self.plan.files
        shift = OpenWorkUnit(WorkUnit(work, work.start), files).walk.file.record_shift
        begin = offset - shift
        at = evolve(work, start=begin, stop=begin + 1)
        opened = OpenWorkUnit(WorkUnit(at, begin), files)
        assert opened.places is not None, "the unit says where its first frame is"
        columns = MessageColumns(columns=(*IDENTITY, "physicalOffset"))
        for batch in log_batches(
            opened.walk, opened.places, columns, MessageFilter(internal_topics=True)
        ):
            for row in batch.to_pylist():
                if row.pop("physicalOffset") == offset:
                    return dict(row)
        return None


def selection_of(plan: AppendPlan) -> str:
    """Return what decides which rows, with which content, a table has, as JSON."""
    schema, masking = plan.rows.schema, plan.rows.masking
    type_text = "" if schema is None else str(schema.type)
    return json.dumps(
        {
            "topics": None if plan.topics is None else sorted(plan.topics),
            "internalTopics": plan.internal_topics,
            "fields": type_text and hashlib.sha256(type_text.encode()).hexdigest(),
            "masking": masking.digest,
        },
        sort_keys=True,
    )


OPTIONS: Final = {
    "topics": "--topic",
    "internalTopics": "--internal-topics",
    "fields": "--body-schema",
    "masking": "--mask",
}


def check_selection(table: LakeTable, plan: AppendPlan) -> None:
    """Raise RmqError if the rows of a table were selected or masked in another way."""
    recorded = table.selection
    if recorded is None or recorded == selection_of(plan):
        return
    if not recorded:
        raise RmqError(
            "found a table that rmqpy pipeline append has not created, expected a new one or one of"
            " its own; name another table"
        )
    found, expected = json.loads(recorded), json.loads(selection_of(plan))
    options = [option for name, option in OPTIONS.items() if found[name] != expected[name]]
    raise RmqError(
        f"found a table whose rows were appended with another {' and '.join(options)}, expected the"
        " same as now: its older rows would not match; use the same options, or a new table"
    )


def write_parquet(rows: pyarrow.Table, file: IO[bytes]) -> None:
    """Write the file of one commit of a Parquet table."""
    from pyarrow import parquet

    from rmqpy.pipeline.jobs.export import WITHOUT_STATISTICS

    parquet.write_table(
        rows,
        file,
        compression="zstd",
        write_statistics=[name for name in rows.schema.names if name not in WITHOUT_STATISTICS],
    )


def _text(row: Any) -> str:
    if row is None:
        return "no message"
    return f"{row['topic']} queue {row['queueId']} offset {row['queueOffset']}"
