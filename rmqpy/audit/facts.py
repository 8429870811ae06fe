"""What a store directory is: mode, logs with their ends and tails, queues, index, small files, and
who can open it.

Cheap: of each log only the first frame and the files from the last one with content on are read.
What is wrong inside is found by the full audit (:mod:`rmqpy.audit.engine`).

========  ================================================================================
mode      means
========  ================================================================================
empty     no log
classic   files in commitlog/ only
dledger   DLedger data only
joined    both: the DLedger data begins at the divided offset
========  ================================================================================

A directory whose lock somebody holds is looked at up to its confirmed end: the end of the last
message that a consume queue leads to. What is behind it is being written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from attrs import asdict, define, evolve, field

from rmqpy.audit.directory import FileRow, LedgerFolder, StoreDirectory, read_directory
from rmqpy.audit.findings import Finding, FindingCode
from rmqpy.audit.live import lock_holder
from rmqpy.audit.merging import RowMerge, RowResult
from rmqpy.audit.queue_units import QueueEnds, QueueUnits, map_file, read_ends
from rmqpy.audit.ranges import Ending, RangeResult, WorkRange, audit_range, split_row
from rmqpy.audit.small_files import (
    Checkpoint,
    ConfigTable,
    LedgerState,
    read_checkpoint,
    read_ledger_state,
    read_tables,
)
from rmqpy.codec import layout
from rmqpy.codec.faults import RecordFault
from rmqpy.codec.message import decode_message
from rmqpy.codec.search import content_end
from rmqpy.codec.tally import TallyPlan
from rmqpy.codec.units import IndexHeader
from rmqpy.model.config import StoreSettings
from rmqpy.store.commitlog.recovery import Framing
from rmqpy.store.files import FileLayer
from rmqpy.store.paths import OWN_FORMAT

__all__ = [
    "IndexFacts",
    "LogFacts",
    "Mode",
    "Opener",
    "RecordFacts",
    "StoreFacts",
    "TailKind",
    "read_facts",
    "record_at",
]


class Mode(Enum):
    EMPTY = "empty"
    CLASSIC = "classic"
    DLEDGER = "dledger"
    JOINED = "joined"


class TailKind(Enum):
    """What stands behind the last record."""

    NONE = "none"
    """No record, or nothing behind it was to be looked at."""
    CLEAN = "clean"
    """Zeros."""
    BLANK = "blank"
    """The filler that closes the file."""
    PARTIAL = "partial"
    """A record that was cut off."""
    JUNK = "junk"
    """Bytes that are no record."""


@define(slots=True, frozen=True, kw_only=True)
class RecordFacts:
    """A record; ``frame_offset`` is the entry's in a DLedger log, ``index`` and ``term`` -1 in a
    classic one.
    """

    offset: int
    frame_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    version: int
    index: int = -1
    term: int = -1


@define(slots=True, frozen=True, kw_only=True)
class LogFacts:
    """One log. ``end`` is behind the last whole record; ``next_offset`` where the next one would
    begin a file or go on. ``files_ahead``: files without content behind the last record.
    """

    name: str
    folder: str
    file_size: int
    file_count: int
    begin: int
    end: int
    next_offset: int
    wrong_sizes: tuple[str, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    strays: tuple[str, ...] = ()
    empty_files: tuple[str, ...] = ()
    first: RecordFacts | None = None
    last: RecordFacts | None = None
    tail: TailKind = TailKind.NONE
    tail_bytes: int = 0
    files_ahead: int = 0

    @property
    def file_end(self) -> int:
        """Offset behind the last byte of the file with the last record: a boundary."""
        if not self.file_size or self.last is None:
            return self.begin
        return self.begin + -(-(self.end - self.begin) // self.file_size) * self.file_size


@define(slots=True, frozen=True, kw_only=True)
class IndexFacts:
    """One key index file by its header."""

    name: str
    bytes: int
    entries: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_offset: int
    end_offset: int


@define(slots=True, frozen=True)
class Opener:
    """Whether a program can open the directory; ``reasons`` why not, or under which condition."""

    program: str
    able: bool
    reasons: tuple[str, ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class StoreFacts:
    """``divided_offset``: of a joined store; of a classic one None. ``confirmed_end``: only while a
    broker runs. ``clean_stop`` is False when ``abort`` is there.
    """

    root: str
    mode: Mode
    running: bool
    clean_stop: bool
    classic: LogFacts | None = None
    ledger: LogFacts | None = None
    self_id: str | None = None
    ledger_state: LedgerState | None = None
    divided_offset: int | None = None
    confirmed_end: int | None = None
    checkpoint: Checkpoint | None = None
    queues: tuple[QueueEnds, ...] = ()
    queue_file_size: int = 0
    index: tuple[IndexFacts, ...] = ()
    tables: tuple[ConfigTable, ...] = ()
    openers: tuple[Opener, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    """What can be told without reading the logs: files, sizes, tails, small files."""

    @property
    def begin(self) -> int:
        """First offset of the joined address space."""
        logs = [log for log in (self.classic, self.ledger) if log is not None]
        return min((log.begin for log in logs), default=0)

    @property
    def end(self) -> int:
        """Behind the last record of all."""
        logs = [log for log in (self.classic, self.ledger) if log is not None]
        return max((log.end for log in logs), default=0)

    def as_json(self) -> dict[str, Any]:
        """A tree of plain values, as JSON gives it back."""
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self, value_serializer=_plain)))
        return tree


def _plain(_owner: object, _name: object, value: object) -> object:
    if isinstance(value, Finding):
        return value.as_json()
    return value.value if isinstance(value, Enum) else value


Holder = Callable[[str], int | None]


def read_facts(
    files: FileLayer,
    root: str,
    settings: StoreSettings | None = None,
    holder: Holder = lock_holder,
) -> StoreFacts:
    """Look at the store below ``root``. ``settings``: a broker's, when its file is at hand: paths
    that lie elsewhere, and the file sizes to compare with.
    """
    directory = read_directory(files, root, settings)
    return _FactsReader(files, directory, settings, holder).read()


class _FactsReader:
    def __init__(
        self,
        files: FileLayer,
        directory: StoreDirectory,
        settings: StoreSettings | None,
        holder: Holder,
    ) -> None:
        self.files = files
        self.directory = directory
        self.settings = settings
        self.running = holder(directory.paths.lock) is not None
        self.findings: list[Finding] = []

    def read(self) -> StoreFacts:
        directory, files = self.directory, self.files
        units = QueueUnits(files, directory)
        begin = directory.logs[0].first_offset if directory.logs else 0
        queues = tuple(
            read_ends(queue, units(queue.topic.encode(), queue.queue_id), begin)
            for queue in directory.queues
        )
        confirmed = None
        if self.running:
            confirmed = max((queue.end_physical for queue in queues), default=0)
        ledger = directory.ledger
        classic_facts = self._log(directory.classic, confirmed)
        ledger_facts = self._log(ledger.data, confirmed) if ledger else None
        divided = ledger_facts.begin if classic_facts and ledger_facts else None
        mode = _mode(classic_facts, ledger_facts)
        self._check_divide(classic_facts, ledger_facts)
        self._check_root(ledger)
        checkpoint = read_checkpoint(files, directory)
        if isinstance(checkpoint, str):
            self._find(FindingCode.CHECKPOINT, directory.paths.checkpoint, checkpoint)
            checkpoint = None
        tables = tuple(read_tables(files, directory))
        self._check_tables(tables)
        facts = StoreFacts(
            root=directory.root,
            mode=mode,
            running=self.running,
            clean_stop=not files.exists(directory.paths.abort),
            classic=classic_facts,
            ledger=ledger_facts,
            self_id=ledger.self_id if ledger and ledger_facts else None,
            ledger_state=read_ledger_state(files, ledger) if ledger and ledger_facts else None,
            divided_offset=divided,
            confirmed_end=confirmed,
            checkpoint=checkpoint,
            queues=queues,
            queue_file_size=max((q.row.file_size for q in directory.queues), default=0),
            index=tuple(self._index()),
            tables=tables,
            openers=(),
            findings=tuple(sorted(self.findings)),
        )
        return _with_openers(facts, self._format())

    def _find(self, code: FindingCode, path: str, found: str = "", expected: str = "") -> None:
        file = self.directory.relative(path)
        self.findings.append(Finding(code=code, file=file, found=found, expected=expected))

    def _log(self, row: FileRow, confirmed: int | None) -> LogFacts | None:
        if not row and not row.strays and not row.empty:
            return None
        self._check_row(row)
        if not row:
            return None
        folder = row.files[0].path.rpartition("/")[0]
        end, last, ending, found = self._tail(row, confirmed)
        view = map_file(self.files, row.files[0].path)
        first = record_at(view, row.first_offset, row.first_offset, row.framing)
        tail, tail_bytes = _tail_kind(ending, found)
        ahead = sum(
            f.code in (FindingCode.FILE_AHEAD, FindingCode.FILE_AHEAD_SEALED) for f in found
        )
        self.findings += found
        return LogFacts(
            name=row.name,
            folder=self.directory.relative(folder),
            file_size=row.file_size,
            file_count=len(row.files),
            begin=row.first_offset,
            end=end,
            next_offset=_next_offset(row, end, ending),
            wrong_sizes=tuple(
                self.directory.relative(f.path) for f in row.files if f.size != row.file_size
            ),
            gaps=tuple(row.gaps()),
            strays=tuple(self.directory.relative(path) for path in row.strays),
            empty_files=tuple(self.directory.relative(file.path) for file in row.empty),
            first=first,
            last=last,
            tail=tail,
            tail_bytes=tail_bytes,
            files_ahead=ahead,
        )

    def _check_row(self, row: FileRow) -> None:
        size = row.file_size
        if self.settings is not None and row.files:
            size = self.settings.mapped_file_size_commit_log
        for stray in row.strays:
            self._find(FindingCode.FILE_STRAY, stray)
        for file in row.empty:
            last = not row.files or file.first_offset >= row.end_offset
            code = FindingCode.FILE_EMPTY if last else FindingCode.FILE_SIZE
            self._find(code, file.path, "0 bytes", f"{size}")
        for file in row.files:
            if file.size != size:
                self._find(FindingCode.FILE_SIZE, file.path, f"{file.size} bytes", f"{size}")
        for end, begin in row.gaps():
            if begin > end:
                path = f"{row.files[0].path.rpartition('/')[0]}/{end:020d}"
                self._find(FindingCode.FILE_MISSING, path, f"the next begins at {begin}")

    def _tail(
        self, row: FileRow, confirmed: int | None
    ) -> tuple[int, RecordFacts | None, Ending, list[Finding]]:
        """(end, last record, why the log ends, findings), from the last file with content on."""
        found: list[Finding] = []
        limit = confirmed
        works = list(split_row(row, self.directory.root, max(row.file_size, 1), limit))
        views = {work.path: map_file(self.files, work.path) for work in works[-1:]}
        number = len(works) - 1
        while number > 0 and not content_end(views[works[number].path]):
            number -= 1
            views[works[number].path] = map_file(self.files, works[number].path)
        while number >= 0:
            path = works[number].path
            views.setdefault(path, map_file(self.files, path))
            result = self._walk(works[number:], views, found)
            if result.tally.records or number == 0:
                break
            number -= 1
            found.clear()
        if number < 0:
            return row.first_offset, None, Ending.ZEROS, found
        if not result.tally.records:
            return row.first_offset, None, result.ending, found
        frame = result.tally.last_frame
        holder = row.file_at(frame)
        assert holder is not None
        view = views[holder.path]
        last = record_at(view, holder.first_offset, frame, row.framing)
        return result.end, last, result.ending, found

    def _walk(
        self, works: list[WorkRange], views: dict[str, memoryview], found: list[Finding]
    ) -> RowResult:
        plan = TallyPlan(dledger=False, digests=False)

        def again(work: WorkRange, begin: int) -> RangeResult:
            return audit_range(views[work.path], work, plan, begin)

        def keep(findings: list[Finding]) -> None:
            found.extend(finding for finding in findings if finding.code in TAIL_CODES)

        merge = RowMerge(works[0].row, again, keep)
        for work in works:
            view = views.setdefault(work.path, map_file(self.files, work.path))
            merge.take(audit_range(view, work, plan))
        return merge.finish()

    def _check_divide(self, classic: LogFacts | None, ledger: LogFacts | None) -> None:
        if classic is None or ledger is None:
            return
        path = f"{self.directory.root}/{ledger.folder}/{ledger.begin:020d}"
        old_end = self.directory.classic.end_offset
        if ledger.begin != old_end:
            self._find(
                FindingCode.DIVIDE_MISMATCH,
                path,
                f"a DLedger log that begins at {ledger.begin}",
                f"{old_end}, where the classic files end",
            )
        elif classic.tail is not TailKind.BLANK or classic.file_end != old_end:
            found = f"{classic.tail.value} behind {classic.end}"
            self._find(FindingCode.DIVIDE_OPEN, path, found, f"a filler up to {old_end}")

    def _check_root(self, ledger: LedgerFolder | None) -> None:
        directory = self.directory
        if self.files.exists(directory.paths.abort) and not self.running:
            self._find(FindingCode.UNCLEAN_STOP, directory.paths.abort)
        several = [other for other in directory.ledgers if other.data]
        if len(several) > 1:
            for other in several:
                if other is not ledger:
                    self._find(FindingCode.LEDGER_SEVERAL, other.folder)
        for queue in directory.queues:
            for stray in queue.row.strays:
                self._find(FindingCode.FILE_STRAY, stray)
            for file in queue.row.files:
                size = queue.row.file_size
                if file.size != size:
                    self._find(FindingCode.FILE_SIZE, file.path, f"{file.size} bytes", f"{size}")
        for stray in directory.strays:
            self._find(FindingCode.FILE_STRAY, stray)
        version = self._format()
        if version is not None and version > OWN_FORMAT:
            self._find(
                FindingCode.FORMAT_NEWER,
                directory.paths.own_format,
                str(version),
                f"at most {OWN_FORMAT}",
            )

    def _format(self) -> int | None:
        path = self.directory.paths.own_format
        if not self.files.exists(path):
            return None
        text = self.files.read_bytes(path).decode("ascii", "replace").strip()
        return int(text) if text.isascii() and text.isdigit() else OWN_FORMAT + 1

    def _check_tables(self, tables: tuple[ConfigTable, ...]) -> None:
        folder = self.directory.paths.config
        for table in tables:
            path = f"{folder}/{table.name}"
            if table.source == "backup":
                self._find(FindingCode.CONFIG_BACKUP, path, table.reason)
            elif table.source == "nothing":
                self._find(FindingCode.CONFIG_UNREADABLE, path, table.reason)

    def _index(self) -> list[IndexFacts]:
        facts = []
        for file in self.directory.index_files:
            if file.size < layout.INDEX_HEADER_SIZE:
                self._find(FindingCode.INDEX_HEADER, file.path, f"{file.size} bytes")
                continue
            header = IndexHeader.decode(map_file(self.files, file.path))
            facts.append(
                IndexFacts(
                    name=file.path.rpartition("/")[2],
                    bytes=file.size,
                    entries=header.index_count - 1,
                    begin_timestamp_ms=header.begin_timestamp_ms,
                    end_timestamp_ms=header.end_timestamp_ms,
                    begin_offset=header.begin_offset,
                    end_offset=header.end_offset,
                )
            )
        return facts


TAIL_CODES = frozenset(
    (
        FindingCode.TAIL_PARTIAL,
        FindingCode.TAIL_JUNK,
        FindingCode.FILE_AHEAD,
        FindingCode.FILE_AHEAD_SEALED,
    )
)


def _mode(classic: LogFacts | None, ledger: LogFacts | None) -> Mode:
    if classic is None:
        return Mode.EMPTY if ledger is None else Mode.DLEDGER
    return Mode.CLASSIC if ledger is None else Mode.JOINED


def _next_offset(row: FileRow, end: int, ending: Ending) -> int:
    if ending is not Ending.FILLER:
        return end
    holder = row.file_at(end)
    return holder.end_offset if holder else end


def _tail_kind(ending: Ending, found: list[Finding]) -> tuple[TailKind, int]:
    for finding in found:
        if finding.code is FindingCode.TAIL_PARTIAL:
            return TailKind.PARTIAL, finding.length
        if finding.code is FindingCode.TAIL_JUNK:
            return TailKind.JUNK, finding.length
    if ending is Ending.FILLER:
        return TailKind.BLANK, 0
    return (TailKind.CLEAN if ending is Ending.ZEROS else TailKind.NONE), 0


def record_at(
    view: memoryview, base_offset: int, frame_offset: int, framing: Framing
) -> RecordFacts | None:
    """The record of the frame at ``frame_offset``, None when there is none."""
    position = frame_offset - base_offset
    index = term = -1
    if framing is Framing.DLEDGER:
        index = int.from_bytes(view[position + 8 : position + 16], signed=True)
        term = int.from_bytes(view[position + 16 : position + 24], signed=True)
        position += layout.ENTRY_HEADER_SIZE
    try:
        message = decode_message(view, position)
    except RecordFault:
        return None
    return RecordFacts(
        offset=base_offset + position,
        frame_offset=frame_offset,
        size=message.size,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        store_timestamp_ms=message.store_timestamp_ms,
        version=message.version,
        index=index,
        term=term,
    )


def _with_openers(facts: StoreFacts, own_format: int | None) -> StoreFacts:
    """Who can open the directory, by the rules of each program."""
    logs = [log for log in (facts.classic, facts.ledger) if log is not None]
    blocked: list[str] = []
    only_4: list[str] = []
    for log in logs:
        blocked += [f"{path}: not the length of the others" for path in log.wrong_sizes]
        blocked += [f"{path}: does not belong there" for path in log.strays]
        only_4 += [f"{path}: length 0" for path in log.empty_files]
        records = [record for record in (log.first, log.last) if record is not None]
        if any(record.version == 2 for record in records):
            only_4.append(f"{log.name}: records of version 2")
    blocked += [f"config/{t.name}: {t.reason}" for t in facts.tables if t.source == "nothing"]
    needs = () if facts.ledger is None else ("with enableDLegerCommitLog=true",)
    ours = [] if own_format is None or own_format <= OWN_FORMAT else ["rmqpy/format is newer"]
    openers = (
        _opener("Java 4.9", [*blocked, *only_4], needs),
        _opener("Java 5.3", blocked, needs),
        _opener("rmqpy", [*blocked, *ours], needs),
    )
    return evolve(facts, openers=openers)


def _opener(program: str, reasons: list[str], needs: tuple[str, ...]) -> Opener:
    return Opener(program, not reasons, tuple(reasons) or needs)
