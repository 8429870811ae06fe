"""Audit the ranges of a store on Spark: another engine for
:func:`rmqpy.audit.checks.engine.audit_store`.

Workers open the store's files under the path or URI that the driver uses; mapped memory is never
sent. A range whose start was guessed wrong, and the last one of a log, are audited again in the
driver, from the offset that the previous range has proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rmqpy.audit.checks.engine import ThreadRunner
from rmqpy.audit.facts.file_md5 import FilePart, FileSums, file_md5s
from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits, map_units
from rmqpy.audit.scan.ranges import RangeResult, WorkRange, audit_range
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.spark.distributed_map import WAVE_UNITS, map_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RangeTask", "SparkRunner"]


@define(slots=True, kw_only=True)
class RangeTask:
    """Audits ranges on a worker.

    The task is a tally plan without mapped files. The files are mapped once for all ranges of a
    Spark task.
    """

    files: FileSystem
    directory: StoreDirectory
    dledger: bool
    digests: bool
    blocks: bool
    units: bool
    entry_units: bool
    keys: tuple[int, int] | None
    sums: bool
    pooled: bool
    _plan: TallyPlan | None = field(init=False, default=None)

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
        if self._plan is None:
            self._plan = self._open()
        return audit_range(map_log(self.files, work.path), work, self._plan)

    def _open(self) -> TallyPlan:
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
    ) -> None:
        self._session = session
        self._files = files
        self._directory = directory
        self._wave = wave
        self._driver = ThreadRunner(files, workers=1)

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        task = RangeTask.of(plan, self._files, self._directory)
        return map_on_spark(self._session, task, ranges, self._wave)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        return map_on_spark(self._session, partial(file_md5s, self._files), parts, self._wave)

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        rest = iter(items)
        first = [*islice(rest, 2)]
        if len(first) < 2:  # It would run alone on a worker too, and a job costs 0.15 CPU-seconds.
            return map(do, first)
        return map_on_spark(self._session, do, chain(first, rest), self._wave)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return self._driver.rerun(work, plan, begin)
