"""The messages of a store as Parquet files, written by whoever has the range.

A range is written to ``_temporary/<a name of its own>`` below the target, whole and synced; the
writer tells where its first frame begins and where the next one must. The driver takes the ranges
in order, proves them (:mod:`.pieces`), and only then renames the file to its place, named by the
range. So an attempt that died, or a
second one at the same range, leaves nothing but a file in ``_temporary``, which goes at the end.
``_manifest.json`` lists the files, ``_SUCCESS`` says that all of them stand there.

The messages are those of ``rmqpy store dump``, in the order of the log by the names of the files.
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

from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.ranges import RANGE_BYTES, WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.model.progress import NoProgress, Progress
from rmqpy.pipeline.arrow.columns import PACKED
from rmqpy.pipeline.arrow.message_filter import MessageFilter, log_batches
from rmqpy.pipeline.arrow.rows import COLUMNS, MessageColumns
from rmqpy.pipeline.spark.work_units import (
    Chain,
    OpenPiece,
    PieceResult,
    SkippedRange,
    WorkUnit,
    partition_store,
)
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "Export",
    "ExportPlan",
    "ExportTask",
    "SkippedRange",
    "WorkUnit",
    "Written",
    "done_export",
]

TEMPORARY: Final = "_temporary"
MANIFEST: Final = "_manifest.json"
SUCCESS: Final = "_SUCCESS"
ROW_GROUP_BYTES: Final = 64 << 20
RISING: Final = ("queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "entryIndex")
"""Columns of which a value is hardly ever there twice, and not far from the one before."""
UNLIKE: Final = ("keys", "bodyCrc")
"""Columns of which hardly two values are equal."""
PROPERTIES: Final = ("properties.key_value.key", "properties.key_value.value")
NOT_SOUGHT: Final = frozenset(["body", "properties", "crcOk"])
"""Columns of which least and most are of no use."""
WRITER_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": [*(set(COLUMNS) - set(RISING) - set(UNLIKE)), PROPERTIES[0]],
    "column_encoding": dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
    "write_statistics": [name for name in COLUMNS if name not in NOT_SOUGHT],
    "store_schema": False,
}
"""``store_schema``: the types are those of Parquet, not those that the arrays had here."""


@define(slots=True, frozen=True, kw_only=True)
class Written(PieceResult):
    """A range as a file of so many rows; without rows there is none."""

    rows: int


@define(slots=True, frozen=True, kw_only=True)
class ExportTask:
    """What is done with a piece, here or on a worker."""

    folder: str
    broker_name: str | None = None
    internal_topics: bool = False

    def __call__(self, piece: WorkUnit) -> Written:
        opened = OpenPiece(piece)
        path, rows = None, 0
        if opened.places is not None:
            make = MessageColumns(broker_name=self.broker_name, form=PACKED)
            wanted = MessageFilter(internal_topics=self.internal_topics)
            batches = log_batches(opened.walk, opened.places, make, wanted)
            path, rows = self._write(batches, make.schema)
        return Written(**opened.outcome(path), rows=rows)

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
    """Batches of records of about 64 MiB together; memory is bounded by them."""
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


Run = Callable[[ExportTask, Iterable[WorkUnit]], Iterator[Written]]
"""Does all pieces; results in their order."""


def run_here(task: ExportTask, pieces: Iterable[WorkUnit]) -> Iterator[Written]:
    """One after the other in this process."""
    return map(task, pieces)


@define(slots=True, frozen=True, kw_only=True)
class ExportPlan:
    """``root``: the store; ``target``: a folder that does not exist, or is empty."""

    root: str
    target: str
    broker_name: str | None = None
    internal_topics: bool = False
    range_bytes: int = RANGE_BYTES
    progress: Progress = field(factory=NoProgress)


@define(slots=True)
class Export:
    """One export; ``skipped`` and ``files`` tell afterwards what was done."""

    plan: ExportPlan
    run_pieces: Run = run_here
    files: list[dict[str, Any]] = field(factory=list)
    skipped: list[SkippedRange] = field(factory=list)

    @property
    def rows(self) -> int:
        return sum(file["rows"] for file in self.files)

    def run(self) -> None:
        """RmqError when the target is in use."""
        plan = self.plan
        task = ExportTask(
            folder=f"{plan.target}/{TEMPORARY}",
            broker_name=plan.broker_name,
            internal_topics=plan.internal_topics,
        )
        self._make_target()
        chain: Chain[Written] = Chain(task)
        for written in self.run_pieces(task, map(WorkUnit, self._works())):
            taken = chain.take(written)
            if taken is not None:
                self._take(taken)
            self.plan.progress.advance(written.work.stop - written.work.start)
        self._finish()

    def _make_target(self) -> None:
        target = Path(self.plan.target)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise RmqError(f"{target}: is in use; name a folder that is empty or does not exist")
        (target / TEMPORARY).mkdir(parents=True)

    def _works(self) -> list[WorkRange]:
        plan, files = self.plan, OsFileSystem()
        directory = read_directory(files, plan.root)
        limit = read_facts(files, plan.root).confirmed_end
        works, left_out = partition_store(directory, plan.range_bytes, limit)
        self.skipped += left_out
        plan.progress.expect(sum(work.stop - work.start for work in works))
        return works

    def _take(self, written: Written) -> None:
        """The next range in order, proven: put in its place."""
        work = written.work
        self.skipped += written.skipped
        if written.path is not None:
            name = f"{work.row.replace('/', '-')}-{work.start:020d}.parquet"
            os.rename(written.path, f"{self.plan.target}/{name}")
            self.files.append(
                {"name": name, "begin": written.begin, "end": written.end, "rows": written.rows}
            )

    def _finish(self) -> None:
        target = Path(self.plan.target)
        shutil.rmtree(target / TEMPORARY)
        manifest = {
            "root": self.plan.root,
            "rows": self.rows,
            "files": self.files,
            "passed": [asdict(passed) for passed in self.skipped],
        }
        _write_synced(target / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        _write_synced(target / SUCCESS, "")


def _write_synced(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def done_export(folder: str) -> dict[str, Any]:
    """The manifest of an export; RmqError when ``folder`` holds none that was finished."""
    if not Path(folder, SUCCESS).is_file() or not Path(folder, MANIFEST).is_file():
        raise RmqError(f"{folder}: no finished export; make it with rmqpy pipeline export DIR --to")
    manifest: dict[str, Any] = json.loads(Path(folder, MANIFEST).read_text(encoding="utf-8"))
    return manifest
