"""The local audit engine: audit the ranges of a store in threads, and merge the results in order.

The C kernel and the digests of hashlib release the interpreter lock, so threads use all cores. Only
a few ranges are started ahead of the one that is being merged: memory is bounded by ``workers``
ranges, whatever the size of the store.

The audit of a store consists of these steps, in order: the facts (files, sizes, tails, small
files), each log, each consume queue against the logs, and the key index against the logs. Another
engine can run the ranges elsewhere (:class:`RangeRunner`) and reuse the other steps.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve, field

from rmqpy.audit.checks.index_walks import IndexTask, IndexWalk
from rmqpy.audit.checks.key_check import IndexTable, KeyCheck, KeyHole, WalkTable, open_index
from rmqpy.audit.checks.pooled_check import PooledQueues, pool_folders, pool_queues
from rmqpy.audit.checks.range_runner import RangeRunner
from rmqpy.audit.facts.facts import StoreFacts
from rmqpy.audit.facts.file_md5 import FilePart, FileSums, file_md5s
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_facts import TAIL_CODES
from rmqpy.audit.facts.log_reader import LogReader, Slot
from rmqpy.audit.facts.reader import FindLockOwner, queue_file_size, read_facts
from rmqpy.audit.scan.directory import (
    LogSegments,
    StoreDirectory,
    paths_below,
    read_directory,
    read_logs,
)
from rmqpy.audit.scan.findings import Finding, FindingCode, Severity
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits, map_units
from rmqpy.audit.scan.range_merge import LogMerge, LogResult
from rmqpy.audit.scan.ranges import RANGE_BYTES, RangeResult, WorkRange, audit_range, split_log
from rmqpy.codec.layout import INDEX_UNIT_SIZE
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.codec.tally.kernel import QueueTally, TallyPlan
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.model.values import define
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.framing import Framing

if TYPE_CHECKING:
    from rmqpy.audit.checks.derived_files import DerivedFiles
    from rmqpy.audit.facts.learned import Learned
    from rmqpy.audit.facts.proof_age import ProofAge
    from rmqpy.config.loading import StoreSettings

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


@define(slots=True, frozen=True, kw_only=True)
class AuditOptions:
    """The options of an audit.

    * ``digests``: compute digests of messages.
    * ``blocks``: compute digests of 64 KiB blocks and groups of frames.
    * ``md5``: compute MD5 sums of log files.
    * ``derived``: check consume queues, key index, and DLedger index units.
    * ``sink``: receives findings as they are found.
    * ``learned``: what was learned about the sealed files, to use and to add to.
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
    """Receives every range after it is proven, in the order of the log."""
    progress: ProgressSink = field(factory=NoProgress)
    holder: FindLockOwner = find_lock_owner
    learned: Learned | None = None
    until: int | None = None
    """The offset in the log up to which the store of a running broker is read; None: as far as its
    consume queues lead."""
    pooled: bool = False
    """Try first to prove that there is no damage without telling the queues apart. A complete audit
    follows only if that fails, and its findings are the same either way."""


@define(slots=True, kw_only=True)
class StoreAudit:
    """The result of the audit of a whole store.

    The findings themselves went to the sink; ``counts`` has their numbers.
    """

    facts: StoreFacts
    classic: LogResult | None = None
    ledger: LogResult | None = None
    pooled: PooledQueues | None = None
    """The queues, if the store was proven to be clean without telling them apart."""
    counts: dict[FindingCode, int] = field(factory=dict)
    first_findings: list[Finding] = field(factory=list)
    md5s: dict[str, FileSums] = field(factory=dict)
    """The sums of log files by their paths below the root."""
    keys: int = 0
    """The number of (message, key) pairs of the log that must be in the key index; ``keys_found``
    of them are.
    """
    keys_found: int = 0
    key_holes: list[KeyHole] = field(factory=list)
    uncommitted: list[Slot] = field(factory=list)
    """The messages in entries after the committed index that are in no consume queue."""
    age: ProofAge | None = None
    """None if nothing could be learned earlier."""
    _queues: dict[tuple[bytes, int], QueueTally] | None = field(default=None, init=False)

    @property
    def queues(self) -> dict[tuple[bytes, int], QueueTally]:
        """The queues with messages by topic and queue id."""
        if self._queues is None:  # of 100,000 queues, few callers need more than their number
            if self.pooled is not None:
                self._queues = self.pooled.as_tallies()
            else:
                self._queues = self.logs[-1].queues if self.logs else {}
        return self._queues

    @property
    def queue_count(self) -> int:
        """The number of queues with messages."""
        return self.pooled.queue_count if self.pooled is not None else len(self.queues)

    @property
    def logs(self) -> tuple[LogResult, ...]:
        return tuple(log for log in (self.classic, self.ledger) if log is not None)

    @property
    def records(self) -> int:
        return sum(log.tally.records for log in self.logs)

    @property
    def is_clean(self) -> bool:
        return all(code.severity is Severity.NOTE for code in self.counts)


