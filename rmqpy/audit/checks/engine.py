"""The local audit engine: audit the ranges of a store in threads, and merge the results in order.

The C kernel and the digests of hashlib release the interpreter lock, so threads use all cores. Only
a few ranges are started ahead of the one that is being merged: memory is bounded by ``workers``
ranges, whatever the size of the store.

The audit of a store consists of these steps, in order: the facts (files, sizes, tails, small
files), each log, each consume queue against the logs, and the key index against the logs. Another
engine can run the ranges elsewhere (:class:`RangeRunner`) and reuse the other steps.

Of a classic store on this machine to which nobody writes, log, queues, and key index are read at
the same time, and the facts take the end of the log from the walk over it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve, field

from rmqpy.audit.checks.index_walks import IndexTask, IndexWalk
from rmqpy.audit.checks.key_check import IndexTable, KeyCheck, KeyHole, open_index
from rmqpy.audit.checks.pooled_check import Map, PooledQueues, pool_folders, pool_queues
from rmqpy.audit.checks.range_runner import RangeRunner
from rmqpy.audit.facts.file_md5 import FilePart, FileSums, file_md5s
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_reader import LogReader, Slot
from rmqpy.audit.scan.directory import (
    LogSegments,
    StoreDirectory,
    paths_below,
    read_directory,
)
from rmqpy.audit.scan.findings import Finding, FindingCode, Severity
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits, map_units
from rmqpy.audit.scan.range_merge import LogMerge, LogResult
from rmqpy.audit.scan.ranges import RANGE_BYTES, RangeResult, WorkRange, audit_range, split_log
from rmqpy.codec.layout import INDEX_UNIT_SIZE
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.codec.tally.kernel import QueueTally, TallyPlan
from rmqpy.codec.tally.pooled import OFFSET_MAX
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.model.values import define
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.framing import Framing

if TYPE_CHECKING:
    from rmqpy.audit.checks.derived_files import DerivedFiles
    from rmqpy.audit.facts.facts import StoreFacts
    from rmqpy.audit.facts.learned import Learned
    from rmqpy.audit.facts.proof_age import ProofAge
    from rmqpy.audit.facts.reader import FindLockOwner
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


_Logs = tuple[LogResult | None, LogResult | None]
"""The classic log and the DLedger log."""


class _StoreWalk:
    def __init__(self, files: FileSystem, plan: AuditOptions, runner: RangeRunner) -> None:
        self.files = files
        self.plan = plan
        self.runner: RangeRunner = runner
        paths = paths_below(plan.root.rstrip("/") or "/", plan.settings)
        self.unlisted = self._can_pool and self._is_here and plan.holder(paths.lock) is None
        """True until the files of the consume queues are listed, of which there may be 100,000."""
        self.directory = self._read_directory(queues=not self.unlisted)
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
        self.walked: tuple[tuple[int, int], Future[dict[str, IndexSums]]] | None = None
        """The span of the walk over the key index, and the sums by file."""
        self.attempted = 0
        """The bytes that the attempt to prove the store clean has reported as checked."""
        self.ended = False

    def run(self) -> StoreAudit:
        beside = ThreadPoolExecutor(2, thread_name_prefix="rmqpy-audit-beside")
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
        logs: _Logs | None = None
        pooled: PooledQueues | None = None
        # Of a member with a DLedger log, the facts say up to where its entries are committed.
        at_once = self.unlisted and not self.directory.ledgers
        if at_once:
            pooling = beside.submit(self._pool, None)
            opened = self._open_index(beside, (self._begin, OFFSET_MAX))
            # To load what reads the facts takes longer than to read them.
            loading = beside.submit(import_module, "rmqpy.audit.facts.reader")
            logs = self._walk_clean(
                None, lambda: pooling.done() and not pooling.result()[0].certain
            )
            pooled = self._take_queues(*pooling.result())
            # The next lines load, too. Under pytest, which parses modules, Python 3.11 fails if two
            # threads do so at once.
            loading.result()
        elif self._can_pool and not running:
            pooled = self._take_queues(*self._pool(None))
        from rmqpy.audit.facts.log_facts import TAIL_CODES
        from rmqpy.audit.facts.reader import read_facts

        facts = read_facts(
            self.files,
            plan.root,
            plan.settings,
            plan.holder,
            self.directory,
            tuple(pooled.bounds) if pooled is not None and pooled.certain else None,
            plan.until,
            logs[0] if logs is not None else None,
        )
        self._sink([found for found in facts.findings if found.code not in TAIL_CODES])
        audit = StoreAudit(
            facts=facts,
            counts=self.counts,
            first_findings=self.first,
            uncommitted=self.uncommitted,
        )
        self.committed_end = self._committed_end(facts)
        ends = (facts.confirmed_end, self.committed_end, facts.end)
        span = facts.begin, next(end for end in ends if end is not None)
        if plan.derived:
            self._sink(opened if at_once else self._open_index(beside, span))
        if self.key_range is not None:
            self.key_range = span
        if self._can_pool and running:
            pooled = self._take_queues(*self._pool(facts.confirmed_end))
        if at_once and facts.running:  # since then
            logs = None
        elif not at_once and pooled is not None and pooled.certain:
            logs = self._walk_clean(facts.confirmed_end, lambda: False)
        proven = pooled is not None and self._prove_clean(audit, logs, pooled)
        if not proven:
            plan.progress.expect(self.attempted)
            self._list_queues()
            audit.classic, audit.ledger = self._audit_logs(facts.confirmed_end, self._sink)
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

    @property
    def _begin(self) -> int:
        """The offset at which the logs begin."""
        return self.directory.logs[0].first_offset if self.directory.logs else 0

    def _read_directory(self, *, queues: bool = True) -> StoreDirectory:
        return read_directory(self.files, self.plan.root, self.plan.settings, queues=queues)

    def _list_queues(self) -> None:
        """List the files of the consume queues if they were not listed yet."""
        if self.unlisted:
            self._use(self._read_directory())

    def _use(self, directory: StoreDirectory) -> None:
        self.unlisted = False
        self.directory = directory
        self.units = QueueUnits(self.files, directory, scattered=self.scattered)

    def _pool(self, limit: int | None) -> tuple[PooledQueues, StoreDirectory | None]:
        """Read all consume queues, up to the confirmed end of a running broker.

        Return them, and the directory if their files had to be listed for that.
        """
        plan, directory = self.plan, self.directory
        if self.unlisted:
            folder = directory.paths.consume_queue
            found = pool_folders(folder, self._begin, self._until_ended(self.runner.map))
            size = 0
            if plan.settings is not None:
                from rmqpy.audit.facts.reader import queue_file_size

                size = queue_file_size(plan.settings)
            if found is not None and (not size or found.file_size in (0, size)):
                return found, None
            directory = self._read_directory()
        # Opening small files on this machine is Python's work: threads would wait for its lock,
        # and take twice the CPU time.
        run = self._until_ended(map if self._is_here else self.runner.map)
        pooled = pool_queues(self.files, directory, run, self._begin, limit)
        return pooled, directory if self.unlisted else None

    def _until_ended(self, run: Map) -> Map:
        """Return a map that yields no more results after the audit has ended with an error."""
        return lambda do, items: takewhile(lambda _found: not self.ended, run(do, items))

    def _take_queues(self, pooled: PooledQueues, listed: StoreDirectory | None) -> PooledQueues:
        if listed is not None:
            self._use(listed)
        elif self.unlisted:
            self.directory = evolve(self.directory, queue_file_size=pooled.file_size)
        return pooled

    def _walk_clean(self, limit: int | None, in_vain: Callable[[], bool]) -> _Logs | None:
        """Audit the logs without telling queues apart. Return None if there are findings, or the
        rest of the walk would be in vain.
        """

        def refuse(findings: list[Finding]) -> None:
            if findings or in_vain():
                raise _UncertainError

        try:
            return self._audit_logs(limit, refuse, pooled=True)
        except _UncertainError:
            return None

    def _prove_clean(self, audit: StoreAudit, logs: _Logs | None, pooled: PooledQueues) -> bool:
        """Return whether logs and consume queues are certainly without findings."""
        if logs is None or not pooled.explains(log.tally for log in logs if log is not None):
            return False
        audit.classic, audit.ledger = logs
        audit.pooled = pooled
        return True

    def _audit_logs(
        self, limit: int | None, sink: Callable[[list[Finding]], None], *, pooled: bool = False
    ) -> _Logs:
        """Audit the logs; queues are told apart unless they are ``pooled``."""
        directory = self.directory
        audited = partial(self._audit_log, limit=limit, sink=sink, pooled=pooled)
        classic = audited(directory.classic, None) if directory.classic else None
        ledger = directory.ledger
        if ledger is None or not ledger.data:
            return classic, None
        return classic, audited(ledger.data, classic)

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
            walk=self._walk_table,
        )
        for findings in keys.run():
            self._sink(findings)
        audit.keys = sum(totals[0])
        audit.keys_found = audit.keys - keys.missing
        audit.key_holes = list(keys.holes)

    def _walk_tables(self, span: tuple[int, int]) -> dict[str, IndexSums]:
        """Return the sums of all tables, or of some if the audit has ended with an error."""
        walks = [self._table_walk(table, span) for table in self.tables]
        sums = self._until_ended(self.runner.map)(IndexTask(self.files), walks)
        return {table.file: each for table, each in zip(self.tables, sums, strict=False)}

    def _walk_table(self, table: IndexTable, low: int, high: int) -> IndexSums:
        if self.walked is None:
            return self._walk_index(table, low, high)
        span, walked = self.walked
        sums = walked.result()[table.file]
        if span == (low, high) or sums.max_offset < high:
            return sums
        return IndexTask(self.files)(self._table_walk(table, (low, high)))

    def _table_walk(self, table: IndexTable, span: tuple[int, int]) -> IndexWalk:
        return IndexWalk(
            path=self._path_of(table),
            slot_count=table.slot_count,
            entry_end=table.entry_end,
            span=span,
        )

    def _walk_index(self, table: IndexTable, low: int, high: int) -> IndexSums:
        assert self.derived is not None, "else the tables are walked while the log is"
        walk = table.slot_count, table.entry_end
        file_size = max((log.file_size for log in self.directory.logs), default=1)
        return self.derived.walk_index(self._path_of(table), walk, (low, high), file_size)

    def _path_of(self, table: IndexTable) -> str:
        return f"{self.directory.paths.index}/{table.file.rpartition('/')[2]}"

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

    def _open_index(self, beside: ThreadPoolExecutor, span: tuple[int, int]) -> list[Finding]:
        """Open the key index, and begin to walk it for the messages in ``span``."""
        self.tables, found = open_index(
            self.files, self.directory, self.plan.settings, scattered=self.scattered
        )
        settings = self.plan.settings
        if self.tables or settings is None or settings.message_index_enable:
            self.key_range = span
            if self.derived is None:
                # One index file keeps one core busy, so the log is walked meanwhile.
                self.walked = span, beside.submit(self._walk_tables, span)
        return found

    def _audit_log(
        self,
        log: LogSegments,
        before: LogResult | None,
        *,
        limit: int | None,
        sink: Callable[[list[Finding]], None],
        pooled: bool,
    ) -> LogResult:
        plan = self._tally_plan(log)
        if pooled:
            plan = evolve(plan, pooled=True, units_of=None)

        def rerun(work: WorkRange, begin: int) -> RangeResult:
            return self.runner.rerun(work, plan, begin)

        merge = LogMerge(log.name, rerun, sink, before)
        merge.proven = self.plan.ranges
        for result in self.runner.run(
            split_log(log, self.directory.root, self.plan.range_bytes, limit), plan
        ):
            merge.take(result)
            size = result.work.stop - result.work.start
            self.plan.progress.advance(size)
            self.attempted += size if pooled else 0
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
