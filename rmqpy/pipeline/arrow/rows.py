"""Messages as Arrow batches: the columns of an export, and of ``format("rocketmq")``.

======================  ============  ===========================================================
column                  type          meaning
======================  ============  ===========================================================
topic                   string
queueId                 int           as stored; -1 for a message without a queue
queueOffset             long
physicalOffset          long          PHYSICALOFFSET
size                    int           of the record, in bytes
flag, sysFlag           int
bornTimestamp           timestamp     UTC; null if the stored time is out of range
bornHost                string        address:port
storeTimestamp          timestamp     like bornTimestamp
storeHost               string
reconsumeTimes          int
preparedTransaction-    long
Offset
tags, keys              string        null if there are none
tagsCode                long          hash of the tags, 0 without tags
bodyCrc                 int           as stored
crcOk                   boolean       whether the stored body matches bodyCrc
body                    binary        as the producer passed it: zlib is inflated
properties              map           string to string
brokerName              string        as given by the caller, else null
term, entryIndex        long          of the DLedger entry; null in a classic log
======================  ============  ===========================================================

A batch is built column by column from a scan of the log, not message by message, and only the
requested columns are built. Rare cases (bytes that are not UTF-8, compressed bodies) are handled
value by value.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

from attrs import define

from rmqpy.audit.checks.messages import host_text, inflated
from rmqpy.codec.backend import property_parts, record_parts
from rmqpy.codec.columns import RecordColumns
from rmqpy.codec.hashes import java_text
from rmqpy.codec.properties import decode_properties
from rmqpy.codec.scan import Scan
from rmqpy.model.flags import COMPRESSED
from rmqpy.pipeline.arrow.columns import (
    PLAIN,
    ArrowEncoding,
    is_utf8,
    longs,
    repeated,
    texts,
    times,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = ["COLUMNS", "MessageColumns", "ScanRows", "json_texts", "message_schema", "slices"]

COLUMNS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "tags",
    "keys",
    "tagsCode",
    "bodyCrc",
    "crcOk",
    "body",
    "properties",
    "brokerName",
    "term",
    "entryIndex",
)
NUMBERS: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "size": "size",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "tagsCode": "tags_code",
    "term": "term",
    "entryIndex": "entry_index",
}
"""The columns that are copied from a field of the scan."""
BATCH_BYTES: Final = 8 << 20
"""The approximate size in bytes of a batch's records; it bounds the memory of Spark's queues."""


def message_schema(columns: Sequence[str] = COLUMNS, form: ArrowEncoding = PLAIN) -> pyarrow.Schema:
    """Return the Arrow schema of ``columns``."""
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    few, text = form.repeated_type(), form.string()
    types = {
        "topic": few,
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "physicalOffset": pa.int64(),
        "size": pa.int32(),
        "flag": pa.int32(),
        "sysFlag": pa.int32(),
        "bornTimestamp": moment,
        "bornHost": few,
        "storeTimestamp": moment,
        "storeHost": few,
        "reconsumeTimes": pa.int32(),
        "preparedTransactionOffset": pa.int64(),
        "tags": few,
        "keys": text,
        "tagsCode": pa.int64(),
        "bodyCrc": pa.int32(),
        "crcOk": pa.bool_(),
        "body": form.binary(),
        "properties": pa.map_(few, text),
        "brokerName": pa.string(),
        "term": pa.int64(),
        "entryIndex": pa.int64(),
    }
    return pa.schema([(name, types[name]) for name in columns])


def slices(sizes: Sequence[int], bytes_max: int = BATCH_BYTES) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of consecutive rows whose sizes add up to at most ``bytes_max``.

    Each slice has at least one row.
    """
    ends = list(accumulate(sizes))
    first = before = 0
    while first < len(ends):
        end = max(bisect_right(ends, before + bytes_max), first + 1)
        yield first, end
        first, before = end, ends[end - 1]


class ScanRows:
    """Some rows of a scan, one column at a time.

    ``view`` has the scanned bytes; ``record_shift`` is the size of the header before each record.
    """

    def __init__(
        self, scan: Scan, view: memoryview, rows: Sequence[int], record_shift: int
    ) -> None:
        self.view = view
        self._scan = scan
        self._rows = rows
        self._is_whole = len(rows) == len(scan)
        self._shift = record_shift

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, field: str) -> array[int]:
        """Return a column of the scan for these rows."""
        column: array[int] = getattr(self._scan, field)
        if self._is_whole:
            return column
        rows = self._rows
        if isinstance(rows, range):
            return column[rows.start : rows.stop]
        return array("q", [column[row] for row in rows])

    def part(self, rows: range) -> ScanRows:
        """Return the given subrange of these rows."""
        return ScanRows(self._scan, self.view, self._rows[rows.start : rows.stop], self._shift)

    def parts(self, check_crc: bool) -> RecordColumns:
        shift = self._shift - self._scan.frame_offset[0]
        frames = self.numbers("frame_offset")
        return record_parts(self.view, frames, check_crc=check_crc, shift=shift)


