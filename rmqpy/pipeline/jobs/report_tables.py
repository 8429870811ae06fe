"""The results of an audit as tables: per file, per range, per queue, and every finding.

===========  ====================================================================================
table        a row
===========  ====================================================================================
files        a log file: the length of its valid part, and its MD5 if requested
ranges       a proven range of a log file: where its frames begin and end, their number, bytes,
             store times, indexes and terms of entries
queues       a queue of a store according to the log: queue offsets, messages, and the number of
             messages with a correct consume queue unit; the same for any split into ranges
findings     a finding
===========  ====================================================================================

The tables are written to a folder, as ``<table>.parquet`` (with pyarrow) or ``<table>.json``
(lines), in the order of the audit, ``BATCH_ROWS`` rows at a time. ``_SUCCESS`` is written last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import evolve

from rmqpy.audit.checks.engine import AuditOptions, StoreAudit
from rmqpy.audit.facts.file_md5 import FileSums
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.range_merge import FileDigests
from rmqpy.audit.scan.ranges import RangeResult
from rmqpy.codec.hashes import java_text
from rmqpy.codec.tally.kernel import QueueTally
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TABLES", "AuditTables", "audit_frames", "is_audit_folder"]

SUCCESS: Final = "_SUCCESS"
BATCH_ROWS: Final = 4096
TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; a larger value is not a time."""

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "files": {
        "store": "string",
        "log": "string",
        "file": "string",
        "fileOffset": "long",
        "bytes": "long",
        "validBytes": "long",
        "closed": "boolean",
        "md5": "string",
        "validMd5": "string",
    },
    "ranges": {
        "store": "string",
        "log": "string",
        "file": "string",
        "fileOffset": "long",
        "start": "long",
        "stop": "long",
        "begin": "long",
        "end": "long",
        "ending": "string",
        "messages": "long",
        "frameBytes": "long",
        "bodyBytes": "long",
        "minStoreTimestamp": "timestamp",
        "maxStoreTimestamp": "timestamp",
        "firstIndex": "long",
        "lastIndex": "long",
        "firstTerm": "long",
        "lastTerm": "long",
        "findings": "long",
    },
    "queues": {
        "store": "string",
        "topic": "string",
        "queueId": "int",
        "minQueueOffset": "long",
        "maxQueueOffset": "long",
        "messages": "long",
        "withoutOffset": "long",
        "rightUnits": "long",
        "firstOffset": "long",
        "lastOffset": "long",
    },
    "findings": {
        "store": "string",
        "severity": "string",
        "code": "string",
        "file": "string",
        "offset": "long",
        "length": "long",
        "topic": "string",
        "queueId": "int",
        "queueOffset": "long",
        "field": "string",
        "found": "string",
        "expected": "string",
    },
}
"""The columns of each table and Spark's names of their types. Missing values are null."""

Row = dict[str, Any]


