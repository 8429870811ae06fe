"""Export the messages of a store as Parquet files, written by the executors of the ranges.

A range is written completely by its executor; the result has the offsets at which its first frame
starts and the next one must start. The driver takes the ranges in order, proves them
(:mod:`rmqpy.pipeline.spark.work_units`), and only then places the file
(:mod:`rmqpy.pipeline.jobs.export_target`). So an attempt that died, or a second attempt at the same
range, leaves nothing that counts. ``_manifest.json`` lists the files; ``_SUCCESS`` shows that all
of them exist.

The messages are the same as those of ``rmqpy store dump``; sorted by name, the files are in the
order of the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from attrs import asdict, define, field

from rmqpy.audit.facts.reader import read_confirmed_end
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.ranges import RANGE_BYTES, WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.pipeline.arrow.columns import PACKED
from rmqpy.pipeline.arrow.message_filter import MessageFilter, log_batches
from rmqpy.pipeline.arrow.rows import COLUMNS, MessageColumns
from rmqpy.pipeline.jobs.export_target import MANIFEST, SUCCESS, ExportTarget
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

__all__ = [
    "Export",
    "ExportPlan",
    "ExportTask",
    "ExportedRange",
    "SkippedRange",
    "WorkUnit",
    "read_export_manifest",
]

ROW_GROUP_BYTES: Final = 64 << 20
DELTA_COLUMNS: Final = (
    "queueOffset",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
    "entryIndex",
)
"""The columns whose values rarely repeat and differ little from the previous value."""
DISTINCT_COLUMNS: Final = ("keys", "bodyCrc")
"""The columns whose values rarely repeat."""
PROPERTIES: Final = ("properties.key_value.key", "properties.key_value.value")
WITHOUT_STATISTICS: Final = frozenset(["body", "properties", "crcOk"])
"""The columns whose minimum and maximum are useless."""
WRITER_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": [*(set(COLUMNS) - set(DELTA_COLUMNS) - set(DISTINCT_COLUMNS)), PROPERTIES[0]],
    "column_encoding": dict.fromkeys(DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
    "write_statistics": [name for name in COLUMNS if name not in WITHOUT_STATISTICS],
    "store_schema": False,
}
"""The options of the Parquet writer. Without ``store_schema`` readers see Parquet's types instead
of those of the arrays.
"""


@define(slots=True, frozen=True, kw_only=True)
class ExportedRange(WorkUnitResult):
    """A range as a file with ``rows`` rows, or without a file if there are no rows."""

    rows: int


@define(slots=True, frozen=True, kw_only=True)
class ExportTask:
    """Exports one work unit, in this process or on a worker."""

    target: ExportTarget
    files: FileSystem = field(factory=OsFileSystem)
    broker_name: str | None = None
    internal_topics: bool = False

    def __call__(self, unit: WorkUnit) -> ExportedRange:
        finished = self.target.finished(unit, self.files)
        if finished is not None:
            return ExportedRange(work=unit.work, **finished)
        opened = OpenWorkUnit(unit, self.files)
        path, rows = None, 0
        if opened.places is not None:
            make = MessageColumns(broker_name=self.broker_name, form=PACKED)
            selection = MessageFilter(internal_topics=self.internal_topics)
            groups = row_groups(log_batches(opened.walk, opened.places, make, selection))
            first = next(groups, None)
            if first is not None:
                begin = unit.work.first_offset + opened.places[0]

                def write(file: IO[bytes], about: Callable[[], Mapping[bytes, bytes]]) -> int:
                    return write_groups(file, make.schema, chain([first], groups), about)

                path, rows = self.target.write(
                    unit.work, begin, self.files, write, lambda: opened.outcome(None)
                )
        return ExportedRange(**opened.outcome(path), rows=rows)


def write_groups(
    file: IO[bytes],
    schema: pyarrow.Schema,
    groups: Iterable[list[pyarrow.RecordBatch]],
    about: Callable[[], Mapping[bytes, bytes]],
) -> int:
    """Write row groups with the metadata ``about`` the whole; return the number of rows."""
    from pyarrow import Table, parquet

    rows = 0
    with parquet.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
        for group in groups:
            table = Table.from_batches(group).unify_dictionaries()
            writer.write_table(table, row_group_size=len(table))
            rows += len(table)
        if metadata := about():
            writer.add_key_value_metadata(metadata)
    return rows


def row_groups(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[list[pyarrow.RecordBatch]]:
    """Yield groups of batches with about 64 MiB of records, which bounds the memory in use."""
    import pyarrow.compute as pc

    group: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += pc.sum(batch["size"]).as_py()
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


Run = Callable[[ExportTask, Iterable[WorkUnit]], Iterator[ExportedRange]]
"""A function that executes all work units and yields the results in order."""


def run_here(task: ExportTask, units: Iterable[WorkUnit]) -> Iterator[ExportedRange]:
    """Execute the work units one after the other in this process."""
    return map(task, units)


@define(slots=True, frozen=True, kw_only=True)
class ExportPlan:
    """The options of an export.

    ``root`` is the store, in ``files``.
    """

    root: str
    target: ExportTarget
    files: FileSystem = field(factory=OsFileSystem)
    broker_name: str | None = None
    internal_topics: bool = False
    range_bytes: int = RANGE_BYTES
    progress: ProgressSink = field(factory=NoProgress)
    check: Callable[[], None] = field(default=lambda: None)
    """Raises an error before the export counts as finished, if the store has changed meanwhile."""

    def options(self) -> dict[str, Any]:
        """Return what decides which files are written."""
        return {
            "root": self.root,
            "broker_name": self.broker_name,
            "internal_topics": self.internal_topics,
            "range_bytes": self.range_bytes,
        }


@define(slots=True)
class Export:
    """One export; afterwards ``files`` has the written files, ``skipped`` the skipped ranges."""

    plan: ExportPlan
    run_units: Run = run_here
    files: list[dict[str, Any]] = field(factory=list)
    skipped: list[SkippedRange] = field(factory=list)

    @property
    def rows(self) -> int:
        return sum(file["rows"] for file in self.files)

    def run(self) -> None:
        """Write the export. Raise RmqError if the target is in use."""
        plan = self.plan
        task = ExportTask(
            target=plan.target,
            files=plan.files,
            broker_name=plan.broker_name,
            internal_topics=plan.internal_topics,
        )
        plan.target.start(plan.options())
        chain: Chain[ExportedRange] = Chain(task, remove=plan.target.remove)
        for exported in self.run_units(task, map(WorkUnit, self._works())):
            proven = chain.take(exported)
            if proven is not None:
                self._take(proven)
            self.plan.progress.advance(exported.work.stop - exported.work.start)
        plan.check()
        self._finish()

    def _works(self) -> list[WorkRange]:
        plan, files = self.plan, self.plan.files
        directory = read_directory(files, plan.root)
        limit = read_confirmed_end(files, directory)
        ranges, excluded = partition_store(directory, plan.range_bytes, limit)
        self.skipped += excluded
        plan.progress.expect(sum(work.stop - work.start for work in ranges))
        return ranges

    def _take(self, exported: ExportedRange) -> None:
        """Put the file of the next proven range in its place."""
        self.skipped += exported.skipped
        if exported.path is not None:
            name = self.plan.target.place(exported.work, exported.path)
            self.files.append(
                {"name": name, "begin": exported.begin, "end": exported.end, "rows": exported.rows}
            )

    def _finish(self) -> None:
        self.plan.target.finish(
            {
                "root": self.plan.root,
                "rows": self.rows,
                "files": self.files,
                "passed": [asdict(each) for each in self.skipped],
            }
        )


def read_export_manifest(folder: str) -> dict[str, Any]:
    """Return the manifest of an export. Raise RmqError if ``folder`` has no finished export."""
    if not Path(folder, SUCCESS).is_file() or not Path(folder, MANIFEST).is_file():
        raise RmqError(
            f"{folder} has no finished export; create one with rmqpy pipeline export DIR --to"
        )
    manifest: dict[str, Any] = json.loads(Path(folder, MANIFEST).read_text(encoding="utf-8"))
    return manifest
