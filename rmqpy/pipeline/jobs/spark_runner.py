"""Audit the ranges of a store on Spark: another engine for
:func:`rmqpy.audit.checks.engine.audit_store`.

Workers open the store's files under the path or URI that the driver uses; mapped memory is never
sent. Of a file elsewhere, a worker fetches the range and a little after it. The consume queues that
a worker has opened stay open for its further tasks of the same audit. A range whose start was
guessed wrong, and the last one of a log, are audited again in the driver, from the offset that the
previous range has proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import define, field

from rmqpy.audit.checks.engine import ThreadRunner
from rmqpy.audit.facts.file_md5 import FilePart, FileSums, file_md5s
from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.log_bytes import AHEAD_BYTES, LogBytes, map_log, map_part
from rmqpy.audit.scan.queue_units import QueueUnits, map_units
from rmqpy.audit.scan.ranges import RangeResult, WorkRange, audit_range
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.spark.distributed_map import WAVE_UNITS, map_on_spark
from rmqpy.pipeline.spark.stage_progress import JobProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RangeTask", "SparkRunner", "bytes_of"]


@define(slots=True, frozen=True, kw_only=True)
class RangeTask:
    """Audits ranges on a worker.

    The task is a tally plan without mapped files. Tasks are equal if they are copies of one.
    """

    files: FileSystem = field(eq=False)
    directory: StoreDirectory = field(eq=False)
    dledger: bool = field(eq=False)
    digests: bool = field(eq=False)
    blocks: bool = field(eq=False)
    units: bool = field(eq=False)
    entry_units: bool = field(eq=False)
    keys: tuple[int, int] | None = field(eq=False)
    sums: bool = field(eq=False)
    pooled: bool = field(eq=False)
    name: str = field(factory=lambda: uuid4().hex)

    @classmethod
    def of(cls, plan: TallyPlan, files: FileSystem, directory: StoreDirectory) -> RangeTask:
        return cls(
            files=files,
            directory=directory,
            dledger=plan.dledger,
            digests=plan.digests,
            blocks=plan.blocks,
            units=plan.units_of is not None,
            entry_units=plan.entry_units is not None,
            keys=plan.keys,
            sums=plan.sums,
            pooled=plan.pooled,
        )

    def __call__(self, work: WorkRange) -> RangeResult:
        files, plan = _opened(self)
        return audit_range(bytes_of(files, work), work, plan)

    def open(self) -> TallyPlan:
        """Map the files that the plan needs beside the log."""
        files, ledger = self.files, self.directory.ledger
        return TallyPlan(
            dledger=self.dledger,
            digests=self.digests,
            blocks=self.blocks,
            units_of=QueueUnits(files, self.directory) if self.units else None,
            entry_units=map_units(files, ledger.index) if self.entry_units and ledger else None,
            keys=self.keys,
            sums=self.sums,
            pooled=self.pooled,
        )


@lru_cache(maxsize=1)
def _opened(task: RangeTask) -> tuple[FileSystem, TallyPlan]:
    """Return the files and the plan of the first copy of a task in this process."""
    return task.files, task.open()


def bytes_of(files: FileSystem, work: WorkRange) -> LogBytes:
    """Return the bytes that the audit of a range needs, at their places in the file."""
    if work.limit is not None:
        return map_log(files, work.path)
    begin, end = work.start - work.first_offset, work.stop - work.first_offset
    return map_part(files, work.path, begin, end + AHEAD_BYTES)


class SparkRunner:
    """Audits the store in ``directory`` (implements
    :class:`rmqpy.audit.checks.range_runner.RangeRunner`).
    """

    def __init__(
        self,
        session: SparkSession,
        files: FileSystem,
        directory: StoreDirectory,
        wave: int = WAVE_UNITS,
        progress: JobProgress | None = None,
    ) -> None:
        self._session = session
        self._files = files
        self._directory = directory
        self._wave = wave
        self._progress = progress
        self._driver = ThreadRunner(files, workers=1)

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        task = RangeTask.of(plan, self._files, self._directory)
        return map_on_spark(self._session, task, ranges, self._wave, self._progress)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        return map_on_spark(
            self._session,
            partial(file_md5s, self._files),
            parts,
            self._wave,
            self._progress,
            lambda part: self._files.size_of(part.path),
        )

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        rest = iter(items)
        first = [*islice(rest, 2)]
        if len(first) < 2:  # It would run alone on a worker too, and a job costs 0.06 CPU-seconds.
            return map(do, first)
        return map_on_spark(self._session, do, chain(first, rest), self._wave)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return self._driver.rerun(work, plan, begin)
