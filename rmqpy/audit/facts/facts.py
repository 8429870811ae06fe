"""What a store directory is: mode, logs with their ends and tails, queues, index, small files, and
who can open it. Values only: :mod:`rmqpy.audit.facts.reader` finds them.

========  ================================================================================
mode      means
========  ================================================================================
empty     no log
classic   files in commitlog/ only
dledger   DLedger data only
joined    both: the DLedger data begins at the divided offset
========  ================================================================================
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from attrs import asdict, define, field

from rmqpy.audit.facts.small_files import Checkpoint, ConfigTable, LedgerState
from rmqpy.audit.scan.findings import Finding, json_value
from rmqpy.audit.scan.queue_units import QueueBounds

__all__ = ["IndexFacts", "LogFacts", "Mode", "Opener", "RecordFacts", "StoreFacts", "TailKind"]


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
    queues: tuple[QueueBounds, ...] = ()
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
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self, value_serializer=json_value)))
        return tree