class AuditTables:
    """A context manager that writes the results of an audit.

    Raises RmqError if the folder is in use.
    """

    def __init__(self, folder: str, form: str) -> None:
        path = Path(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RmqError(f"{folder} is in use; name a folder that is empty or does not exist")
        path.mkdir(parents=True, exist_ok=True)
        self._folder = path
        make = _Parquet if form == "parquet" else _JsonLines
        self._sinks: dict[str, _Sink] = {
            name: make(path / f"{name}.{form}", columns) for name, columns in TABLES.items()
        }
        self._rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self._store = ""

    def __enter__(self) -> AuditTables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, sink in self._sinks.items():
            sink.write(self._rows[name])
            sink.close()
        if error is None:
            (self._folder / SUCCESS).touch()

    def of(self, plan: AuditOptions) -> AuditOptions:
        """Return ``plan``, the plan of the next store, extended to write findings and ranges."""
        self._store = plan.root

        def sink(findings: list[Finding]) -> None:
            for finding in findings:
                self._add("findings", _finding_row(finding))
            plan.sink(findings)

        return evolve(plan, sink=sink, ranges=self._range_done)

    def _range_done(self, result: RangeResult) -> None:
        self._add("ranges", _range_row(result))

    def end(self, audit: StoreAudit) -> None:
        """Write the files and queues of a store. Call this after its last range."""
        for log in audit.logs:
            for file in log.files:
                self._add("files", {"log": log.log, **_file_row(file, audit.md5s.get(file.file))})
        for queue in sorted(audit.queues.values(), key=lambda each: (each.topic, each.queue_id)):
            self._add("queues", _queue_row(queue))

    def _add(self, table: str, row: Row) -> None:
        rows = self._rows[table]
        rows.append({"store": self._store, **row})
        if len(rows) >= BATCH_ROWS:
            self._sinks[table].write(rows)
            rows.clear()


class _Sink(Protocol):
    def write(self, rows: list[Row]) -> None: ...

    def close(self) -> None: ...


class _Parquet:
    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        types = {
            "string": pa.string(),
            "int": pa.int32(),
            "long": pa.int64(),
            "boolean": pa.bool_(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
        self._schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: list[Row]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._path = path
        path.touch(exist_ok=False)

    def write(self, rows: list[Row]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            for row in rows:
                values = {
                    name: _plain(row[name]) for name in self._columns if row[name] is not None
                }
                file.write(json.dumps(values, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Do nothing: every batch was written completely."""


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _file_row(file: FileDigests, sums: FileSums | None) -> Row:
    return {
        "file": file.file,
        "fileOffset": file.first_offset,
        "bytes": file.file_size,
        "validBytes": file.valid_bytes,
        "closed": file.is_sealed,
        "md5": sums.md5 if sums else None,
        "validMd5": sums.valid_md5 if sums else None,
    }


def _range_row(result: RangeResult) -> Row:
    work, tally = result.work, result.tally
    entries = tally.plan.dledger and tally.records > 0
    return {
        "log": work.log,
        "file": work.file,
        "fileOffset": work.first_offset,
        "start": work.start,
        "stop": work.stop,
        "begin": _known(result.begin),
        "end": result.end,
        "ending": result.ending.value,
        "messages": tally.records,
        "frameBytes": tally.frame_bytes,
        "bodyBytes": tally.body_bytes,
        "minStoreTimestamp": _time(tally.min_store_ms) if tally.records else None,
        "maxStoreTimestamp": _time(tally.max_store_ms) if tally.records else None,
        "firstIndex": tally.first_index if entries else None,
        "lastIndex": tally.last_index if entries else None,
        "firstTerm": tally.first_term if entries else None,
        "lastTerm": tally.last_term if entries else None,
        "findings": len(result.findings),
    }


def _queue_row(queue: QueueTally) -> Row:
    return {
        "topic": java_text(queue.topic),
        "queueId": queue.queue_id,
        "minQueueOffset": queue.first_queue_offset if queue.count else None,
        "maxQueueOffset": queue.last_queue_offset + 1 if queue.count else None,
        "messages": queue.count,
        "withoutOffset": queue.unqueued,
        "rightUnits": queue.right_units,
        "firstOffset": _known(queue.first_frame),
        "lastOffset": _known(queue.last_frame),
    }


def _finding_row(finding: Finding) -> Row:
    return {
        "severity": finding.code.severity.value,
        "code": finding.code.name,
        "file": finding.file,
        "offset": _known(finding.offset),
        "length": finding.length or None,
        "topic": finding.topic or None,
        "queueId": _known(finding.queue_id) if finding.topic else None,
        "queueOffset": _known(finding.queue_offset) if finding.topic else None,
        "field": finding.field or None,
        "found": finding.found or None,
        "expected": finding.expected or None,
    }


def _known(value: int) -> int | None:
    return None if value == -1 else value


def _time(time_ms: int) -> datetime | None:
    if not 0 <= time_ms <= TIME_MS_MAX:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def is_audit_folder(folder: str) -> bool:
    """Return whether ``folder`` has the tables of a finished audit."""
    path = Path(folder)
    return (path / SUCCESS).is_file() and any(path.glob("findings.*"))


def audit_frames(session: SparkSession, folder: str) -> dict[str, DataFrame]:
    """Return the tables as DataFrames, by name. Raise RmqError if there is no finished audit."""
    if not is_audit_folder(folder):
        raise RmqError(
            f"{folder} has no finished audit; create one with rmqpy pipeline audit --tables"
        )
    frames = {}
    for name, columns in TABLES.items():
        path = Path(folder, f"{name}.parquet")
        if path.exists():
            frames[name] = session.read.parquet(str(path))
            continue
        schema = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
        frames[name] = session.read.schema(schema).json(str(path.with_suffix(".json")))
    return frames
