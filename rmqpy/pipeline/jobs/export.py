"""Export the messages of a store as Parquet files, written by the executors of the ranges.

A range is written completely to ``_temporary/<a unique name>`` below the target, and synced; the
result has the offsets at which its first frame starts and the next one must start. The driver takes
the ranges in order, proves them (:mod:`rmqpy.pipeline.spark.work_units`), and only then renames the
file to its final name, which is that of the range. So an attempt that died, or a second attempt at
the same range, leaves only a file in ``_temporary``, which is removed at the end.
``_manifest.json`` lists the files; ``_SUCCESS`` shows that all of them exist.

The messages are the same as those of ``rmqpy store dump``; sorted by name, the files are in the
order of the log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

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
    "check_target",
    "read_export_manifest",
]

TEMPORARY: Final = "_temporary"
MANIFEST: Final = "_manifest.json"
SUCCESS: Final = "_SUCCESS"
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

    folder: str
    files: FileSystem = field(factory=OsFileSystem)
    broker_name: str | None = None
    internal_topics: bool = False

    def __call__(self, unit: WorkUnit) -> ExportedRange:
        opened = OpenWorkUnit(unit, self.files)
        path, rows = None, 0
        if opened.places is not None:
            make = MessageColumns(broker_name=self.broker_name, form=PACKED)
            selection = MessageFilter(internal_topics=self.internal_topics)
            batches = log_batches(opened.walk, opened.places, make, selection)
            path, rows = self._write(batches, make.schema)
        return ExportedRange(**opened.outcome(path), rows=rows)

    def _write(
        self, batches: Iterator[pyarrow.RecordBatch], schema: pyarrow.Schema
    ) -> tuple[str | None, int]:
        from pyarrow import Table, parquet

        groups = row_groups(batches)
        first = next(groups, None)
        if first is None:
            return None, 0
        path = f"{self.folder}/{uuid4().hex}"
        rows = 0
        with open(path, "xb") as file:
            with parquet.ParquetWriter(file, schema, **WRITER_OPTIONS) as writer:
                for group in chain([first], groups):
                    table = Table.from_batches(group).unify_dictionaries()
                    writer.write_table(table, row_group_size=len(table))
                    rows += len(table)
            file.flush()
            os.fsync(file.fileno())
        return path, rows


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

    ``root`` is the store, in ``files``; ``target`` is a folder of this machine that does not exist
    or is empty.
    """

    root: str
    target: str
    files: FileSystem = field(factory=OsFileSystem)
    broker_name: str | None = None
    internal_topics: bool = False
    range_bytes: int = RANGE_BYTES
    progress: ProgressSink = field(factory=NoProgress)
    check: Callable[[], None] = field(default=lambda: None)
    """Raises an error before the export counts as finished, if the store has changed meanwhile."""


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
            folder=f"{plan.target}/{TEMPORARY}",
            files=plan.files,
            broker_name=plan.broker_name,
            internal_topics=plan.internal_topics,
        )
        self._make_target()
        chain: Chain[ExportedRange] = Chain(task)
        for exported in self.run_units(task, map(WorkUnit, self._works())):
            proven = chain.take(exported)
            if proven is not None:
                self._take(proven)
            self.plan.progress.advance(exported.work.stop - exported.work.start)
        plan.check()
        self._finish()

    def _make_target(self) -> None:
        check_target(self.plan.target)
        Path(self.plan.target, TEMPORARY).mkdir(parents=True)

    def _works(self) -> list[WorkRange]:
        plan, files = self.plan, self.plan.files
        directory = read_directory(files, plan.root)
        limit = read_confirmed_end(files, directory)
        ranges, excluded = partition_store(directory, plan.range_bytes, limit)
        self.skipped += excluded
        plan.progress.expect(sum(work.stop - work.start for work in ranges))
        return ranges

    def _take(self, exported: ExportedRange) -> None:
        """Move the file of the next proven range to its place."""
        work = exported.work
        self.skipped += exported.skipped
        if exported.path is not None:
            name = f"{work.log.replace('/', '-')}-{work.start:020d}.parquet"
            os.rename(exported.path, f"{self.plan.target}/{name}")
            self.files.append(
                {"name": name, "begin": exported.begin, "end": exported.end, "rows": exported.rows}
            )

    def _finish(self) -> None:
        target = Path(self.plan.target)
        shutil.rmtree(target / TEMPORARY)
        manifest = {
            "root": self.plan.root,
            "rows": self.rows,
            "files": self.files,
            "passed": [asdict(each) for each in self.skipped],
        }
        _write_synced(target / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        _write_synced(target / SUCCESS, "")


def check_target(path: str) -> None:
    """Raise RmqError unless ``path`` is an empty folder or does not exist."""
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RmqError(f"{target} is in use; name a folder that is empty or does not exist")


def _write_synced(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_export_manifest(folder: str) -> dict[str, Any]:
    """Return the manifest of an export. Raise RmqError if ``folder`` has no finished export."""
    if not Path(folder, SUCCESS).is_file() or not Path(folder, MANIFEST).is_file():
        raise RmqError(
            f"{folder} has no finished export; create one with rmqpy pipeline export DIR --to"
        )
    manifest: dict[str, Any] = json.loads(Path(folder, MANIFEST).read_text(encoding="utf-8"))
    return manifest