def audit_store(
    files: FileSystem, plan: AuditOptions, runner: RangeRunner | None = None
) -> StoreAudit:
    """Audit the store below ``plan.root``; ``runner`` audits the ranges, by default in threads."""
    return _StoreWalk(files, plan, runner or ThreadRunner(files, plan.workers)).run()


class ThreadRunner:
    """Audits ranges in threads of this process."""

    def __init__(self, files: FileSystem, workers: int) -> None:
        self._files = files
        self._workers = max(1, workers)

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        """Audit ranges. Each maps its file for itself, so that what was read takes no memory."""

        def audit(work: WorkRange) -> RangeResult:
            return audit_range(map_log(self._files, work.path), work, plan)

        return ordered_map(audit, ranges, self._workers)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return audit_range(map_log(self._files, work.path), work, plan, begin)

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return ordered_map(do, items, self._workers)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        return ordered_map(lambda part: file_md5s(self._files, part), parts, self._workers)


def ordered_map(do: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Apply ``do`` to each item in threads and yield the results in order.

    At most ``2 * workers + 1`` items are pending at a time.
    """
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
"""The number of findings that the result keeps, whatever the sink does with them."""
UNIT_CODES = frozenset(
    (FindingCode.UNIT_MISSING, FindingCode.UNIT_WRONG, FindingCode.UNIT_UNCOMMITTED)
)
_MASK64 = (1 << 64) - 1


class _UncertainError(Exception):
    """There are findings, so the audit must tell queues apart."""


def _refuse_findings(findings: list[Finding]) -> None:
    if findings:
        raise _UncertainError


class _StoreWalk:
    def __init__(self, files: FileSystem, plan: AuditOptions, runner: RangeRunner) -> None:
        self.files = files
        self.plan = plan
        self.runner: RangeRunner = runner
        self.folders = self._pool_folders()
        self.directory = self._read_directory()
        self.derived: DerivedFiles | None = None
        if plan.learned is not None:
            from rmqpy.audit.checks.derived_files import DerivedFiles
            from rmqpy.audit.checks.learned_runner import LearnedRunner

            self.derived = DerivedFiles.of(files, self.directory, plan.learned)
            self.runner = LearnedRunner(runner, plan.learned, self.derived)
        self.scattered = plan.learned is not None
        self.units = QueueUnits(files, self.directory, scattered=self.scattered)
        self.counts: dict[FindingCode, int] = {}
        self.first: list[Finding] = []
        self.reported: set[tuple[str, int, int]] = set()
        self.tables: list[IndexTable] = []
        self.key_range: tuple[int, int] | None = None
        self.committed_end: int | None = None
        self.uncommitted: list[Slot] = []
        self.walked: Future[list[IndexSums]] | None = None
        self.ended = False

    def run(self) -> StoreAudit:
        beside = ThreadPoolExecutor(1, thread_name_prefix="rmqpy-audit-index")
        try:
            return self._run(beside)
        finally:
            self.ended = True
            beside.shutdown()

    def _run(self, beside: ThreadPoolExecutor) -> StoreAudit:
        plan = self.plan
        total = sum(file.size for log in self.directory.logs for file in log.files)
        plan.progress.expect(total * 2 if plan.md5 else total)
        running = plan.holder(self.directory.paths.lock) is not None
        if running:  # since then
            self._list_queues()
        pooled = self.folders
        if pooled is None and self._can_pool and not running:
            pooled = self._pool(None)
        bounds = tuple(pooled.bounds) if pooled is not None and pooled.certain else None
        facts = read_facts(
            self.files, plan.root, plan.settings, plan.holder, self.directory, bounds, plan.until
        )
        self._sink([found for found in facts.findings if found.code not in TAIL_CODES])
        audit = StoreAudit(
            facts=facts,
            counts=self.counts,
            first_findings=self.first,
            uncommitted=self.uncommitted,
        )
        self.committed_end = self._committed_end(facts)
        if plan.derived:
            self._open_index(facts)
        if self._can_pool and running:
            pooled = self._pool(facts.confirmed_end)
        if self.key_range is not None and self.derived is None:
            # One index file keeps one core busy, so the log is walked meanwhile.
            self.walked = beside.submit(self._walk_tables, self.key_range)
        proven = pooled is not None and self._prove_clean(audit, pooled)
        if not proven:
            audit.classic = audit.ledger = None
            self._list_queues()
            self._audit_logs(audit, self._sink)
        if plan.md5:
            self._md5s(audit)
        if plan.derived:
            if not proven:
                self._check_queues(audit)
            self._check_keys(audit)
        if plan.learned is not None:
            audit.age = plan.learned.age
        return audit

    def _md5s(self, audit: StoreAudit) -> None:
        done = [file for log in audit.logs for file in log.files]
        parts = (FilePart(f"{self.plan.root}/{file.file}", file.valid_bytes) for file in done)
        for file, sums in zip(done, self.runner.md5s(parts), strict=True):
            audit.md5s[file.file] = sums
            self.plan.progress.advance(file.file_size)

    @property
    def _can_pool(self) -> bool:
        plan = self.plan
        others = plan.digests or plan.blocks or plan.learned is not None
        return plan.pooled and plan.derived and not others

    @property
    def _is_here(self) -> bool:
        return isinstance(self.runner, ThreadRunner) and type(self.files) is OsFileSystem

    def _pool_folders(self) -> PooledQueues | None:
        """Read all consume queues without a list of their files. Return None if that is needed:
        something there is not as usual, or a broker is running.
        """
        plan = self.plan
        paths = paths_below(plan.root.rstrip("/") or "/", plan.settings)
        if not self._can_pool or not self._is_here or plan.holder(paths.lock) is not None:
            return None
        logs = read_logs(self.files, plan.root, plan.settings)
        found = pool_folders(paths.consume_queue, logs[0].first_offset if logs else 0)
        if found is None or plan.settings is None or not found.file_size:
            return found
        is_usual = found.file_size == queue_file_size(plan.settings)
        return found if is_usual else None

    def _read_directory(self) -> StoreDirectory:
        plan, pooled = self.plan, self.folders
        found = read_directory(self.files, plan.root, plan.settings, queues=pooled is None)
        return found if pooled is None else evolve(found, queue_file_size=pooled.file_size)

    def _list_queues(self) -> None:
        """List the files of the consume queues if they were read without that."""
        if self.folders is not None:
            self.folders = None
            self.directory = self._read_directory()
            self.units = QueueUnits(self.files, self.directory, scattered=self.scattered)

    def _pool(self, limit: int | None) -> PooledQueues:
        """Read all consume queues, up to the confirmed end of a running broker."""
        begin = self.directory.logs[0].first_offset if self.directory.logs else 0
        # Opening small files on this machine is Python's work: threads would wait for its lock,
        # and take twice the CPU time.
        run = map if self._is_here else self.runner.map
        return pool_queues(self.files, self.directory, run, begin, limit)

    def _prove_clean(self, audit: StoreAudit, queues: PooledQueues) -> bool:
        """Return whether logs and consume queues are certainly without findings."""
        if not queues.certain:
            return False
        total = sum(file.size for log in self.directory.logs for file in log.files)
        try:
            self._audit_logs(audit, _refuse_findings)
        except _UncertainError:
            self.plan.progress.expect(total)
            return False
        if not queues.explains(log.tally for log in audit.logs):
            self.plan.progress.expect(total)
            return False
        audit.pooled = queues
        return True

    def _audit_logs(self, audit: StoreAudit, sink: Callable[[list[Finding]], None]) -> None:
        """Audit the logs; queues are told apart if findings go to the sink of the plan."""
        facts, ledger = audit.facts, self.directory.ledger
        if self.directory.classic:
            audit.classic = self._audit_log(self.directory.classic, facts, None, sink)
        if ledger is not None and ledger.data:
            audit.ledger = self._audit_log(ledger.data, facts, audit.classic, sink)

    def _check_queues(self, audit: StoreAudit) -> None:
        from rmqpy.audit.checks.queue_check import QueueCheck  # few stores need it

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

    def _check_keys(self, audit: StoreAudit) -> None:
        facts, logs = audit.facts, audit.logs
        if self.key_range is None:
            return
        totals = [log.tally.key_count for log in logs], [log.tally.key_sum for log in logs]
        keys = KeyCheck(
            files=self.files,
            directory=self.directory,
            tables=self.tables,
            low=self.key_range[0],
            high=self.key_range[1],
            totals=(sum(totals[0]), sum(totals[1]) & _MASK64),
            running=facts.running,
            walk=self._walk_index if self.walked is None else self._known_walks(self.walked),
        )
        for findings in keys.run():
            self._sink(findings)
        audit.keys = sum(totals[0])
        audit.keys_found = audit.keys - keys.missing
        audit.key_holes = list(keys.holes)

    def _walk_tables(self, span: tuple[int, int]) -> list[IndexSums]:
        """Return the sums of all tables, or of some if the audit has ended with an error."""
        walks = [
            IndexWalk(
                path=f"{self.directory.paths.index}/{table.file.rpartition('/')[2]}",
                slot_count=table.slot_count,
                entry_end=table.entry_end,
                span=span,
            )
            for table in self.tables
        ]
        sums = self.runner.map(IndexTask(self.files), walks)
        return [*takewhile(lambda _sums: not self.ended, sums)]

    def _known_walks(self, walked: Future[list[IndexSums]]) -> WalkTable:
        """Return a function that returns the sums of a table."""
        sums = zip(self.tables, walked.result(), strict=True)
        found = {table.file: each for table, each in sums}
        return lambda table, _low, _high: found[table.file]

    def _walk_index(self, table: IndexTable, low: int, high: int) -> IndexSums:
        assert self.derived is not None, "else the check reads the tables itself"
        walk = table.slot_count, table.entry_end
        file_size = max((log.file_size for log in self.directory.logs), default=1)
        path = f"{self.directory.paths.index}/{table.file.rpartition('/')[2]}"
        return self.derived.walk_index(path, walk, (low, high), file_size)

    def _committed_end(self, facts: StoreFacts) -> int | None:
        """Return the offset of the first entry that a cleanly stopped member does not know to be
        committed, or None if there is none.

        Such an entry is in no consume queue: the group decides after a start whether it stays.
        """
        ledger, state = self.directory.ledger, facts.ledger_state
        if ledger is None or state is None or not facts.clean_stop or facts.running:
            return None
        last = facts.ledger.last if facts.ledger is not None else None
        if last is None or not 0 <= state.committed_index < last.index:
            return None
        units = map_units(self.files, ledger.index, scattered=True)
        number = state.committed_index + 1
        raw = units.read(number * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE) if units is not None else None
        return int.from_bytes(raw[4:12], signed=True) if raw is not None else None

    def _without_uncommitted(self, finding: Finding) -> Finding:
        """Return a missing unit of an entry that is not committed as a note."""
        end = self.committed_end
        if finding.code is not FindingCode.UNIT_MISSING or end is None or finding.offset < end:
            return finding
        self.uncommitted.append((finding.topic, finding.queue_id, finding.queue_offset))
        return evolve(finding, code=FindingCode.UNIT_UNCOMMITTED)

    def _sink(self, findings: list[Finding]) -> None:
        findings = [self._without_uncommitted(finding) for finding in findings]
        for finding in findings:
            if finding.code in UNIT_CODES:
                slot = finding.topic, finding.queue_id, finding.queue_offset
                self.reported.add(slot)
            self.counts[finding.code] = self.counts.get(finding.code, 0) + 1
        if findings:
            self.first += findings[: FIRST_FINDINGS - len(self.first)]
            self.plan.sink(findings)

    def _open_index(self, facts: StoreFacts) -> None:
        self.tables, found = open_index(
            self.files, self.directory, self.plan.settings, scattered=self.scattered
        )
        self._sink(found)
        settings = self.plan.settings
        if self.tables or settings is None or settings.message_index_enable:
            ends = (facts.confirmed_end, self.committed_end, facts.end)
            self.key_range = facts.begin, next(end for end in ends if end is not None)

    def _audit_log(
        self,
        log: LogSegments,
        facts: StoreFacts,
        before: LogResult | None,
        sink: Callable[[list[Finding]], None],
    ) -> LogResult:
        plan = self._tally_plan(log)
        if sink is _refuse_findings:
            plan = evolve(plan, pooled=True, units_of=None)

        def rerun(work: WorkRange, begin: int) -> RangeResult:
            return self.runner.rerun(work, plan, begin)

        merge = LogMerge(log.name, rerun, sink, before)
        merge.proven = self.plan.ranges
        ranges = split_log(log, self.directory.root, self.plan.range_bytes, facts.confirmed_end)
        for result in self.runner.run(ranges, plan):
            merge.take(result)
            self.plan.progress.advance(result.work.stop - result.work.start)
        return merge.finish()

    def _tally_plan(self, log: LogSegments) -> TallyPlan:
        dledger = log.framing is Framing.DLEDGER
        entry_units = None
        ledger = self.directory.ledger
        if dledger and self.plan.derived and ledger is not None:
            entry_units = map_units(self.files, ledger.index, scattered=self.scattered)
        return TallyPlan(
            dledger=dledger,
            digests=self.plan.digests,
            blocks=self.plan.blocks,
            units_of=self.units if self.plan.derived else None,
            entry_units=entry_units,
            keys=self.key_range,
        )
