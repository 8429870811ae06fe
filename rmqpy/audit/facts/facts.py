"""The facts of a store directory: mode, logs with their ends and tails, queues, index, small files,
and the programs that can open it. This module only has values; :mod:`rmqpy.audit.facts.reader`
collects them.

========  ================================================================================
mode      meaning
========  ================================================================================
empty     no log
classic   files in commitlog/ only
dledger   DLedger data only
joined    both: the DLedger data starts at the divided offset
========  ================================================================================
"""

from __future__ import annotations

import json
from enum import Enum
from operator import attrgetter
from typing import Any

from attrs import asdict, evolve, field, fields

from rmqpy.audit.facts.controller_files import ControllerFacts
from rmqpy.audit.facts.small_files import Checkpoint, ConfigTable, LedgerState
from rmqpy.audit.scan.findings import Finding, json_value
from rmqpy.audit.scan.queue_units import QueueBounds
from rmqpy.model.values import define
from rmqpy.store.unread.data import UnreadData

__all__ = ["IndexFacts", "LogFacts", "Mode", "Opener", "RecordFacts", "StoreFacts", "TailKind"]


class Mode(Enum):
    """The mode of a store directory."""

    EMPTY = "empty"
    CLASSIC = "classic"
    DLEDGER = "dledger"
    JOINED = "joined"


class TailKind(Enum):
    """The kind of bytes after the last record."""

    NONE = "none"
    """There is no record, or the bytes after it were not read."""
    CLEAN = "clean"
    """Zeros follow."""
    BLANK = "blank"
    """The filler that closes the file follows."""
    PARTIAL = "partial"
    """A truncated record follows."""
    JUNK = "junk"
    """Bytes follow that are not a record."""


@define(slots=True, frozen=True, kw_only=True)
class RecordFacts:
    """One record. ``frame_offset`` is the entry's offset in a DLedger log.

    ``index`` and ``term`` are -1 in a classic log.
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
    """One log. ``end`` is the offset after the last complete record.

    ``next_offset`` is where the next record would be written, in the same file or a new one;
    ``files_ahead`` is the number of files without content after the last record.
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
        """The end of the file with the last record: a file boundary."""
        if not self.file_size or self.last is None:
            return self.begin
        return self.begin + -(-(self.end - self.begin) // self.file_size) * self.file_size


@define(slots=True, frozen=True, kw_only=True)
class IndexFacts:
    """The header of one key index file."""

    name: str
    bytes: int
    entries: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_offset: int
    end_offset: int


@define(slots=True, frozen=True)
class Opener:
    """A program, and whether it can open the directory.

    ``reasons`` say why it cannot, or on which condition it can.
    """

    program: str
    able: bool
    reasons: tuple[str, ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class StoreFacts:
    """The facts of one store directory.

    ``divided_offset`` is None unless the store is joined; ``confirmed_end`` is known only while a
    broker runs; ``clean_stop`` is False if ``abort`` exists.
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
    queues: tuple[QueueBounds, ...] = ()
    queue_file_size: int = 0
    index: tuple[IndexFacts, ...] = ()
    tables: tuple[ConfigTable, ...] = ()
    controller: ControllerFacts | None = None
    """The files of a broker whose master a controller of 5.x elects."""
    unread: tuple[UnreadData, ...] = ()
    """Data of 5.x that rmqpy does not read."""
    timers_ahead: int = 0
    """The number of last units in the timer log that lead to records after the end of the log."""
    openers: tuple[Opener, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    """Findings that need no scan of the logs: files, sizes, tails, small files."""

    @property
    def begin(self) -> int:
        """The first offset of the joined address space."""
        logs = [log for log in (self.classic, self.ledger) if log is not None]
        return min((log.begin for log in logs), default=0)

    @property
    def end(self) -> int:
        """The end of the last record of all logs."""
        logs = [log for log in (self.classic, self.ledger) if log is not None]
        return max((log.end for log in logs), default=0)

    def as_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        few = evolve(self, queues=())
        tree: dict[str, Any] = json.loads(json.dumps(asdict(few, value_serializer=json_value)))
        names = [each.name for each in fields(QueueBounds)]
        values = attrgetter(*names)  # There may be 100,000 queues, and asdict() is slow.
        tree["queues"] = [dict(zip(names, values(queue), strict=True)) for queue in self.queues]
        return tree
