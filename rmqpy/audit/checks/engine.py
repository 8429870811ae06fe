"""The local engine: the ranges of a store over threads, their results merged in order.

The C kernel and the digests of hashlib release the interpreter, so threads use all cores. Ranges
are handed out a few ahead of the one that is merged: memory is bounded by ``workers`` ranges,
whatever the size of the store.

The audit of a store is, in this order: the facts (files, sizes, tails, small files), each log, each
consume queue against the logs, the key index against the logs. Another engine may run the ranges
elsewhere (:class:`RangeRunner`) and keeps the rest.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from attrs import define, field

from rmqpy.audit.checks.key_check import IndexTable, KeyCheck, open_index
from rmqpy.audit.checks.queue_check import QueueCheck
from rmqpy.audit.facts.facts import StoreFacts
from rmqpy.audit.facts.file_md5 import FilePart, FileSums, file_md5s
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_facts import TAIL_CODES
from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.facts.reader import Holder, read_facts
from rmqpy.audit.scan.directory import LogSegments, StoreDirectory, read_directory
from rmqpy.audit.scan.findings import Finding, FindingCode, Severity
from rmqpy.audit.scan.log_bytes import LogBytes, map_log
from rmqpy.audit.scan.queue_units import QueueUnits, map_row
from rmqpy.audit.scan.range_merge import LogMerge, RowResult
from rmqpy.audit.scan.ranges import RANGE_BYTES, RangeResult, WorkRange, audit_range, split_row
from rmqpy.codec.tally import QueueTally, TallyPlan
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, Progress
from rmqpy.store.files.log_recovery import Framing

__all__ = [
    "AuditOptions",
    "RangeRunner",
    "StoreAudit",
    "ThreadRunner",
    "audit_store",
    "ordered_map",
]

T = TypeVar("T")
R = TypeVar("R")


class RangeRunner(Protocol):
    """Audits ranges, in the order given; may do many at once."""

    def run(self, works: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]: ...

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult: ...

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        """In the order given."""


@define(slots=True, frozen=True, kw_only=True)
class AuditOptions:
    """What to do. ``digests``: of messages as well; ``blocks``: of 64 KiB blocks and groups of
    frames; ``md5``: of log files; ``derived``: consume queues, key index and DLedger index units
    too. ``sink`` gets findings as they are found.
    """

    root: str
    settings: StoreSettings | None = None
    digests: bool = False
    blocks: bool = False
    md5: bool = False
    derived: bool = True
    range_bytes: int = RANGE_BYTES
    workers: int = field(factory=lambda: os.cpu_count() or 1)
    sink: Callable[[list[Finding]], None] = field(default=lambda _found: None)
    ranges: Callable[[RangeResult], None] = field(default=lambda _result: None)
    """Gets every range as it is proven, in the order of the log."""
    progress: Progress = field(factory=NoProgress)
    holder: Holder = find_lock_owner


@define(slots=True, kw_only=True)
class StoreAudit:
    """What the audit of a whole store found. Findings went to the sink; here they are counted."""

    facts: StoreFacts
    classic: RowResult | None = None
    ledger: RowResult | None = None
    queues: dict[tuple[bytes, int], QueueTally] = field(factory=dict)
    counts: dict[FindingCode, int] = field(factory=dict)
    first_findings: list[Finding] = field(factory=list)
    md5s: dict[str, FileSums] = field(factory=dict)
    """Of log files, by their paths below the root."""
    keys: int = 0
    """How many (message, key) the log asks the key index for; ``keys_found``: has."""
    keys_found: int = 0

    @property
    def logs(self) -> tuple[RowResult, ...]:
        return tuple(row for row in (self.classic, self.ledger) if row is not None)

    @property
    def records(self) -> int:
        return sum(row.tally.records for row in self.logs)

    @property
    def is_clean(self) -> bool:
        return all(code.severity is Severity.NOTE for code in self.counts)


def audit_store(
    files: FileSystem, plan: AuditOptions, runner: RangeRunner | None = None
) -> StoreAudit:
    """Audit the store below ``plan.root``. ``runner``: who audits ranges; threads by default."""
    return _StoreWalk(files, plan, runner or ThreadRunner(files, plan.workers)).run()


class ThreadRunner:
    """Ranges over threads of this process."""

    def __init__(self, files: FileSystem, workers: int) -> None:
        self._files = files
        self._workers = max(1, workers)
        self._open: dict[str, LogBytes] = {}
        self._lock = threading.Lock()

    def run(self, works: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        def audit(work: WorkRange) -> RangeResult:
            return audit_range(self._data(work.path), work, plan)

        for result in ordered_map(audit, works, self._workers):
            yield result
            if result.work.is_last:
                with self._lock:
                    self._open.pop(result.work.path, None)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return audit_range(map_log(self._files, work.path), work, plan, begin)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        return ordered_map(lambda part: file_md5s(self._files, part), parts, self._workers)

    def _data(self, path: str) -> LogBytes:
        with self._lock:
            data = self._open.get(path)
            if data is None:
                data = self._open[path] = map_log(self._files, path)
            return data


def ordered_map(do: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``do`` of each item in threads, results in order; no more than a few are kept waiting."""
    if workers == 1:
        yield from map(do, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="rmqpy-audit") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(do, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


FIRST_FINDINGS = 100
"""So many are kept in the audit itself, whatever the sink does with them."""
UNIT_CODES = frozenset((FindingCode.UNIT_MISSING, FindingCode.UNIT_WRONG))
_MASK64 = (1 << 64) - 1


class _StoreWalk:
    def __init__(self, files: FileSystem, plan: AuditOptions, runner: RangeRunner) -> None:
        self.files = files
        self.plan = plan
        self.runner = runner
        self.directory: StoreDirectory = read_directory(files, plan.root, plan.settings)
        self.units = QueueUnits(files, self.directory)
        self.counts: dict[FindingCode, int] = {}
        self.first: list[Finding] = []
        self.reported: set[tuple[str, int, int]] = set()
        self.tables: list[IndexTable] = []
        self.key_range: tuple[int, int] | None = None

    def run(self) -> StoreAudit:
        plan = self.plan
        total = sum(file.size for row in self.directory.logs for file in row.files)
        plan.progress.expect(total * 2 if plan.md5 else total)
        facts = read_facts(self.files, plan.root, plan.settings, plan.holder)
        self._sink([found for found in facts.findings if found.code not in TAIL_CODES])
        audit = StoreAudit(facts=facts, counts=self.counts, first_findings=self.first)
        if plan.derived:
            self._open_index(facts)
        if self.directory.classic:
            audit.classic = self._row(self.directory.classic, facts, None)
        ledger = self.directory.ledger
        if ledger is not None and ledger.data:
            audit.ledger = self._row(ledger.data, facts, audit.classic)
        audit.queues = audit.logs[-1].queues if audit.logs else {}
        if plan.md5:
            self._md5s(audit)
        if plan.derived:
            self._derived(audit)
        return audit

    def _md5s(self, audit: StoreAudit) -> None:
        done = [file for log in audit.logs for file in log.files]
        parts = (FilePart(f"{self.plan.root}/{file.file}", file.valid_bytes) for file in done)
        for file, sums in zip(done, self.runner.md5s(parts), strict=True):
            audit.md5s[file.file] = sums
            self.plan.progress.advance(file.file_size)

    def _derived(self, audit: StoreAudit) -> None:
        facts, logs = audit.facts, audit.logs
        check = QueueCheck(
            directory=self.directory,
            units=self.units,
            reader=LogReader(self.files, self.directory),
            queues=audit.queues,
            reported=self.reported,
            stretches=logs[-1].stretches if logs else [],
            log=(facts.begin, facts.end),
            limit=facts.confirmed_end,
        )
        for findings in check.run():
            self._sink(findings)
        if self.key_range is None:
            return
        told = [log.tally.key_count for log in logs], [log.tally.key_sum for log in logs]
        keys = KeyCheck(
            files=self.files,
            directory=self.directory,
            tables=self.tables,
            low=self.key_range[0],
            high=self.key_range[1],
            told=(sum(told[0]), sum(told[1]) & _MASK64),
            running=facts.running,
        )
        for findings in keys.run():
            self._sink(findings)
        audit.keys = sum(told[0])
        audit.keys_found = audit.keys - keys.missing

    def _sink(self, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.code in UNIT_CODES:
                slot = finding.topic, finding.queue_id, finding.queue_offset
                self.reported.add(slot)
            self.counts[finding.code] = self.counts.get(finding.code, 0) + 1
        if findings:
            self.first += findings[: FIRST_FINDINGS - len(self.first)]
            self.plan.sink(findings)

    def _open_index(self, facts: StoreFacts) -> None:
        self.tables, found = open_index(self.files, self.directory, self.plan.settings)
        self._sink(found)
        if self.tables:
            low = max(self.tables[0].header.begin_offset, facts.begin)
            high = facts.end if facts.confirmed_end is None else facts.confirmed_end
            self.key_range = low, high

    def _row(self, row: LogSegments, facts: StoreFacts, before: RowResult | None) -> RowResult:
        plan = self._tally_plan(row)

        def again(work: WorkRange, begin: int) -> RangeResult:
            return self.runner.rerun(work, plan, begin)

        merge = LogMerge(row.name, again, self._sink, before)
        merge.proven = self.plan.ranges
        works = split_row(row, self.directory.root, self.plan.range_bytes, facts.confirmed_end)
        for result in self.runner.run(works, plan):
            merge.take(result)
            self.plan.progress.advance(result.work.stop - result.work.start)
        return merge.finish()

    def _tally_plan(self, row: LogSegments) -> TallyPlan:
        dledger = row.framing is Framing.DLEDGER
        entry_units = None
        ledger = self.directory.ledger
        if dledger and self.plan.derived and ledger is not None:
            entry_units = map_row(self.files, ledger.index)
        return TallyPlan(
            dledger=dledger,
            digests=self.plan.digests,
            blocks=self.plan.blocks,
            units_of=self.units if self.plan.derived else None,
            entry_units=entry_units,
            keys=self.key_range,
        )
