"""Collect the facts of a store directory (:mod:`rmqpy.audit.facts.facts`) and the findings that
need no scan of its logs. The full audit finds the others (:mod:`rmqpy.audit.checks.engine`).

A directory whose lock a broker holds is read up to its confirmed end: the end of the last message
to which a consume queue leads. The bytes after it are being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attrs import evolve

from rmqpy.audit.facts.compatibility import openers_of
from rmqpy.audit.facts.controller_files import read_controller_facts
from rmqpy.audit.facts.facts import IndexFacts, LogFacts, Mode, StoreFacts, TailKind
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_facts import read_log_facts
from rmqpy.audit.facts.rocksdb_content import read_rocksdb_content
from rmqpy.audit.facts.small_files import (
    ConfigTable,
    ledger_state_problems,
    read_checkpoint,
    read_ledger_state,
    read_tables,
)
from rmqpy.audit.facts.unread_damage import find_unread_damage
from rmqpy.audit.scan.directory import LedgerFolder, LogSegments, StoreDirectory, read_directory
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.queue_units import QueueBounds, map_file, map_units, read_ends
from rmqpy.audit.scan.range_merge import LogResult
from rmqpy.codec import layout
from rmqpy.codec.units import IndexHeader, index_file_size
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import OWN_FORMAT
from rmqpy.store.unread.data import find_unread
from rmqpy.store.unread.timers import count_timers_ahead

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

__all__ = ["FindLockOwner", "queue_file_size", "read_confirmed_end", "read_facts"]

FindLockOwner = Callable[[str], int | None]


def read_facts(
    files: FileSystem,
    root: str,
    settings: StoreSettings | None = None,
    holder: FindLockOwner = find_lock_owner,
    directory: StoreDirectory | None = None,
    bounds: tuple[QueueBounds, ...] | None = None,
    until: int | None = None,
    walked: LogResult | None = None,
) -> StoreFacts:
    """Collect the facts of the store below ``root``.

    ``settings`` are those of the broker, if its configuration is known. They have the paths outside
    the root, and the file sizes to compare with. ``directory`` has the files of the store, and
    ``bounds`` its queues, if they are known. While a broker runs, its confirmed end is at most
    ``until``. ``walked`` is the classic log, if a walk over all of it found nothing wrong: then its
    end need not be read.
    """
    directory = directory or read_directory(files, root, settings)
    return _FactsReader(files, directory, settings, holder).read(bounds, until, walked)


def read_confirmed_end(
    files: FileSystem, directory: StoreDirectory, holder: FindLockOwner = find_lock_owner
) -> int | None:
    """Return the confirmed end of a running broker, or None if none is running: then the queues
    need not be read.
    """
    if holder(directory.paths.lock) is None:
        return None
    return max((queue.end_physical for queue in _read_bounds(files, directory)), default=0)


def _read_bounds(files: FileSystem, directory: StoreDirectory) -> Iterator[QueueBounds]:
    begin = directory.logs[0].first_offset if directory.logs else 0
    for queue in directory.queues:
        yield read_ends(queue, map_units(files, queue.segments, scattered=True), begin)


class _FactsReader:
    def __init__(
        self,
        files: FileSystem,
        directory: StoreDirectory,
        settings: StoreSettings | None,
        holder: FindLockOwner,
    ) -> None:
        self.files = files
        self.directory = directory
        self.settings = settings
        self.running = holder(directory.paths.lock) is not None
        self.unread, self.rocksdb_damage = read_rocksdb_content(
            files, directory.paths, find_unread(files, directory.paths)
        )
        self.findings: list[Finding] = []

    def read(
        self,
        bounds: tuple[QueueBounds, ...] | None,
        until: int | None,
        walked: LogResult | None,
    ) -> StoreFacts:
        directory, files = self.directory, self.files
        queues = tuple(_read_bounds(files, directory)) if bounds is None else bounds
        confirmed = None
        if self.running:
            confirmed = max((queue.end_physical for queue in queues), default=0)
            confirmed = confirmed if until is None else min(confirmed, until)
        ledger = directory.ledger
        # The old log of a member is closed: nothing is being written to it.
        closed = ledger is not None and bool(ledger.data)
        walked = walked if confirmed is None else None
        classic_facts = self._log(directory.classic, None if closed else confirmed, walked)
        ledger_facts = self._log(ledger.data, confirmed) if ledger else None
        divided = ledger_facts.begin if classic_facts and ledger_facts else None
        mode = _mode(classic_facts, ledger_facts)
        self._check_divide(classic_facts, ledger_facts)
        self._check_root(ledger)
        checkpoint = read_checkpoint(files, directory)
        if isinstance(checkpoint, str):
            self._find(FindingCode.CHECKPOINT, directory.paths.checkpoint, checkpoint)
            checkpoint = None
        if ledger is not None and ledger_facts is not None:
            self._check_ledger(ledger, ledger_facts)
        tables = tuple(read_tables(files, directory))
        self._check_tables(tables)
        end = max((log.end for log in (classic_facts, ledger_facts) if log), default=0)
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
            queue_file_size=directory.queue_file_size,
            index=tuple(self._index()),
            tables=tables,
            controller=read_controller_facts(files, directory.paths),
            unread=tuple(self.unread),
            timers_ahead=0 if self.running else count_timers_ahead(files, directory.root, end),
            openers=(),
            findings=tuple(sorted(self.findings)),
        )
        return evolve(facts, openers=openers_of(facts, self._format()))

    def _find(self, code: FindingCode, path: str, found: str = "", expected: str = "") -> None:
        file = self.directory.relative(path)
        self.findings.append(Finding(code=code, file=file, found=found, expected=expected))

    def _log(
        self, log: LogSegments, confirmed: int | None, walked: LogResult | None = None
    ) -> LogFacts | None:
        if not log and not log.strays and not log.empty:
            return None
        self._check_segments(log)
        if not log:
            return None
        facts, found = read_log_facts(self.files, self.directory, log, confirmed, walked)
        self.findings += found
        return facts

    def _check_segments(self, log: LogSegments) -> None:
        size = log.file_size
        if self.settings is not None and log.files:
            size = self.settings.mapped_file_size_commit_log
        for stray in log.strays:
            self._find(FindingCode.FILE_STRAY, stray)
        for file in log.empty:
            last = not log.files or file.first_offset >= log.end_offset
            code = FindingCode.FILE_EMPTY if last else FindingCode.FILE_SIZE
            self._find(code, file.path, "0 bytes", f"{size}")
        for file in log.files:
            if file.size != size:
                self._find(FindingCode.FILE_SIZE, file.path, f"{file.size} bytes", f"{size}")
        for end, begin in log.gaps():
            if begin > end:
                path = f"{log.files[0].path.rpartition('/')[0]}/{end:020d}"
                self._find(FindingCode.FILE_MISSING, path, f"the next file starts at {begin}")

    def _check_divide(self, classic: LogFacts | None, ledger: LogFacts | None) -> None:
        if classic is None or ledger is None:
            return
        path = f"{self.directory.root}/{ledger.folder}/{ledger.begin:020d}"
        old_end = self.directory.classic.end_offset
        if ledger.begin != old_end:
            self._find(
                FindingCode.DIVIDE_MISMATCH,
                path,
                f"a DLedger log that starts at {ledger.begin}",
                f"{old_end}, where the classic files end",
            )
        elif classic.tail is not TailKind.BLANK or classic.file_end != old_end:
            found = f"{classic.tail.value} after {classic.end}"
            self._find(FindingCode.DIVIDE_OPEN, path, found, f"a filler up to {old_end}")

    def _check_ledger(self, ledger: LedgerFolder, facts: LogFacts) -> None:
        if facts.last is not None and not ledger.index.files:
            self._find(FindingCode.ENTRY_INDEX_MISSING, f"{ledger.folder}/index")
        last = (-1, -1) if facts.last is None else (facts.last.index, facts.last.term)
        wrong = ledger_state_problems(self.files, ledger, *last, running=self.running)
        for path, found in wrong:
            self._find(FindingCode.LEDGER_STATE, path, found)

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
            for stray in queue.segments.strays:
                self._find(FindingCode.FILE_STRAY, stray)
        self._check_derived_sizes()
        for stray in directory.strays:
            self._find(FindingCode.FILE_STRAY, stray)
        for unread in self.unread:
            self._find(FindingCode.DATA_UNREAD, unread.path, unread.found)
        damage = find_unread_damage(self.files, directory.paths, self.unread)
        for path, found in (*damage, *self.rocksdb_damage):
            self._find(FindingCode.UNREAD_DAMAGED, path, found)
        version = self._format()
        if version is not None and version > OWN_FORMAT:
            self._find(
                FindingCode.FORMAT_NEWER,
                directory.paths.own_format,
                str(version),
                f"at most {OWN_FORMAT}",
            )

    def _check_derived_sizes(self) -> None:
        """Check the lengths of the files of queues, their extensions, and the key index: Java
        starts on no other queue file.

        Without settings, the length that most of the files have is the right one.
        """
        directory, settings = self.directory, self.settings
        queues = [
            file
            for queue in directory.queues
            for file in (*queue.segments.files, *queue.segments.empty)
        ]
        sizes: tuple[int | None, ...] = (None, None, None)
        if settings is not None:
            sizes = (
                queue_file_size(settings),
                index_file_size(settings.max_hash_slot_num, settings.max_index_num),
                settings.mapped_file_size_consume_queue_ext,
            )
        rows = (queues, directory.index_files, directory.queue_extensions)
        for files, configured in zip(rows, sizes, strict=True):
            found = [file.size for file in files]
            expected = configured or max(set(found), key=found.count, default=0)
            for file in files:
                if file.size != expected:
                    text = f"{file.size} bytes"
                    self._find(FindingCode.FILE_SIZE, file.path, text, f"{expected}")

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
            header = IndexHeader.decode(map_file(self.files, file.path, scattered=True))
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


def queue_file_size(settings: StoreSettings) -> int:
    """Return the length of the files of consume queues: whole units, as Java rounds it."""
    unit = layout.QUEUE_UNIT_SIZE
    return -(-settings.mapped_file_size_consume_queue // unit) * unit


def _mode(classic: LogFacts | None, ledger: LogFacts | None) -> Mode:
    if classic is None:
        return Mode.EMPTY if ledger is None else Mode.DLEDGER
    return Mode.CLASSIC if ledger is None else Mode.JOINED