@define(slots=True, frozen=True)
class MessageColumns:
    """Builds batches of the given columns."""

    columns: tuple[str, ...] = COLUMNS
    broker_name: str | None = None
    form: ArrowEncoding = PLAIN

    @property
    def schema(self) -> pyarrow.Schema:
        return message_schema(self.columns, self.form)

    def batch(self, rows: ScanRows) -> pyarrow.RecordBatch:
        """Return the batch of ``rows``."""
        import pyarrow as pa

        schema = self.schema
        builder = _Builder(rows, self)
        arrays = [builder.column(field.name, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Builder:
    def __init__(self, rows: ScanRows, columns: MessageColumns) -> None:
        self._rows = rows
        self._form = columns.form
        self._broker_name = columns.broker_name
        self._check_crc = "crcOk" in columns.columns

    def column(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        if name in NUMBERS:
            return self._number(name, kind)
        if name.endswith("Timestamp"):
            field = "born_timestamp_ms" if name == "bornTimestamp" else "store_timestamp_ms"
            return times(self._rows.numbers(field))
        make: Callable[[], pyarrow.Array] = getattr(self, f"_{name}")
        return make()

    @cached_property
    def _parts(self) -> RecordColumns:
        return self._rows.parts(self._check_crc)

    def _number(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        import pyarrow as pa

        numbers = longs(self._rows.numbers(NUMBERS[name]))
        if name in ("term", "entryIndex"):
            import pyarrow.compute as pc

            is_entry = pc.greater_equal(longs(self._rows.numbers("entry_index")), 0)
            return pc.if_else(is_entry, numbers, pa.scalar(None, pa.int64()))
        return numbers.cast(kind, safe=False)

    def _topic(self) -> pyarrow.Array:
        rows = self._rows
        return self._few(rows.numbers("topic_position"), rows.numbers("topic_length"))

    def _brokerName(self) -> pyarrow.Array:
        import pyarrow as pa

        return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self._rows))

    def _tags(self) -> pyarrow.Array:
        return self._few(self._parts.tags_position, self._parts.tags_length)

    def _keys(self) -> pyarrow.Array:
        rows = self._rows
        ranges = rows.numbers("keys_position"), rows.numbers("keys_length")
        return texts(self._form, rows.view, *ranges, with_null=True)

    def _few(
        self,
        positions: array[int],
        lengths: array[int],
        text: Callable[[bytes], str] = java_text,
    ) -> pyarrow.Array:
        return repeated(self._form, self._rows.view, positions, lengths, text)

    def _bodyCrc(self) -> pyarrow.Array:
        import pyarrow as pa

        return longs(self._parts.body_crc).cast(pa.int32(), safe=False)

    def _crcOk(self) -> pyarrow.Array:
        import pyarrow as pa

        return longs(self._parts.crc_agrees).cast(pa.bool_())

    def _bornHost(self) -> pyarrow.Array:
        parts = self._parts
        return self._few(parts.born_host_position, parts.born_host_length, _host)

    def _storeHost(self) -> pyarrow.Array:
        parts = self._parts
        return self._few(parts.store_host_position, parts.store_host_length, _host)

    def _body(self) -> pyarrow.Array:
        import pyarrow as pa

        parts, kind = self._parts, self._form.binary()
        ranges = parts.body_position, parts.body_length
        stored = self._form.parts(kind, self._rows.view, *ranges)
        flags = self._rows.numbers("sys_flag")
        if not any(flag & COMPRESSED for flag in set(flags)):
            return stored
        bodies = [
            inflated(body) if flag & COMPRESSED else body
            for body, flag in zip(stored.to_pylist(), flags, strict=True)
        ]
        return pa.array(bodies, kind)

    def _properties(self) -> pyarrow.Array:
        rows = self._rows
        positions, lengths = (
            rows.numbers("properties_position"),
            rows.numbers("properties_length"),
        )
        return self._split(positions, lengths) or self._decoded(positions, lengths)

    def _split(self, positions: array[int], lengths: array[int]) -> pyarrow.Array | None:
        import pyarrow as pa

        found = property_parts(self._rows.view, positions, lengths)
        if found is None:
            return None
        form, ranges = self._form, (found.value_position, found.value_length)
        values = form.parts(form.string(), self._rows.view, *ranges)
        if not is_utf8(values):
            return None
        names = self._few(found.name_position, found.name_length)
        starts = pa.Array.from_buffers(
            pa.int32(), len(found.starts), [None, pa.py_buffer(found.starts)]
        )
        return pa.MapArray.from_arrays(starts, names, values)

    def _decoded(self, positions: array[int], lengths: array[int]) -> pyarrow.Array:
        import pyarrow as pa

        view = self._rows.view
        maps = [
            decode_properties(bytes(view[start : start + length]))
            for start, length in zip(positions, lengths, strict=True)
        ]
        starts = pa.array(accumulate(map(len, maps), initial=0), pa.int32())
        names = pa.array(chain.from_iterable(maps), pa.string()).dictionary_encode()
        values = chain.from_iterable(each.values() for each in maps)
        return pa.MapArray.from_arrays(
            starts,
            self._form.of_few(names.dictionary, names.indices),
            pa.array(values, self._form.string()),
        )


def json_texts(maps: pyarrow.Array) -> pyarrow.Array:
    """Return maps of strings as JSON objects."""
    import pyarrow as pa

    written = [
        json.dumps(dict(pairs), ensure_ascii=False, separators=(",", ":"))
        for pairs in maps.to_pylist()
    ]
    return pa.array(written, pa.string())


def _host(raw: bytes) -> str:
    return host_text((raw[:-4], int.from_bytes(raw[-4:], "big", signed=True)))
